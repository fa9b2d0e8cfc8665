"""What an ELF file says it needs to run. Reads the file as it lies on the disk; nothing is run."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

AARCH64 = 183

_PT_LOAD, _PT_DYNAMIC, _PT_INTERP = 1, 2, 3
_DT_NULL, _DT_NEEDED, _DT_STRTAB = 0, 1, 5


@dataclass(frozen=True)
class Needs:
    """The machine a program or library is for, its loader, and the libraries it names."""

    machine: int
    loader: str | None
    libraries: tuple[str, ...]


@dataclass(frozen=True)
class _Segment:
    kind: int
    offset: int
    address: int
    size: int


def read_needs(path: Path) -> Needs:
    """ValueError says what is wrong with the file."""
    content = path.read_bytes()
    if content[:4] != b"\x7fELF":
        raise ValueError(f"{path.name} is no ELF file")
    if content[4:6] != b"\x02\x01":
        raise ValueError(f"{path.name} is not for a 64-bit little-endian machine")
    try:
        return _needs(content)
    except (struct.error, ValueError, StopIteration) as error:
        raise ValueError(f"{path.name} is a damaged ELF file") from error


def _needs(content: bytes) -> Needs:
    (machine,) = struct.unpack_from("<H", content, 18)
    segments = list(_segments(content))
    loader = next(
        (_text(content, segment.offset) for segment in segments if segment.kind == _PT_INTERP), None
    )
    entries = [
        entry
        for segment in segments
        if segment.kind == _PT_DYNAMIC
        for entry in _dynamic_entries(content, segment)
    ]
    if not any(tag == _DT_NEEDED for tag, _ in entries):
        return Needs(machine, loader, ())
    names = _file_offset(segments, next(value for tag, value in entries if tag == _DT_STRTAB))
    libraries = tuple(_text(content, names + value) for tag, value in entries if tag == _DT_NEEDED)
    return Needs(machine, loader, libraries)


def _segments(content: bytes) -> Iterator[_Segment]:
    (table,) = struct.unpack_from("<Q", content, 32)
    entry_size, count = struct.unpack_from("<HH", content, 54)
    for index in range(count):
        kind, _, offset, address, _, size = struct.unpack_from("<IIQQQQ", content, table + index * entry_size)
        yield _Segment(kind, offset, address, size)


def _dynamic_entries(content: bytes, segment: _Segment) -> Iterator[tuple[int, int]]:
    for at in range(segment.offset, segment.offset + segment.size, 16):
        tag, value = struct.unpack_from("<QQ", content, at)
        if tag == _DT_NULL:
            return
        yield tag, value


def _file_offset(segments: list[_Segment], address: int) -> int:
    """Where in the file that is which will be at `address` in memory."""
    return next(
        address - segment.address + segment.offset
        for segment in segments
        if segment.kind == _PT_LOAD and segment.address <= address < segment.address + segment.size
    )


def _text(content: bytes, at: int) -> str:
    return content[at : content.index(b"\0", at)].decode()
