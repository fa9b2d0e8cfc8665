"""How close the outputs are to the eager model's; `evidence.arms` has the bounds between the arms.

Floating point outputs are compared as signals; integers and booleans are tokens or masks, where one that
differs is simply wrong. Indices of a ranking (top-k, sort, argmax) are compared as the values that they point
at: two that are nearly equal may change places. All results are in decibels, so one bound serves a model.
Numbers below the smallest normal one count as zero, because kernels flush them to zero.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from sme2_assets.evidence.digits import beside

# The precision of a finished program, which is measured as is: there is no eager model to compare with.
AS_IS = "as_is"
# The value for identical outputs: a finite number, because JSON has no infinity.
IDENTICAL_SQNR_DB = 200.0

# Below this many decibels an output is not the model's; some way under what the built-in models reach. They
# allow for the cost of a precision; a wrong kernel is found by comparing the arms, with far tighter bounds.
MINIMUM_SQNR_DB = {"fp32": 80.0, "fp16": 30.0, "int8": 12.0, "int8_dynamic": 20.0, "int4": 8.0}

# How much further off than the whole one channel or row may be, and what it must reach in any case.
PART_ALLOWANCE_DB, PART_LEAST_DB = 10.0, 1.0
# Fewer elements do not count as a part: at 8 bits, one logit of many may be far off in a correct model.
LEAST_PART = 16
# Of the output with the expected one, means subtracted: below this, the variation is not the model's.
LEAST_CORRELATION = 0.5


@dataclass(frozen=True)
class Agreement:
    """How close one output is to the expected one. None where a number has no meaning for the output."""

    output: int
    sqnr_db: float
    max_abs_error: float | None
    """The largest difference between elements; None where shapes differ or values are not finite."""
    cosine: float | None
    """Of the angle between the two, all elements as one vector; None where one of them is zero."""
    equal_share: float
    """Share of elements that are exactly equal."""
    top1_agreement: float | None = None
    """Share of rows (all but the last dimension) whose largest elements coincide; classifiers only."""
    worst_part_db: float | None = None
    """The ratio of the worst channel or row, to its own or the average power; floating point only."""
    correlation: float | None = None
    """Of the two, over all elements; None where nothing varies in the expected one."""
    compared_as_zero: float = 0.0
    """Share of elements expected to be nonzero but below the given type's smallest normal number."""

    def fault(self, minimum_sqnr_db: float, *, exact: bool = False) -> str | None:
        """Why the output is not the model's, or None. `exact`: integers and booleans must be equal."""
        what = f"output {self.output}"
        if self.sqnr_db < minimum_sqnr_db:
            reached_db = beside(self.sqnr_db, minimum_sqnr_db, 1)
            return f"{what}: {reached_db} dB, at least {minimum_sqnr_db:g} dB needed"
        part_bound_db = max(minimum_sqnr_db - PART_ALLOWANCE_DB, PART_LEAST_DB)
        if self.worst_part_db is None:
            if exact and self.equal_share < 1:
                wrong_percent = beside(100 * (1 - self.equal_share), 0, 2)
                return f"{what}: {wrong_percent}% of its integers or booleans are wrong"
        elif self.worst_part_db < part_bound_db:
            worst_db = beside(self.worst_part_db, part_bound_db, 1)
            return f"{what}: one channel or row has {worst_db} dB, {part_bound_db:g} dB needed"
        if self.correlation is not None and self.correlation < LEAST_CORRELATION:
            correlation = beside(self.correlation, LEAST_CORRELATION, 2)
            return f"{what}: what varies correlates by {correlation}, {LEAST_CORRELATION:g} needed"
        return None


@dataclass(frozen=True)
class Ranking:
    """What an output of indices points into: values of the eager model, along an axis."""

    values: npt.NDArray
    axis: int
    ordered: bool
    """Whether the indices come in the order of their values."""

    def pointed_at(self, indices: npt.NDArray) -> npt.NDArray | None:
        """The values at these indices; None if an index is out of range or occurs twice."""
        # An index into all values of a tensor may still have its dimensions.
        places = indices.ravel() if self.values.ndim == 1 else indices
        places = places if places.ndim == self.values.ndim else np.expand_dims(places, self.axis)
        length = self.values.shape[self.axis]
        ascending = np.sort(places, axis=self.axis)
        if places.size and (ascending.min() < 0 or ascending.max() >= length):
            return None
        if bool((np.diff(ascending, axis=self.axis) == 0).any()):
            return None
        found = np.take_along_axis(self.values, places, axis=self.axis)
        return found if self.ordered else np.sort(found, axis=self.axis)


