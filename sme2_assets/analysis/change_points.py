"""Change points of a nightly series, and the slow-downs among them.

Binary segmentation: cut the logarithms of the times where the means of the two sides differ most, ask whether
chance would do as much, and continue within the two sides. Three things make it fit for real machines:

- Single disturbed nights are pulled in towards the nights around them, so they neither make a change point
  nor hide one. A lasting step keeps its size: three nights at three times the time need no further proof.
- Nights carry over to the next: a machine is warm for a week, or stays in one of two clock states. The
  residuals of the cut show by how much (their lag-1 autocorrelation r), and the statistic is scaled by
  (1 - r) / (1 + r). Chance is drawn from nights that carry over by MOST_CARRIED, where that helps least.
- Missing nights (NaN) are left out; indices are those of the series as given.

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
import scipy  # its submodules are loaded on first use

from sme2_assets.analysis.statistics import adjusted_p_values

Floats = npt.NDArray[np.float64]
Key = TypeVar("Key", bound=Hashable)

# Fewer nights on either side are not a level: two disturbed nights in a row are not rare.
MIN_NIGHTS = 3
# A machine that stays in each of two states for ten nights on average stays this long in one case of
# twenty-four: a level that was held for less says little about the next one.
NIGHTS_BEFORE = 30
# A step to this many times the time is beyond the usual difference of a machine's states; it needs less.
HUGE_RATIO, NIGHTS_BEFORE_HUGE = 1.4, 5
# For a single series; every level is tested again, so 5 % would make too many false cuts.
SIGNIFICANCE = 0.01
# The autocorrelation of the nights that chance is drawn from. Weaker ones give fewer false alarms, not more.
MOST_CARRIED = 0.8
DRAWS = 9_999
# Beyond this most extreme share of the draws the tail is assumed to fall with the square of the statistic, as
# F does with the fewest nights; with more it falls faster, so p-values are too large rather than too small.
_TAIL = 0.001
# No model of chance justifies smaller p-values; this one finds a true step among tens of thousands of series.
_LEAST_P = 1e-6
# The estimate of r is too small, because two means were subtracted, and it is uncertain. Of the corrections
# that keep the rate of false alarms, this one, over the number of nights, finds most steps (by simulation).
_CARRIED_BIAS = 20
_HIGHEST_R = 0.9
# A night that is further from the median of the seven around it than 1.3 times the 75 % quantile of such
# distances, about 1.5 standard deviations, is pulled in to that limit: Huber's usual compromise.
_WINDOW, _WILD = 7, 1.3
# How far towards the new level a median of nights must be for the series to have been there before.
_NEAR = 0.75
_SEED = 20_240_229
_BATCH = 250
# A test ends once chance did as well this often: its p-value is large, and more draws would only refine it.
_ENOUGH_AS_EXTREME = 50


@dataclass(frozen=True)
class ChangePoint:
    """The night `index` is the first at another level.

    `before` and `after` are the medians of the segments on both sides, up to the next change points, in the
    unit of the series; `ratio` is after / before; `nights_before` is the number of measured nights since the
    series began or was last near the level `after`; `was_back` is whether it has returned to near `before`.
    """

    index: int
    before: float
    after: float
    ratio: float
    p_value: float
    nights_before: int
    was_back: bool


@dataclass(frozen=True)
class _Test:
    """One question to chance: is there a change at the observed night `position`?"""

    position: int
    p_value: float


def change_points(
    values: Sequence[float], *, significance: float = SIGNIFICANCE, draws: int = DRAWS
) -> list[ChangePoint]:
    """The change points of one series of positive times, oldest first; NaN is a missing night.

    Where nothing changes, the chance of finding a change point is at most `significance`, even where nights
    carry over to the next with an autocorrelation of up to MOST_CARRIED. It cannot tell what changed, only
    from which night on, and only to within a night or two where the change is as small as the noise. A slow
    drift comes out as steps, or not at all.
    """
    nights, times = _observed(values)
    tests = _tests(times, significance, draws)
    return _between(
        nights, times, {test.position: test.p_value for test in tests if test.p_value <= significance}
    )


def regressions(
    series: Mapping[Key, Sequence[float]],
    *,
    practical_ratio: float = 1.05,
    q: float = 0.05,
    draws: int = DRAWS,
) -> dict[Key, list[ChangePoint]]:
    """The lasting slow-downs of many series; series with none are left out.

    A slow-down is a change point with after / before of at least `practical_ratio`, following NIGHTS_BEFORE
    nights at the old level, or NIGHTS_BEFORE_HUGE for a step by HUGE_RATIO or more. It lasts if the series
    has not returned since and every later level is still that far above the old one: a slow-down that was
    fixed is history, and one that comes back starts from scratch.
    Benjamini-Hochberg is applied to the tests of all series together, so on average at most a share `q` of
    the change points found is chance, however many series there are.

    Not found: changes as small as the noise, a drift in steps each below `practical_ratio`, and anything in
    the first nights of a series. Reported although no code changed: a lasting step of the machine itself,
    such as its first move to another clock state after NIGHTS_BEFORE nights. The rates are in
    benchmarks/regressions_bench.py.
    """
    if not (practical_ratio >= 1 and 0 < q < 1):
        raise ValueError(f"no such threshold: ratio {practical_ratio}, q {q}")
    observed = {key: _observed(values) for key, values in series.items()}
    tests = [(key, test) for key, (_, times) in observed.items() for test in _tests(times, q, draws)]
    adjusted = adjusted_p_values([test.p_value for _, test in tests])
    cuts: dict[Key, dict[int, float]] = {key: {} for key in series}
    for (key, test), p in zip(tests, adjusted, strict=True):
        if p is not None and p <= q:
            cuts[key][test.position] = test.p_value
    found = {key: _lasting(_between(*observed[key], cuts[key]), practical_ratio) for key in series}
    return {key: slow_downs for key, slow_downs in found.items() if slow_downs}


def _lasting(changes: list[ChangePoint], practical_ratio: float) -> list[ChangePoint]:
    return [
        change
        for number, change in enumerate(changes)
        if change.nights_before >= (NIGHTS_BEFORE_HUGE if change.ratio >= HUGE_RATIO else NIGHTS_BEFORE)
        and not change.was_back
        and min(later.after for later in changes[number:]) >= practical_ratio * change.before
    ]


def _observed(values: Sequence[float]) -> tuple[npt.NDArray[np.int64], Floats]:
    """The nights that have a time, and the times."""
    times = np.asarray(values, dtype=float)
    if times.ndim != 1 or (np.isinf(times) | (times <= 0)).any():
        raise ValueError("a series has positive finite times, and NaN for a missing night")
    nights = np.flatnonzero(~np.isnan(times))
    return nights, times[nights]


def _between(nights: npt.NDArray[np.int64], times: Floats, cuts: Mapping[int, float]) -> list[ChangePoint]:
    """The change points at these cuts, each between the median levels of the segments on either side."""
    positions = sorted(cuts)
    p_values = [cuts[position] for position in positions]
    for number in range(len(positions)):
        # When a cut was placed, later changes were still in the same segment and could pull it aside.
        start, end = [0, *positions, len(times)][number], [0, *positions, len(times)][number + 2]
        positions[number] = _best_cut(times, start, end)[0]
    levels = [float(np.median(segment)) for segment in np.split(times, positions) if len(segment)]
    found = []
    for position, p, before, after in zip(positions, p_values, levels[:-1], levels[1:], strict=True):
        # Which of the two levels the nights are near, regardless of cuts further away.
        middle = np.log(_around(times[np.newaxis])[0] / before)
        step = math.log(after / before)
        earlier = np.flatnonzero(middle[:position] * step > _NEAR * step**2)
        back = (middle[position + MIN_NIGHTS :] * step < (1 - _NEAR) * step**2).any()
        nights_before = position - 1 - int(earlier[-1]) if len(earlier) else position
        found.append(
            ChangePoint(int(nights[position]), before, after, after / before, p, nights_before, bool(back))
        )
    return found


def _tests(times: Floats, significance: float, draws: int) -> list[_Test]:
    """All tests on the way down: those that cut, and those that ended a branch."""
    if draws < _BATCH:
        raise ValueError(f"no such test: {draws} draws")
    done: list[_Test] = []
    segments = [(0, len(times))]
    while segments:
        start, end = segments.pop()
        if end - start < 2 * MIN_NIGHTS:
            continue
        position, statistic, carried = _best_cut(times, start, end)
        test = _Test(position, _p_value(statistic, end - start, draws))
        done.append(test)
        if test.p_value <= significance:
            segments += [(start, position), (position, end)]
        elif carried > MOST_CARRIED and end - start >= 2 * (NIGHTS_BEFORE + MIN_NIGHTS):
            # Not noise: changes that cancel out; each half has fewer of them.
            segments += [(start, (start + end) // 2), ((start + end) // 2, end)]
    return done


def _best_cut(times: Floats, start: int, end: int) -> tuple[int, float, float]:
    """Where between `start` and `end` the two sides differ most, by how much, and r of the residuals."""
    cuts, statistics, r = _cuts(_tamed(np.log(times[np.newaxis, start:end])))
    return start + int(cuts[0]), float(statistics[0]), float(r[0])


def _p_value(statistic: float, length: int, draws: int) -> float:
    """How often the best cut of a series without a change has a statistic this large.

    Drawing stops early once enough of them had: the p-value stays valid (Besag and Clifford, 1991).
    """
    done = as_extreme = 0
    largest: list[Floats] = []
    kept = math.ceil(draws * _TAIL)
    for number in range(math.ceil(draws / _BATCH)):
        batch = _chance(length, number)[: draws - done]
        extreme = np.flatnonzero(batch >= statistic)
        missing = _ENOUGH_AS_EXTREME - as_extreme
        if len(extreme) >= missing:
            return _ENOUGH_AS_EXTREME / (done + int(extreme[missing - 1]) + 1)
        done += len(batch)
        as_extreme += len(extreme)
        largest.append(batch)
    if as_extreme >= kept:
        return (as_extreme + 1) / (done + 1)
    edge = float(np.partition(np.concatenate(largest), -kept)[-kept])
    return max(_LEAST_P, (kept + 1) / (done + 1) * (edge / statistic) ** 2)


@lru_cache(maxsize=16_384)  # of 2 kB each
def _chance(length: int, number: int) -> Floats:
    """A batch of draws of the best cut's statistic where nothing changes and nights carry over."""
    random = np.random.default_rng([_SEED, length, number])
    nights = random.standard_normal((_BATCH, length))
    for night in range(1, length):
        nights[:, night] = (
            MOST_CARRIED * nights[:, night - 1] + math.sqrt(1 - MOST_CARRIED**2) * nights[:, night]
        )
    return _cuts(_tamed(nights))[1]


