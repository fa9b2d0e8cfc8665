from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sme2_assets.evidence.numerics import (
    IDENTICAL_SQNR_DB,
    Agreement,
    Ranking,
    compare_outputs,
    equal_share_db,
    sqnr_db,
    worst_agreement,
    worst_sqnr_db,
)

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


def test_one_output_is_told_by_ratio_error_angle_and_equality():
    actual = REFERENCE.copy()
    actual[3] += np.float32(0.5)
    (agreement,) = compare_outputs([REFERENCE], [actual])
    assert agreement.output == 0
    assert agreement.sqnr_db == sqnr_db(REFERENCE, actual)
    assert agreement.max_abs_error == pytest.approx(0.5)
    assert 0.99 < agreement.cosine < 1.0
    assert agreement.equal_share == pytest.approx(100 / 101)
    assert agreement.top1_agreement is None
    assert agreement.fault(20.0) is None
    assert "at least 30 dB" in str(agreement.fault(30.0))


@pytest.mark.parametrize(
    ("differing", "said"),
    [
        ({"sqnr_db": 29.97}, "29.97 dB, at least 30 dB needed"),
        ({"sqnr_db": 12.3}, "12.3 dB, at least 30 dB needed"),
        ({"worst_part_db": 19.999}, "one channel or row has 19.999 dB, 20 dB needed"),
        ({"worst_part_db": 90.0, "correlation": 0.4996}, "correlates by 0.4996, 0.5 needed"),
        ({"equal_share": 1 - 1e-6}, "0.0001% of its integers or booleans are wrong"),
        ({"equal_share": 0.75}, "25.00% of its integers or booleans are wrong"),
    ],
)
def test_the_number_of_a_fault_is_on_the_wrong_side_of_its_bound(differing, said):
    agreement = replace(Agreement(0, 90.0, 0.0, 1.0, 1.0), **differing)
    assert said in str(agreement.fault(30.0, exact=True))


def test_identical_outputs_agree_in_everything():
    assert compare_outputs([REFERENCE], [REFERENCE], classifier=True) == [
        Agreement(
            *(0, IDENTICAL_SQNR_DB, 0.0, pytest.approx(1.0), 1.0, 1.0),
            worst_part_db=IDENTICAL_SQNR_DB,
            correlation=pytest.approx(1.0),
        )
    ]


def test_opposite_outputs_have_the_opposite_angle():
    (agreement,) = compare_outputs([REFERENCE * 1e30], [REFERENCE * -1e30])
    assert agreement.cosine == pytest.approx(-1.0)


def test_a_zero_output_has_no_angle():
    (agreement,) = compare_outputs([np.zeros(3)], [np.zeros(3)])
    assert agreement.cosine is None
    assert agreement.sqnr_db == IDENTICAL_SQNR_DB


def test_a_classifier_is_asked_for_its_first_choice_row_by_row():
    expected = np.array([[0.1, 0.9], [0.8, 0.2], [0.6, 0.4], [0.3, 0.7]])
    given = np.array([[0.2, 0.8], [0.4, 0.6], [0.6, 0.4], [0.3, 0.7]])
    (agreement,) = compare_outputs([expected], [given], classifier=True)
    assert agreement.top1_agreement == 0.75


def test_integers_and_booleans_are_right_or_wrong_one_by_one():
    expected = np.arange(100)
    given = expected.copy()
    # Near or far does not matter: an index that is off by one is as wrong as any.
    given[7] += 1
    (agreement,) = compare_outputs([expected], [given])
    assert agreement.equal_share == pytest.approx(0.99)
    assert agreement.sqnr_db == pytest.approx(20.0)
    assert agreement.max_abs_error == 1.0
    assert agreement.cosine is None
    (agreement,) = compare_outputs([np.array([True, False])], [np.array([True, True])])
    assert agreement.sqnr_db == pytest.approx(equal_share_db(0.5))
    assert worst_sqnr_db([expected], [expected.copy()]) == IDENTICAL_SQNR_DB


@pytest.mark.parametrize("actual", [np.full(101, np.nan), REFERENCE[:5]], ids=["not finite", "another shape"])
def test_what_cannot_be_compared_has_no_numbers_but_the_worst(actual):
    (agreement,) = compare_outputs([REFERENCE], [actual], classifier=False)
    assert (agreement.sqnr_db, agreement.max_abs_error, agreement.cosine) == (-IDENTICAL_SQNR_DB, None, None)


def test_the_worst_output_is_found_and_a_missing_one_is_it():
    off = REFERENCE * np.float32(1.1)
    agreements = compare_outputs([REFERENCE, REFERENCE, REFERENCE], [REFERENCE, off])
    assert worst_agreement(agreements) == agreements[2]
    assert worst_agreement(agreements[:2]) == agreements[1]
    assert worst_agreement([]) is None


def test_an_empty_output_agrees_with_an_empty_one():
    (agreement,) = compare_outputs([np.zeros((0, 4))], [np.zeros((0, 4))], classifier=True)
    assert (agreement.sqnr_db, agreement.equal_share) == (IDENTICAL_SQNR_DB, 1.0)


def test_a_constant_is_wrong_however_large_the_mean():
    expected = (100 + REFERENCE).astype(np.float32)
    (agreement,) = compare_outputs([expected], [np.full_like(expected, 100)])
    assert agreement.sqnr_db > 40, "the average hides it"
    assert "correlates" in str(agreement.fault(12.0))


