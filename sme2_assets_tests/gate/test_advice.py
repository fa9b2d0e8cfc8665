"""Advice: what is measured decides, not what is hoped for."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sme2_assets.gate.advice import Candidate, is_gain, moved, ranked, row_of
from sme2_assets.gate.baseline import ModelFacts
from sme2_assets_tests.gate.test_judge import facts, operator

BASE = facts(operator(0, macs=600), operator(1, macs=400, unit="off", category="GEMM"))


def tried(*units: str, **given: object) -> Candidate:
    each = [operator(number, macs=(600, 400)[number], unit=unit) for number, unit in enumerate(units)]
    return Candidate("@rewrite=x", "x", "x()", facts(*each, **given))


@given(st.lists(st.tuples(*[st.sampled_from(["on", "off", "unknown"])] * 2, st.integers(1, 50)), max_size=6))
def test_the_first_has_the_largest_sure_gain(drawn: list[tuple[str, str, int]]):
    candidates = [tried(first, second, steps=steps) for first, second, steps in drawn]
    failed = Candidate("-int4", "at int4", None, None, "no such precision")
    order = ranked(BASE, [failed, *candidates])
    assert order[-1] is failed
    gains = [round(each.gain(BASE) or 0.0, 2) for each in order[:-1]]
    assert gains == sorted(gains, reverse=True)
    for one, other in pairwise(order[:-1]):
        if round(one.gain(BASE) or 0, 2) == round(other.gain(BASE) or 0, 2):
            assert facts_of(one).steps <= facts_of(other).steps


def facts_of(candidate: Candidate) -> ModelFacts:
    assert candidate.facts is not None
    return candidate.facts


def test_what_is_unknown_is_no_gain():
    assert not is_gain(BASE, tried("on", "unknown"))
    assert is_gain(BASE, tried("on", "on"))
    # Nor is what was unknown before counted as won.
    base = facts(operator(0, macs=600), operator(1, macs=400, unit="unknown"))
    assert not is_gain(base, tried("on", "on"))


def test_the_operators_that_came_onto_the_unit_are_named_also_as_another_kind():
    assert moved(BASE, tried("on", "on")) == ["layer.1 (model.py:11)"]
    assert moved(BASE, tried("off", "off")) == []


def test_work_that_a_change_adds_counts_for_nothing():
    """Ten times the work on what was on the unit before: a larger share of all, and nothing won."""
    added = facts(operator(0, macs=6000), operator(1, macs=400, unit="off"), operator(7, macs=9000))
    assert (added.macs_share("on") or 0) > 0.97
    inflated = Candidate("x", "x", None, added)
    assert (inflated.share(BASE, "on"), inflated.gain(BASE)) == (0.6, 0.0)
    assert not is_gain(BASE, inflated)
    lost = Candidate("x", "x", None, facts(operator(1, macs=400)))
    assert lost.gain(BASE) == pytest.approx(-0.2)


def test_a_row_says_what_is_unknown():
    row = row_of(BASE, Candidate("x", "x", None, facts(operator(0, unit="unknown"), sqnr_db=None)))
    assert row["the model's MACs on the unit"] == "0.0% (-60.0 pp at least)"
    uncounted = facts(operator(0, macs=None))
    assert "not counted" in row_of(uncounted, tried("on", "on")).values()
    assert row["worst output"] == "unknown"
    assert row_of(BASE, tried("on", "on"))["the model's MACs on the unit"] == "100.0% (+40.0 pp)"
