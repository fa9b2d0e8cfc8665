"""The one reader of 64-bit Mach-O files. Written from Apple's headers; it has never been run on macOS."""

from __future__ import annotations

import struct
from collections.abc import Iterator

MAGIC = b"\xcf\xfa\xed\xfe"
SYMBOLS, SEGMENT, UUID, FUNCTION_STARTS = 0x2, 0x19, 0x1B, 0x26

_DEBUG_SYMBOL, _KIND, _IN_SECTION = 0xE0, 0x0E, 0x0E


def load_commands(data: bytes) -> Iterator[tuple[int, int]]:
    """Each load command: what it is, and where it begins."""
    (count,) = struct.unpack_from("<I", data, 16)
    at = 32
    for _ in range(count):
        command, size = struct.unpack_from("<II", data, at)
        if size < 8:
            raise IndexError("a load command of no size")
        yield command, at
        at += size


def defined_symbols(data: bytes, at: int) -> Iterator[tuple[int, str]]:
    """Address and name of each symbol that is defined here, by the SYMBOLS command at `at`.

    The underscore that the compiler puts before every C name is removed.
    """
    offset, count, names, size = struct.unpack_from("<IIII", data, at + 8)
    for name, kind, _, _, address in struct.iter_unpack("<IBBHQ", data[offset : offset + 16 * count]):
        if kind & _KIND == _IN_SECTION and not kind & _DEBUG_SYMBOL:
            start, end = names + name, names + size
            stop = data.find(b"\0", start, end)
            text = data[start : end if stop < 0 else stop]
            yield address, text.decode(errors="replace").removeprefix("_")
