"""Whether untraced, traced and sampled inferences of a run tell the same speed."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sme2_assets.analysis.passes import passes_fault, reconcile
from sme2_assets.analysis.statistics import MIN_ROUNDS

ROUNDS = 10


def rounds_of(
    level_ns: float, rounds: int = ROUNDS, scatter: float = 0.005, seed: int = 1
) -> dict[int, float]:
    draw = random.Random(f"{level_ns} {seed}")
    return {index: level_ns * math.exp(draw.gauss(0, scatter)) for index in range(rounds)}


def test_a_tracer_that_costs_time_fits():
    verdict = reconcile(
        {"latency": rounds_of(1e6), "etdump": rounds_of(1.03e6), "kernels": rounds_of(1.1e6, 2)}
    )
    assert (verdict.agree, verdict.reason) == (True, None)
    assert verdict.tracer_overhead == pytest.approx(0.03, abs=0.01)
    assert verdict.tracer_overhead_low < 0.03 < verdict.tracer_overhead_high
    assert verdict.sampler_overhead == pytest.approx(0.1, abs=0.02)


def test_a_tracer_that_makes_the_model_faster_does_not_fit():
    """As seen on a machine whose clock rose while the first pass ran: "cost of the tracer -28.5 %"."""
    verdict = reconcile({"latency": rounds_of(1e6), "etdump": rounds_of(0.715e6), "kernels": {}})
    assert verdict.agree is False
    assert verdict.tracer_overhead == pytest.approx(-0.285, abs=0.01)
    assert verdict.reason is not None
    assert verdict.reason.startswith("Tracing costs time, yet the traced inferences took 28.")
    assert "less than the untraced ones (95 % interval 28." in verdict.reason
    assert "Measure again" in verdict.reason


def test_samples_that_are_faster_than_every_untraced_round_do_not_fit():
    medians = {"latency": rounds_of(1e6), "etdump": rounds_of(1.01e6), "kernels": rounds_of(0.8e6, 2)}
    verdict = reconcile(medians)
    assert verdict.agree is False
    assert verdict.reason is not None
    assert verdict.reason.startswith("Sampling costs time, yet the sampled inferences took 0.80")
    # One of the two as slow as they should be, or untraced rounds that are as far apart: chance may do that.
    assert reconcile({**medians, "kernels": {0: 0.8e6, 1: 1.02e6}}).agree is True
    wide = {kind: {**medians[kind], 9: 1.3e6} for kind in ("latency", "etdump")}
    assert reconcile({**medians, **wide}).agree is True


def test_samples_that_are_faster_than_traced_rounds_do_not_fit():
    medians = {"latency": rounds_of(1e6), "etdump": rounds_of(1.5e6), "kernels": rounds_of(1.2e6, 2)}
    assert ", and the traced ones 1.4" in (reconcile(medians).reason or "")


@pytest.mark.parametrize("rounds", [0, 1, MIN_ROUNDS - 1])
def test_with_too_few_rounds_nothing_is_said(rounds):
    verdict = reconcile({"latency": rounds_of(1e6, rounds), "etdump": rounds_of(0.5e6, rounds)})
    assert verdict.agree is None
    assert "too few to tell" in (verdict.reason or "")
    assert verdict.tracer_overhead_low is None


def test_a_run_without_traced_pass_is_not_judged():
    assert reconcile({"latency": rounds_of(1e6)}).agree is None


@given(
    cost=st.floats(0, 3),
    scatter=st.floats(0, 0.3),
    rounds=st.integers(1, 30),
    seed=st.integers(0, 10_000),
)
def test_noise_that_both_passes_share_is_no_contradiction(cost, scatter, rounds, seed):
    """A machine that is slow in some rounds is slow in both passes of them."""
    latency = rounds_of(1e6, rounds, scatter, seed)
    traced = {index: (1 + cost) * ns for index, ns in latency.items()}
    assert reconcile({"latency": latency, "etdump": traced}).agree in (True, None)


def test_a_cost_of_nothing_is_rarely_called_a_contradiction():
    wrong = sum(
        reconcile(
            {"latency": rounds_of(1e6, 6, 0.05, seed), "etdump": rounds_of(1e6 + 1, 6, 0.05, seed)}
        ).agree
        is False
        for seed in range(400)
    )
    assert wrong <= 0.05 * 400


@pytest.mark.parametrize("rounds", [6, 9, 10, 17, 30])
def test_the_interval_of_the_cost_covers_the_truth_as_often_as_it_says(rounds):
    def covers(seed: int) -> bool:
        draw = random.Random(seed)
        latency = {index: 1e6 * math.exp(draw.gauss(0, 0.2)) for index in range(rounds)}
        traced = {index: 1.05 * ns * math.exp(draw.gauss(0, 0.03)) for index, ns in latency.items()}
        verdict = reconcile({"latency": latency, "etdump": traced})
        assert verdict.tracer_overhead_low is not None
        assert verdict.tracer_overhead_high is not None
        return verdict.tracer_overhead_low <= 0.05 <= verdict.tracer_overhead_high

    assert sum(map(covers, range(1000))) >= 935


def test_only_a_contradiction_is_a_fault():
    assert passes_fault({}) is None
    assert passes_fault({"passes_agree": None, "passes_reason": "too few"}) is None
    assert passes_fault({"passes_agree": float("nan"), "passes_reason": None}) is None
    assert passes_fault({"passes_agree": True, "passes_reason": None}) is None
    assert passes_fault({"passes_agree": False, "passes_reason": "why"}) == "why"
