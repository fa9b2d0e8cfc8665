"""The phases of a language model, told from what an export says of itself."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from sme2_assets.errors import Sme2Error
from sme2_assets.models.artifact import PTE, TensorFacts
from sme2_assets.report import language
from sme2_assets.report.language import HEADER, Phase, _cells, phase_of
from sme2_assets.store import Store
from sme2_assets.warehouse import Warehouse
from sme2_assets_tests.made.run_folder import MadeRun, ingest

CACHE = [1, 2, 32, 16]
PHASE = Phase("pp8", 8, 1000, 2_000_000)


def manifest(
    inputs: list[tuple[str, list[int]]],
    outputs: list[tuple[str, list[int]]],
    *,
    steps: int = 1,
    state_bytes: int | None = None,
) -> Any:
    return SimpleNamespace(
        steps=steps,
        state_bytes=state_bytes,
        inputs=[TensorFacts("i", dtype, shape) for dtype, shape in inputs],
        outputs=[TensorFacts("o", dtype, shape) for dtype, shape in outputs],
        files={PTE: SimpleNamespace(bytes=1_000_000)},
    )


@pytest.mark.parametrize(("dtype", "size"), [("float32", 4), ("float16", 2)])
def test_prefill_is_pp_and_decode_is_tg_with_the_bytes_of_the_cache(dtype: str, size: int) -> None:
    outputs = [(dtype, [2, 100]), (dtype, CACHE), (dtype, CACHE)]
    held = 2 * 2 * 32 * 16 * size
    prefill = manifest([("int64", [2, 8])], outputs)
    decode = manifest([("int64", [2, 1]), ("int64", [1]), (dtype, CACHE), (dtype, CACHE)], outputs)
    assert phase_of(prefill) == Phase("pp8", 16, held, 1_000_000)
    assert phase_of(decode) == Phase("tg1", 2, held, 1_000_000)


def test_a_program_that_keeps_its_cache_has_phases_too() -> None:
    logits = [("float32", [1, 100])] * 3

    def phase(kind: str, tokens: int, state_bytes: int | None) -> Phase | None:
        return phase_of(manifest([(kind, [1, tokens])], logits, steps=3, state_bytes=state_bytes))

    assert phase("int64", 8, 4096) == Phase("pp8", 8, 4096, 1_000_000)
    assert phase("int64", 1, 4096) == Phase("tg1", 1, 4096, 1_000_000)
    assert phase("float32", 8, 4) is None, "a counter, or the like"
    assert phase("int64", 8, None) is None, "nothing is known of its state"


@pytest.mark.parametrize(
    ("inputs", "outputs"),
    [
        ([("int64", [1, 8])], [("float32", [1, 8, 100])]),
        ([("float32", [1, 3, 8, 8])], [("float32", [1, 10]), ("float32", [1, 4])]),
        (
            [("int64", [1, 8]), ("float32", [4])],
            [("float32", [1, 10]), ("float32", CACHE), ("float32", CACHE)],
        ),
    ],
)
def test_other_programs_have_no_phase(inputs: Any, outputs: Any) -> None:
    assert phase_of(manifest(inputs, outputs)) is None


@pytest.mark.parametrize(
    ("variant", "exported", "said", "remedy"),
    [
        ("tiny_lm-fp32", False, "No language model of that name was measured", "sme2 profile tiny_lm-fp32"),
        ("toy_cnn-fp32", False, "was measured, but its export", "sme2 profile toy_cnn-fp32"),
        ("toy_cnn-fp32", True, "is not a language model", "sme2 report toy_cnn-fp32"),
    ],
)
def test_what_is_missing_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variant: str, exported: bool, said: str, remedy: str
) -> None:
    store = Store(tmp_path / "data")
    warehouse = Warehouse(store.warehouse)
    ingest(warehouse, MadeRun(rounds=1).write(store.runs))
    warehouse.publish()
    if exported:
        store.set_current("model", variant, "an-export")
        picture = manifest([("float32", [1, 3, 8, 8])], [("float32", [1, 10])])
        monkeypatch.setattr(language, "read_manifest", lambda path: picture)
    with pytest.raises(Sme2Error, match=said) as told:
        language.language_table(store, warehouse, [variant])
    assert remedy in str(told.value.remedy)


@pytest.mark.parametrize(
    ("fidelity", "rate"), [("hardware", "4,000.0"), ("emulated", None), ("reference", None)]
)
def test_times_that_mean_nothing_give_no_rate(fidelity: str, rate: str | None) -> None:
    run = pd.Series(
        {"platform": "p", "device": "d", "threads": 1, "sme2": "on", "fidelity": fidelity,
         "median_ns": 2e6}
    )  # fmt: skip
    row = dict(zip(HEADER, _cells("v", PHASE, run, None), strict=True))
    assert row["t/s"] == rate
    assert (row["ms"] is None) == (rate is None)
    assert (row["on the SME unit"], row["MACs on the unit"]) == (None, None)


@pytest.mark.parametrize(
    ("unknown", "low", "high", "count", "share"),
    [
        (1, 0.5, 0.75, "3 of 5, 1 unknown", "50% to 75%"),
        (0, 0.996, 0.996, "3 of 5", "over 99%"),
        (0, 0.004, 0.004, "3 of 5", "under 1%"),
    ],
)
def test_the_use_of_the_unit_is_told_as_in_the_report(
    unknown: int, low: float, high: float, count: str, share: str
) -> None:
    run = pd.Series(
        {"platform": "p", "device": "d", "threads": 1, "sme2": "on", "fidelity": "hardware", "median_ns": 2e6}
    )
    counts = {
        "run_id": "r", "matrix_operators": 5, "on_unit": 3, "by_name_alone": 0, "unknown": unknown,
        "uncounted": 0,
        "macs_on_unit": low, "macs_on_unit_at_most": high,
    }  # fmt: skip
    row = dict(zip(HEADER, _cells("v", PHASE, run, counts), strict=True))
    assert (row["on the SME unit"], row["MACs on the unit"]) == (count, share)
