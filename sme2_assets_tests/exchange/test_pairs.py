"""A pair as the kit writes it: no ratio that ours refuses, no word about SME2 where the arms are the same."""

from __future__ import annotations

import pandas as pd
import pytest

from sme2_assets.exchange.pairs import robust_comparison
from sme2_assets.exchange.summaries import _verdict, _verdict_lines, robust_statistics

ROW = {
    "level": "model", "experiment": "sme2", "off_run_id": "a", "on_run_id": "b", "verdict": "faster",
    "reason": "The second is faster.", "speedup": 1.108, "speedup_low": 1.105, "speedup_high": 1.111, "n": 10,
    "p_value": 0.002, "fidelity": "hardware", "confidence": "high", "confidence_reason": "",
}  # fmt: skip


@pytest.mark.parametrize("verdict", ["insufficient data", "not comparable"])
def test_where_ours_has_no_ratio_the_kit_has_none_either(verdict: str):
    refused = {"verdict": verdict, "speedup": None, "speedup_low": None, "speedup_high": None}
    off, on = robust_statistics([2.0, 2.1, 2.2]), robust_statistics([1.0, 1.1, 1.2])
    found = robust_comparison(off, on, pd.DataFrame([ROW | refused]))
    assert found is not None
    assert (found["speedup"]["median_based"], found["speedup"]["trimmed_mean_based"]) == (None, None)
    found = robust_comparison(off, on, pd.DataFrame([ROW]))
    assert found is not None
    assert found["speedup"]["median_based"] == pytest.approx(2.1 / 1.1)


def test_identical_arms_have_a_ratio_and_nothing_is_said_about_sme2():
    identical = "\n".join(_verdict_lines(_verdict(pd.DataFrame([ROW | {"experiment": "aa"}]))))
    assert "## Identical arms: noise" in identical
    assert "Ratio 1.108 (95 % interval 1.105 to 1.111, 10 paired rounds)." in identical
    assert "SME2" not in identical
    assert "peedup" not in identical
    pair = "\n".join(_verdict_lines(_verdict(pd.DataFrame([ROW]))))
    assert "## SME2 on against off" in pair
    assert "Speedup 1.108 (" in pair


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [(1.0001, 1.111, "1.0001 to 1.111"), (0.9, 0.9999, "0.900 to 0.9999"), (0.995, 1.0, "0.995 to 1.000")],
)
def test_an_interval_beside_1_does_not_touch_it_in_print(low: float, high: float, said: str):
    row = ROW | {"speedup_low": low, "speedup_high": high}
    assert f"95 % interval {said}," in "\n".join(_verdict_lines(_verdict(pd.DataFrame([row]))))
