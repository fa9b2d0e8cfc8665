"""The bounds between the arms, against arithmetic of its own: rounding passes, planted faults do not."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sme2_assets.evidence.arms import ArmsNumerics, ComparedValue, Taps, compare_arms, compare_value

SEEDS = st.integers(0, 2**32 - 1)


def value(kind: str, terms: int = 64, channel_axis: int = -1) -> ComparedValue:
    return ComparedValue(
        name="linear",
        operator="aten.linear.default",
        module="head",
        kind=kind,  # type: ignore[arg-type]
        terms=terms,
        channel_axis=channel_axis,
    )


def summed_one_by_one(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """A matrix product whose sums are rounded to the type of the matrices after every step."""
    total = np.zeros((left.shape[0], right.shape[1]), dtype=left.dtype)
    for index in range(left.shape[1]):
        total = total + left[:, index : index + 1] * right[index : index + 1]
    return total


def product(kind: str, seed: int, terms: int = 64) -> tuple[np.ndarray, np.ndarray]:
    """The same product by two ways of summing, as the kernels of two arms have them."""
    random = np.random.default_rng(seed)
    dtype = np.float16 if kind == "fp16" else np.float32
    left, right = (random.normal(size=shape).astype(dtype) for shape in ((24, terms), (terms, 40)))
    exact = left.astype(np.float64) @ right.astype(np.float64)
    return summed_one_by_one(left, right), exact.astype(dtype)


def faults(of: ComparedValue, off: np.ndarray, on: np.ndarray) -> str | None:
    return compare_value(of, off, on).fault


@given(SEEDS, st.sampled_from(["fp32", "fp16"]), st.sampled_from([8, 64, 512]))
def test_another_order_of_the_sums_passes(seed, kind, terms):
    off, on = product(kind, seed, terms)
    agreement = compare_value(value(kind, terms), off, on)
    assert agreement.fault is None
    assert agreement.of_bound < 0.7, "rounding keeps a distance from the bound"


@given(SEEDS, st.sampled_from(["fp32", "fp16"]), st.sampled_from([1, 5, 32]))
def test_another_order_passes_where_the_products_cancel_and_most_rows_are_empty(seed, kind, filled):
    """A query against a cache of which little is filled: the sums are far below the products."""
    random, terms = np.random.default_rng(seed), 64
    dtype = np.float16 if kind == "fp16" else np.float32
    query, keys = (random.normal(size=shape).astype(dtype) for shape in ((1, terms), (32, terms)))
    # The last product of each row takes back what the others add up to, but for a thousandth of their sum.
    products = query.astype(float) * keys
    query[:, -1] = 1
    keys[:, -1] = -products[:, :-1].sum(axis=1) + 1e-3 * np.abs(products[:, :-1]).sum(axis=1)
    keys[filled:] = 0
    off, on = (
        summed_one_by_one(query[:, order], keys.T[order]) for order in map(random.permutation, [terms] * 2)
    )
    sums = np.abs(query.astype(float)) @ np.abs(keys.T.astype(float))
    magnitude = float(np.sqrt(np.mean(np.square(sums[sums != 0])) / terms))
    of = value(kind, terms).model_copy(update={"magnitude": magnitude})
    agreement = compare_value(of, off, on)
    assert agreement.fault is None
    stale = on.copy()
    stale[0, 0] += dtype(magnitude)
    assert faults(of, off, stale) is not None


def zero_last_row(array: np.ndarray) -> None:
    array[-1] = 0


def zero_last_channel(array: np.ndarray) -> None:
    array[..., -1] = 0


def zero_column_of_a_tile(array: np.ndarray) -> None:
    array[:16, 15] = 0


def stale_tile(array: np.ndarray) -> None:
    array[:16, :16] += array[:16, :16]


def swapped_lanes(array: np.ndarray) -> None:
    array[:16, :2] = array[:16, 1::-1]


PLANTED = [zero_last_row, zero_last_channel, zero_column_of_a_tile, stale_tile, swapped_lanes]


@settings(max_examples=30)
@given(SEEDS, st.sampled_from(["fp32", "fp16"]), st.sampled_from(PLANTED))
def test_a_planted_fault_is_found_among_the_rounding(seed, kind, plant):
    off, on = product(kind, seed)
    plant(on)
    assert faults(value(kind), off, on) is not None


@given(SEEDS, st.sampled_from(PLANTED))
def test_a_planted_fault_in_8_bit_values_is_found(seed, plant):
    off = np.random.default_rng(seed).integers(-60, 60, size=(24, 40), dtype=np.int8)
    on = off.copy()
    plant(on)
    assert faults(value("static"), off, off.copy()) is None
    assert faults(value("static"), off, on) is not None


def test_8_bit_values_may_be_a_step_apart_here_and_there_but_not_two_and_not_everywhere():
    off = np.zeros((100, 100), dtype=np.int8)
    on = off.copy()
    on[::50, ::50] = 1
    assert faults(value("static"), off, on) is None
    on[0, 0] = 2
    assert "more than a step" in str(faults(value("static"), off, on))
    assert "too many" in str(faults(value("static"), off, off + np.int8(1)))
    on = off.copy()
    on[:, 7] = 1
    assert "channel 7" in str(faults(value("static"), off, on)), "1 % in all, but all of one channel"


@pytest.mark.parametrize("kind", ["fp32", "fp16", "static", "dynamic", "unknown"])
def test_integers_and_booleans_are_the_same_or_wrong(kind):
    tokens = np.arange(100, dtype=np.int64)
    wrong = tokens.copy()
    wrong[:6] += 1
    mask = tokens > 90
    assert faults(value(kind), tokens, tokens.copy()) is None
    assert faults(value(kind), tokens, wrong) is not None
    assert faults(value(kind), mask, np.zeros_like(mask)) is not None


@pytest.mark.parametrize("kind", ["fp32", "fp16", "static", "dynamic", "unknown"])
def test_a_constant_with_the_right_mean_is_found(kind):
    off = (10 + np.random.default_rng(3).normal(size=(8, 64))).astype(np.float32)
    assert faults(value(kind), off, np.full_like(off, off.mean())) is not None


@pytest.mark.parametrize("kind", ["fp32", "fp16", "static", "dynamic", "unknown"])
def test_a_weak_channel_of_zeros_is_found(kind):
    off = np.random.default_rng(3).normal(size=(1, 32, 8, 8)).astype(np.float32)
    off[:, 5] *= 0.3
    on = off.copy()
    on[:, 5] = 0
    assert faults(value(kind, terms=64, channel_axis=1), off, on) is not None


@pytest.mark.parametrize("on", [np.zeros((2, 3)), np.zeros(6, dtype=np.float32), np.full(6, np.nan), None])
def test_what_is_not_the_same_kind_of_thing_is_a_fault(on):
    assert faults(value("fp32"), np.ones(6), on) is not None


def test_where_nothing_is_nothing_may_be():
    assert faults(value("fp32"), np.zeros(6), np.array([0, 0, 0, 0, 0, 1e-30])) is not None
    assert faults(value("fp32"), np.zeros((0, 4)), np.zeros((0, 4))) is None


def test_a_value_that_an_arm_lacks_is_a_fault_and_the_first_one_is_named():
    off = [np.ones(4), np.ones(4)]
    agreements = compare_arms([value("fp32"), value("fp32")], off, [np.ones(4)])
    assert [agreement.fault is None for agreement in agreements] == [True, False]
    document = ArmsNumerics(
        sqnr_db=90.0, values=agreements, left_out=[], same_outputs=True, only_outputs=None
    )
    assert "linear (head)" in str(document.fault)
    assert ArmsNumerics.parse(document.to_json(), "arms.json") == document


def test_without_its_taps_a_program_still_has_its_outputs():
    taps = Taps(outputs=1, values=[value("fp32"), value("fp32")], left_out=["a"])
    assert taps.without_taps("why").values == taps.values[:1]
    assert taps.without_taps("why").left_out == ["a", "linear"]
