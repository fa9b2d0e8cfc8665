"""Names in a `.pte` and its external weights, without ExecuTorch: models are listed without importing it."""

from __future__ import annotations

import functools
import mmap
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from sme2_assets.errors import ExportError
from sme2_assets.etdump.flatbuffer import Buffer, Malformed, Tables, require

PROGRAM_REMEDY = "export it again with the installed ExecuTorch, or remove the file"
FORWARD = "forward"
# After the offset of the root and the identifier: an extended header with the size of the table; the weights
# follow the table.
_HEADER = b"eh00"
# Places of fields: `execution_plan` of a Program, `named_data` of a FlatTensor.
_PROGRAM_METHODS, _WEIGHTS_NAMED = 1, 2


def method_names(pte: Path) -> tuple[str, ...]:
    """The names, in the order of the file; read again only when the file changes."""
    facts = pte.stat()
    return _method_names(pte, facts.st_mtime_ns, facts.st_size)


def default_method(names: tuple[str, ...]) -> str:
    """`forward`, or the first method if the program has none of that name."""
    return FORWARD if FORWARD in names else names[0]


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
