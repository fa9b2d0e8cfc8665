from __future__ import annotations

import itertools
import math

import pandas as pd
from hypothesis import given, settings
from hypothesis import strategies as st

from sme2_assets.analysis.pairing import ONE_ARM, UNCERTAIN, operator_pairs


def operators(kinds: str, backend: str = "xnnpack", delegate: float = 0) -> pd.DataFrame:
    """One operator per letter, which is its type."""
    return pd.DataFrame(
        [(backend, delegate, position, kind) for position, kind in enumerate(kinds)],
        columns=["backend", "delegate", "position", "op_type"],
    )


def paired(off: str, on: str) -> list[tuple[int | None, int | None]]:
    pairs = operator_pairs(operators(off), operators(on))
    return [(pair.a and pair.a[-1], pair.b and pair.b[-1]) for pair in pairs]


def test_equal_sequences_are_paired_by_position():
    assert paired("TCCF", "TCCF") == [(0, 0), (1, 1), (2, 2), (3, 3)]


def test_a_row_that_one_arm_has_more_shifts_no_pair():
    assert paired("CCF", "PCPCF") == [(None, 0), (0, 1), (None, 2), (1, 3), (2, 4)]
    assert paired("TCAF", "CAF") == [(0, None), (1, 0), (2, 1), (3, 2)]


def test_which_of_several_of_a_kind_is_more_is_not_guessed():
    pairs = operator_pairs(operators("TCCF"), operators("TCCCF"))
    assert [(pair.a and pair.a[-1], pair.b and pair.b[-1]) for pair in pairs if pair.why_alone is None] == [
        (0, 0),
        (3, 4),
    ]
    assert {pair.why_alone for pair in pairs} == {None, UNCERTAIN}


def test_what_has_nothing_of_its_kind_is_in_one_arm_only():
    pairs = operator_pairs(operators("TF"), operators("TC"))
    assert [(pair.a is None, pair.b is None, pair.why_alone) for pair in pairs] == [
        (False, False, None),
        (False, True, ONE_ARM),
        (True, False, ONE_ARM),
    ]


def test_delegates_are_matched_each_on_its_own():
    off = pd.concat(
        [operators("C", delegate=0), operators("C", delegate=1), operators("M", "portable", math.nan)]
    )
    on = pd.concat(
        [operators("PC", delegate=0), operators("C", delegate=1), operators("M", "portable", math.nan)]
    )
    found = {(pair.a, pair.b) for pair in operator_pairs(off, on) if pair.why_alone is None}
    assert found == {
        (("xnnpack", 0, 0), ("xnnpack", 0, 1)),
        (("xnnpack", 1, 0), ("xnnpack", 1, 0)),
        (("portable", None, 0), ("portable", None, 0)),
    }


def longest_matches(off: str, on: str) -> list[set[tuple[int, int]]]:
    """All longest common subsequences, found by trying."""
    for length in range(min(len(off), len(on)), 0, -1):
        found = [
            set(zip(i, j, strict=True))
            for i in itertools.combinations(range(len(off)), length)
            for j in itertools.combinations(range(len(on)), length)
            if [off[k] for k in i] == [on[k] for k in j]
        ]
        if found:
            return found
    return [set()]


@settings(max_examples=200)
@given(st.text("CFT", max_size=6), st.text("CFT", max_size=6))
def test_pairs_are_those_of_every_longest_match(off: str, on: str):
    pairs = operator_pairs(operators(off), operators(on))
    certain = {(pair.a[-1], pair.b[-1]) for pair in pairs if pair.a and pair.b}
    assert certain == set.intersection(*longest_matches(off, on))
    for places, kinds in (([pair.a for pair in pairs], off), ([pair.b for pair in pairs], on)):
        assert [place[-1] for place in places if place] == list(range(len(kinds)))