def compare_outputs(
    expected: Sequence[npt.NDArray],
    given: Sequence[npt.NDArray],
    *,
    classifier: bool = False,
    rankings: Mapping[int, Ranking] | None = None,
) -> list[Agreement]:
    """One agreement per output; a missing or surplus output does not agree at all."""
    agreements = []
    for index in range(max(len(expected), len(given))):
        ranking = (rankings or {}).get(index)
        if index >= len(expected) or index >= len(given) or expected[index].shape != given[index].shape:
            agreements.append(_nothing(index))
        elif ranking is not None:
            agreements.append(_ranked_agreement(index, ranking, expected[index], given[index]))
        else:
            agreements.append(_agreement(index, expected[index], given[index], classifier=classifier))
    return agreements


def below_normal(array: npt.NDArray) -> npt.NDArray:
    """Where values are not zero but below the smallest normal number of their type."""
    if not np.issubdtype(array.dtype, np.floating):
        return np.zeros(array.shape, dtype=bool)
    return (array != 0) & (np.abs(array) < np.finfo(array.dtype).tiny)


def _lost(expected: npt.NDArray, given: npt.NDArray) -> npt.NDArray:
    """Where the expected value is too small for the kernels: below fp32's range, or a zero in fp16."""
    if not (np.issubdtype(expected.dtype, np.floating) and np.issubdtype(given.dtype, np.floating)):
        return np.zeros(expected.shape, dtype=bool)
    size, tiny = np.abs(expected.astype(np.float64)), np.finfo(np.float32).tiny
    lost = (size < tiny) & (np.abs(given.astype(np.float64)) < tiny)
    return (expected != 0) & (lost | ((size < np.finfo(given.dtype).tiny) & (given == 0)))


def worst_agreement(agreements: Sequence[Agreement]) -> Agreement | None:
    """The agreement with the smallest ratio; None without outputs."""
    return min(agreements, key=lambda agreement: agreement.sqnr_db, default=None)


def first_fault(agreements: Sequence[Agreement], minimum_sqnr_db: float, *, exact: bool) -> str | None:
    """The fault of the first output that is not the model's, or None."""
    faults = (agreement.fault(minimum_sqnr_db, exact=exact) for agreement in agreements)
    return next((fault for fault in faults if fault), None)


def worst_sqnr_db(references: Sequence[npt.NDArray], actuals: Sequence[npt.NDArray]) -> float:
    """The ratio of the worst output; a missing or surplus output counts as wrong, and so does having none."""
    worst = worst_agreement(compare_outputs(references, actuals))
    return -IDENTICAL_SQNR_DB if worst is None else worst.sqnr_db


def sqnr_db(reference: npt.NDArray, actual: npt.NDArray) -> float:
    """Signal to quantisation-noise ratio of `actual` in dB; larger is closer.

    It weighs all elements together, so a single wrong element of a large output hardly shows in it.
    Different shapes and values that are not finite count as no match at all: minus 200.
    """
    if reference.shape != actual.shape:
        return -IDENTICAL_SQNR_DB
    signal = reference.astype(np.float64)
    noise = actual.astype(np.float64) - signal
    signal_power, noise_power = float(np.sum(signal**2)), float(np.sum(noise**2))
    if not (np.isfinite(signal_power) and np.isfinite(noise_power)):
        return -IDENTICAL_SQNR_DB
    return decibels(signal_power, noise_power)


def equal_share_db(share: float) -> float:
    """The same ratio for outputs that are right or wrong element by element: 1 % wrong is 20 dB."""
    return decibels(1.0, 1.0 - share)


def _ranked_agreement(index: int, ranking: Ranking, expected: npt.NDArray, given: npt.NDArray) -> Agreement:
    wanted, found = ranking.pointed_at(expected), ranking.pointed_at(given)
    if wanted is None or found is None:
        return _nothing(index)
    return replace(
        _agreement(index, wanted, found, classifier=False), equal_share=float(np.mean(expected == given))
    )


