"""Files that people give with a model: inputs of their own, and libraries of kernels.

They are copied into the data folder under the hash of their content, and the hash is an option of the variant
(`toy_cnn@inputs=1f0c2a9be4d7`), so a measurement can be repeated when the originals are gone.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from pathlib import Path

import numpy as np

from sme2_assets.errors import ExportError
from sme2_assets.store import default_data_root

_NUMBERED = re.compile(r"(?:input|arr)_(\d+)")
_NAME = re.compile(r"[A-Za-z_]\w*")


def store_inputs(path: Path) -> str:
    """Store inputs (a .npz file, or a folder of .npy files) and return their key."""
    try:
        if path.is_dir():
            arrays = {file.stem: np.load(file, allow_pickle=False) for file in sorted(path.glob("*.npy"))}
        else:
            with np.load(path, allow_pickle=False) as file:
                arrays = dict(file)
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise ExportError(
            f"The inputs {path} cannot be read ({error})",
            "give a .npz file (np.savez), or a folder of .npy files (np.save) without Python objects",
        ) from error
    if not arrays or not all(_NAME.fullmatch(name) for name in arrays):
        raise ExportError(
            f"The inputs {path} have no arrays, or names that are not valid: {', '.join(arrays) or 'none'}",
            "name them input_0, input_1, ... in their order, or as the parameters of forward()",
        )
    digest = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {array.dtype.str} {array.shape} ".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    key = digest.hexdigest()[:12]
    folder = _folder() / f"inputs-{key}"
    if not folder.is_dir():
        staged = folder.with_name(f".{folder.name}.part")
        shutil.rmtree(staged, ignore_errors=True)
        staged.mkdir(parents=True)
        for name, array in arrays.items():
            np.save(staged / f"{name}.npy", np.ascontiguousarray(array))
        staged.rename(folder)
    return key


def store_library(path: Path) -> str:
    """Store a library of kernels and return its key."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ExportError(f"The library {path} cannot be read: {error.strerror}", "check its path") from None
    if content[:4] not in (b"\x7fELF", b"\xcf\xfa\xed\xfe"):
        raise ExportError(
            f"{path} is not a library that a runner can load", "give the .so or .dylib with the kernels"
        )
    key = hashlib.sha256(content).hexdigest()[:12]
    target = _folder() / f"ops-{key}{path.suffix}"
    if not target.is_file():
        target.parent.mkdir(parents=True, exist_ok=True)
        staged = target.with_name(f".{target.name}.part")
        staged.write_bytes(content)
        staged.replace(target)
    return key


def stored_inputs(key: str) -> tuple[Path, ...]:
    """The files, in the order of their numbers if they have any."""

    def place(file: Path) -> tuple[int, str]:
        found = _NUMBERED.fullmatch(file.stem)
        return (int(found[1]) if found else 0, file.stem)

    return tuple(sorted(_stored(f"inputs-{key}").glob("*.npy"), key=place))


def stored_library(key: str) -> Path:
    return _stored(f"ops-{key}*")


def is_numbered(files: tuple[Path, ...]) -> bool:
    """Whether the file names give an order, not the names of parameters."""
    return all(_NUMBERED.fullmatch(file.stem.rpartition(".")[2]) for file in files)


def _folder() -> Path:
    return default_data_root() / "models" / ".given"


def _stored(pattern: str) -> Path:
    found = sorted(_folder().glob(pattern))
    if not found:
        raise ExportError(
            f"{pattern.rstrip('*')} is not in {_folder()}",
            "give the file again: `sme2 profile MODEL --inputs FILE` or `--op-library FILE`",
        )
    return found[0]
