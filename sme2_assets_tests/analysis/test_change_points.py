from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from sme2_assets.analysis.change_points import (
    HUGE_RATIO,
    MIN_NIGHTS,
    NIGHTS_BEFORE,
    NIGHTS_BEFORE_HUGE,
    ChangePoint,
    _cuts,
    _p_value,
    change_points,
    regressions,
)
from sme2_assets.warehouse.history import ENOUGH_SESSIONS, LEAST_SESSIONS

QUICK = {"draws": 1999}


def nights(n: int, seed: int, noise: float = 0.02) -> np.ndarray:
    return 1e6 * np.exp(np.random.default_rng(seed).normal(0, noise, n))


def slowed(n: int, at: int, ratio: float, seed: int, noise: float = 0.02) -> np.ndarray:
    series = nights(n, seed, noise)
    series[at:] *= ratio
    return series


def carried(n: int, seed: int, correlation: float, noise: float) -> np.ndarray:
    """Nights that carry over to the next."""
    random = np.random.default_rng(seed)
    logs = [random.normal(0, noise)]
    for _ in range(n - 1):
        logs.append(correlation * logs[-1] + math.sqrt(1 - correlation**2) * random.normal(0, noise))
    return 1e6 * np.exp(logs)


def two_levels(n: int, seed: int, gap: float = 0.10, stay: float = 10) -> np.ndarray:
    """A machine that stays in each of two states for some nights on average."""
    random = np.random.default_rng(seed)
    states = (np.cumsum(random.random(n) < 1 / stay) + random.integers(2)) % 2
    return 1e6 * np.exp(gap * states + random.normal(0, 0.01, n))


def reported(series: list[np.ndarray]) -> float:
    """The share of series that are reported, each looked at by itself."""
    return sum(bool(regressions({0: each.tolist()}, **QUICK)) for each in series) / len(series)


@settings(max_examples=50)
@given(st.lists(st.floats(-1, 1), min_size=12, max_size=12, unique=True))
def test_the_best_cut_is_that_of_the_largest_f_and_its_statistic_that_f_scaled_by_what_nights_carry(logs):
    values = np.array(logs)

    def split(cut: int) -> tuple[float, np.ndarray]:
        left, right = values[:cut], values[cut:]
        rest = np.concatenate([left - left.mean(), right - right.mean()])
        return ((values - values.mean()) ** 2).sum() - (rest**2).sum(), rest

    between, rest = max((split(cut) for cut in range(MIN_NIGHTS, 13 - MIN_NIGHTS)), key=lambda pair: pair[0])
    within = (rest**2).sum()
    assume(within > 1e-9)
    r = min(max((rest[1:] * rest[:-1]).sum() / within + 20 / 12, 0), 0.9)
    cut, statistic, _ = (float(each[0]) for each in _cuts(values[np.newaxis]))
    assert split(int(cut))[0] == pytest.approx(between, abs=1e-12)
    assert statistic == pytest.approx(between / within * 10 * (1 - r) / (1 + r), rel=1e-6, abs=1e-9)


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
    assert ns.index == ms.index
    assert (ns.ratio, ns.p_value) == pytest.approx((ms.ratio, ms.p_value))


def test_the_same_series_gives_the_same_answer():
    series = slowed(50, 30, 1.05, seed=6).tolist()
    assert change_points(series, **QUICK) == change_points(series, **QUICK)


@pytest.mark.parametrize("series", [[], [1e6], [1e6] * (2 * MIN_NIGHTS - 1), [math.nan] * 30])
def test_too_short_a_series_has_no_change_points(series):
    assert change_points(series) == []


def test_a_constant_series_has_no_change_points():
    assert change_points([1e6] * 60, **QUICK) == []


@pytest.mark.parametrize("bad", [0.0, -1.0, math.inf])
def test_what_is_no_time_is_refused(bad):
    with pytest.raises(ValueError, match="positive finite"):
        change_points([1e6] * 10 + [bad])


def test_fewer_nights_than_make_a_level_are_no_change():
    series = slowed(40, 40 - MIN_NIGHTS + 1, 3.0, seed=7).tolist()
    assert all(change.index < 40 - MIN_NIGHTS + 1 for change in change_points(series, **QUICK))


