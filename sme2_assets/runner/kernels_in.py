"""Which SME kernels are inside a binary, and by what evidence.

Belongs here: reading ELF and Mach-O files on disk. Nothing is run.

There are three kinds of evidence; the best that the file offers is used and named:
`symbols`: the symbol table names functions, so kernels are known by name.
`instructions`: the file is stripped of names; words in its code are SME outer products, which no other
instruction set has. They show that there is SME code, but not which kernels, nor whether SME or SME2.
`strings`: neither; only text that looks like a kernel's name. It may be a message about a kernel.

Only kernels that compute count. XNNPACK keeps functions that pack weights for SME kernels even where it is
built without those kernels; they are dead code there.
"""

from __future__ import annotations

import mmap
import re
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sme2_assets.analysis.kernel_names import COMPUTE, OTHER_LIBRARY, parse_kernel
from sme2_assets.errors import BuildError
from sme2_assets.runner import macho
from sme2_assets.targets.elf import AARCH64, Elf

SYMBOLS = "symbols"
INSTRUCTIONS = "instructions"
STRINGS = "strings"
NOTHING = "none"

# Outer products (and the subtracting ones, which differ in bit 4) as mask and value:
# floating point, bfloat16 and half precision, then four-way and two-way integers, then 64-bit tiles.
_OUTER_PRODUCTS = (
    *((0xFFE0000C, value) for value in (0x80800000, 0x81800000, 0x81A00000)),
    *((0xFFE0000C, value) for value in (0xA0800000, 0xA0A00000, 0xA1800000, 0xA1A00000)),
    *((0xFFE0000C, value) for value in (0xA0800008, 0xA1800008, 0x80800008)),
    *((0xFFE0000E, value) for value in (0x81800008, 0x81A00008)),
    *((0xFFE00008, value) for value in (0x80C00000, 0xA0C00000, 0xA0E00000, 0xA1C00000, 0xA1E00000)),
)
_KERNEL_TEXT = re.compile(rb"(?:kai|xnn)_[a-z0-9_]{8,200}")


@dataclass(frozen=True)
class BinaryKernels:
    """What was found, and how."""

    evidence: str
    sme2: tuple[str, ...]
    """Names of kernels that compute with SME2."""
    sme: tuple[str, ...]
    """Names of those that compute with SME alone."""
    outer_products: int
    """Words of the code that are SME outer products, whatever the evidence."""

    @property
    def has_sme(self) -> bool:
        return bool(self.sme2 or self.sme or (self.evidence == INSTRUCTIONS and self.outer_products))

    def fault(self, state: str) -> str | None:
        """Why the binary does not fit its SME2 state; None when it does."""
        if state == "on":
            if self.sme2 or (self.evidence == INSTRUCTIONS and self.outer_products):
                return None
            return f"it has no SME2 kernel ({self.described()})"
        return f"it has SME kernels ({self.described()})" if self.has_sme or self.outer_products else None

    def described(self) -> str:
        how = {
            SYMBOLS: "by its symbols",
            INSTRUCTIONS: "stripped: by its instructions, which name no kernel",
            STRINGS: "stripped, without SME instructions: by text that looks like kernels' names",
            NOTHING: "stripped, with neither SME instructions nor kernels' names",
        }[self.evidence]
        return (
            f"{len(self.sme2)} SME2 and {len(self.sme)} SME kernels, "
            f"{self.outer_products} outer products; {how}"
        )


def kernels_in(path: Path) -> BinaryKernels:
    """Looks into a 64-bit ELF or Mach-O file. Anything else, or a broken one, is a BuildError."""
    try:
        with path.open("rb") as handle, mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ) as data:
            binary = _read(data)
            words = (
                sum(_outer_products(data, start, size) for start, size in binary.code) if binary.arm64 else 0
            )
            symbols = binary.symbols
            text = {name.decode() for name in _KERNEL_TEXT.findall(data)} if not symbols else set()
    except (OSError, ValueError, struct.error, IndexError) as error:
        raise BuildError(f"{path} is not a program that can be read ({error})", "Build it again.") from error
    # A table without a single kernel name is that of a stripped file: it proves nothing about kernels.
    if any(parse_kernel(name).library != OTHER_LIBRARY for name in symbols):
        return _found(SYMBOLS, symbols, words)
    if words:
        return _found(INSTRUCTIONS, set(), words)
    found = _found(STRINGS, text, words)
    return found if found.sme2 or found.sme else _found(NOTHING, set(), words)


def _found(evidence: str, names: set[str], words: int) -> BinaryKernels:
    by_isa: dict[str, set[str]] = {"sme2": set(), "sme": set()}
    for name in names:
        kernel = parse_kernel(name)
        if kernel.isa in by_isa and kernel.role == COMPUTE:
            by_isa[kernel.isa].add(name)
    return BinaryKernels(evidence, tuple(sorted(by_isa["sme2"])), tuple(sorted(by_isa["sme"])), words)


def _outer_products(data: mmap.mmap, start: int, size: int) -> int:
    words = np.frombuffer(data, dtype="<u4", count=size // 4, offset=start)
    hits = np.zeros(len(words), dtype=bool)
    for mask, value in _OUTER_PRODUCTS:
        hits |= (words & np.uint32(mask)) == np.uint32(value)
    count = int(hits.sum())
    del words  # the map cannot be closed while an array looks into it
    return count


@dataclass(frozen=True)
class _Binary:
    arm64: bool
    symbols: set[str]
    """Functions that are defined in the file."""
    code: list[tuple[int, int]]
    """Where the code is: offset and size."""


def _read(data: mmap.mmap) -> _Binary:
    if data[:4] == macho.MAGIC:
        return _read_macho(data)
    elf = Elf(data)
    return _Binary(elf.machine == AARCH64, elf.functions(), elf.code())


_PURE_CODE = 0x80000000
_SOME_CODE = 0x00000400


def _read_macho(data: mmap.mmap) -> _Binary:
    (cpu,) = struct.unpack_from("<I", data, 4)
    symbols: set[str] = set()
    code: list[tuple[int, int]] = []
    for command, at in macho.load_commands(data):
        if command == macho.SYMBOLS:
            symbols |= {name for _, name in macho.defined_symbols(data, at)}
        elif command == macho.SEGMENT:
            (sections,) = struct.unpack_from("<I", data, at + 64)
            for section in range(at + 72, at + 72 + 80 * sections, 80):
                (length,) = struct.unpack_from("<Q", data, section + 40)
                (place,) = struct.unpack_from("<I", data, section + 48)
                (flags,) = struct.unpack_from("<I", data, section + 64)
                if flags & (_PURE_CODE | _SOME_CODE):
                    code.append((place, length))
    return _Binary(cpu == macho.ARM64, symbols, code)
