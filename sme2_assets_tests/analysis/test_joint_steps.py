"""A step that the whole device took is told apart from that of a model."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sme2_assets.analysis.joint_steps import NEAREST, Others, others_at_step

# Every night all models run, one after the other: model m of night n is the run n * MODELS + m.
MODELS, NIGHTS, STEP_AT = 5, 40, 33


def fleet(steps: list[float], models: int = MODELS) -> list[tuple[np.ndarray, np.ndarray]]:
    """Series of which each takes its step in the same night, however long an inference takes."""
    nights = np.arange(NIGHTS)
    return [
        (nights * models + model, (model + 1.0) * np.where(nights < STEP_AT, 1.0, step))
        for model, step in enumerate(steps)
    ]


def company(series: list[tuple[np.ndarray, np.ndarray]], of: int = 0, ratio: float = 1.1) -> Others:
    places = series[of][0]
    others = [each for number, each in enumerate(series) if number != of]
    return others_at_step(places[STEP_AT - 1], ratio, others)


@pytest.mark.parametrize(
    ("steps", "slower", "joint"),
    [
        ([1.1, 1.0, 1.0, 1.0, 1.0], 0, False),
        ([1.1, 1.1, 1.1, 1.1, 1.1], 4, True),
        ([1.1, 1.06, 1.06, 1.2, 1.0], 3, True),
        ([1.1, 1.04, 1.04, 1.1, 1.1], 2, False),
        ([1.1, 0.9, 0.9, 0.9, 0.9], 0, False),
    ],
)
def test_a_step_is_the_device_s_if_most_others_took_half_of_it(steps: list[float], slower: int, joint: bool):
    assert company(fleet(steps)) == Others(4, slower)
    assert company(fleet(steps)).joint == joint


@given(st.integers(0, MODELS - 1), st.integers(STEP_AT - 2, STEP_AT + 2))
def test_whichever_model_is_asked_and_whichever_run_first_in_the_night_the_answer_is_the_same(of, moved_at):
    """The machine moves between two runs of a night: those before it are not yet slow."""
    series = fleet([1.1] * MODELS)
    assert company(series, of) == Others(MODELS - 1, MODELS - 1)
    # Three nights after it is when a step can first be found: all the others have three by then, too.
    first = [(places[: STEP_AT + 3], times[: STEP_AT + 3]) for places, times in series]
    assert company(first, of) == Others(MODELS - 1, MODELS - 1)
    nights = np.arange(NIGHTS)
    # Off by a night or two, as a change point may be, the nearest runs still tell.
    shifted = [(places, np.where(nights < moved_at, 1.0, 1.1)) for places, _ in series]
    assert company(shifted, of).joint


def test_too_few_runs_and_missing_nights_do_not_count():
    series = fleet([1.1] * MODELS)
    series[1] = (series[1][0][: STEP_AT + 1], series[1][1][: STEP_AT + 1])
    series[2][1][STEP_AT:] = np.nan
    series[3][1][STEP_AT : STEP_AT + 3] = np.nan
    assert company(series) == Others(2, 2)
    assert not company(series).joint, "two others prove little"
    assert company([series[0]]) == Others(0, 0)


def test_only_the_nearest_runs_count():
    """A series that slowed down months ago has the same level on both sides of today's step."""
    series = fleet([1.1, 1.0])
    series[1][1][: STEP_AT - NEAREST] /= 2
    assert company(series) == Others(1, 0)
