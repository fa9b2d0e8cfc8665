"""Classes of instructions, against words that LLVM assembled and names that binutils gives."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sme2_assets.analysis.unit import CLASSES_ON_UNIT
from sme2_assets.work.instructions import classified

ASSEMBLED = pd.read_csv(Path(__file__).with_name("assembled_by_llvm.csv"), dtype={"word": str})


def test_what_llvm_assembled_is_what_it_says() -> None:
    """At 512 bits. At half of the length a vector does half, a tile a quarter, and SIMD the same."""
    words = ASSEMBLED["word"].map(lambda word: int(word, 16))
    found = classified(words, 512)
    measures = ["class", "multiply_accumulates", "bytes"]
    pd.testing.assert_frame_equal(found[measures], ASSEMBLED[measures], check_dtype=False)
    half = classified(words, 256)["multiply_accumulates"] / found["multiply_accumulates"]
    unit = ASSEMBLED["class"].map(lambda name: name.partition(" ")[0])
    expected = unit.map({"outer": 0.25, "multiply": 0.5, "SVE": 0.5, "SIMD": 1.0})
    multiplies = found["multiply_accumulates"] > 0
    assert (half[multiplies] == expected[multiplies]).all()


@given(st.lists(st.integers(0, 2**32 - 1), max_size=20), st.sampled_from([128, 256, 512, 1024, 2048]))
def test_every_word_has_one_class(words: list[int], vector_bits: int) -> None:
    found = classified(pd.Series(words, dtype="int64"), vector_bits)
    assert len(found) == len(words)
    assert found.notna().all().all()
    assert (found[["multiply_accumulates", "bytes"]] >= 0).all().all()
    on_the_unit = found["class"].isin(CLASSES_ON_UNIT)
    # All of SME has its highest bit set, and no other instruction has the four below bit 29 clear then.
    assert all(
        word >> 31 and not word >> 25 & 0b1111 for word, unit in zip(words, on_the_unit, strict=True) if unit
    )


@pytest.mark.parametrize("bits", [128, 256, 512, 1024, 2048])
def test_a_tile_has_the_square_of_a_vector(bits: int) -> None:
    fmopa = int(ASSEMBLED.set_index("assembly").filter(like="fmopa", axis="index")["word"].iloc[0], 16)
    [products] = classified(pd.Series([fmopa & 0xFFFFFFFF]), bits)["multiply_accumulates"]
    [at_128] = classified(pd.Series([fmopa]), 128)["multiply_accumulates"]
    assert products == at_128 * (bits // 128) ** 2
