"""How much is measured and in which order."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sme2_assets.errors import Sme2Error
from sme2_assets.profiling.plan import EMULATED_PLAN, HARDWARE_PLAN, Plan, arm_orders, plan_for


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
    [{"rounds": 0}, {"threads": 0}, {"iterations": -1}, {"warmup": -1}, {"timeout_s": 0}],
)
def test_a_plan_that_measures_nothing_is_refused(wrong):
    with pytest.raises(Sme2Error, match=next(iter(wrong))):
        Plan(**wrong)


def test_kernels_are_sampled_in_the_first_rounds_only():
    plan = plan_for("hardware", kernel_rounds=1)
    assert plan.passes_of_round(0) == ["latency", "etdump", "kernels"]
    assert plan.passes_of_round(1) == ["latency", "etdump"]


@pytest.mark.parametrize(
    ("inference_ns", "iterations"), [(1e6, 1000), (1e9, 20), (100, 2000), (math.inf, 20)]
)
def test_the_kernels_pass_samples_about_a_second(inference_ns: float, iterations: int):
    plan = plan_for("hardware")
    assert plan.iterations_of("kernels", inference_ns) == iterations
    assert plan.iterations_of("etdump", inference_ns) == plan.iterations


def test_the_kernels_pass_warms_up_where_the_others_do_not():
    plan = plan_for("emulated")
    assert plan.warmup_of("etdump") == (0, 0)
    assert plan.warmup_of("kernels") == (1, 1)
    assert plan_for("hardware").warmup_of("kernels") == plan_for("hardware").warmup_of("latency") == (5, 100)


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
