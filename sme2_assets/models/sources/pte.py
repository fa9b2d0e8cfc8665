"""Programs that somebody else exported: `.pte` files in a models folder, profiled as they are.

Beside `x.pte` may lie `x.etrecord` and the inputs `x.input_0.npy`, `x.input_1.npy`, ...; without inputs
they are made from what the program says about itself. There is no eager model to compare with.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path

from sme2_assets.errors import ExportError
from sme2_assets.models.sources.base import Entries, Listed
from sme2_assets.models.sources.folder import RESERVED, model_folders, visible
from sme2_assets.models.spec import AS_IS, ModelProblem, ModelSpec, cached_sha256, check_name

SUFFIX = ".pte"
# A FlatBuffer's file identifier, after the offset of its root.
_IDENTIFIER = re.compile(rb"ET\d\d")
# A file that is still being copied has not got its head or keeps growing; such small ones are no programs.
_SMALLEST = 64


class PteFiles(Listed):
    """Each `.pte` is a model with the one variant `<name>-as_is`."""

    name = "pte"
    prefix = ""
    automatic = True

    def list(self) -> Entries:
        return [
            _model_of(entry)
            for folder in model_folders()
            for entry in visible(folder)
            if entry.suffix == SUFFIX and entry.is_file()
        ]


def program_at(path: Path) -> ModelSpec:
    """The model that a `.pte` anywhere would be in a models folder; an error says why it would be none."""
    try:
        return _spec(path)
    except OSError as error:
        raise ExportError(f"{path} cannot be read: {error.strerror}.", "Check its path.") from None


def _model_of(path: Path) -> ModelSpec | ModelProblem:
    try:
        return _spec(path)
    except ExportError as error:
        return ModelProblem(path.stem, PteFiles.name, str(path), error.what, error.remedy or "")
    except OSError as error:
        return ModelProblem(path.stem, PteFiles.name, str(path), str(error), "check the file")


def _spec(path: Path) -> ModelSpec:
    check_name(path.stem)
    if path.stem in RESERVED:
        raise ExportError(f"{path.stem!r} is the name of a source of models", "rename the file")
    with path.open("rb") as handle:
        head = handle.read(8)
    if not _IDENTIFIER.fullmatch(head[4:]) or path.stat().st_size < _SMALLEST:
        raise ExportError(
            f"{path.name} is not an ExecuTorch program: a .pte has 'ET12' or similar at byte 4",
            "export the model again, and copy the whole file",
        )
    etrecord = path.with_suffix(".etrecord")
    inputs = tuple(_inputs(path))
    return ModelSpec(
        name=path.stem,
        description=f"A program as it is, {path.stat().st_size:,} bytes"
        f"{', with ETRecord' if etrecord.is_file() else ''}{', with inputs' if inputs else ''}",
        source=PteFiles.name,
        place=str(path),
        identify=functools.partial(_identify, path),
        precisions=(AS_IS,),
        pte=path,
        etrecord=etrecord if etrecord.is_file() else None,
        input_files=inputs,
    )


def _inputs(path: Path) -> list[Path]:
    """`x.input_0.npy` and so on, without a gap."""
    found: list[Path] = []
    while (file := path.with_name(f"{path.stem}.input_{len(found)}.npy")).is_file():
        found.append(file)
    return found


def _identify(path: Path) -> dict[str, str]:
    beside = [path.with_suffix(".etrecord"), *_inputs(path)]
    files = [path, *(file for file in beside if file.is_file())]
    return {file.name.removeprefix(path.stem): cached_sha256(file) for file in files}
