from __future__ import annotations

import math
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.stats import PermutationMethod, wilcoxon

from sme2_assets.analysis.statistics import (
    MIN_AA_SESSIONS,
    MIN_ROUNDS,
    PRACTICAL_RATIO,
    Speedup,
    adjusted_p_values,
    minimal_detectable_effect,
    noise_floor,
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


def _arms(random: np.random.Generator, n: int, ratio: float = 1.0) -> tuple[list[float], list[float]]:
    """Paired rounds: a drift that both arms share, lognormal processes, one in ten disturbed."""
    drift = random.normal(0, 0.1, n)
    off, on = (
        drift + random.normal(0, 0.02, n) + (random.random(n) < 0.1) * np.abs(random.standard_t(2, n)) * 0.15
        for _ in range(2)
    )
    return (ratio * 1e6 * np.exp(off)).tolist(), (1e6 * np.exp(on)).tolist()


@settings(max_examples=100)
@given(st.integers(MIN_ROUNDS, 25), st.integers(0, 2**32 - 1), st.floats(-1.5, 1.5))
def test_the_p_value_is_that_of_the_exact_signed_rank_test(n, seed, shift):
    differences = _differences_without_ties(n, seed, shift)
    if len(np.unique(np.abs(differences).round(9))) < n or np.abs(differences).min() < 1e-9:
        return  # a tie: the next test
    speedup = paired_speedup((1e6 * np.exp(differences)).tolist(), [1e6] * n)
    p = wilcoxon(differences, method="exact").pvalue
    assert speedup.p_value == pytest.approx(p, rel=1e-9)
    if p >= 0.05:  # the interval is never narrower than that of the test
        assert speedup.low <= 1 <= speedup.high


@settings(max_examples=25)
@given(st.lists(st.sampled_from([-2, -1, 0, 1, 2, 3]), min_size=MIN_ROUNDS, max_size=8))
def test_the_p_value_is_exact_also_with_ties_and_zeros(steps):
    speedup = paired_speedup([1e6 * 1.1**step for step in steps], [1e6] * len(steps))
    if not any(steps):
        assert speedup.p_value == 1
        return
    all_signs = PermutationMethod(n_resamples=np.inf)
    p = wilcoxon(np.array(steps, dtype=float), zero_method="pratt", method=all_signs).pvalue
    assert speedup.p_value == pytest.approx(p, rel=1e-9)


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
    for end, furthest in ((speedup.low, min(averages)), (speedup.high, max(averages))):
        from_ratio = speedup.widened * (furthest - math.log(speedup.ratio))
        assert math.isclose(end, speedup.ratio * math.exp(from_ratio), rel_tol=1e-9)
    assert speedup.low <= speedup.ratio <= speedup.high


def test_the_interval_is_never_narrower_than_the_exact_rank_interval():
    differences = np.log([1.5, 1.1, 1.2, 1.3, 1.4, 1.6, 1.7, 9.0])
    speedup = paired_speedup((1e6 * np.exp(differences)).tolist(), [1e6] * 8)
    # For n = 8 the tables give 3 as the critical value of the two-sided test at 5 %.
    averages = sorted((differences[i] + differences[j]) / 2 for i in range(8) for j in range(i, 8))
    assert math.exp(averages[0]) <= speedup.low <= math.exp(averages[3]) * (1 + 1e-12)
    assert math.exp(averages[-4]) * (1 - 1e-12) <= speedup.high <= math.exp(averages[-1])


def test_the_same_rounds_give_the_same_interval():
    off, on = _arms(np.random.default_rng(3), 12)
    assert paired_speedup(off, on) == paired_speedup(off, on)


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
    at_a_limit = math.isclose(abs(math.log(there.ratio)), math.log(PRACTICAL_RATIO), rel_tol=1e-6)
    assert at_a_limit or verdict == opposite.get(reverse, reverse)


def test_one_disturbed_round_hardly_moves_the_ratio():
    clean = paired_speedup([2e6] * 11, [1e6] * 11)
    disturbed = paired_speedup([2e6] * 10 + [90e6], [1e6] * 11)
    assert clean.ratio == pytest.approx(2)
    assert disturbed.ratio == pytest.approx(2)
    assert disturbed.high < 14  # the mean of the ratios would be 5.9, their maximum is 90


@pytest.mark.parametrize("n", range(1, MIN_ROUNDS))
def test_fewer_than_six_rounds_give_no_interval_and_no_verdict(n):
    speedup = paired_speedup([3e6] * n, [1e6] * n)
    assert speedup == Speedup(pytest.approx(3), None, None, n, None)
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
        (1.005, 1.010, 1.015, "too small to count"),
        (0.985, 0.990, 0.995, "too small to count"),
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
    given_verdict, reason = speedup_verdict(Speedup(ratio, low, high, 12, 0.01))
    assert given_verdict == verdict
    assert "12 paired rounds" in reason
    assert "95 %" in reason


@pytest.mark.parametrize(
    ("speedup", "noise_floor", "figures"),
    [
        (
            Speedup(1.2, 1.10, 1.30, 12, 0.0123),
            None,
            ["95 %", "1.100 to 1.300", "12 paired", "0.012", "2.0%"],
        ),
        (Speedup(0.8, 0.75, 0.85, 9, 0.0039), 1.05, ["95 %", "0.750 to 0.850", "9 paired", "0.0039", "5.0%"]),
        (Speedup(1.0, 0.99, 1.01, 15, 0.5), None, ["95 %", "0.990 to 1.010", "15 paired", "2.0%"]),
        (Speedup(1.03, 1.01, 1.04, 8, 0.01), 1.07, ["95 %", "1.010 to 1.040", "8 paired", "7.0%"]),
    ],
)
def test_the_figures_of_a_reason_are_those_it_rests_on(speedup, noise_floor, figures):
    _, reason = speedup_verdict(speedup, noise_floor=noise_floor)
    shown = re.findall(r"95 %|[\d.]+ to [\d.]+|\d+ paired|(?<=p = )[\d.]*\d|[\d.]+%", reason)
    assert shown == figures


@pytest.mark.parametrize(
    ("speedup", "given_beside", "failed"),
    [
        (Speedup(1.1, 0.98, 1.2, 12, 0.01), {}, "the interval holds 1"),
        (Speedup(1.1, 1.05, 1.2, 12, 0.06), {}, "p = 0.06 is above 0.05"),
        (Speedup(1.1, 1.05, 1.2, 12, 0.0502), {}, "p = 0.0502 is above 0.05"),
        (Speedup(1.1, 1.05, 1.2, 12, 0.01), {"adjusted_p": 0.07}, "p = 0.07 after false-discovery control"),
        (Speedup(1.015, 1.005, 1.03, 12, 0.01), {}, "the estimate 1.015 is within 2.0% of 1"),
        (Speedup(1.0199, 1.005, 1.03, 12, 0.01), {}, "the estimate 1.0199 is within 2.0% of 1"),
        (Speedup(0.98041, 0.97, 0.99, 12, 0.01), {}, "the estimate 0.9804 is within 2.0% of 1"),
        (Speedup(1.1, 1.05, 1.2, 12, 0.01), {"noise_floor": 1.15}, "within 15.0% (the noise floor) of 1"),
        (Speedup(1.1, 1.05, 1.2, 12, None), {}, "there is no p-value"),
    ],
)
def test_the_reason_names_the_condition_that_failed(speedup, given_beside, failed):
    verdict, reason = speedup_verdict(speedup, **given_beside)
    assert verdict == "insufficient data"
    assert failed in reason
    assert "12 paired rounds" in reason


@pytest.mark.parametrize(
    ("speedup", "said"),
    [
        (Speedup(1.2, 1.0001, 1.3, 12, 0.01), "1.0001 to 1.300 over 12 paired rounds lies above 1"),
        (Speedup(0.8, 0.7, 0.9999, 12, 0.01), "0.700 to 0.9999 over 12 paired rounds lies below 1"),
        (Speedup(1.0, 0.995, 1.0, 12, 1.0), "0.995 to 1.000 over 12 paired rounds rules out"),
    ],
)
def test_an_interval_beside_1_does_not_touch_it_in_print(speedup, said):
    assert said in speedup_verdict(speedup)[1]


def test_an_adjusted_p_value_takes_the_place_of_the_p_value():
    assert speedup_verdict(Speedup(1.1, 1.05, 1.2, 12, 0.06), adjusted_p=0.04)[0] == "faster"
    assert speedup_verdict(Speedup(0.9, 0.85, 0.95, 12, 0.01), adjusted_p=0.04)[0] == "slower"


def test_a_noise_floor_raises_the_threshold_and_never_lowers_it():
    certain = Speedup(1.03, 1.025, 1.035, 12, 0.001)
    assert speedup_verdict(certain)[0] == "faster"
    assert speedup_verdict(certain, noise_floor=1.001)[0] == "faster"
    verdict, reason = speedup_verdict(certain, noise_floor=1.05)
    assert verdict == "too small to count"
    assert "within 5.0% (the noise floor): identical arms differ by as much" in reason


@pytest.mark.parametrize("floor", [0.97, 0.0, math.nan, math.inf])
def test_a_noise_floor_below_one_is_refused(floor):
    with pytest.raises(ValueError, match="at least 1"):
        speedup_verdict(Speedup(1.1, 1.05, 1.2, 12, 0.01), noise_floor=floor)


@pytest.mark.parametrize(("n", "sessions"), [(6, 400), (10, 250), (20, 120)])
def test_equal_arms_are_rarely_said_to_differ(n, sessions):
    """A/A with disturbed rounds. The test is exact: 5 % at most, here with three standard errors of room."""
    random = np.random.default_rng(20240229)
    speedups = [paired_speedup(*_arms(random, n)) for _ in range(sessions)]
    verdicts = [speedup_verdict(speedup)[0] for speedup in speedups]
    most = sessions * 0.05 + 3 * math.sqrt(sessions * 0.05 * 0.95)
    assert 0 < sum(not speedup.low <= 1 <= speedup.high for speedup in speedups) <= most
    assert 0 < sum(verdict in ("faster", "slower") for verdict in verdicts) <= sessions * 0.05


def test_rounds_that_are_alike_have_a_wider_interval_and_the_reason_says_so():
    random, covered, flagged = np.random.default_rng(5), [], []
    for _ in range(200):
        drift = [random.normal()]
        for _ in range(29):
            drift.append(0.7 * drift[-1] + np.sqrt(1 - 0.7**2) * random.normal())
        speedup = paired_speedup(1e6 * np.exp(0.01 * np.array(drift)), np.full(30, 1e6))
        assert speedup.low is not None
        assert speedup.high is not None
        covered.append(speedup.low <= 1 <= speedup.high)
        flagged.append("Successive rounds are alike" in speedup_verdict(speedup)[1])
    assert np.mean(covered) > 0.82, "0.6 if rounds are taken for independent ones"
    assert np.mean(flagged) > 0.85
    independent = [
        paired_speedup(1e6 * np.exp(0.01 * random.normal(size=10)), np.full(10, 1e6)) for _ in range(200)
    ]
    assert np.mean([each.widened > 1 for each in independent]) < 0.1


def test_a_large_difference_is_found_in_noise():
    random = np.random.default_rng(7)
    verdicts = []
    for _ in range(200):
        on = 1e6 * np.exp(random.normal(0, 0.03, 6))
        off = 1.5e6 * np.exp(random.normal(0, 0.03, 6))
        verdicts.append(speedup_verdict(paired_speedup(off.tolist(), on.tolist()))[0])
    assert verdicts == ["faster"] * 200


def test_the_minimal_detectable_effect_is_found_in_about_four_of_five_sessions():
    random = np.random.default_rng(5)

    def arms(ratio: float = 1.0) -> tuple[list[float], list[float]]:
        on, off = (1e6 * np.exp(random.normal(0, 0.03, 12)) for _ in range(2))
        return (ratio * off).tolist(), on.tolist()

    effect = float(np.median([minimal_detectable_effect(*arms()) for _ in range(60)]))
    found = sum(speedup_verdict(paired_speedup(*arms(effect)))[0] == "faster" for _ in range(300))
    assert 0.65 <= found / 300 <= 0.92


def test_more_rounds_and_less_noise_detect_smaller_effects():
    random = np.random.default_rng(6)

    def effect(n: int, noise: float) -> float:
        on = 1e6 * np.exp(random.normal(0, noise, n))
        return minimal_detectable_effect([1e6] * n, on.tolist())

    assert effect(40, 0.05) < effect(8, 0.05)
    assert effect(12, 0.03) < effect(12, 0.3)


def test_without_noise_the_threshold_is_the_minimal_detectable_effect():
    same = [1e6] * MIN_ROUNDS
    assert minimal_detectable_effect(same, same) == pytest.approx(PRACTICAL_RATIO)
    assert minimal_detectable_effect(same, same, noise_floor=1.1) == pytest.approx(1.1)


def test_too_few_rounds_have_no_minimal_detectable_effect():
    assert minimal_detectable_effect([1e6] * 5, [1e6] * 5) is None


def test_a_thousand_rounds_have_a_minimal_detectable_effect():
    random = np.random.default_rng(8)
    on = 1e6 * np.exp(random.normal(0, 0.05, 1000))
    assert PRACTICAL_RATIO <= minimal_detectable_effect([1e6] * 1000, on.tolist()) < 1.03


def test_adjusted_p_values_are_those_of_benjamini_and_hochberg():
    assert adjusted_p_values([0.01, None, 0.04, 0.03]) == [
        pytest.approx(0.03),
        None,
        pytest.approx(0.04),
        pytest.approx(0.04),
    ]
    assert adjusted_p_values([]) == []
    assert adjusted_p_values([None, None]) == [None, None]


def test_six_rounds_cannot_show_one_operator_among_many():
    least = paired_speedup([3e6] * 6, [1e6] * 6).p_value
    assert adjusted_p_values([least] + [1.0] * 9)[0] > 0.05


def test_the_noise_floor_covers_deviations_on_both_sides():
    ratios = [1.0] * 15 + [0.9, 1.05, 1.01, 0.99]
    assert noise_floor(ratios) == pytest.approx(1 / 0.9)  # of 19 sessions it is the largest deviation
    assert noise_floor(ratios * 3) == pytest.approx(1 / 0.9)
    assert noise_floor([1.0] * 100 + [2.0]) == pytest.approx(1.0)


def test_few_sessions_give_no_noise_floor():
    assert noise_floor([1.01] * (MIN_AA_SESSIONS - 1)) is None
    assert noise_floor([1.01] * MIN_AA_SESSIONS) == pytest.approx(1.01)
    with pytest.raises(ValueError, match="positive"):
        noise_floor([1.0, 0.0])
