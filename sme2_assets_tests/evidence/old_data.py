"""Run folders as earlier releases wrote them: manifests of version 1, 2 and 3.

With the tables that the last of these releases made of its own two. Only paths in the recorded commands were
shortened.
"""

from __future__ import annotations

import tarfile
from pathlib import Path

RUN_OF_VERSION = {
    1: "20261115T195549-cba70d-toy_cnn-fp32-linux-sme2_off",
    2: "20261115T195640-2ca60f-toy_cnn-fp32-linux-sme2_off",
    3: "20261115T174250-69bb60-toy_cnn-fp32-emulated-sme2_on",
}


def unpack_old_data(folder: Path) -> Path:
    """The data folder of an earlier release, below `folder`."""
    with tarfile.open(Path(__file__).with_name("old_data_folder.tar.xz")) as archive:
        archive.extractall(folder / "old", filter="data")
    return folder / "old"
