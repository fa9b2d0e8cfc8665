"""The questions of docs/questions.md, asked of several series at once: nothing is mixed between them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from benchmarks.growth_bench import questions
from benchmarks.made.run_folder import MadeRun, ingest
from sme2_assets.warehouse import Warehouse
from sme2_assets.warehouse.comparisons import compare_session
from sme2_assets.warehouse.read import SERIES
from sme2_assets.warehouse.schema import COMPARISONS
from sme2_assets_tests.warehouse.made_operators import Op, OperatorRun, write_runs

# Of one variant each, on other devices and with other settings, and nothing alike in their times.
HERE = MadeRun(device="phone-a", rounds=2, iterations=1)
PAIRS = [
    replace(HERE, matrix_speedup=8.0, session_id="20260101T000000-aaaaaa", sequence=1),
    replace(HERE, device="phone-b", slowness=9.0, session_id="20260102T000000-bbbbbb", sequence=2),
    replace(HERE, cpus="4-7", slowness=3.0, session_id="20260103T000000-cccccc", sequence=3),
]
# Two nights of each method; the clock was put back between them.
METHODS = {"prefill": 9_000, "decode": 300}
NIGHTS = {
    method: [
        OperatorRun(
            [Op("Fully Connected (NC, F32) GEMM #1", us + night, samples=9), Op("Softmax (NC, F32) #1", us)],
            "off",
            "llm-int8",
            session_id=f"night{night}_{method}",
            started_at=datetime(2026, 1, 9 - night, tzinfo=UTC),
            sequence=10 + 2 * night + number,
            device="phone-a",
            cpus="",
            power_mode="",
            method=method,
        )
        for night in range(2)
    ]
    for number, (method, us) in enumerate(METHODS.items())
}
# Over all history, whatever was measured: the one sum over series that is asked for.
OVER_ALL = "21"


def stored(folder: Path, name: str, pairs: Sequence[MadeRun], nights: Sequence[OperatorRun]) -> Warehouse:
    warehouse = Warehouse(folder / name / "warehouse")
    arms = [replace(pair, sme2=sme2).run_id for pair in pairs for sme2 in ("off", "on")]
    if arms:
        ingest(warehouse, *(folder / "runs" / run_id for run_id in arms))
    if nights:
        write_runs(warehouse, *nights)
    warehouse.publish()
    for pair in pairs:
        rows = compare_session(warehouse, pair.session_id)
        keys = {"variant": pair.variant, "platform": pair.platform, "session_id": f"aa-{pair.session_id}"}
        identical = rows.assign(experiment="aa", speedup=1 + pair.sequence / 100).drop(columns=list(keys))
        warehouse.write(COMPARISONS, identical, keys)
    warehouse.publish()
    return warehouse


@pytest.fixture(scope="module")
def apart(tmp_path_factory: pytest.TempPathFactory) -> tuple[Warehouse, list[Warehouse]]:
    """All series in one warehouse, and each in one of its own, from the same run folders."""
    folder = tmp_path_factory.mktemp("series")
    for pair in PAIRS:
        for sme2 in ("off", "on"):
            replace(pair, sme2=sme2).write(folder / "runs")
    nights = list(NIGHTS.values())
    alone = [stored(folder, pair.device + pair.cpus, [pair], []) for pair in PAIRS]
    alone += [stored(folder, method, [], runs) for method, runs in NIGHTS.items()]
    return stored(folder, "all", PAIRS, [run for runs in nights for run in runs]), alone


def answer(warehouse: Warehouse, number: str) -> pd.DataFrame:
    return warehouse.query(questions()[number].strip().removesuffix(";").replace("LIMIT 20", ""))


def told(rows: pd.DataFrame) -> Counter[tuple[str, ...]]:
    """The rows in any order; the sums of floats depend on theirs."""

    def cell(value: Any) -> str:
        if pd.api.types.is_scalar(value) and pd.isna(value):
            return "nothing"
        return f"{value:.9g}" if isinstance(value, float) else str(value)

    return Counter(tuple(map(cell, row)) for row in rows.astype(object).itertuples(index=False))


@pytest.mark.parametrize("number", [number for number in questions() if number != OVER_ALL])
def test_what_is_told_of_a_series_does_not_depend_on_others(
    apart: tuple[Warehouse, list[Warehouse]], number: str
):
    together, alone = apart
    rows = answer(together, number)
    assert told(rows) == sum((told(answer(warehouse, number)) for warehouse in alone), Counter())
    if "variant" in rows:
        assert {*SERIES} <= {*rows.columns}, "rows of two series cannot be told apart"


@pytest.mark.parametrize(("number", "shares"), [("3", ["share_off", "share_on"]), ("10", ["share"])])
def test_the_shares_of_a_run_add_up_to_one(
    apart: tuple[Warehouse, list[Warehouse]], number: str, shares: list[str]
):
    rows = answer(apart[0], number)
    by = [*SERIES, "sme2"] if "sme2" in rows else [*SERIES]
    sums = rows.groupby(by, dropna=False)[shares].sum()
    assert len(sums) > len(PAIRS)
    assert ((sums - 1).abs().lt(1e-9) | (sums == 0)).all(axis=None)


def test_a_night_is_compared_with_the_one_before_of_its_series(apart: tuple[Warehouse, list[Warehouse]]):
    rows = answer(apart[0], "16")
    changes = rows[rows["change"].notna()]
    assert set(changes["method"]) == set(METHODS)
    assert len(changes) == len(METHODS)
    assert changes["change"].between(0, 0.01, inclusive="neither").all(), "each is one microsecond slower"
