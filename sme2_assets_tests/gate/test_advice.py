"""Advice: what is measured decides, not what is hoped for."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sme2_assets.gate.advice import Candidate, Change, is_gain, moved, ranked
from sme2_assets.gate.baseline import ModelFacts, Outside
from sme2_assets.gate.changes import diverging_module, first_changes, patterns_of, try_changes
from sme2_assets.models.differences.in_torch import Divergence
from sme2_assets.models.provenance import Origin
from sme2_assets.models.quantise import kept_by
from sme2_assets.models.registry import parse_variant
from sme2_assets_tests.gate.test_judge import facts, operator

CHANGE = Change("@rewrite=x", "x", "x()", "key")
BASE = facts(operator(0, macs=600), operator(1, macs=400, unit="off", category="GEMM"))


def tried(*units: str, **given: object) -> Candidate:
    each = [operator(number, macs=(600, 400)[number], unit=unit) for number, unit in enumerate(units)]
    return Candidate(CHANGE, facts(*each, **given))


@given(st.lists(st.tuples(*[st.sampled_from(["on", "off"])] * 2, st.integers(1, 50)), max_size=6))
def test_the_first_has_the_largest_gain(drawn: list[tuple[str, str, int]]):
    candidates = [tried(first, second, steps=steps) for first, second, steps in drawn]
    failed = Candidate(CHANGE, None, "no such precision")
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


def test_the_operators_that_came_onto_the_unit_are_named_also_as_another_kind():
    assert [it.module for it in moved(BASE, tried("on", "on"))] == ["layer.1"]
    assert moved(BASE, tried("off", "off")) == []


def test_work_that_a_change_adds_counts_for_nothing():
    """Ten times the work on what was on the unit before: a larger share of all, and nothing won."""
    added = facts(operator(0, macs=6000), operator(1, macs=400, unit="off"), operator(7, macs=9000))
    assert (added.macs_share() or 0) > 0.97
    inflated = Candidate(CHANGE, added)
    assert (inflated.share(BASE), inflated.gain(BASE)) == (0.6, 0.0)
    assert not is_gain(BASE, inflated)
    lost = Candidate(CHANGE, facts(operator(1, macs=400)))
    assert lost.gain(BASE) == pytest.approx(-0.2)


@pytest.mark.parametrize(
    ("units", "given", "gains"),
    [
        (("on", "off"), {"delegate_calls": 1, "steps": 9}, True),
        (("on", "off"), {"delegate_calls": 1, "steps": 30}, True),
        (("on", "off"), {"steps": 9}, True),
        (("on", "off"), {}, False),
        # One call fewer, and two operators that no delegate takes any more.
        (
            ("on", "off"),
            {"delegate_calls": 1, "outside": [Outside(operator="x", module="", reason="", count=2)]},
            False,
        ),
        # Less on the unit; a larger program.
        (("off", "off"), {"delegate_calls": 1}, False),
        (("on", "off"), {"delegate_calls": 1, "program_bytes": 2000}, False),
    ],
)
def test_fewer_calls_are_a_gain_where_nothing_is_lost(units: tuple, given: dict, gains: bool):
    same = {"delegate_calls": 2, "steps": 20, "program_bytes": 1000, "outside": []}
    base = facts(*BASE.operators, **same)
    assert is_gain(base, tried(*units, **{**same, **given})) == gains


modules = st.lists(st.sampled_from("abc01"), min_size=1, max_size=4).map(".".join)


@given(st.dictionaries(modules, st.integers(0, 9)), st.sets(modules))
def test_patterns_keep_the_layers_that_are_meant_and_no_others(wanted: dict[str, int], others: set[str]):
    others -= wanted.keys()
    patterns = patterns_of(wanted, others)
    assert not [other for other in others if kept_by(other, patterns)]
    # A layer whose whole name stands for another one too, or is just a number, is left out.
    for module in wanted:
        ambiguous = any(kept_by(other, [module]) for other in others)
        assert ambiguous or module.isdigit() or kept_by(module, patterns)


def test_a_layer_is_kept_with_what_follows_it_and_layers_of_one_kind_by_one_pattern():
    wanted = {"blocks.0.widen.0": 5, "blocks.1.widen.0": 5, "head": 1}
    assert patterns_of(wanted, {"blocks.0.deep", "blocks.1.deep"}) == ["widen", "head"]


def follow_ups(**on: str) -> list[str]:
    """What is tried with toy_cnn-fp16 after the first changes, if each has these of the layers a, b and c on
    the unit. A change that is not given has those of the model as it is, `fp16`; wrong outputs are a text.
    """
    names = []

    def attempt(change: Change) -> Candidate:
        names.append(change.name)
        said = on.get(change.rewrites[0] if change.rewrites else change.precision, on["fp16"])
        if len(said) > 3:
            return Candidate(change, None, said)
        layers = [
            operator(number, module=it, unit="on" if it in said else "off") for number, it in enumerate("abc")
        ]
        return Candidate(change, facts(*layers, steps=30 if "linear" in change.rewrites else 20))

    variant = parse_variant("toy_cnn-fp16")
    base = attempt(Change("as it is", "", None, "", precision="fp16")).facts
    assert base is not None
    first = first_changes(variant)
    try_changes(variant, base, first, attempt)
    return names[1 + len(first) :]


def test_changes_are_combined_only_where_together_they_could_bring_more():
    assert follow_ups(fp16="a") == []
    # Both bring the same layer.
    assert follow_ups(fp16="a", linear="ab", framed="ab", int8="ab") == []
    # Of two that bring the same, the one with fewer operators.
    found = follow_ups(fp16="a", linear="ab", framed="ab", two_channels="ac", int8="ab")
    assert found == ["toy_cnn@rewrite=framed+two_channels-fp16", "toy_cnn@rewrite=two_channels-int8"]


def test_layers_that_a_precision_takes_off_the_unit_or_gets_wrong_are_kept():
    assert follow_ups(fp16="a", fp32="abc", int8="ab") == ["toy_cnn@keep=b+c-fp16", "toy_cnn@keep=c-int8"]
    # At int8 hardly anything would be left in it.
    assert follow_ups(fp16="a", fp32="abc", int8="a") == ["toy_cnn@keep=b+c-fp16"]
    wrong = "outputs are wrong; aten.linear.default in module 'head.0' (Linear), line net.py:3: 9.0 dB"
    assert follow_ups(fp16="a", fp32="a", int8=wrong) == ["toy_cnn@keep=head.0-int8"]
    whole = wrong.replace("head.0", "[abc]")
    assert follow_ups(fp16="a", fp32="a", int8=whole) == []
    # Nothing is known of fp32, or nothing is better there.
    assert follow_ups(fp16="a", fp32="it cannot be exported") == []
    assert follow_ups(fp16="ab", fp32="a", int8="a") == []


def test_where_diverging_outputs_are_told_is_understood():
    origin = Origin("head.0", "Linear", "net.py:3", "x = self.head(x)")
    said = str(Divergence("aten.linear.default", origin, 9.0, 40.0, 30.0, True, 7))
    assert diverging_module(f"against eager: 9 dB; {said}") == "head.0"
