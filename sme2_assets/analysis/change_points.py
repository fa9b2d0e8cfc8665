"""Change points of a nightly series, and the slow-downs among them.

E-divisive (Matteson and James, 2014): cut the series where the two sides differ most in energy distance, ask
a permutation test whether chance would do as much, and go on within the two sides. Three things are ours:

- The distance is that of ranks, not of times. A night that took three times as long is the highest rank and
  nothing more, so outliers neither make a change point nor hide one. And chance does not depend on the series
  then, so its distribution is drawn once for each length and serves all series.
- Missing nights (NaN) are left out; indices are those of the series as given.
- Equal times (a coarse clock) are ranked in random order, from a fixed seed, which keeps the test valid.

Not here: where the series come from, and what a person has acknowledged.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from sme2_assets.analysis.statistics import adjusted_p_values

Floats = npt.NDArray[np.float64]
Key = TypeVar("Key", bound=Hashable)

# Fewer nights than these on either side are no level: two disturbed nights in a row are not rare.
MIN_NIGHTS = 3
# So many draws make the smallest p-value 1 in 10,000: enough for one true change among 500 tests at q = 5 %.
PERMUTATIONS = 9_999
# For a single series; every level is tested again, so 5 % would cut one of every few series too often.
SIGNIFICANCE = 0.01
_SEED = 20_240_229
_BATCH = 250
# A test is over once chance did as well so often: its p-value is large, and more draws would only refine it.
_ENOUGH_AS_EXTREME = 50


@dataclass(frozen=True)
class ChangePoint:
    """From the night `index` on the series has another level.

    `before` and `after` are the medians of the segments on both sides, up to the next change points, in the
    unit of the series; `ratio` is after / before; `p_value` is that of the permutation test.
    """

    index: int
    before: float
    after: float
    ratio: float
    p_value: float


@dataclass(frozen=True)
class _Test:
    """One question to the permutation test: is there a change at the observed night `position`?"""

    position: int
    p_value: float


def change_points(
    values: Sequence[float],
    *,
    seed: int = _SEED,
    significance: float = SIGNIFICANCE,
    min_nights: int = MIN_NIGHTS,
    permutations: int = PERMUTATIONS,
) -> list[ChangePoint]:
    """The change points of one series of positive times, oldest first; NaN is a missing night.

    Where nothing changes, the chance to find a change point is at most `significance`, if nights
    are independent.
    They are not quite: a machine that is warm for a week looks like a change, because it is one. It cannot
    tell what changed, only from which night on, and that to within a night or two where the change is as
    small as the noise. A slow drift comes out as steps. Fewer than `min_nights` nights at a new level are
    never a change point, and often a few more are needed (see benchmarks/regressions_bench.py).
    """
    nights, times = _observed(values)
    tests = _tests(times, seed, significance, min_nights, permutations)
    cuts = {test.position: test.p_value for test in tests if test.p_value <= significance}
    return _between(nights, times, cuts, seed, min_nights)


def regressions(
    series: Mapping[Key, Sequence[float]],
    *,
    practical_ratio: float = 1.05,
    q: float = 0.05,
    seed: int = _SEED,
    min_nights: int = MIN_NIGHTS,
    permutations: int = PERMUTATIONS,
) -> dict[Key, list[ChangePoint]]:
    """The slow-downs that last, of many series: those with none are left out.

    A slow-down is a change point with after / before of at least `practical_ratio`. It lasts when the newest
    level, too, is that much above the level before it: what was made good is history, not a regression.
    The tests of all series are put through Benjamini-Hochberg together, so on average at most a share `q` of
    the change points found is chance, however many series there are. The price is delay: 3 nights that lie
    above all others have p = 4 %, 4 have 1 %, 5 have 0.2 %, 6 have 0.04 %, however large the slow-down;
    so one series alone needs 3 or 4 nights, and a single slow one among a hundred about 7. A drift in steps
    each below `practical_ratio` is not found. Where nights carry over to the next (a shared or warm machine)
    the share of false ones is far above `q`: see the drifting series in benchmarks/regressions_bench.py.
    """
    if not (practical_ratio >= 1 and 0 < q < 1):
        raise ValueError(f"no such threshold: ratio {practical_ratio}, q {q}")
    observed = {key: _observed(values) for key, values in series.items()}
    tests = [
        (key, test)
        for key, (_, times) in observed.items()
        for test in _tests(times, seed, q, min_nights, permutations)
    ]
    adjusted = adjusted_p_values([test.p_value for _, test in tests])
    cuts: dict[Key, dict[int, float]] = {key: {} for key in series}
    for (key, test), p in zip(tests, adjusted, strict=True):
        if p is not None and p <= q:
            cuts[key][test.position] = test.p_value
    found = {
        key: _lasting(_between(*observed[key], cuts[key], seed, min_nights), practical_ratio)
        for key in series
    }
    return {key: slow_downs for key, slow_downs in found.items() if slow_downs}


def _lasting(changes: list[ChangePoint], practical_ratio: float) -> list[ChangePoint]:
    return [
        change
        for change in changes
        if change.ratio >= practical_ratio and changes[-1].after >= practical_ratio * change.before
    ]


def _observed(values: Sequence[float]) -> tuple[npt.NDArray[np.int64], Floats]:
    """The nights that have a time, and the times."""
    times = np.asarray(values, dtype=float)
    if times.ndim != 1 or (np.isinf(times) | (times <= 0)).any():
        raise ValueError("a series has positive finite times, and NaN for a missing night")
    nights = np.flatnonzero(~np.isnan(times))
    return nights, times[nights]


def _between(
    nights: npt.NDArray[np.int64], times: Floats, cuts: Mapping[int, float], seed: int, min_nights: int
) -> list[ChangePoint]:
    """The change points at these cuts, each between the median levels of the segments beside it."""
    positions = sorted(cuts)
    p_values = [cuts[position] for position in positions]
    for number in range(len(positions)):
        # A cut was placed when changes further on were still in the same segment and could draw it aside.
        start, end = [0, *positions, len(times)][number], [0, *positions, len(times)][number + 2]
        positions[number], _ = _best_cut(times, start, end, seed, min_nights)
    levels = [float(np.median(segment)) for segment in np.split(times, positions) if len(segment)]
    return [
        ChangePoint(int(nights[position]), before, after, after / before, p)
        for position, p, before, after in zip(positions, p_values, levels[:-1], levels[1:], strict=True)
    ]


def _tests(
    times: Floats,
    seed: int,
    significance: float,
    min_nights: int,
    permutations: int,
) -> list[_Test]:
    """All tests on the way down: those that cut, and those that ended a branch."""
    if min_nights < 2 or permutations < 1:
        raise ValueError(f"no such test: {min_nights} nights, {permutations} permutations")
    done: list[_Test] = []
    segments = [(0, len(times))]
    while segments:
        start, end = segments.pop()
        if end - start < 2 * min_nights:
            continue
        position, energy = _best_cut(times, start, end, seed, min_nights)
        test = _Test(position, _p_value(energy, end - start, min_nights, seed, permutations))
        done.append(test)
        if test.p_value <= significance:
            segments += [(start, position), (position, end)]
    return done


def _best_cut(times: Floats, start: int, end: int, seed: int, min_nights: int) -> tuple[int, float]:
    """Where between `start` and `end` the two sides differ most, and by how much energy."""
    segment = times[start:end]
    ranks = np.argsort(np.lexsort((np.random.default_rng(seed).random(len(segment)), segment)))
    energy = _energy(ranks[np.newaxis], min_nights)[0]
    best = int(np.argmax(energy))
    return start + min_nights + best, float(energy[best])


def _p_value(energy: float, length: int, min_nights: int, seed: int, permutations: int) -> float:
    """How often the best cut of a series without change has so much energy.

    The draws end early once enough of them did: the p-value stays valid (Besag and Clifford, 1991).
    """
    draws = as_extreme = 0
    for number in range(math.ceil(permutations / _BATCH)):
        batch = _chance(length, min_nights, seed, number)[: permutations - draws]
        # Equal ranks give equal energies up to rounding.
        extreme = np.flatnonzero(batch >= energy - 1e-9)
        missing = _ENOUGH_AS_EXTREME - as_extreme
        if len(extreme) >= missing:
            return _ENOUGH_AS_EXTREME / (draws + int(extreme[missing - 1]) + 1)
        draws += len(batch)
        as_extreme += len(extreme)
    return (as_extreme + 1) / (draws + 1)


@lru_cache(maxsize=16_384)  # of 2 kB each
def _chance(length: int, min_nights: int, seed: int, number: int) -> Floats:
    """A batch of draws of the best cut's energy where nothing changes."""
    random = np.random.default_rng([seed, length, number])
    ranks = random.permuted(np.tile(np.arange(length), (_BATCH, 1)), axis=1)
    return _energy(ranks, min_nights).max(axis=1)