def _agreement(index: int, expected: npt.NDArray, given: npt.NDArray, *, classifier: bool) -> Agreement:
    lost = _lost(expected, given)
    if lost.any():
        expected, given = np.where(lost, 0, expected), np.where(lost, 0, given)
    share = float(np.mean(expected == given)) if expected.size else 1.0
    if not np.issubdtype(expected.dtype, np.floating):
        difference = np.abs(given.astype(np.float64) - expected.astype(np.float64))
        error = float(np.max(difference, initial=0.0))
        return Agreement(
            index, equal_share_db(share), error, None, share, correlation=_correlation(expected, given)
        )
    left, right = expected.astype(np.float64).ravel(), given.astype(np.float64).ravel()
    finite = bool(np.isfinite(left).all() and np.isfinite(right).all())
    return Agreement(
        output=index,
        sqnr_db=sqnr_db(expected, given),
        max_abs_error=float(np.max(np.abs(right - left), initial=0.0)) if finite else None,
        cosine=_cosine(left, right) if finite else None,
        equal_share=share,
        top1_agreement=_top1_agreement(expected, given) if classifier else None,
        worst_part_db=_worst_part_db(expected, given) if finite else -IDENTICAL_SQNR_DB,
        correlation=_correlation(expected, given) if finite else None,
        compared_as_zero=float(np.mean(lost)) if lost.size else 0.0,
    )


def _nothing(index: int) -> Agreement:
    return Agreement(index, -IDENTICAL_SQNR_DB, None, None, 0.0)


def _cosine(left: npt.NDArray, right: npt.NDArray) -> float | None:
    # Scaled first: the squares of very large or small values leave the range of a double.
    left_scale, right_scale = np.max(np.abs(left), initial=0.0), np.max(np.abs(right), initial=0.0)
    if left_scale == 0.0 or right_scale == 0.0:
        return None
    left, right = left / left_scale, right / right_scale
    cosine = float(left @ right) / float(np.linalg.norm(left) * np.linalg.norm(right))
    return float(np.clip(cosine, -1.0, 1.0))


def as_matrix(array: npt.NDArray, channel_axis: int) -> npt.NDArray:
    """Rows are positions, columns are channels."""
    if array.ndim == 0:
        return array.reshape(1, 1)
    return np.moveaxis(array, channel_axis, -1).reshape(-1, array.shape[channel_axis])


def output_channel_axis(array: npt.NDArray) -> int:
    """Images have channels before positions; everything else has them last."""
    return 1 if array.ndim > 3 else -1


def _worst_part_db(expected: npt.NDArray, given: npt.NDArray) -> float:
    axis = output_channel_axis(expected)
    signal = as_matrix(expected.astype(np.float64), axis)
    noise = as_matrix(given.astype(np.float64), axis) - signal
    average = float(np.mean(signal**2)) if signal.size else 0.0
    ratios = [
        decibels(max(float(power), average), float(wrong))
        for along in (0, 1)
        if signal.shape[along] >= LEAST_PART
        for power, wrong in zip(np.mean(signal**2, axis=along), np.mean(noise**2, axis=along), strict=True)
    ]
    return min(ratios, default=IDENTICAL_SQNR_DB)


def _correlation(expected: npt.NDArray, given: npt.NDArray) -> float | None:
    if not expected.size:
        return None
    left, right = expected.astype(np.float64).ravel(), given.astype(np.float64).ravel()
    left, right = left - left.mean(), right - right.mean()
    # Less than fp32 rounding: nothing varies.
    if np.std(left) <= 1e-6 * np.max(np.abs(expected.astype(np.float64))):
        return None
    return _cosine(left, right) or 0.0


def _top1_agreement(expected: npt.NDArray, given: npt.NDArray) -> float | None:
    if expected.ndim == 0 or expected.shape[-1] < 2 or not expected.size:
        return None
    return float(np.mean(np.argmax(expected, axis=-1) == np.argmax(given, axis=-1)))


def decibels(signal_power: float, noise_power: float) -> float:
    """The ratio of two powers in dB, clipped to the values for identical and entirely different outputs."""
    if noise_power == 0.0:
        return IDENTICAL_SQNR_DB
    if signal_power == 0.0:
        return -IDENTICAL_SQNR_DB
    ratio_db = 10.0 * float(np.log10(signal_power / noise_power))
    return float(np.clip(ratio_db, -IDENTICAL_SQNR_DB, IDENTICAL_SQNR_DB))
