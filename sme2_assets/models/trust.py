"""Which model files may run. A model file is code, and a data folder can come from anybody.

A folder is trusted by naming it in SME2_MODELS, or once by `sme2 models --trust` or `sme2 onboard`.
The list of trusted folders is in the user's configuration, never in the data folder itself.
"""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs

from sme2_assets.errors import ExportError
from sme2_assets.store import write_text_atomically

#: `1` where nobody can be asked and everything is the user's own: a container, a CI job.
VARIABLE = "SME2_TRUST_MODELS"


def trust(folder: Path) -> Path:
    """Lets the code of a models folder run from now on; returns the file that records it."""
    place = str(folder.resolve())
    # The list has a folder per line, in UTF-8: what cannot be written so might be read as another folder.
    if not place.isprintable():
        raise ExportError(
            f"{place!r} cannot be trusted: its name has characters that cannot be shown", "rename the folder"
        )
    if place not in _trusted():
        write_text_atomically(_list(), "".join(f"{each}\n" for each in (*_trusted(), place)))
    return _list()


def is_trusted(folder: Path) -> bool:
    return os.environ.get(VARIABLE) == "1" or str(folder.resolve()) in _trusted()


def require_trusted(path: Path, folder: Path) -> None:
    if not is_trusted(folder):
        raise ExportError(
            f"{path} is code, and nobody has allowed the code in {folder} to run",
            "read it; if it is yours or you trust it, run `sme2 models --trust` once for this data folder",
        )


def _list() -> Path:
    return platformdirs.user_config_path("sme2_assets", appauthor=False) / "trusted_model_folders"


def _trusted() -> list[str]:
    try:
        # Only "\n" ends a line: `splitlines` and the default for newlines know others, which a name may have.
        with _list().open(encoding="utf-8", errors="surrogateescape", newline="") as file:
            return [line for line in file.read().split("\n") if line]
    except FileNotFoundError:
        return []
