"""Equal and unequal values, whatever their hashes."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from sme2_assets.etdump import grouping

MASK = 2**64 - 1


def first_seen_codes(values: list) -> list[int]:
    codes: dict = {}
    return [codes.setdefault(value, len(codes)) for value in values]


@settings(max_examples=100)
@given(st.lists(st.integers(0, 2**40) | st.integers(0, 5).map(lambda n: n << 16), max_size=60))
def test_numbers_are_coded_by_first_appearance(values: list[int]) -> None:
    code, first = grouping.group_equal(np.array(values, dtype=np.int64))
    assert code.tolist() == first_seen_codes(values)
    assert [values[row] for row in first] == list(dict.fromkeys(values))


def coded_texts(texts: list[bytes]) -> list[int]:
    buffer, start = bytearray(), []
    for text in texts:
        start.append(len(buffer))
        buffer += text + b"\0" + b"#" * (-(len(text) + 1) % 4)  # padding that must not count
    padded = bytes(buffer) + bytes((-len(buffer)) % 8 + grouping.LONGEST_VECTORISED_TEXT)
    u8 = np.frombuffer(padded, dtype=np.uint8)
    code, _ = grouping.group_equal_texts(u8, np.array(start), np.array([len(text) for text in texts]))
    return code.tolist()


@settings(max_examples=100)
@given(
    st.lists(
        st.binary(max_size=20) | st.sampled_from([b"a" * n for n in (7, 8, 9, 127, 128, 129)]), min_size=1
    )
)
def test_texts_are_coded_by_first_appearance(texts: list[bytes]) -> None:
    assert coded_texts(texts) == first_seen_codes(texts)


def test_texts_made_to_have_the_same_hash_stay_distinct() -> None:
    def state_after(word: int) -> int:
        return ((16 ^ word) * int(grouping._MIX)) & MASK

    # The second word undoes the difference that the first one made.
    texts = [
        first.to_bytes(8, "little") + (state_after(first) ^ 12345).to_bytes(8, "little")
        for first in range(40)
    ]
    assert coded_texts(texts * 3) == first_seen_codes(texts * 3)