def _tamed(values: Floats) -> Floats:
    """Each row with its wild nights pulled in to those around them; at the end three nights are a level."""
    around = _around(values)
    distance = values - around
    limit = _WILD * np.quantile(np.abs(distance), 0.75, axis=1, keepdims=True)
    tamed: Floats = around + np.clip(distance, -limit, limit)
    return tamed


def _around(values: Floats) -> Floats:
    """The median of the nights around each, in each row."""
    median: Floats = scipy.ndimage.median_filter(values, size=(1, _WINDOW), mode="mirror")
    return median


def _cuts(values: Floats) -> tuple[npt.NDArray[np.int64], Floats, Floats]:
    """The best cut of each row, its statistic, and r.

    The statistic is F of the two means with MIN_NIGHTS or more on each side, times (1 - r) / (1 + r): the
    share of nights that are independent evidence where each carries over to the next by r.
    """
    rows, length = values.shape
    values = values - values.mean(axis=1, keepdims=True)
    sums = np.cumsum(values, axis=1)[:, MIN_NIGHTS - 1 : length - MIN_NIGHTS]
    before = np.arange(MIN_NIGHTS, length - MIN_NIGHTS + 1)
    between = sums**2 * length / (before * (length - before))
    best = np.argmax(between, axis=1)
    each = np.arange(rows)
    cut = before[best]
    left = np.arange(length) < cut[:, np.newaxis]
    total = sums[each, best]
    means = np.where(left, (total / cut)[:, np.newaxis], (-total / (length - cut))[:, np.newaxis])
    rest = values - means
    within = (rest**2).sum(axis=1)
    # The residuals of equal times are only rounding: not noise, and no step where there is none.
    within = np.maximum(within, 1e-12)
    r = (rest[:, 1:] * rest[:, :-1]).sum(axis=1) / within
    scaled_by = np.clip(r + _CARRIED_BIAS / length, 0, _HIGHEST_R)
    statistic: Floats = between[each, best] / within * (length - 2) * (1 - scaled_by) / (1 + scaled_by)
    return cut, statistic, r
