"""Data folders as earlier releases wrote them. Only paths in the recorded commands were shortened.

The first has manifests of version 1, 2 and 3, and the tables that the last of these releases made of its own
two. The second is all that the release of version 4 left of a pair: run folders, tables, the published file.
Of version 5 there are the run folders of a pair: its tables are read as they are.
"""

from __future__ import annotations

import tarfile
from pathlib import Path

# Those with tables.
ARCHIVES = ("old_data_folder.tar.xz", "data_folder_4.tar.xz")
RUN_OF_VERSION = {
    1: "20261115T195549-cba70d-toy_cnn-fp32-linux-sme2_off",
    2: "20261115T195640-2ca60f-toy_cnn-fp32-linux-sme2_off",
    3: "20261115T174250-69bb60-toy_cnn-fp32-emulated-sme2_on",
    4: "20261116T030850-fb1ba5-toy_cnn-fp32-emulated-sme2_on",
    5: "20261116T094002-787d91-toy_cnn-fp32-emulated-sme2_on",
}


def unpack_old_data(folder: Path, *archives: str) -> Path:
    """The data folder of an earlier release, below `folder`; with the runs of all, if none is named."""
    for name in archives or (*ARCHIVES, "run_folders_5.tar.xz"):
        with tarfile.open(Path(__file__).with_name(name)) as archive:
            # Newer Pythons want to know; Debian 12's, which is 3.11.2, does not know the question.
            archive.extraction_filter = getattr(tarfile, "data_filter", None)
            archive.extractall(folder / "old")
    return folder / "old"
