"""Reading many FlatBuffer tables, vectors and strings at once, and trusting none of them.

A FlatBuffer is a web of offsets that a damaged or hostile file can point anywhere. Here an offset is compared
with the file's size before it is followed, for all rows together: a function takes arrays of positions and
gives arrays of values. Nothing is recursive, so offsets that form a cycle cannot hang the reader; and no
count is used to allocate memory unless the file is large enough to hold that many.

Layout in brief. A table starts with a signed offset back to its vtable: two bytes each for the vtable's size,
the table's size, and the place of every field in the table (0: absent, use the default). A reference is an
unsigned offset from its own position. A vector is a count and its elements; a string is a vector of bytes
with a NUL after it. Everything is little-endian; tables, vectors and references are at multiples of four.
"""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from sme2_assets.etdump.grouping import group_equal, group_equal_texts

Positions = NDArray[np.int64]

Scalar = TypeVar("Scalar", np.int32, np.uint64)

ABSENT = 0
"""The target of a reference that is not there: nothing can be at position 0."""


class Malformed(Exception):
    """The bytes contradict the format. `read_etdump` turns it into a `TraceError` that names the file."""


def require(holds: bool | np.bool_, otherwise: str) -> None:
    if not holds:
        raise Malformed(otherwise)


@dataclass(frozen=True)
class Vectors:
    """Vectors of references, one per row: where the first element is, and how many there are."""

    first: Positions
    count: Positions

    def elements(self) -> Positions:
        """Positions of all elements of all vectors, one vector after the other."""
        before = np.cumsum(self.count) - self.count
        total = int(self.count.sum())
        return np.repeat(self.first - 4 * before, self.count) + 4 * np.arange(total, dtype=np.int64)


@dataclass(frozen=True)
class Texts:
    """Strings, one per row, dictionary-encoded: `code` is an index in `values`, -1 for no string."""

    code: NDArray[np.int64]
    values: list[str]


class Buffer:
    """The bytes of a file, seen as the integers that a FlatBuffer is made of.

    The file is mapped, so it must not shrink while it is read: evidence never changes, and traces from
    elsewhere are copied first.
    """

    def __init__(self, source: Path | bytes) -> None:
        self._file: mmap.mmap | None = None
        if isinstance(source, Path):
            with source.open("rb") as file:
                # An empty file cannot be mapped.
                if os.fstat(file.fileno()).st_size:
                    self._file = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        data = source if isinstance(source, bytes) else self._file or b""
        self.size = len(data)
        self.u8 = np.frombuffer(data, dtype=np.uint8)
        words = self.u8[: self.size & ~3]
        self.u16 = words.view("<u2")
        self.u32 = words.view("<u4")
        self.i32 = words.view("<i4")
        # An item per multiple of four, overlapping: the size prefix puts 64-bit numbers at any of them.
        self.u64_by_word = np.ndarray(max(len(self.u32) - 1, 0), dtype="<u8", buffer=data, strides=4)
        self._text_bytes = 0

    def let_go(self) -> None:
        """Gives back the memory of what was read so far; it is read again where it is needed again."""
        if self._file is not None and hasattr(mmap, "MADV_DONTNEED"):
            self._file.madvise(mmap.MADV_DONTNEED)

    def follow(self, references: Positions, what: str) -> Positions:
        """Where references point to. The references' own positions must already have been checked."""
        targets = references + self.u32[references >> 2]
        self._require_inside(targets, f"a reference to {what}")
        return targets

    def vectors(self, targets: Positions, what: str) -> Vectors:
        """Vectors of references at `targets`; an absent one is empty.

        Vectors of an honest file do not overlap, so all of them together are no larger than the file. Without
        this check a file of a few kilobytes could name one vector a thousand times and demand gigabytes.
        """
        count = np.where(targets == ABSENT, 0, self.u32[targets >> 2]).astype(np.int64)
        require((targets + 4 + 4 * count <= self.size).all(), f"a vector of {what} is longer than the file")
        require(4 * int(count.sum()) <= self.size, f"the vectors of {what} are together longer than the file")
        return Vectors(first=targets + 4, count=count)

    def holds_bytes(self, targets: Positions, what: str) -> NDArray[np.bool_]:
        """Which of the byte vectors at `targets` are present and not empty."""
        holds = targets != ABSENT
        rows = np.flatnonzero(holds)
        present = targets.take(rows)
        length = self.u32[present >> 2].astype(np.int64)
        require((present + 4 + length <= self.size).all(), f"{what} is longer than the file")
        holds[rows] = length > 0
        return holds

    def texts(self, targets: Positions, what: str) -> Texts:
        """Strings at `targets`, decoded once per distinct string."""
        present = targets != ABSENT
        if present.all():
            code, values = self._distinct_texts(targets, what)
            return Texts(code, values)
        code = np.full(len(targets), -1, dtype=np.int64)
        code[present], values = self._distinct_texts(targets[present], what)
        return Texts(code, values)

    def _distinct_texts(
        self, targets: Positions, what: str, *, shared: bool = False
    ) -> tuple[NDArray[np.int64], list[str]]:
        length = self.u32[targets >> 2].astype(np.int64)
        end = targets + 4 + length
        require((end < self.size).all(), f"{what} is longer than the file")
        require(not self.u8[end].any(), f"{what} has no end mark")
        # The strings of a file are together no longer than the file, unless rows share them (a writer may do
        # that) or they overlap (no writer does that, but it makes a small file a lot of work).
        total = self._text_bytes + int(length.sum())
        if total > self.size and not shared:
            distinct, row = np.unique(targets, return_inverse=True)
            code, values = self._distinct_texts(distinct, what, shared=True)
            return code[row], values
        require(total <= 2 * self.size, f"{what} overlaps with another")
        self._text_bytes = total
        code, first = group_equal_texts(self.u8, targets + 4, length)
        return code, [self._decode(int(targets[row]) + 4, int(end[row]), what) for row in first]

    def _decode(self, start: int, end: int, what: str) -> str:
        try:
            return self.u8[start:end].tobytes().decode("utf-8")
        except UnicodeDecodeError:
            raise Malformed(f"{what} is not UTF-8") from None

    def _require_inside(self, positions: Positions, what: str) -> None:
        """Every position has four bytes of the file and is a multiple of four."""
        if len(positions) == 0:
            return
        require(positions.min() > 0 and positions.max() <= self.size - 4, f"{what} leads out of the file")
        require(not np.bitwise_or.reduce(positions) & 3, f"{what} is not aligned")


