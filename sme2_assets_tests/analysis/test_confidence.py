from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sme2_assets.analysis.confidence import (
    LUCK_ROUND_CV,
    MOST_ROUND_CV,
    Conditions,
    conditions_of,
    confidence,
    noise,
)

QUIET = Conditions("on", "hardware", 10, 0.01, 0.02, 0.05, traced_rounds=10, steady=True, flags=())

cvs = st.one_of(st.none(), st.floats(0, 1))
anything = st.builds(
    Conditions,
    arm=st.sampled_from(["off", "on"]),
    fidelity=st.sampled_from(["hardware", "reference"]),
    rounds=st.integers(1, 30),
    round_cv=cvs,
    traced_cv=cvs,
    tracer_overhead=st.one_of(st.none(), st.floats(-0.6, 0.6)),
    passes_agree=st.sampled_from([None, True, False]),
    disturbed_rounds=st.integers(0, 3),
    steady=st.sampled_from([None, True, False]),
    flags=st.sampled_from([(), ("busy: make used 1.0 cores",)]),
)


@given(st.lists(anything, min_size=1, max_size=2))
def test_high_confidence_is_said_only_where_nothing_speaks_against_it(arms):
    found = confidence("measured", arms)
    if found.level == "high":
        for arm in arms:
            assert noise(arm) == []
            assert arm.spread <= MOST_ROUND_CV
            assert arm.steady is not False
            assert arm.passes_agree is not False
            assert arm.fidelity == "hardware"
            assert (arm.tracer_overhead or 0) >= -max(0.02, arm.spread)
            assert (arm.rounds, arm.disturbed_rounds) >= (6, 0)
            assert not arm.disturbed_rounds
        assert "quiet machine" in found.why
    else:
        assert "quiet machine" not in found.why.replace("was not quiet", "")
    assert confidence("measured", arms, ["a bias"]).level == "low"


@given(anything)
def test_more_doubt_never_makes_it_surer(arm):
    levels = ["low", "medium", "high"]
    alone = levels.index(confidence("measured", [QUIET]).level)
    assert levels.index(confidence("measured", [QUIET, arm]).level) <= alone


@pytest.mark.parametrize(
    ("worse", "level", "why"),
    [
        ({}, "high", "measured in 10 rounds that scatter by 2.0%, on a quiet machine"),
        ({"round_cv": 0.589}, "low", "the rounds scatter by 58.9%"),
        ({"round_cv": (MOST_ROUND_CV + LUCK_ROUND_CV) / 2}, "medium", "the rounds scatter by 12.5%"),
        ({"traced_cv": 0.3}, "low", "the rounds scatter by 30.0%"),
        ({"tracer_overhead": -0.285}, "low", "inferences took 28.5% less time with tracer than without"),
        ({"tracer_overhead": -0.015}, "high", "measured"),
        ({"passes_agree": False}, "low", "the passes contradict one another"),
        ({"passes_agree": False, "tracer_overhead": -0.285}, "low", "the passes contradict one another"),
        ({"steady": False}, "medium", "the warm-up was never steady"),
        ({"flags": ("hot: 90 C",)}, "medium", "the machine was not quiet"),
        ({"flags": None}, "medium", "whether the machine was quiet is not known"),
        ({"disturbed_rounds": 2}, "medium", "2 of 10 rounds were disturbed"),
        ({"rounds": 5}, "medium", "5 rounds are few"),
        ({"rounds": 1}, "low", "in 1 round only, where one disturbance decides"),
        ({"fidelity": "reference"}, "medium", "says nothing about SME2"),
    ],
)
def test_each_doubt_has_its_weight_and_its_words(worse, level, why):
    found = confidence("measured", [Conditions(**{**QUIET.__dict__, **worse})])
    assert found.level == level
    assert why in found.why


@pytest.mark.parametrize(
    ("basis", "level"),
    [("emulated", "high"), ("implied", "medium"), ("predicted", "medium"), ("projection", "low")],
)
def test_what_was_not_timed_is_as_sure_as_what_shows_it(basis, level):
    assert confidence(basis, []).level == level


def test_of_two_arms_the_fewer_rounds_and_the_wider_scatter_are_told():
    arms = [replace(QUIET, round_cv=0.011), replace(QUIET, rounds=8, round_cv=0.043)]
    assert "measured in 8 rounds that scatter by 4.3%" in confidence("measured", arms).why


def test_a_doubt_about_one_of_two_arms_names_it():
    scattered = Conditions("off", "hardware", 10, round_cv=0.1)
    assert "the rounds scatter by 10.0% (off)" in confidence("measured", [scattered, QUIET]).why


def test_the_check_of_the_noise_has_the_same_bound():
    assert noise(Conditions("on", "hardware", 10, round_cv=0.589)) == [
        "the round medians scatter by 58.9%, more than 5%"
    ]
    assert noise(Conditions("on", "emulated", 10, round_cv=0.589, flags=("busy: x",))) == []


def test_the_rounds_of_a_whole_model_are_those_without_tracer():
    run = {"sme2": "on", "fidelity": "hardware", "flags": []}
    found = conditions_of(run, {"rounds": 10}, {"rounds": 2, "disturbed_rounds": 1})
    assert (found.rounds, found.traced_rounds, found.disturbed_rounds) == (10, 2, 1)
    assert "1 of 2 rounds were disturbed" in confidence("measured", [found]).why
    alone = conditions_of(run, {}, {"rounds": 2, "disturbed_rounds": 0})
    assert alone.rounds == 2, "a trace of another tool has no other rounds"


def test_what_the_tables_do_not_tell_is_not_known():
    run = {"sme2": "on", "fidelity": "hardware", "flags": None, "steady": math.nan}
    latency = {"rounds": 7, "round_cv": math.nan, "tracer_overhead": None}
    assert conditions_of(run, latency, {}) == Conditions("on", "hardware", 7)
