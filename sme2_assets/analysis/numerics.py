"""How near two outputs are."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

# What identical outputs are given: a finite number, because infinity is not JSON.
IDENTICAL_SQNR_DB = 200.0


def sqnr_db(reference: npt.NDArray, actual: npt.NDArray) -> float:
    """Signal to quantisation-noise ratio of `actual` in dB; larger is nearer.

    It weighs all elements together, so a single wrong element of a large output hardly shows in it.
    Shapes that differ and values that are not finite are no approximation at all: minus 200.
    """
    if reference.shape != actual.shape:
        return -IDENTICAL_SQNR_DB
    signal = reference.astype(np.float64)
    noise = actual.astype(np.float64) - signal
    signal_power, noise_power = float(np.sum(signal**2)), float(np.sum(noise**2))
    if not (np.isfinite(signal_power) and np.isfinite(noise_power)):
        return -IDENTICAL_SQNR_DB
    if noise_power == 0.0:
        return IDENTICAL_SQNR_DB
    if signal_power == 0.0:
        return -IDENTICAL_SQNR_DB
    ratio_db = 10.0 * float(np.log10(signal_power / noise_power))
    return float(np.clip(ratio_db, -IDENTICAL_SQNR_DB, IDENTICAL_SQNR_DB))


def worst_sqnr_db(references: Sequence[npt.NDArray], actuals: Sequence[npt.NDArray]) -> float:
    """The SQNR of the worst output; a missing or surplus output counts as wrong."""
    if len(references) != len(actuals) or not references:
        return -IDENTICAL_SQNR_DB
    return min(sqnr_db(reference, actual) for reference, actual in zip(references, actuals, strict=True))
