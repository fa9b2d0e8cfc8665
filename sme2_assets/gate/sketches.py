"""A few numbers that stand for an array: enough to tell how far another array is from it.

For floating point values: 64 sums of all of them, the sign of each value given by one bit of a hash of its
position. The mean square of the differences of two such sketches is the square of the arrays' distance, on
average over all choices of signs, with a standard deviation of 18 % (Johnson and Lindenstrauss; Achlioptas):
0.8 dB. For integers and booleans: the values at 64 positions, chosen by the same hash.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sme2_assets.evidence.numerics import IDENTICAL_SQNR_DB, decibels, equal_share_db
from sme2_assets.gate.baseline import Sketch

NUMBERS = 64
# Of a sum, in the file. So identical arrays measure at least 160 dB, not infinity.
_DIGITS = 10
_AT_ONCE = 1 << 16


def sketch_of(array: npt.NDArray) -> Sketch:
    flat = array.ravel()
    if np.issubdtype(array.dtype, np.floating):
        values = _signed_sums(flat.astype(np.float64))
    else:
        places = _hashes(np.arange(NUMBERS)) % np.uint64(max(flat.size, 1))
        values = flat[places.astype(np.int64)].astype(np.float64) if flat.size else np.zeros(0)
    return Sketch(
        dtype=str(array.dtype),
        shape=list(array.shape),
        power=_rounded(float(np.sum(flat.astype(np.float64) ** 2))),
        values=[_rounded(float(value)) for value in values],
    )


def distance_db(before: Sketch, after: Sketch) -> float:
    """The power of the old array over that of the difference, in dB, as estimated from the sketches."""
    if (before.dtype, before.shape) != (after.dtype, after.shape):
        return -IDENTICAL_SQNR_DB
    differences = np.subtract(after.values, before.values)
    if not np.issubdtype(np.dtype(before.dtype), np.floating):
        return equal_share_db(float(np.mean(differences == 0)) if len(differences) else 1.0)
    return decibels(before.power, float(np.mean(differences**2)))


def _signed_sums(values: npt.NDArray) -> npt.NDArray:
    sums = np.zeros(NUMBERS)
    bits = np.arange(NUMBERS, dtype=np.uint64)
    for start in range(0, values.size, _AT_ONCE):
        part = values[start : start + _AT_ONCE]
        hashes = _hashes(np.arange(start, start + part.size))
        positive = ((hashes[:, None] >> bits) & np.uint64(1)).astype(np.float64)
        sums += part @ (2 * positive - 1)
    return sums


def _hashes(numbers: npt.NDArray) -> npt.NDArray:
    """The finaliser of SplitMix64: the same everywhere and forever, unlike a library's random numbers."""
    mixed = (numbers.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")
