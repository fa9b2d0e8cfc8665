from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.stats import wilcoxon

from sme2_assets.analysis.statistics import (
    MIN_ROUNDS,
    PRACTICAL_RATIO,
    Speedup,
    paired_speedup,
    speedup_verdict,
)

times = st.floats(min_value=1e3, max_value=1e9, allow_nan=False)
rounds = st.integers(min_value=1, max_value=24)
paired_times = rounds.flatmap(
    lambda n: st.tuples(st.lists(times, min_size=n, max_size=n), st.lists(times, min_size=n, max_size=n))
)


def _differences_without_ties(n: int, seed: int, shift: float) -> np.ndarray:
    """Log ratios whose absolute values are clearly distinct, so that the exact rank test applies."""
    random = np.random.default_rng(seed)
    sizes = random.permutation(np.arange(1, n + 1)) / n + random.uniform(0, 0.4 / n, n)
    return sizes * random.choice([-1.0, 1.0], n) + shift


@settings(max_examples=200, deadline=None)
@given(st.integers(MIN_ROUNDS, 25), st.integers(0, 2**32 - 1), st.floats(-1.5, 1.5))
def test_the_interval_holds_one_exactly_when_the_signed_rank_test_sees_no_difference(n, seed, shift):
    differences = _differences_without_ties(n, seed, shift)
    if len(np.unique(np.abs(differences).round(9))) < n or np.abs(differences).min() < 1e-9:
        return  # a tie, for which there is no exact test
    speedup = paired_speedup((1e6 * np.exp(differences)).tolist(), [1e6] * n)
    p = wilcoxon(differences, method="exact").pvalue
    assert (speedup.low <= 1 <= speedup.high) == (p >= 0.05)


@settings(deadline=None)
@given(
    hnp.arrays(
        float,
        MIN_ROUNDS,
        elements=st.floats(min_value=-2, max_value=2, allow_nan=False, allow_subnormal=False),
    )
)
def test_with_six_rounds_the_interval_spans_all_walsh_averages(differences):
    speedup = paired_speedup((1e6 * np.exp(differences)).tolist(), [1e6] * MIN_ROUNDS)
    averages = [(a + b) / 2 for a in differences for b in differences]
    assert math.isclose(speedup.low, math.exp(min(averages)), rel_tol=1e-9)
    assert math.isclose(speedup.high, math.exp(max(averages)), rel_tol=1e-9)
    assert speedup.low <= speedup.ratio <= speedup.high


def test_more_rounds_drop_extreme_averages():
    differences = np.log([1.5, 1.1, 1.2, 1.3, 1.4, 1.6, 1.7, 9.0])
    speedup = paired_speedup((1e6 * np.exp(differences)).tolist(), [1e6] * 8)
    # For n = 8 the tables give 3 as the critical value of the two-sided test at 5 %.
    averages = sorted((differences[i] + differences[j]) / 2 for i in range(8) for j in range(i, 8))
    assert math.isclose(speedup.low, math.exp(averages[3]))
    assert math.isclose(speedup.high, math.exp(averages[-4]))


@settings(deadline=None)
@given(paired_times)
def test_swapping_the_arms_gives_the_reciprocal(pair):
    off, on = pair
    there, back = paired_speedup(off, on), paired_speedup(on, off)
    assert math.isclose(there.ratio, 1 / back.ratio, rel_tol=1e-9)
    assert there.n == back.n == len(off)
    if there.low is not None:
        assert math.isclose(there.low, 1 / back.high, rel_tol=1e-9)
        assert math.isclose(there.high, 1 / back.low, rel_tol=1e-9)
    opposite = {"faster": "slower", "slower": "faster"}
    verdict, reverse = speedup_verdict(there)[0], speedup_verdict(back)[0]
    assert verdict == opposite.get(reverse, reverse)


def test_one_disturbed_round_hardly_moves_the_ratio():
    clean = paired_speedup([2e6] * 11, [1e6] * 11)
    disturbed = paired_speedup([2e6] * 10 + [90e6], [1e6] * 11)
    assert clean.ratio == pytest.approx(2)
    assert disturbed.ratio == pytest.approx(2)
    assert disturbed.high < 14  # the mean of the ratios would be 5.9, their maximum is 90


