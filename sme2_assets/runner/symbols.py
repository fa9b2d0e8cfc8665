"""Which function of a program or library an address is in, according to the file on disk.

Belongs here: reading names and boundaries of functions from 64-bit ELF and Mach-O files. Nothing is run.
Addresses count from where the file's first byte is mapped. A function's boundaries come from, in this order:

1. the exported symbol around the address, which also names the function;
2. the unwind tables, which stripped libraries keep (ELF), or the list of function starts (Mach-O);
3. the code itself (ELF for AArch64): hand-written assembly is in neither table, and shows as a gap between
   known functions. There a function starts after a return or jump that no branch crosses.

Where none of these helps, the instruction stands for itself.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sme2_assets.runner import macho
from sme2_assets.toolchain.elf import AARCH64, Elf, Segment

PAGE = 4096
_DAMAGES = (struct.error, IndexError, OverflowError)


class BinaryImage(ABC):
    """The functions of one program or library. ValueError if the file is neither, or is damaged."""

    build_id: str | None
    """Identifies this build, in hexadecimal digits; None if the file has no such id."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self._functions: dict[int, tuple[int, str | None]] = {}

    def function_at(self, address: int) -> tuple[int, str | None]:
        """Where the function around `address` starts, and its name if the file exports it."""
        if address not in self._functions:
            try:
                self._functions[address] = self._find(address)
            except _DAMAGES as error:
                raise ValueError(f"it is damaged: {error}") from error
        return self._functions[address]

    @abstractmethod
    def word_at(self, address: int) -> int | None:
        """The four bytes there as one number; None where the file has nothing for that address."""

    @abstractmethod
    def _find(self, address: int) -> tuple[int, str | None]: ...


def read_image(path: Path) -> BinaryImage:
    """The functions of a file. Each file is read once; ValueError says what is wrong with it."""
    status = path.stat()
    return _image_of_file(path, status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=64)
def _image_of_file(path: Path, _size: int, _mtime_ns: int) -> BinaryImage:
    return image_of(path.read_bytes())


def image_of(content: bytes) -> BinaryImage:
    """The functions of a file's content, or of a mapped image that is not on disk."""
    try:
        if content[:6] == b"\x7fELF\x02\x01":
            return _ElfImage(content)
        if content[:4] == macho.MAGIC:
            return _MachOImage(content)
    except _DAMAGES as error:
        raise ValueError(f"it is damaged: {error}") from error
    raise ValueError("it is neither a 64-bit little-endian ELF nor a 64-bit Mach-O file")


def _text(content: bytes, at: int) -> str:
    return content[at : content.index(b"\0", at)].decode(errors="replace")


def _word(content: bytes, at: int | None) -> int | None:
    return None if at is None or at + 4 > len(content) else int.from_bytes(content[at : at + 4], "little")


# ELF

_PT_LOAD, _PT_DYNAMIC, _PT_NOTE, _PT_GNU_EH_FRAME = 1, 2, 4, 0x6474E550
_EXECUTE_AND_READ = 5
_DT_HASH, _DT_STRTAB, _DT_SYMTAB, _DT_STRSZ, _DT_GNU_HASH = 4, 5, 6, 10, 0x6FFFFEF5
_NT_GNU_BUILD_ID = 3
_STT_TLS, _SHN_ABS = 6, 0xFFF1
_GLOBAL_OR_WEAK, _INTERNAL_OR_HIDDEN = (1, 2), (1, 2)
_SYMBOL = np.dtype(
    [("name", "<u4"), ("info", "u1"), ("other", "u1"), ("section", "<u2"), ("value", "<u8"), ("size", "<u8")]
)


