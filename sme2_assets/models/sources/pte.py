"""Programs that were exported elsewhere: `.pte` files in a models folder, profiled as they are.

Next to `x.pte` there may be `x.etrecord`, external weights `x.ptd` (or any other `.ptd`, if it is the only
one and has what the program names), and the inputs `x.input_0.npy`, `x.input_1.npy`, ...; inputs that are not
given are made from the program's own description. Each method is a variant of its own, `x@method=encode`.
There is no eager model to compare with.
"""

from __future__ import annotations

import functools
import re
import shutil
from pathlib import Path

from sme2_assets.errors import ExportError
from sme2_assets.models.methods import default_method, method_names, names_any, weights_in
from sme2_assets.models.sources.base import Entries, Listed
from sme2_assets.models.sources.folder import RESERVED, default_folder, model_folders, visible
from sme2_assets.models.spec import (
    AS_IS,
    ModelOption,
    ModelProblem,
    ModelSpec,
    cached_sha256,
    check_name,
    valid_name,
)

SUFFIX = ".pte"
_WEIGHTS = ".ptd"
# A FlatBuffer's file identifier, after the offset of its root.
_IDENTIFIER = re.compile(rb"ET\d\d")
# A file that is still being copied may lack its header or still be growing; one this small is not a program.
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


def take_in(path: Path) -> str:
    """Copies a program and the files that go with it into the models folder; returns its name there.

    The same program keeps its name. If another model has that name, the beginning of the program's hash is
    added. A program that is already in a models folder stays where it is.
    """
    if not path.is_file():
        raise ExportError(f"There is no file {path}", "check its path")
    if path.resolve().parent in model_folders():
        return _spec(path).name
    content = cached_sha256(path)
    folder = default_folder()
    name = valid_name(path.stem)
    if name in (*RESERVED, *_names_of_others()) or _differs(folder / f"{name}{SUFFIX}", content):
        name = f"{name}_{content[:8]}"
    folder.mkdir(parents=True, exist_ok=True)
    for suffix, file in (*_beside(path).items(), (SUFFIX, path)):
        target = folder / f"{name}{suffix}"
        if target.resolve() == file.resolve() or (
            target.is_file() and not _differs(target, cached_sha256(file))
        ):
            continue
        staged = target.with_name(f".{target.name}.part")
        shutil.copyfile(file, staged)
        staged.replace(target)
    program_at(folder / f"{name}{SUFFIX}")
    return name


def _names_of_others() -> set[str]:
    """Names of models that are not programs in the default folder."""
    from sme2_assets.models.sources import all_sources

    return {
        entry.name
        for source in all_sources()
        if source.automatic
        for entry in source.list()
        if Path(entry.place) != default_folder().resolve() / f"{entry.name}{SUFFIX}"
    }


def _differs(file: Path, sha256: str) -> bool:
    return file.is_file() and cached_sha256(file) != sha256


def program_at(path: Path) -> ModelSpec:
    """The model that a `.pte` anywhere would be in a models folder; an error says why it cannot be one."""
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
    methods = method_names(path)
    files = _beside(path)
    etrecord, data = files.pop(".etrecord", None), files.pop(_WEIGHTS, None)
    inputs = tuple(files.values())
    beside = {"ETRecord": etrecord, "inputs": inputs, "external weights": data}
    return ModelSpec(
        name=path.stem,
        description=f"A program as it is, {path.stat().st_size:,} bytes"
        f"{''.join(f', with {what}' for what, there in beside.items() if there)}",
        source=PteFiles.name,
        place=str(path),
        identify=functools.partial(_identify, path),
        precisions=(AS_IS,),
        options=(ModelOption("method", "str", default_method(methods), methods),),
        pte=path,
        etrecord=etrecord,
        data=data,
        input_files=inputs,
    )


def _beside(path: Path) -> dict[str, Path]:
    """The files that go with a program, by what follows its name; inputs are last, without a gap."""
    found = {".etrecord": path.with_suffix(".etrecord"), _WEIGHTS: path.with_suffix(_WEIGHTS)}
    found = {suffix: file for suffix, file in found.items() if file.is_file()}
    if _WEIGHTS not in found and (other := _only_weights(path)):
        found[_WEIGHTS] = other
    number = 0
    while (file := path.with_name(f"{path.stem}.input_{number}.npy")).is_file():
        found[f".input_{number}.npy"] = file
        number += 1
    return found


def _only_weights(path: Path) -> Path | None:
    """The only external weights in the folder, if the program names them."""
    files = [file for file in path.parent.glob(f"*{_WEIGHTS}") if file.is_file()]
    if len(files) != 1:
        return None
    try:
        return files[0] if names_any(path, weights_in(files[0])) else None
    except ExportError:
        return None


def _identify(path: Path) -> dict[str, str]:
    return {suffix: cached_sha256(file) for suffix, file in {SUFFIX: path, **_beside(path)}.items()}