@pytest.mark.parametrize("n", range(1, MIN_ROUNDS))
def test_fewer_than_six_rounds_give_no_interval_and_no_verdict(n):
    speedup = paired_speedup([3e6] * n, [1e6] * n)
    assert speedup == Speedup(pytest.approx(3), None, None, n)
    verdict, reason = speedup_verdict(speedup)
    assert verdict == "insufficient data"
    assert f"{n} paired rounds" in reason


def test_six_rounds_are_the_least_that_can_show_a_difference():
    assert speedup_verdict(paired_speedup([3e6] * MIN_ROUNDS, [1e6] * MIN_ROUNDS))[0] == "faster"


def test_many_rounds_do_not_overflow():
    random = np.random.default_rng(1)
    on = random.uniform(1e6, 1.1e6, 1100)
    speedup = paired_speedup((on * 1.5).tolist(), on.tolist())
    assert speedup.low == pytest.approx(1.5)
    assert speedup.high == pytest.approx(1.5)


@pytest.mark.parametrize(
    ("off", "on"),
    [
        ([], []),
        ([1e6], [1e6, 2e6]),
        ([0.0], [1e6]),
        ([1e6], [-1.0]),
        ([math.nan], [1e6]),
        ([math.inf], [1e6]),
    ],
)
def test_what_has_no_ratio_is_refused(off, on):
    with pytest.raises(ValueError, match=r"not paired|positive"):
        paired_speedup(off, on)


@pytest.mark.parametrize(
    ("low", "ratio", "high", "verdict"),
    [
        (1.10, 1.20, 1.30, "faster"),
        (1.0001, PRACTICAL_RATIO, 1.30, "faster"),
        (0.70, 0.80, 0.90, "slower"),
        (0.70, 1 / PRACTICAL_RATIO, 0.9999, "slower"),
        (0.995, 1.000, 1.005, "no difference"),
        # Certain, but too small to matter.
        (1.005, 1.010, 1.015, "no difference"),
        (0.985, 0.990, 0.995, "no difference"),
        (1 / PRACTICAL_RATIO, 1.0, PRACTICAL_RATIO, "no difference"),
        # Perhaps a large difference, perhaps none.
        (0.90, 1.10, 1.30, "insufficient data"),
        (0.90, 1.00, 1.10, "insufficient data"),
        # A difference for certain, but perhaps one too small to matter.
        (1.005, 1.015, 1.030, "insufficient data"),
        (1.0, 1.2, 1.4, "insufficient data"),
    ],
)
def test_the_verdict_follows_the_interval_and_the_practical_threshold(low, ratio, high, verdict):
    given_verdict, reason = speedup_verdict(Speedup(ratio, low, high, 12))
    assert given_verdict == verdict
    assert "12 paired rounds" in reason
    assert "95 %" in reason


def test_equal_arms_are_rarely_said_to_differ():
    """A/A: both arms of one distribution, as noisy as processes are. By the test at most 3.1 % are wrong."""
    random = np.random.default_rng(20240229)
    verdicts = []
    for _ in range(2000):
        drift = random.normal(0, 0.1, 6)  # what both arms of a round share
        off, on = (1e6 * np.exp(drift + random.normal(0, 0.03, 6)) for _ in range(2))
        verdicts.append(speedup_verdict(paired_speedup(off.tolist(), on.tolist()))[0])
    wrong = sum(verdict in ("faster", "slower") for verdict in verdicts)
    assert 0 < wrong <= 2000 * 2 / 64


def test_a_large_difference_is_found_in_noise():
    random = np.random.default_rng(7)
    verdicts = []
    for _ in range(200):
        on = 1e6 * np.exp(random.normal(0, 0.03, 6))
        off = 1.5e6 * np.exp(random.normal(0, 0.03, 6))
        verdicts.append(speedup_verdict(paired_speedup(off.tolist(), on.tolist()))[0])
    assert verdicts == ["faster"] * 200
