"""Which methods a `.pte` has, read without ExecuTorch: models are listed without importing it."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np

from sme2_assets.errors import ExportError
from sme2_assets.etdump.flatbuffer import Buffer, Malformed, Tables, require

PROGRAM_REMEDY = "export it again with the installed ExecuTorch, or remove the file"
FORWARD = "forward"
# After the offset of the root and the identifier: an extended header with the size of the table; the weights
# follow the table.
_HEADER = b"eh00"


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
        names = _names(Buffer(content))
    except Malformed as error:
        raise ExportError(f"{pte.name} is broken: {error}", PROGRAM_REMEDY) from None
    if not names:
        raise ExportError(f"{pte.name} has no method at all", PROGRAM_REMEDY)
    return names


def _names(buffer: Buffer) -> tuple[str, ...]:
    require(buffer.size >= 8, "it ends before its table")
    # Fields of the table Program: version, execution_plan. Of ExecutionPlan: name.
    programs = Tables(
        buffer, buffer.follow(np.zeros(1, dtype=np.int64), "the program"), (4, 4), "the program"
    )
    plans = buffer.vectors(programs.targets(1, "methods"), "methods")
    methods = Tables(buffer, buffer.follow(plans.elements(), "a method"), (4,), "a method")
    texts = buffer.texts(methods.targets(0, "the name of a method"), "the name of a method")
    return tuple(texts.values[code] for code in texts.code if code >= 0)