def _energy(ranks: npt.NDArray[np.int64], min_nights: int) -> Floats:
    """The energy distance of both sides of every cut, times m k / (m + k), for each row of ranks.

    The cuts leave at least `min_nights` on each side, so column 0 is the cut after `min_nights` nights.
    """
    length = ranks.shape[1]
    # What a rank differs from all the others is known, so the sums after follow from those before.
    before = _distances_to_earlier(ranks)
    after = (ranks * (ranks + 1) + (length - 1 - ranks) * (length - ranks)) / 2 - before
    left = np.cumsum(before, axis=1)[:, :-1]
    right = np.cumsum(after[:, ::-1], axis=1)[:, ::-1][:, 1:]
    between = before.sum(axis=1, keepdims=True) - left - right
    m = np.arange(1, length, dtype=float)
    k = length - m
    # Sums over pairs of one side count each pair once, so the mean over all ordered pairs is 2 * sum / m^2.
    distance_of_means = 2 * between / (m * k) - 2 * left / m**2 - 2 * right / k**2
    energy = distance_of_means * m * k / length
    cuts: Floats = energy[:, min_nights - 1 : length - min_nights]
    return cuts


def _distances_to_earlier(ranks: npt.NDArray[np.int64]) -> Floats:
    """The sum of |difference| of each night to the nights before it, for each row of ranks."""
    if len(ranks) == 1:
        return np.tril(np.abs(np.subtract.outer(ranks[0], ranks[0]))).sum(axis=1, dtype=float)[np.newaxis]
    by_night = np.ascontiguousarray(ranks.T, dtype=np.int32)
    distances = np.zeros(ranks.shape)
    for night in range(1, ranks.shape[1]):
        distances[:, night] = np.abs(by_night[:night] - by_night[night]).sum(axis=0)
    return distances