class Tables:
    """Tables of one type at many positions, with every field's place checked against table and file."""

    def __init__(
        self, buffer: Buffer, positions: Positions, field_widths: tuple[int, ...], what: str
    ) -> None:
        buffer._require_inside(positions, f"a reference to {what}")
        self._buffer = buffer
        self._positions = positions
        self._what = what
        vtables = positions - buffer.i32[positions >> 2]
        require(len(vtables) == 0 or vtables.min() >= 0, f"the layout of {what} lies outside the file")
        # Thousands of tables share a handful of vtables, so each distinct one is checked once.
        self._shape, first = group_equal(vtables)
        self._fields, table_sizes = self._read_vtables(vtables[first], field_widths)
        require(
            (positions + table_sizes.take(self._shape) <= buffer.size).all(),
            f"{what} reaches past the end of the file",
        )

    def _read_vtables(
        self, vtables: Positions, field_widths: tuple[int, ...]
    ) -> tuple[list[Positions], Positions]:
        u16, size, what = self._buffer.u16, self._buffer.size, f"the layout of {self._what}"
        require((vtables <= size - 4).all(), f"{what} lies outside the file")
        require(not (vtables & 1).any(), f"{what} is not aligned")
        halfwords = vtables >> 1
        vtable_sizes = u16.take(halfwords).astype(np.int64)
        table_sizes = u16.take(halfwords + 1).astype(np.int64)
        require(((vtable_sizes >= 4) & (vtables + vtable_sizes <= size)).all(), f"{what} is cut off")
        require((table_sizes >= 4).all(), f"{what} has no room for itself")
        places = []
        for field, width in enumerate(field_widths):
            slot = 4 + 2 * field
            present = vtable_sizes >= slot + 2
            place = np.where(present, u16.take(np.where(present, halfwords + slot // 2, 0)), 0).astype(
                np.int64
            )
            fits = (place >= 4) & (place + width <= table_sizes) & (place % 4 == 0)
            require((fits | (place == 0)).all(), f"{what} puts a field outside of it")
            places.append(place)
        return places, table_sizes

    def has(self, field: int) -> NDArray[np.bool_]:
        """Which rows have the field."""
        return (self._fields[field] != 0).take(self._shape)

    def int32(self, field: int, default: int) -> NDArray[np.int32]:
        if not self._fields[field].any():
            return np.full(len(self._positions), default, dtype=np.int32)
        value = self._buffer.i32[self._place(field) >> 2]
        return self._with_default(field, value, default)

    def uint64(self, field: int, default: int) -> NDArray[np.uint64]:
        if not self._fields[field].any():
            return np.full(len(self._positions), default, dtype=np.uint64)
        return self._with_default(field, self._buffer.u64_by_word[self._place(field) >> 2], default)

    def targets(self, field: int, what: str) -> Positions:
        """Where the references in a field point to, `ABSENT` for rows without it."""
        return self.first_of((field,), what)

    def first_of(self, choice: tuple[int, ...], what: str) -> Positions:
        """Like `targets`, for the first field of `choice` that the row has."""
        places = self._fields[choice[0]]
        for field in choice[1:]:
            places = np.where(places != 0, places, self._fields[field])
        if places.all():
            return self._buffer.follow(self._positions + places.take(self._shape), what)
        targets = np.full(len(self._positions), ABSENT, dtype=np.int64)
        rows = np.flatnonzero((places != 0).take(self._shape))
        if len(rows):
            references = self._positions.take(rows) + places.take(self._shape.take(rows))
            targets[rows] = self._buffer.follow(references, what)
        return targets

    def _place(self, field: int) -> Positions:
        # An absent field has place 0, which is the table itself: readable, and replaced by the default.
        return self._positions + self._fields[field].take(self._shape)

    def _with_default(self, field: int, value: NDArray[Scalar], default: int) -> NDArray[Scalar]:
        if self._fields[field].all():
            return value
        return np.where(self.has(field), value, value.dtype.type(default))
