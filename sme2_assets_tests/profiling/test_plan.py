"""How much is measured and in which order."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sme2_assets.errors import Sme2Error
from sme2_assets.evidence.result import RunnerResult
from sme2_assets.profiling.plan import EMULATED_PLAN, HARDWARE_PLAN, Lengths, Pace, Plan, arm_orders, plan_for


@given(rounds=st.integers(1, 40), seed=st.integers(0, 2**31))
def test_neighbouring_rounds_have_opposite_orders(rounds: int, seed: int):
    orders = arm_orders(["off", "on"], rounds, seed)
    assert len(orders) == rounds
    assert all(sorted(order) == ["off", "on"] for order in orders)
    assert all(first == second[::-1] for first, second in itertools.pairwise(orders))


def test_either_arm_may_begin_and_the_seed_decides():
    beginnings = {arm_orders(["off", "on"], 1, seed)[0][0] for seed in range(20)}
    assert beginnings == {"off", "on"}
    assert arm_orders(["off", "on"], 5, 7) == arm_orders(["off", "on"], 5, 7)


def test_a_wish_replaces_the_default_and_none_does_not():
    plan = plan_for("hardware", rounds=2, iterations=None)
    assert (plan.rounds, plan.max_rounds, plan.iterations) == (2, 2, HARDWARE_PLAN.iterations)
    assert plan_for("hardware", rounds=2, max_rounds=9).max_rounds == 9
    assert plan_for("emulated") == EMULATED_PLAN
    assert plan_for("hardware", paired=False).max_rounds == 6, "nothing is won by going on"


@pytest.mark.parametrize(
    "wrong",
    [
        *({"rounds": 0}, {"threads": 0}, {"iterations": -1}, {"warmup": -1}, {"timeout_s": 0}),
        *({"warmup_s": -0.1}, {"timed_s": -1.0}, {"rounds": 10**11}, {"rounds": 1, "max_rounds": 1001}),
    ],
)
def test_a_plan_that_measures_nothing_or_never_ends_is_refused(wrong):
    with pytest.raises(Sme2Error, match=next(iter(wrong))):
        Plan(**wrong)


def test_kernels_are_sampled_in_the_first_rounds_only():
    plan = plan_for("hardware", kernel_rounds=1)
    assert plan.passes_of_round(0) == ["latency", "etdump", "kernels"]
    assert plan.passes_of_round(1) == ["latency", "etdump"]


@pytest.mark.parametrize(
    ("inference_ns", "iterations"), [(1e6, 1000), (1e9, 10), (100, 2000), (math.inf, 10)]
)
def test_the_kernels_pass_samples_about_a_second(inference_ns: float, iterations: int):
    plan = plan_for("hardware")
    assert plan.iterations_of("kernels", inference_ns) == iterations
    assert plan.iterations_of("etdump", inference_ns) == plan.iterations


def test_the_work_pass_warms_up_where_the_others_do_not():
    plan = plan_for("emulated").showing_kernels_by("work")
    for kind, warmup in zip(plan.passes, (0, 0, 1), strict=True):
        lengths = plan.lengths_of(kind, math.inf, Pace())
        assert (lengths.warmup, lengths.warmup_ms, lengths.timed_ms) == (warmup, 0, 0), (
            "emulated time is no time"
        )


@given(
    iterations=st.integers(1, 40_000),
    inference_ns=st.floats(1e3, 1e11),
    factor=st.floats(0.1, 1000),
)
def test_sampling_goes_on_for_longer_and_never_beyond_its_limit(iterations, inference_ns, factor):
    plan = plan_for("hardware")
    more = plan.more_iterations(iterations, inference_ns, factor)
    most = min(plan.kernel_limit_s * 1e9 / inference_ns, 20_000)
    assert (more is None) == (iterations >= int(most))
    assert more is None or more <= most


def process(
    warmups: int, warmup_ms: float, iterations: int, timed_ms: float, kind: str = "latency"
) -> RunnerResult:
    return RunnerResult.model_construct(
        pass_kind=kind,
        warmup_iterations=warmups,
        warmup_wall_ns=int(1e6 * warmup_ms),
        iterations=iterations,
        timed_wall_ns=int(1e6 * timed_ms),
    )


def test_the_slowest_arm_sets_the_pace_where_number_and_not_time_decides():
    plan = plan_for("hardware")
    quick = [process(90, 300, 60, 200), process(95, 301, 61, 200, "etdump")]
    assert plan.pace_of([quick, []]) == Pace(), "both were as long as the plan asks for"
    slow = [process(10, ms, 10, ms - 100) for ms in (900, 1000, 5000)]
    assert plan.pace_of([quick, slow]) == Pace(1e9, 0.9e9), "one that was held up does not count"
    sampled = [process(10, 900, 10, 800, "kernels")]
    assert plan.pace_of([sampled, sampled]) == Pace()


@given(pace_ms=st.floats(0, 1e4), quick_ns=st.floats(1e3, 1e9), slow_ns=st.floats(1e3, 1e9))
def test_both_arms_take_the_same_time(pace_ms, quick_ns, slow_ns):
    plan, pace = plan_for("hardware"), Pace(1e6 * pace_ms, 2e6 * pace_ms)
    for kind in ("latency", "etdump"):
        quick, slow = (plan.lengths_of(kind, each, pace) for each in (quick_ns, slow_ns))
        assert quick == slow
        assert quick.warmup_ms >= max(300, pace_ms)
        assert quick.timed_ms >= max(200, 2 * pace_ms)


def test_a_number_that_was_asked_for_is_exact():
    plan = plan_for("hardware", warmup=3, iterations=7)
    lengths = plan.lengths_of("latency", 1e6, Pace(9e9, 9e9))
    assert (lengths.warmup, lengths.warmup_ms, lengths.iterations, lengths.timed_ms) == (3, 0, 7, 0)
    assert plan_for("hardware", warmup=3, warmup_s=0.5).warmup_s == 0.5


LENGTHS = Lengths(warmup=10, warmup_ms=300, iterations=20, iterations_cap=200, timed_ms=100)


@pytest.mark.parametrize(
    ("lengths", "made", "fit"),
    [
        (LENGTHS, (10, 300_000_000, 20, 100_000_000), True),
        (LENGTHS, (9, 300_000_000, 20, 100_000_000), False),
        (LENGTHS, (10, 299_999_999, 20, 100_000_000), False),
        (LENGTHS, (10, None, 20, 100_000_000), False),
        (LENGTHS, (10, 300_000_000, 20, 99_999_999), False),
        (LENGTHS, (10, 300_000_000, 200, 1_000), True),
        (LENGTHS, (10, 300_000_000, 201, 100_000_000), False),
        (replace(LENGTHS, warmup_ms=0, timed_ms=0), (10, 0, 20, 0), True),
        (replace(LENGTHS, warmup_ms=0, timed_ms=0), (11, 0, 20, 0), False),
        (replace(LENGTHS, warmup_ms=0, timed_ms=0), (10, 0, 21, 0), False),
    ],
)
def test_a_process_that_was_shorter_than_asked_for_does_not_fit(lengths, made, fit):
    names = ("warmup_iterations", "warmup_wall_ns", "iterations", "timed_wall_ns")
    assert lengths.fit(RunnerResult.model_construct(**dict(zip(names, made, strict=True)))) is fit


@pytest.mark.parametrize("seed", range(5))
def test_several_arms_are_all_in_every_round_and_none_is_always_in_the_middle(seed):
    labels = ["a", "b", "c"]
    orders = arm_orders(labels, 21, seed)
    assert len(orders) == 21
    assert all(sorted(order) == labels for order in orders)
    assert all(later == earlier[::-1] for earlier, later in zip(orders[::2], orders[1::2], strict=False))
    assert {order[1] for order in orders} == set(labels)