class _ElfImage(BinaryImage):
    def __init__(self, content: bytes) -> None:
        super().__init__(content)
        elf = Elf(content)
        self.machine, headers = elf.machine, elf.segments
        self.loaded = [header for header in headers if header.kind == _PT_LOAD]
        if not self.loaded:
            raise IndexError("nothing in it is loaded")
        self.first = min(header.address for header in self.loaded) // PAGE * PAGE
        self.build_id = next((found for h in headers if (found := self._build_id(h))), None)
        self.dynamic = next((header for header in headers if header.kind == _PT_DYNAMIC), None)
        self.unwind = next((header.address for header in headers if header.kind == _PT_GNU_EH_FRAME), None)
        self._encodings: dict[int, int] = {}
        self._gaps: dict[int, npt.NDArray[np.int64]] = {}

    def word_at(self, address: int) -> int | None:
        return _word(self.content, self._offset(address + self.first))

    def _find(self, address: int) -> tuple[int, str | None]:
        place = address + self.first
        start = self._unwound_start(place)
        if start is None and self.machine == AARCH64:
            start = self._start_in_gap(place)
        if symbol := self._symbol_at(place):
            return symbol[0] - self.first, symbol[1]
        return (place if start is None else start) - self.first, None

    def _build_id(self, header: Segment) -> str | None:
        if header.kind != _PT_NOTE:
            return None
        at, end = header.offset, header.offset + header.size
        while at + 12 <= end:
            name_size, size, kind = struct.unpack_from("<III", self.content, at)
            body = at + 12 + -(-name_size // 4) * 4
            if kind == _NT_GNU_BUILD_ID and self.content[at + 12 : at + 16] == b"GNU\0":
                return self.content[body : body + size].hex()
            at = body + -(-size // 4) * 4
        return None

    def _offset(self, place: int) -> int | None:
        """The offset in the file of what is mapped at `place`."""
        for header in self.loaded:
            if header.address <= place < header.address + header.size:
                return header.offset + place - header.address
        return None

    def _offset_of_table(self, place: int) -> int:
        offset = self._offset(place)
        if offset is None:
            raise IndexError("a table is outside the file")
        return offset

    # Names, chosen as dladdr of the C library does.

    @cached_property
    def _symbols(self) -> tuple[npt.NDArray[np.void], int]:
        """Exported symbols in table order, and where their names are."""
        if self.dynamic is None:
            return np.zeros(0, _SYMBOL), 0
        entries: dict[int, int] = {}
        for tag, value in struct.iter_unpack(
            "<QQ", self.content[self.dynamic.offset : self.dynamic.offset + self.dynamic.size // 16 * 16]
        ):
            if tag == 0:
                break
            entries.setdefault(tag, value)
        if not {_DT_SYMTAB, _DT_STRTAB} <= entries.keys():
            return np.zeros(0, _SYMBOL), 0
        if _DT_GNU_HASH in entries:
            first, end = self._hashed(self._offset_of_table(entries[_DT_GNU_HASH]))
        elif _DT_HASH in entries:
            first = 0
            (end,) = struct.unpack_from("<I", self.content, self._offset_of_table(entries[_DT_HASH]) + 4)
        else:
            return np.zeros(0, _SYMBOL), 0
        at = self._offset_of_table(entries[_DT_SYMTAB])
        table = np.frombuffer(self.content, _SYMBOL, max(end - first, 0), at + first * _SYMBOL.itemsize)
        kept = (table["info"] & 0xF != _STT_TLS) & (table["section"] != _SHN_ABS)
        kept &= (table["section"] != 0) | (table["value"] != 0)
        kept &= table["name"] < entries.get(_DT_STRSZ, 1 << 32)
        if _DT_GNU_HASH not in entries:  # the other kind of table lists local symbols too
            kept &= np.isin(table["info"] >> 4, _GLOBAL_OR_WEAK)
            kept &= ~np.isin(table["other"] & 3, _INTERNAL_OR_HIDDEN)
        return table[kept], self._offset_of_table(entries[_DT_STRTAB])

    def _hashed(self, at: int) -> tuple[int, int]:
        """Start and end of the symbols that a GNU hash table lists; they are the last of their table."""
        buckets, first, bloom, _ = struct.unpack_from("<IIII", self.content, at)
        at += 16 + 8 * bloom
        last = max(struct.unpack_from(f"<{buckets}I", self.content, at), default=0)
        if last < first or last == 0:
            return first, first
        chain = at + 4 * buckets
        while not struct.unpack_from("<I", self.content, chain + 4 * (last - first))[0] & 1:
            last += 1
        return first, last + 1

    def _symbol_at(self, place: int) -> tuple[int, str] | None:
        """The symbol around `place` that starts last; of several, the first in the table."""
        symbols, names = self._symbols
        start = symbols["value"]
        # A symbol without a size covers only its own address.
        sized = (symbols["size"] != 0) & (symbols["section"] != 0)
        around = (start <= place) & (np.where(sized, place - start < symbols["size"], start == place))
        found = np.flatnonzero(around)
        if len(found) == 0:
            return None
        best = found[np.argmax(start[found])]
        return int(start[best]), _text(self.content, names + int(symbols["name"][best]))

    # Boundaries by the unwind tables

    @cached_property
    def _unwind_starts(self) -> npt.NDArray[np.int64]:
        """Starts and descriptions of functions, ordered by start; empty if the table has another form."""
        nothing = np.zeros((0, 2), np.int64)
        if self.unwind is None or (at := self._offset(self.unwind)) is None:
            return nothing
        # Version and encodings: linkers write pairs of 32-bit offsets from the table's own start.
        if self.content[at : at + 4] != b"\x01\x1b\x03\x3b":
            return nothing
        (count,) = struct.unpack_from("<I", self.content, at + 8)
        pairs = np.frombuffer(self.content, "<i4", 2 * count, at + 12).reshape(count, 2)
        return pairs.astype(np.int64) + self.unwind

    def _described_end(self, start: int, description: int) -> int:
        """Where a function ends; its start if the description is in a form not known here."""
        at = self._offset_of_table(description)
        _length, back = struct.unpack_from("<II", self.content, at)
        width = {0: 8, 2: 2, 3: 4, 4: 8}.get(self._encoding(at + 4 - back) & 7)
        if width is None:
            return start
        return start + int.from_bytes(self.content[at + 8 + width : at + 8 + 2 * width], "little")

    def _encoding(self, at: int) -> int:
        """How the descriptions that share the record at `at` write addresses."""
        if at not in self._encodings:
            self._encodings[at] = _pointer_encoding(self.content, at)
        return self._encodings[at]

    def _unwound_start(self, place: int) -> int | None:
        table = self._unwind_starts
        before = int(np.searchsorted(table[:, 0], place, side="right")) - 1
        if before < 0:
            return None
        start, description = map(int, table[before])
        return start if place < self._described_end(start, description) else None

    # Boundaries by the code

    def _start_in_gap(self, place: int) -> int | None:
        text = [h for h in self.loaded if h.flags & _EXECUTE_AND_READ == _EXECUTE_AND_READ]
        around = next((h for h in text if h.address <= place < h.address + h.size), None)
        if around is None:
            return None
        low, high = around.address, around.address + around.size
        table = self._unwind_starts
        after = int(np.searchsorted(table[:, 0], place, side="right"))
        if after > 0:
            low = max(low, self._described_end(*map(int, table[after - 1])))
        if after < len(table):
            high = min(high, int(table[after, 0]))
        if low > place or high <= place or low % 4:
            return None
        if low not in self._gaps:
            words = np.frombuffer(
                self.content, "<u4", (high - low) // 4, around.offset + low - around.address
            )
            self._gaps[low] = low + 4 * function_starts(words)
        starts = self._gaps[low]
        at = int(np.searchsorted(starts, place, side="right")) - 1
        return None if at < 0 else int(starts[at])


def _pointer_encoding(content: bytes, at: int) -> int:
    """The encoding of addresses that a common record (CIE) of .eh_frame specifies; 0 (absolute) if none."""
    version = content[at + 8]
    augmentation = _text(content, at + 9)
    at += 9 + len(augmentation) + 1
    if not augmentation.startswith("z"):
        return 0
    for _ in range(2):  # the factors of code and data
        _, at = _leb128(content, at)
    at = at + 1 if version == 1 else _leb128(content, at)[1]  # the register of the return address
    _, at = _leb128(content, at)  # the length of what follows
    for letter in augmentation[1:]:
        if letter == "R":
            return content[at]
        if letter == "P":
            width = {0: 8, 2: 2, 3: 4, 4: 8}.get(content[at] & 7)
            if width is None or content[at] & 0x70 == 0x50:
                raise IndexError("a personality of an unknown form")
            at += 1 + width
        elif letter == "L":
            at += 1
    return 0


def _leb128(content: bytes, at: int) -> tuple[int, int]:
    """A variable-length unsigned number, and where it ends."""
    value = shift = 0
    while True:
        byte = content[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if not byte & 0x80:
            return value, at


_NOP = 0xD503201F


def function_starts(code: npt.NDArray[np.uint32]) -> npt.NDArray[np.int64]:
    """Where functions begin in AArch64 code: after a return or jump that no branch crosses."""
    words = code.astype(np.int64)
    count = len(words)
    here = np.arange(count)
    target = here + _branch_distance(words)
    inside = (target != here) & (target >= 0) & (target < count)
    # How many branches cross the boundary before each word, as differences from boundary to boundary.
    across = np.zeros(count + 1, np.int64)
    np.add.at(across, np.minimum(here, target)[inside] + 1, 1)
    np.add.at(across, np.maximum(here, target)[inside] + 1, -1)
    is_open = np.cumsum(across)[:count] != 0
    not_padding = np.flatnonzero((words != 0) & (words != _NOP))
    jump = words & 0xFC000000 == 0x14000000
    branch_to_register_or_return = words & 0xFFBF0000 == 0xD61F0000
    ends = (jump | branch_to_register_or_return)[not_padding]
    after_an_end = np.concatenate([[True], ends])[: len(not_padding)]
    return not_padding[after_an_end & ~is_open[not_padding]]


def _branch_distance(words: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """How many words away each branch leads; 0 for anything else, including calls."""
    jump = words & 0xFC000000 == 0x14000000
    on_condition_or_zero = (words & 0xFF000000 == 0x54000000) | (words & 0x7E000000 == 0x34000000)
    on_bit = words & 0x7E000000 == 0x36000000
    return np.select(
        [jump, on_condition_or_zero, on_bit],
        [_signed(words & 0x3FFFFFF, 26), _signed(words >> 5 & 0x7FFFF, 19), _signed(words >> 5 & 0x3FFF, 14)],
        0,
    )


def _signed(values: npt.NDArray[np.int64], bits: int) -> npt.NDArray[np.int64]:
    sign = 1 << (bits - 1)
    return (values ^ sign) - sign


# Mach-O


class _MachOImage(BinaryImage):
    def __init__(self, content: bytes) -> None:
        super().__init__(content)
        self.build_id = None
        self.segments: list[tuple[int, int, int]] = []  # address, offset, size in the file
        self.first = 0
        names: dict[int, str] = {}
        starts = (0, 0)
        for command, at in macho.load_commands(content):
            if command == macho.SEGMENT:
                address, _, offset, length = struct.unpack_from("<QQQQ", content, at + 24)
                self.segments.append((address, offset, length))
                if content[at + 8 : at + 24].rstrip(b"\0") == b"__TEXT":
                    self.first = address
            elif command == macho.UUID:
                self.build_id = content[at + 8 : at + 24].hex()
            elif command == macho.SYMBOLS:
                for address, name in macho.defined_symbols(content, at):
                    names.setdefault(address, name)
            elif command == macho.FUNCTION_STARTS:
                starts = struct.unpack_from("<II", content, at + 8)
        self.names = names
        self.named = np.array(sorted(names), np.int64)
        self.starts = self._function_starts(*starts)

    def _function_starts(self, offset: int, size: int) -> npt.NDArray[np.int64]:
        starts, at, place = [], offset, self.first
        while at < offset + size:
            step, at = _leb128(self.content, at)
            if step == 0:
                break
            place += step
            starts.append(place)
        return np.array(starts, np.int64)

    def word_at(self, address: int) -> int | None:
        place = address + self.first
        for start, offset, size in self.segments:
            if start <= place < start + size:
                return _word(self.content, offset + place - start)
        return None

    def _find(self, address: int) -> tuple[int, str | None]:
        place = address + self.first
        start = _last_before(self.starts, place)
        name = _last_before(self.named, place)
        # Symbols have no size here: one before the start of the function belongs to another.
        if name is not None and (start is None or start <= name):
            return name - self.first, self.names[name]
        return (place if start is None else start) - self.first, None


def _last_before(places: npt.NDArray[np.int64], place: int) -> int | None:
    at = int(np.searchsorted(places, place, side="right")) - 1
    return None if at < 0 else int(places[at])
