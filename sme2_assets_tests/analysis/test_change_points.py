from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sme2_assets.analysis.change_points import MIN_NIGHTS, ChangePoint, _energy, change_points, regressions

QUICK = {"permutations": 1999}


def nights(n: int, seed: int, noise: float = 0.02) -> np.ndarray:
    return 1e6 * np.exp(np.random.default_rng(seed).normal(0, noise, n))


def slowed(n: int, at: int, ratio: float, seed: int, noise: float = 0.02) -> np.ndarray:
    series = nights(n, seed, noise)
    series[at:] *= ratio
    return series


@settings(deadline=None, max_examples=50)
@given(st.permutations(range(11)))
def test_the_energy_is_the_energy_distance_of_both_sides(order):
    ranks = np.array(order)

    def mean_distance(one: np.ndarray, other: np.ndarray) -> float:
        return float(np.abs(one[:, np.newaxis] - other).mean())

    expected = []
    for cut in range(2, 10):
        left, right = ranks[:cut], ranks[cut:]
        distance = 2 * mean_distance(left, right) - mean_distance(left, left) - mean_distance(right, right)
        expected.append(distance * cut * (11 - cut) / 11)
    assert _energy(ranks[np.newaxis], 2)[0] == pytest.approx(expected)
    assert _energy(np.stack([ranks, ranks[::-1]]), 2) == pytest.approx(np.array([expected, expected[::-1]]))


def test_a_step_is_found_at_its_night_with_both_levels():
    (change,) = change_points(slowed(60, 40, 1.2, seed=1).tolist())
    assert change.index == 40
    assert change.before == pytest.approx(1e6, rel=0.02)
    assert change.after == pytest.approx(1.2e6, rel=0.02)
    assert change.ratio == change.after / change.before
    assert change.p_value <= 0.001


def test_two_steps_are_found_and_a_level_ends_at_the_next_one():
    series = slowed(90, 30, 1.3, seed=2)
    series[60:] /= 1.3
    up, down = change_points(series.tolist(), **QUICK)
    assert (up.index, down.index) == (30, 60)
    assert up.after == down.before
    assert up.ratio == pytest.approx(1.3, rel=0.02)
    assert down.ratio == pytest.approx(1 / 1.3, rel=0.02)


def test_single_wild_nights_neither_make_nor_hide_a_change():
    quiet = nights(60, seed=3)
    quiet[[7, 20, 21, 44, 59]] *= 10
    assert change_points(quiet.tolist(), **QUICK) == []
    series = slowed(60, 40, 1.2, seed=3)
    series[[7, 20, 21, 44, 59]] *= 10
    (change,) = change_points(series.tolist(), **QUICK)
    assert abs(change.index - 40) <= 1
    assert change.ratio == pytest.approx(1.2, rel=0.03)


def test_missing_nights_are_left_out_and_indices_stay_those_of_the_series():
    series = slowed(60, 40, 1.2, seed=4)
    gaps = series.copy()
    gaps[[0, 5, 6, 7, 30, 40, 41, 59]] = math.nan
    (change,) = change_points(gaps.tolist(), **QUICK)
    assert change.index == 42  # the first night that was measured at the new level


def test_the_unit_does_not_matter():
    series = slowed(50, 30, 1.1, seed=5)
    (ns,) = change_points(series.tolist(), **QUICK)
    (ms,) = change_points((series / 1e6).tolist(), **QUICK)
    assert (ns.index, ns.p_value) == (ms.index, ms.p_value)
    assert ns.ratio == pytest.approx(ms.ratio)


def test_the_same_series_and_seed_give_the_same_answer():
    series = slowed(50, 30, 1.05, seed=6).tolist()
    assert change_points(series, seed=1, **QUICK) == change_points(series, seed=1, **QUICK)


@pytest.mark.parametrize("series", [[], [1e6], [1e6] * (2 * MIN_NIGHTS - 1), [math.nan] * 30])
def test_too_short_a_series_has_no_change_points(series):
    assert change_points(series) == []


def test_a_constant_series_has_no_change_points():
    """All ties: their order is random, so the first nights are not below the last ones."""
    assert change_points([1e6] * 60, **QUICK) == []


@pytest.mark.parametrize("bad", [0.0, -1.0, math.inf])
def test_what_is_no_time_is_refused(bad):
    with pytest.raises(ValueError, match="positive finite"):
        change_points([1e6] * 10 + [bad])


def test_fewer_nights_than_make_a_level_are_no_change():
    series = slowed(40, 40 - MIN_NIGHTS + 1, 3.0, seed=7).tolist()
    assert all(change.index < 40 - MIN_NIGHTS + 1 for change in change_points(series, **QUICK))


def test_where_nothing_changes_something_is_found_in_as_few_as_promised():
    found = sum(
        bool(change_points(nights(30, seed).tolist(), significance=0.05, permutations=999))
        for seed in range(300)
    )
    assert found <= 300 * 0.05 + 3 * math.sqrt(300 * 0.05 * 0.95)


def test_of_many_series_only_those_that_slowed_down_are_reported():
    series = {("quiet", seed): nights(50, seed).tolist() for seed in range(30)}
    series[("slow", 0)] = slowed(50, 38, 1.15, seed=100).tolist()
    series[("fast", 0)] = slowed(50, 38, 0.85, seed=101).tolist()
    found = regressions(series)
    assert list(found) == [("slow", 0)]
    (change,) = found[("slow", 0)]
    assert isinstance(change, ChangePoint)
    assert abs(change.index - 38) <= 1


def test_a_certain_slow_down_below_the_practical_ratio_is_not_reported():
    series = {"model": slowed(80, 40, 1.03, seed=8, noise=0.002).tolist()}
    assert change_points(series["model"], **QUICK)
    assert regressions(series) == {}
    assert "model" in regressions(series, practical_ratio=1.02)


def test_a_slow_down_that_was_made_good_is_history():
    series = slowed(90, 40, 1.2, seed=9)
    series[65:] /= 1.2
    assert regressions({"model": series.tolist()}) == {}


def test_a_slow_down_stays_reported_after_a_partial_repair():
    series = slowed(90, 40, 1.4, seed=10)
    series[65:] /= 1.2
    (change,) = regressions({"model": series.tolist()})["model"]
    assert abs(change.index - 40) <= 1


def test_no_series_have_no_regressions():
    assert regressions({}) == {}
    assert regressions({"new": [1e6, 2e6]}) == {}


@pytest.mark.parametrize("bad", [{"practical_ratio": 0.9}, {"q": 0.0}, {"min_nights": 1}])
def test_thresholds_that_make_no_sense_are_refused(bad):
    with pytest.raises(ValueError, match="no such"):
        regressions({"model": [1e6] * 20}, **bad)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.sampled_from([1e6, 1.1e6, 1.2e6, 2e6, math.nan]), max_size=40))
def test_whatever_the_series_the_levels_are_long_enough_and_in_order(series):
    changes = change_points(series, significance=0.3, permutations=99)
    bounds = [0, *(change.index for change in changes), len(series)]
    if changes:
        for start, end in pairwise(bounds):
            assert np.isfinite(series[start:end]).sum() >= MIN_NIGHTS
    assert all(one.after == next_one.before for one, next_one in pairwise(changes))