def test_one_channel_of_zeros_is_wrong_however_many_there_are():
    expected = np.random.default_rng(1).normal(size=(1, 64, 8, 8)).astype(np.float32)
    given = expected.copy()
    given[:, -1] = 0
    (agreement,) = compare_outputs([expected], [given])
    assert agreement.sqnr_db > 12, "the average hides it"
    assert "one channel or row" in str(agreement.fault(12.0))


@given(st.integers(0, 2**32 - 1), st.sampled_from([8.0, 12.0, 30.0]))
def test_noise_that_is_spread_evenly_passes(seed, bound_db):
    random = np.random.default_rng(seed)
    expected = random.normal(size=(1, 32, 8, 8))
    noise = random.normal(size=expected.shape) * 10 ** (-(bound_db + 1) / 20)
    (agreement,) = compare_outputs([expected], [expected + noise])
    assert agreement.fault(bound_db, exact=True) is None


@pytest.mark.parametrize("wrong", [1, 60])
def test_integers_must_be_the_expected_ones_unless_the_model_says_what_will_do(wrong):
    expected = np.arange(1000)
    given = expected.copy()
    given[:wrong] += 1
    (agreement,) = compare_outputs([expected], [given])
    assert agreement.fault(12.0) is None
    assert "integers or booleans" in str(agreement.fault(12.0, exact=True))


def test_a_mask_of_nothing_is_wrong():
    expected = np.zeros(1000, dtype=bool)
    expected[:20] = True
    (agreement,) = compare_outputs([expected], [np.zeros_like(expected)])
    assert agreement.sqnr_db > 12, "the average hides it"
    assert agreement.fault(12.0) is not None


@given(st.integers(0, 2**32 - 1), st.sampled_from([np.float32, np.float16]))
def test_what_kernels_make_zeros_of_is_compared_as_zero_and_counted(seed, dtype):
    random = np.random.default_rng(seed)
    expected = random.normal(size=64).astype(np.float32)
    small = random.random(64) < 0.5
    expected[small] *= np.float32(np.finfo(dtype).tiny / 8)
    given = np.where(np.abs(expected) < np.finfo(dtype).tiny, 0, expected).astype(dtype)
    (agreement,) = compare_outputs([expected], [given])
    assert agreement.sqnr_db > 60
    assert agreement.compared_as_zero == np.mean((expected != 0) & (np.abs(expected) < np.finfo(dtype).tiny))


def test_a_small_value_that_should_be_zero_is_still_wrong():
    (agreement,) = compare_outputs([np.zeros(4, np.float32)], [np.full(4, 1e-9, np.float32)])
    assert agreement.sqnr_db == -IDENTICAL_SQNR_DB
    # A half below its smallest normal number is a number all the same, unless the kernel made a zero of it.
    (agreement,) = compare_outputs([np.full(4, 3e-5, np.float32)], [np.full(4, 1e-5, np.float16)])
    assert agreement.sqnr_db < 10
    assert agreement.compared_as_zero == 0


def _top(values, count):
    return np.argsort(-values, axis=-1, kind="stable")[..., :count]


@given(st.integers(0, 2**32 - 1), st.sampled_from([12.0, 30.0]))
def test_indices_may_change_places_as_far_as_the_values_may(seed, bound_db):
    random = np.random.default_rng(seed)
    values = random.normal(size=(3, 100)) + 5
    noise = random.normal(size=values.shape) * 10 ** (-(bound_db + 6) / 20)
    rankings = {0: Ranking(values, -1, True)}
    (agreement,) = compare_outputs([_top(values, 5)], [_top(values + noise, 5)], rankings=rankings)
    assert agreement.fault(bound_db, exact=True) is None


@given(st.integers(0, 2**32 - 1))
def test_indices_of_something_else_are_wrong(seed):
    values = np.random.default_rng(seed).normal(size=(3, 100))
    expected = _top(values, 5)
    rankings = {0: Ranking(values, -1, True)}
    for wrong in (
        _top(-values, 5),
        np.repeat(expected[:, :1], 5, axis=1),
        expected + 100,
        expected - 100,
        expected[:, :4],
    ):
        (agreement,) = compare_outputs([expected], [wrong], rankings=rankings)
        assert agreement.fault(8.0, exact=True)


def test_indices_without_an_order_are_a_set():
    values = np.array([[1.0, 9.0, 5.0, 7.0]])
    expected, turned = np.array([[1, 3, 2]]), np.array([[2, 1, 3]])
    (as_set,) = compare_outputs([expected], [turned], rankings={0: Ranking(values, -1, False)})
    (in_order,) = compare_outputs([expected], [turned], rankings={0: Ranking(values, -1, True)})
    assert as_set.fault(80.0, exact=True) is None
    assert in_order.fault(12.0, exact=True)


def test_an_argmax_points_at_one_value_of_each_row():
    values = np.array([[1.0, 9.0, 8.999], [2.0, 1.0, 0.0]])
    (agreement,) = compare_outputs(
        [np.array([1, 0])], [np.array([2, 0])], rankings={0: Ranking(values, 1, True)}
    )
    assert agreement.fault(30.0, exact=True) is None
    assert agreement.equal_share == 0.5
