"""Finding equal values among many, fast when few are distinct: the core of dictionary encoding.

`np.unique` sorts; a trace of a million events has a few dozen names and layouts, which a small table finds
without sorting. Values that the table cannot tell apart go through a slower exact method, so results never
depend on luck with hashes, and a file made to collide only makes itself slow.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.int64]

_SLOT_BITS = 14
_MIX = np.uint64(0x9E3779B97F4A7C15)  # 2**64 / golden ratio, odd: every bit of a word moves the upper bits
LONGEST_VECTORISED_TEXT = 128


def group_equal(values: Rows) -> tuple[Rows, Rows]:
    """Codes 0, 1, ... by first appearance, and the row where each first appears. No value may be negative."""
    return _number(_first_equal(values, values & ((1 << _SLOT_BITS) - 1)))


def group_equal_texts(u8: NDArray[np.uint8], start: Rows, length: Rows) -> tuple[Rows, Rows]:
    """Like `group_equal`, for the strings at `start` (multiples of four) in a buffer of bytes."""
    words = _words(u8, start, length)
    key = length.astype(np.uint64)
    for word in words.T:
        key ^= word
        key *= _MIX
    representative = _first_equal(key, (key >> np.uint64(64 - _SLOT_BITS)).view(np.int64))
    _settle_doubtful(u8, start, length, words, representative)
    return _number(representative)


def _words(u8: NDArray[np.uint8], start: Rows, length: Rows) -> NDArray[np.uint64]:
    """A row per string: its bytes as 64-bit words, zero after its end."""
    count = (min(int(length.max(initial=0)), LONGEST_VECTORISED_TEXT) + 7) // 8
    if count == 0:
        return np.empty((len(start), 0), dtype=np.uint64)
    # The last position with enough bytes after it. What starts behind it is read from a copy with more room.
    last = max(len(u8) - 8 * count, 0) & ~3
    end = np.concatenate([u8[last:], np.zeros(8 * count, dtype=np.uint8)])
    near_end = np.flatnonzero(start >= last)
    words = _read_words(u8 if last else end, np.minimum(start, last), count)
    words[near_end] = _read_words(end, start[near_end] - last, count)
    kept = np.clip(np.arange(LONGEST_VECTORISED_TEXT + 1)[:, None] - 8 * np.arange(count), 0, 8)
    masks = np.array([(1 << 8 * n) - 1 for n in range(9)], dtype=np.uint64)[kept]
    words &= masks.take(length, axis=0, mode="clip")
    return words


def _read_words(u8: NDArray[np.uint8], start: Rows, count: int) -> NDArray[np.uint64]:
    """The 64-bit words at each start, `count` of them."""
    # One item of the view per multiple of four, each as wide as all words: they overlap, so that a single
    # indexing operation copies all strings.
    every = np.ndarray((len(u8) - 8 * count) // 4 + 1, dtype=f"V{8 * count}", buffer=u8, strides=4)
    return every[start >> 2].view(np.uint64).reshape(len(start), count)


def _first_equal(keys: NDArray[np.int64] | NDArray[np.uint64], slots: Rows) -> Rows:
    """For every row, the first row with an equal key. Equal keys have equal slots."""
    rows = np.arange(len(keys), dtype=np.int64)
    table = np.empty(1 << _SLOT_BITS, dtype=np.int64)
    table[slots[::-1]] = rows[::-1]  # of several rows for a slot the last written stays: the file's first
    representative = table.take(slots)
    left = np.flatnonzero(keys.take(representative) != keys)
    if len(left):
        _, first, inverse = np.unique(keys[left], return_index=True, return_inverse=True)
        representative[left] = left[first[inverse]]
    return representative


def _settle_doubtful(
    u8: NDArray[np.uint8], start: Rows, length: Rows, words: NDArray[np.uint64], representative: Rows
) -> None:
    """Gives rows that differ from their representative, or are too long to know, a true one.

    Such rows can only equal one another: equal strings have equal hashes.
    """
    doubtful = (length != length.take(representative)) | (length > LONGEST_VECTORISED_TEXT)
    as_items = words.view(f"V{8 * words.shape[1]}").ravel() if words.size else words
    differs = words != as_items[representative].view(np.uint64).reshape(words.shape)
    if differs.any():
        doubtful |= differs.any(axis=1)
    seen: dict[bytes, int] = {}
    for row in np.flatnonzero(doubtful).tolist():
        text = u8[start[row] : start[row] + length[row]].tobytes()
        representative[row] = seen.setdefault(text, row)


def _number(representative: Rows) -> tuple[Rows, Rows]:
    is_first = representative == np.arange(len(representative))
    first = np.flatnonzero(is_first)
    code = np.zeros(len(representative), dtype=np.int64)
    code[first] = np.arange(len(first))
    return code.take(representative), first
