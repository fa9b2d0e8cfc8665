"""The one reader of ELF files: which CPU a file is for, what it needs to start, which functions are in it.

Reads files on disk; nothing is run. Only 64-bit little-endian files are understood.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

AARCH64 = 183
MACHINES = {"aarch64": AARCH64, "x86_64": 62}

_MAGIC = b"\x7fELF"
_SYMBOLS, _DYNAMIC, _DYNAMIC_SYMBOLS = 2, 6, 11
_NEEDED = 1
_FUNCTION = 2


class Segment(NamedTuple):
    """A part of the file as it is mapped into memory; `size` is its size in the file."""

    kind: int
    flags: int
    offset: int
    address: int
    physical_address: int
    size: int


class _Section(NamedTuple):
    name: int
    kind: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    alignment: int
    entry_size: int


@dataclass(frozen=True)
class Needs:
    """The machine a program or library is for, its loader, and the libraries it names."""

    machine: int
    loader: str | None
    libraries: tuple[str, ...]


class Elf:
    """An ELF file in memory. Anything else, or a damaged file, is a ValueError or struct.error."""

    def __init__(self, data: bytes) -> None:
        if data[:4] != _MAGIC:
            raise ValueError("not an ELF file")
        if data[4:6] != b"\x02\x01":
            raise ValueError("not for a 64-bit little-endian machine")
        self.data = data
        (self.machine,) = struct.unpack_from("<H", data, 18)

    @cached_property
    def segments(self) -> list[Segment]:
        (table,) = struct.unpack_from("<Q", self.data, 32)
        size, count = struct.unpack_from("<HH", self.data, 54)
        return [
            Segment(*struct.unpack_from("<IIQQQQ", self.data, table + index * size)) for index in range(count)
        ]

    @cached_property
    def sections(self) -> list[_Section]:
        (table,) = struct.unpack_from("<Q", self.data, 40)
        size, count = struct.unpack_from("<HH", self.data, 58)
        return [
            _Section(*struct.unpack_from("<IIQQQQIIQQ", self.data, table + index * size))
            for index in range(count)
        ]

    def needs(self) -> Needs:
        if not self.sections:
            raise ValueError("an ELF file without a section table")
        (names,) = struct.unpack_from("<H", self.data, 62)
        loader = next((s for s in self.sections if self._text(names, s.name) == ".interp"), None)
        libraries = [
            self._text(section.link, value)
            for section in self.sections
            if section.kind == _DYNAMIC
            for tag, value in struct.iter_unpack("<QQ", self._content(section))
            if tag == _NEEDED
        ]
        path = None if loader is None else self._content(loader).rstrip(b"\0").decode(errors="replace")
        return Needs(self.machine, path, tuple(libraries))

    def functions(self) -> set[str]:
        """The functions that the file defines, as far as it names them."""
        return {
            self._text(section.link, name)
            for section in self.sections
            if section.kind in (_SYMBOLS, _DYNAMIC_SYMBOLS)
            for name, info, _, defined_in, _, _ in struct.iter_unpack("<IBBHQQ", self._content(section))
            if info & 0xF == _FUNCTION and defined_in != 0
        }

    def _content(self, section: _Section) -> bytes:
        return self.data[section.offset : section.offset + section.size]

    def _text(self, table: int, at: int) -> str:
        """A string from the string table in section number `table`."""
        names = self.sections[table]
        start, end = names.offset + at, names.offset + names.size
        stop = self.data.find(b"\0", start, end)
        if stop < 0:
            raise ValueError("a damaged ELF file")
        return self.data[start:stop].decode(errors="replace")


def machine_of(path: Path) -> int | None:
    """The CPU that an ELF file is for; None if it is not an ELF file."""
    with path.open("rb") as handle:
        head = handle.read(20)
    return int.from_bytes(head[18:20], "little") if head[:4] == _MAGIC else None


def read_needs(path: Path) -> Needs:
    """What a program or library needs to start; a ValueError says what is wrong with the file."""
    try:
        return Elf(path.read_bytes()).needs()
    except (struct.error, IndexError) as error:
        raise ValueError(f"{path.name} is a damaged ELF file") from error
    except ValueError as error:
        raise ValueError(f"{path.name} is {error}") from error
