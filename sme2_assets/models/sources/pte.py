"""Programs that were exported elsewhere: `.pte` files in a models folder, profiled as they are.

Next to `x.pte` there may be `x.etrecord`, external weights `x.ptd` (or any other `.ptd`, if it is the only
one and has what the program names), and the inputs `x.input_0.npy`, `x.input_1.npy`, ...; inputs that are not
given are made from the program's own description. Each method is a variant of its own, `x@method=encode`.
There is no eager model to compare with. Names in files are read here without ExecuTorch, as models are listed
without importing it.
"""

from __future__ import annotations

import functools
import mmap
import re
import shutil
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from sme2_assets.errors import ExportError
from sme2_assets.etdump.flatbuffer import Buffer, Malformed, Tables, require
from sme2_assets.models.sources import Entries, Listed
from sme2_assets.models.sources.folder import RESERVED, default_folder, model_folders, visible
from sme2_assets.models.spec import (
    AS_IS,
    FORWARD,
    ModelOption,
    ModelProblem,
    ModelSpec,
    cached_sha256,
    check_name,
    valid_name,
)

SUFFIX = ".pte"
PROGRAM_REMEDY = "export it again with the installed ExecuTorch, or remove the file"
_WEIGHTS = ".ptd"
# A FlatBuffer's file identifier, after the offset of its root.
_IDENTIFIER = re.compile(rb"ET\d\d")
# A file that is still being copied may lack its header or still be growing; one this small is not a program.
_SMALLEST = 64
# After the offset of the root and the identifier: an extended header with the size of the table; the weights
# follow the table.
_HEADER = b"eh00"
# Places of fields: `execution_plan` of a Program, `named_data` of a FlatTensor.
_PROGRAM_METHODS, _WEIGHTS_NAMED = 1, 2


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


def take_in(path: Path, registered: Iterable[ModelSpec | ModelProblem]) -> str:
    """Copies a program and the files that go with it into the models folder; returns its name there.

    The same program keeps its name. If another registered model has that name, the beginning of the program's
    hash is added. A program that is already in a models folder stays where it is.
    """
    if not path.is_file():
        raise ExportError(f"There is no file {path}", "check its path")
    if path.resolve().parent in model_folders():
        return _spec(path).name
    content = cached_sha256(path)
    folder = default_folder()
    name = valid_name(path.stem)
    others = (it.name for it in registered if Path(it.place) != folder.resolve() / f"{it.name}{SUFFIX}")
    if name in (*RESERVED, *others) or _differs(folder / f"{name}{SUFFIX}", content):
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
        options=(ModelOption("method", "str", FORWARD if FORWARD in methods else methods[0], methods),),
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


def method_names(pte: Path) -> tuple[str, ...]:
    """The names, in the order of the file; read again only when the file changes."""
    facts = pte.stat()
    return _method_names(pte, facts.st_mtime_ns, facts.st_size)


@functools.lru_cache(maxsize=4096)
def _method_names(pte: Path, _mtime_ns: int, _size: int) -> tuple[str, ...]:
    with pte.open("rb") as file:
        head = file.read(24)
        table_bytes = int.from_bytes(head[16:24], "little") if head[8:12] == _HEADER else -1
        content = head + file.read(max(table_bytes - len(head), 0) if table_bytes >= 0 else -1)
    try:
        names = _names(Buffer(content), _PROGRAM_METHODS)
    except Malformed as error:
        raise ExportError(f"{pte.name} is broken: {error}", PROGRAM_REMEDY) from None
    if not names:
        raise ExportError(f"{pte.name} has no method at all", PROGRAM_REMEDY)
    return names


def weights_in(ptd: Path) -> tuple[str, ...]:
    """What a file of external weights has, by name; an error if it is none."""
    try:
        return _names(Buffer(ptd), _WEIGHTS_NAMED)
    except Malformed as error:
        raise ExportError(
            f"{ptd.name} is broken: {error}", "copy the .ptd again from where the program was exported"
        ) from None


def names_any(pte: Path, weights: Iterable[str]) -> bool:
    """Whether a program, or a delegate in it, speaks of any of these weights."""
    with pte.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return any(content.find(name.encode()) >= 0 for name in weights)


def _names(buffer: Buffer, field: int) -> tuple[str, ...]:
    """The first fields, which are names, of the tables that the root lists in that field."""
    require(buffer.size >= 8, "it ends before its table")
    start = buffer.follow(np.zeros(1, dtype=np.int64), "the root")
    listed = Tables(buffer, start, (4,) * (field + 1), "the root").targets(field, "a list")
    named = buffer.follow(buffer.vectors(listed, "a list").elements(), "an entry")
    texts = buffer.texts(Tables(buffer, named, (4,), "an entry").targets(0, "a name"), "a name")
    return tuple(texts.values[code] for code in texts.code if code >= 0)
