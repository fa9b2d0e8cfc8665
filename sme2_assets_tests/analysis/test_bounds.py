"""XNNPACK's whole microseconds: what is known of a time, and what of a ratio, whatever the clock hides.

The truth is made up in nanoseconds and floored here as XNNPACK does it. Bounds must hold it always.
"""

from __future__ import annotations

import math
from unittest import mock

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sme2_assets.analysis import statistics
from sme2_assets.analysis.statistics import (
    MOST_RESOLUTION,
    Times,
    bounded_speedup,
    exactly,
    minimal_detectable_effect,
    paired_speedup,
    slow_rounds,
    speedup_verdict,
)


def floored(true_ns: np.ndarray) -> Times:
    least = np.floor(np.asarray(true_ns) / 1000) * 1000
    return Times(least, least + 1000)


seeds = st.integers(0, 2**32 - 1)


@settings(max_examples=60)
@given(seeds, st.integers(1, 14), st.floats(1_000, 60_000), st.floats(0.2, 5), st.floats(0, 0.3))
@example(39090, 8, 1000.0, 0.5, 0.25)
def test_the_bounds_hold_what_exact_times_would_have_given_always(seed, n, on_ns, ratio, noise):
    random = np.random.default_rng(seed)
    on = np.maximum(on_ns * np.exp(random.normal(0, noise, n)), 1_000)
    off = np.maximum(on_ns * ratio * np.exp(random.normal(0, noise, n)), 1_000)
    exact = paired_speedup(off.tolist(), on.tolist())
    found = bounded_speedup(floored(off), floored(on))
    low, high = found.bounds
    assert low <= exact.ratio * (1 + 1e-12)
    assert high >= exact.ratio * (1 - 1e-12)
    assert low <= found.ratio <= high
    if exact.low is not None:
        # Before rounds that are alike are allowed for: the clock may hide that they are, with their scatter.
        with mock.patch.object(statistics, "_widening", return_value=1.0):
            independent = paired_speedup(off.tolist(), on.tolist())
            bounded = bounded_speedup(floored(off), floored(on))
        assert bounded.low <= independent.low * (1 + 1e-12)
        assert bounded.high >= independent.high * (1 - 1e-12)
        assert found.low <= bounded.low * (1 + 1e-12)
        assert found.high >= bounded.high * (1 - 1e-12)
        # Nothing is shown that exact times would not have shown.
        if speedup_verdict(found)[0] in ("faster", "slower"):
            assert exact.p_value <= 0.05 + 1e-12
            assert (exact.ratio > 1) == (found.ratio > 1)


@given(seeds, st.integers(6, 14))
def test_swapped_arms_have_the_reciprocal_bounds(seed, n):
    random = np.random.default_rng(seed)
    off, on = (floored(random.uniform(2_000, 9_000, n)) for _ in range(2))
    there, back = bounded_speedup(off, on), bounded_speedup(on, off)
    assert there.bounds == pytest.approx((1 / back.bounds[1], 1 / back.bounds[0]))
    assert (there.low, there.high) == pytest.approx((1 / back.high, 1 / back.low))
    assert there.p_value == pytest.approx(back.p_value)


@pytest.mark.parametrize("ratio", [1.0, 2.0])
@pytest.mark.parametrize("noise", [0.0, 0.02, 0.3])
def test_intervals_of_floored_times_cover_the_true_ratio(ratio, noise):
    """Forty operators of 3 to 8 us, ten rounds: at least 93 % of the intervals hold the truth."""
    random = np.random.default_rng(4)
    held = []
    for true_ns in random.uniform(3_000, 8_000, 120):
        off = true_ns * np.exp(random.normal(0, noise, 10))
        on = true_ns / ratio * np.exp(random.normal(0, noise, 10))
        found = bounded_speedup(floored(np.maximum(off, 1_000)), floored(np.maximum(on, 1_000)))
        held.append(found.low <= ratio <= found.high)
    assert np.mean(held) >= 0.93


def test_a_difference_that_flooring_makes_is_not_called_one():
    # 2.990 us against 3.002: a true 0.4 %, which whole microseconds show as 2 against 3.
    found = bounded_speedup(floored(np.full(10, 2_990)), floored(np.full(10, 3_002)))
    assert found.low <= 2_990 / 3_002 <= found.high
    assert found.resolution > MOST_RESOLUTION
    verdict, reason = speedup_verdict(found)
    assert verdict == "insufficient data"
    assert "whole microseconds alone leave the ratio between 0.50 and 1.00: more rounds do not help" in reason


def test_a_difference_that_flooring_cannot_hide_is_found():
    verdict, _ = speedup_verdict(bounded_speedup(floored(np.full(10, 8_400)), floored(np.full(10, 4_200))))
    assert verdict == "faster"


def test_exact_times_have_no_bounds_but_themselves():
    found = bounded_speedup(exactly([2e6] * 6), exactly([1e6] * 6))
    assert (found.bounds, found.resolution, found.nearest) == (None, 1.0, pytest.approx(2))


def test_what_is_at_least_more_than_at_most_is_refused():
    with pytest.raises(ValueError, match="above its upper bound"):
        bounded_speedup(Times(np.array([2e3]), np.array([1e3])), exactly([1e3]))


def test_the_detectable_effect_has_noise_floor_and_clock_in_it():
    random = np.random.default_rng(2)
    off, on = (1e6 * np.exp(random.normal(0, 0.015, 12)) for _ in range(2))
    alone = minimal_detectable_effect(off, on)
    with_floor = minimal_detectable_effect(off, on, noise_floor=1.1)
    assert 1.02 <= alone < 1.05
    assert with_floor > 1.1
    assert minimal_detectable_effect(off, on, noise_floor=1.1, resolution=1.2) == pytest.approx(
        1.2 * with_floor
    )
    # Nothing smaller than the floor itself is ever called faster.
    assert speedup_verdict(paired_speedup([alone * 1e6] * 12, [1e6] * 12), noise_floor=1.1)[0] != "faster"


@given(seeds, st.integers(9, 30), st.floats(1.2, 3), st.floats(0.0, 0.015))
def test_a_slow_mode_in_a_third_of_the_rounds_is_seen(seed, n, slower, noise):
    random = np.random.default_rng(seed)
    slow = sorted(random.choice(n, math.ceil(n / 3), replace=False).tolist())
    # Noise of bounded size: what is outside of it is the mode.
    times = 1e6 * np.exp(random.uniform(-noise, noise, n))
    times[slow] *= slower
    assert slow_rounds(exactly(times)) == slow


@pytest.mark.parametrize(
    ("n", "scatter", "most"), [(6, 0.03, 0.03), (8, 0.1, 0.04), (10, 0.1, 0.02), (20, 0.2, 0.01)]
)
def test_rounds_of_one_mode_are_rarely_called_two(n, scatter, most):
    random = np.random.default_rng(9)
    found = [bool(slow_rounds(exactly(np.exp(random.normal(14, scatter, n))))) for _ in range(600)]
    assert np.mean(found) <= most + 3 * math.sqrt(most / 600)


def test_one_disturbed_round_is_no_mode_and_neither_is_what_the_clock_makes():
    assert slow_rounds(exactly([1e6] * 11 + [9e6])) == []
    # 3.999 and 4.001 us, seen as 3 and 4.
    assert slow_rounds(floored(np.array([3_999] * 6 + [4_001] * 6))) == []
    assert slow_rounds(exactly([3_000] * 6 + [4_000] * 6)) == list(range(6, 12))
