from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sme2_assets.analysis.numerics import IDENTICAL_SQNR_DB, sqnr_db, worst_sqnr_db

REFERENCE = np.linspace(-1, 1, 101, dtype=np.float32)


def test_equal_outputs_have_the_largest_value():
    assert sqnr_db(REFERENCE, REFERENCE.copy()) == IDENTICAL_SQNR_DB
    assert sqnr_db(np.zeros(3), np.zeros(3)) == IDENTICAL_SQNR_DB


@given(st.floats(min_value=1e-6, max_value=1e3))
def test_a_relative_error_gives_its_decibels(error):
    reference = REFERENCE.astype(np.float64)
    assert math.isclose(sqnr_db(reference, reference * (1 + error)), -20 * math.log10(error), abs_tol=1e-3)


@pytest.mark.parametrize(
    "actual",
    [
        np.full(101, np.nan, dtype=np.float32),
        np.where(np.arange(101) == 7, np.inf, REFERENCE),
        REFERENCE[:100],
        REFERENCE.reshape(1, 101),
    ],
    ids=["nan", "infinity", "shorter", "other shape"],
)
def test_what_is_no_approximation_has_the_smallest_value(actual):
    assert sqnr_db(REFERENCE, actual) == -IDENTICAL_SQNR_DB


def test_anything_beside_a_zero_reference_is_wrong():
    assert sqnr_db(np.zeros(4), np.array([0, 0, 0, 1e-9])) == -IDENTICAL_SQNR_DB


def test_integers_do_not_wrap_around():
    assert sqnr_db(np.array([-128], dtype=np.int8), np.array([127], dtype=np.int8)) == pytest.approx(
        20 * math.log10(128 / 255)
    )


def test_half_precision_does_not_overflow():
    reference = np.full(4, 60000, dtype=np.float16)
    assert sqnr_db(reference, reference) == IDENTICAL_SQNR_DB


def test_the_worst_output_counts():
    off = REFERENCE * np.float32(1.1)
    assert worst_sqnr_db([REFERENCE, REFERENCE], [REFERENCE, off]) == sqnr_db(REFERENCE, off)


@pytest.mark.parametrize("actuals", [[], [REFERENCE], [REFERENCE] * 3])
def test_a_missing_or_surplus_output_is_wrong(actuals):
    assert worst_sqnr_db([REFERENCE, REFERENCE], actuals) == -IDENTICAL_SQNR_DB


def test_no_outputs_at_all_prove_nothing():
    assert worst_sqnr_db([], []) == -IDENTICAL_SQNR_DB
