"""Classes of A64 instructions, from their encodings: `instructions.csv` has a row for each group.

A word belongs to the first row whose bits it has. A row's multiply-accumulates and bytes are those of the
whole instruction in the unit `q`, of each 128 bits of a vector in `v`, of each square of 128 by 128 bits of
a tile in `t`. Lanes that a predicate switches off are counted, too. SIMD multiplications without an addition
count as multiply-accumulates: kernels begin their sums with them.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd

from sme2_assets.analysis.unit import CLASSES_ON_UNIT

CLASSES_FILE = Path(__file__).with_name("instructions.csv")
UNKNOWN = "unknown"
# As samples are told apart by unit.
_UNITS = {
    **dict.fromkeys((*CLASSES_ON_UNIT, "load of ZA", "store of ZA", "move of ZA", "table lookup"), "SME"),
    **dict.fromkeys(("SVE multiply-add", "SVE arithmetic"), "SVE"),
    **dict.fromkeys(("SIMD multiply-add", "SIMD arithmetic"), "SIMD/FP"),
    **dict.fromkeys(("load", "store", "atomic"), "load/store"),
}


@cache
def _table() -> pd.DataFrame:
    table = pd.read_csv(CLASSES_FILE, dtype={"bits": str})
    everything = {
        "bits": "x" * 32,
        "name": "",
        "class": UNKNOWN,
        "unit": "q",
        "multiply_accumulates": 0,
        "bytes": 0,
    }
    return pd.concat([table, pd.DataFrame([everything])], ignore_index=True)


@cache
def _masks() -> list[tuple[int, int]]:
    """Of each row: which bits it names, and what they are."""
    return [
        (int(bits.replace("0", "1").replace("x", "0"), 2), int(bits.replace("x", "0"), 2))
        for bits in _table()["bits"]
    ]


def classified(words: pd.Series, vector_bits: int) -> pd.DataFrame:
    """For each word: name, class, unit, and its multiply-accumulates and bytes at that vector length."""
    encoded = words.to_numpy(dtype=np.uint32)
    row = np.empty(len(encoded), dtype=np.intp)
    # From the last to the first, so that the first one stands.
    for index, (mask, value) in reversed(list(enumerate(_masks()))):
        row[(encoded & mask) == value] = index
    found = _table().iloc[row].set_index(words.index)
    times = vector_bits // 128
    scale = found["unit"].map({"q": 1, "v": times, "t": times**2})
    return pd.DataFrame(
        {
            "name": found["name"],
            "class": found["class"],
            "unit": found["class"].map(_UNITS).fillna("other"),
            "multiply_accumulates": found["multiply_accumulates"] * scale,
            "bytes": found["bytes"] * scale,
        }
    )
