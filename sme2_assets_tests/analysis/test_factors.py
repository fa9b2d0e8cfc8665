"""Arms differ in one thing that was declared: all else that differs is named, and nothing is compared."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sme2_assets.analysis.comparison import compare, why_not_a_pair, why_times_do_not_compare
from sme2_assets.analysis.factors import FACTORS, IDENTITY, arm_name, arm_names
from sme2_assets_tests.analysis.test_comparison import ON, arm, assert_counts_add_up, at, run

# What an arm of each factor is, beside the first one.
OTHERS: dict[str, dict[str, Any]] = {
    "precision": {"variant": "toy_cnn-int8", "precision": "int8", "pte_sha256": "q"},
    "option": {"variant": "toy_cnn.width_8-fp32", "pte_sha256": "q"},
    "model": {"variant": "other-fp32", "pte_sha256": "q"},
    "change": {"variant": "toy_cnn.rewrite_linear-int8", "precision": "int8", "pte_sha256": "q"},
    "executorch": {"executorch_version": "1.6.0", "runner_pair": "s"},
    "threads": {"threads": 2},
    "cpus": {"cpus": "0-3"},
    "power": {"power_mode": "boost"},
}
CALLED = {
    "precision": ("fp32", "int8"),
    "option": ("toy_cnn-fp32", "toy_cnn.width_8-fp32"),
    "model": ("toy_cnn-fp32", "other-fp32"),
    "change": ("toy_cnn-fp32", "toy_cnn.rewrite_linear-int8"),
    "executorch": ("ExecuTorch 1.5.1", "ExecuTorch 1.6.0"),
    "threads": ("1 thread", "2 threads"),
    "cpus": ("CPUs as the system likes", "CPUs 0-3"),
    "power": ("power as it was", "power mode boost"),
}


def of_factor(factor: str, label: str = "a", **differing: Any) -> dict[str, Any]:
    its = OTHERS[factor] if label != "a" else {}
    return {**run("off"), "experiment": "arms", "factor": factor, "arm": label, **its, **differing}


def test_every_factor_is_tried_here():
    assert set(OTHERS) == set(CALLED) == set(FACTORS) - {"sme2"}


@pytest.mark.parametrize("factor", OTHERS)
def test_arms_that_differ_in_their_factor_alone_are_a_pair_by_their_names(factor: str):
    first, second = of_factor(factor), of_factor(factor, "b")
    assert why_not_a_pair(first, second) is None
    assert why_not_a_pair(first, of_factor(factor, "d")) is None, "each of several is compared with the first"
    assert (arm_name(first), arm_name(second)) == CALLED[factor]


@pytest.mark.parametrize("factor", OTHERS)
@pytest.mark.parametrize("column", IDENTITY)
def test_whatever_else_differs_is_refused_by_name(factor: str, column: str):
    another = 99 if column == "threads" else "another"
    reason = why_not_a_pair(of_factor(factor), of_factor(factor, "b", **{column: another}))
    if column in FACTORS[factor].columns:
        assert reason is None
    else:
        assert IDENTITY[column] in str(reason)
        assert str(another) in str(reason)


def test_all_that_differs_besides_is_named():
    reason = why_not_a_pair(of_factor("threads"), of_factor("threads", "b", device="x", cpus="3"))
    assert reason == "the runs have different devices (a-cpu-0a1b2c and x) and different CPUs ( and 3)"


@pytest.mark.parametrize(
    ("first", "second"), [("b", "a"), ("a", "a"), ("b", "c")], ids=["turned", "itself", "without the first"]
)
def test_only_the_first_arm_is_what_others_are_compared_with(first: str, second: str):
    assert "arms" in str(why_not_a_pair(of_factor("threads", first), of_factor("threads", second)))


def test_a_factor_of_a_later_version_is_not_taken_for_none():
    later = ({**run("off"), "experiment": "arms", "factor": "compiler", "arm": arm} for arm in "ab")
    assert "does not know the factor compiler" in str(why_not_a_pair(*later))


def test_arms_that_do_not_differ_are_no_comparison():
    assert "do not differ in their threads" in str(
        why_not_a_pair(of_factor("threads"), of_factor("threads", "b", threads=1))
    )
    assert "do not differ in their executorch" in str(
        why_not_a_pair(of_factor("executorch"), of_factor("executorch", "b", executorch_version="1.5.1"))
    ), "two runners of one version"


@settings(max_examples=30)
@given(st.sampled_from(sorted(OTHERS)), st.floats(0.2, 5.0))
def test_a_known_ratio_is_found_whatever_the_arms_differ_in(factor: str, ratio: float):
    slower = [{**op, "us": op["us"] * ratio} for op in ON]
    arms = (arm("off", slower), of_factor(factor)), (arm("off", ON), of_factor(factor, "b"))
    rows = compare(*(replace(measured, run=its) for measured, its in arms))
    model = at(rows, "model")
    assert model["speedup"] == pytest.approx(ratio, rel=1e-6)
    expected = "faster" if ratio > 1.02 else "slower" if ratio < 1 / 1.02 else None
    assert expected is None or model["verdict"] == expected
    assert (model["factor"], arm_names(model)) == (factor, CALLED[factor])
    assert "SME2" not in model["reason"]
    assert model["placebo_operators"] == 0, "the same kernel with more threads is no placebo"
    if FACTORS[factor].one_network:
        assert_counts_add_up(rows)
    else:
        assert set(rows["level"]) == {"model"}, "operators of two networks are not paired"
    assert (model["sme2_operators_a"], model["sme2_operators_b"]) == (2, 2)


def test_on_another_instruction_set_the_times_are_compared_and_not_with_sme2_in_mind():
    elsewhere = {"fidelity": "reference", "arch": "x86_64"}
    first, second = of_factor("threads", **elsewhere), of_factor("threads", "b", **elsewhere)
    assert why_times_do_not_compare(first, second) is None
    assert "say nothing about SME2" in str(why_times_do_not_compare(run("off", **elsewhere), run("on")))


@pytest.mark.parametrize("factor", OTHERS)
def test_each_arm_answers_to_its_own_eager_model(factor: str):
    fault = why_times_do_not_compare(of_factor(factor), of_factor(factor, "b", sqnr_db=1.0))
    assert f"With {CALLED[factor][1]} the outputs are wrong" in str(fault)


@pytest.mark.parametrize("factor", OTHERS)
def test_only_arms_of_one_program_answer_to_one_another(factor: str):
    alone = {"arms_sqnr_db": float("nan"), "arms_values": None}
    told = why_times_do_not_compare(of_factor(factor, **alone), of_factor(factor, "b", **alone))
    assert (told is None) == (not FACTORS[factor].one_program)