@pytest.mark.parametrize("correlation", [0.0, 0.3, 0.7, 0.8])
def test_where_nothing_changes_something_is_found_in_as_few_as_promised(correlation):
    found = sum(
        bool(change_points(carried(30, seed, correlation, 0.02).tolist(), significance=0.05, draws=999))
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


def test_a_slow_down_that_came_back_is_dated_by_its_return():
    """It is not slower since the first time: in between it was not slower at all."""
    series = slowed(110, 30, 1.2, seed=9)
    series[50:90] /= 1.2
    (change,) = regressions({"model": series.tolist()})["model"]
    assert abs(change.index - 90) <= 1


def test_a_slow_down_stays_reported_after_a_partial_repair():
    series = slowed(90, 40, 1.4, seed=10)
    series[65:] /= 1.2
    (change,) = regressions({"model": series.tolist()})["model"]
    assert abs(change.index - 40) <= 1


def test_no_series_have_no_regressions():
    assert regressions({}) == {}
    assert regressions({"new": [1e6, 2e6]}) == {}


@pytest.mark.parametrize("bad", [{"practical_ratio": 0.9}, {"q": 0.0}, {"draws": 9}])
def test_thresholds_that_make_no_sense_are_refused(bad):
    with pytest.raises(ValueError, match="no such"):
        regressions({"model": [1e6] * 20}, **bad)


@pytest.mark.parametrize("noise", [0.03, 0.10])
def test_nights_that_carry_over_are_no_slow_down_in_19_of_20_series(noise):
    assert reported([carried(60, seed, 0.7, noise) for seed in range(200)]) <= 0.05


@pytest.mark.parametrize("stay", [2, 5, 10])
def test_a_machine_with_two_levels_is_no_slow_down_in_19_of_20_series(stay):
    assert reported([two_levels(60, seed, stay=stay) for seed in range(300)]) <= 0.05


@pytest.mark.parametrize("before", [10, 20, 60])
def test_a_step_to_three_times_in_one_of_a_hundred_series_is_found_after_three_nights(before):
    series = {seed: nights(before + MIN_NIGHTS, seed, noise=0.03).tolist() for seed in range(100)}
    series[7] = slowed(before + MIN_NIGHTS, before, 3.0, seed=7, noise=0.03).tolist()
    found = regressions(series)
    assert list(found) == [7]
    (change,) = found[7]
    assert change.index == before


def test_a_huge_step_is_found_where_nights_carry_over():
    found = [slowed(33, 30, 1.0, seed) for seed in range(20)]
    for seed, series in enumerate(found):
        series[:] = carried(33, seed, 0.7, 0.03)
        series[30:] *= 3
    assert reported(found) == 1


def test_a_fifth_more_is_found_within_five_nights_in_most_series():
    """The price of few false alarms is not that nothing is found."""
    assert reported([slowed(65, 60, 1.2, seed, noise=0.03) for seed in range(50)]) >= 0.9
    assert reported([slowed(70, 60, 1.1, seed, noise=0.03) for seed in range(50)]) >= 0.8


def test_p_values_fall_with_the_statistic_also_beyond_the_draws():
    p_values = [_p_value(statistic, 60, 1999) for statistic in (1, 5, 10, 20, 50, 100, 200, 1e9)]
    assert p_values == sorted(p_values, reverse=True)
    assert len(set(p_values)) == len(p_values)
    assert p_values[0] > 0.5
    assert p_values[-1] == 1e-6, "no less is ever claimed"


def test_a_step_after_too_few_nights_is_told_only_where_it_is_huge():
    def found(before: int, ratio: float) -> bool:
        return bool(regressions({"model": slowed(before + 6, before, ratio, seed=11, noise=0.005).tolist()}))

    assert found(NIGHTS_BEFORE, 1.3)
    assert not found(NIGHTS_BEFORE - 2, 1.3)
    assert found(NIGHTS_BEFORE_HUGE, HUGE_RATIO * 1.5)
    assert not found(NIGHTS_BEFORE_HUGE - 1, HUGE_RATIO * 1.5)


def test_what_can_be_found_from_so_many_sessions_on_is_found():
    assert regressions({0: slowed(LEAST_SESSIONS, NIGHTS_BEFORE_HUGE, 3.0, seed=12, noise=0.01).tolist()})
    assert regressions({0: slowed(ENOUGH_SESSIONS, NIGHTS_BEFORE, 1.3, seed=12, noise=0.01).tolist()})


@settings(max_examples=60)
@given(st.lists(st.sampled_from([1e6, 1.1e6, 1.2e6, 2e6, math.nan]), max_size=40))
def test_whatever_the_series_the_levels_are_long_enough_and_in_order(series):
    changes = change_points(series, significance=0.3, draws=250)
    bounds = [0, *(change.index for change in changes), len(series)]
    if changes:
        for start, end in pairwise(bounds):
            assert np.isfinite(series[start:end]).sum() >= MIN_NIGHTS
    assert all(one.after == next_one.before for one, next_one in pairwise(changes))
