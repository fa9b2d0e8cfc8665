"""What the documents ask, asked of several series at once: nothing is mixed between them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import pytest
from _pytest.mark import ParameterSet

from sme2_assets.warehouse import Warehouse
from sme2_assets.warehouse.comparisons import compare_session
from sme2_assets.warehouse.read import SERIES
from sme2_assets.warehouse.schema import COMPARISONS
from sme2_assets_tests.made.questions import questions
from sme2_assets_tests.made.run_folder import MadeRun, ingest
from sme2_assets_tests.test_docs import PAGES
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
# What may mix series: all that DuckDB aggregates with, but for counts, which are no times and no shares.
AGGREGATES = {
    name
    for (name,) in duckdb.sql(
        "SELECT DISTINCT function_name FROM duckdb_functions() WHERE function_type = 'aggregate'"
    ).fetchall()
} - {"count", "count_star"}
AGGREGATES_IN_PANDAS = ("pivot_table", "groupby")


def elsewhere(pattern: str, names: Collection[str]) -> list[ParameterSet]:
    """What a document other than docs/questions.md asks, where it calls one of these functions."""
    return [
        pytest.param(found, id=f"{page.parent.name}/{page.name}-{number}")
        for page in PAGES
        if page.name != "questions.md"
        for number, found in enumerate(re.findall(pattern, page.read_text(), re.MULTILINE | re.DOTALL), 1)
        if not set(names).isdisjoint(re.findall(r"(\w+)\(", found))
    ]


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
        identical = rows.assign(factor=None, speedup=1 + pair.sequence / 100).drop(columns=list(keys))
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
    return asked(warehouse, questions()[number])


def asked(warehouse: Warehouse, sql: str) -> pd.DataFrame:
    """All rows, of the model that is there; that of the documents is another."""
    here = {"variant": HERE.variant, "model": HERE.variant.rpartition("-")[0], "platform": HERE.platform}
    for name, value in here.items():
        sql = re.sub(rf"\b{name} = '[^']*'", f"{name} = '{value}'", sql)
    return warehouse.query(re.sub(r"\bLIMIT \d+", "", sql.strip().removesuffix(";")))


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


@pytest.mark.parametrize("sql", elsewhere(r'"\s*(SELECT\b[^"]*)"', AGGREGATES))
def test_no_sum_of_a_walk_through_is_over_several_series(apart: tuple[Warehouse, list[Warehouse]], sql: str):
    together, alone = apart
    rows = told(asked(together, sql))
    assert rows
    assert rows == sum((told(asked(warehouse, sql)) for warehouse in alone), Counter())


@pytest.mark.parametrize("snippet", elsewhere(r"^```python\n(.*?)^```", AGGREGATES_IN_PANDAS))
def test_no_frame_of_a_walk_through_is_over_several_series(
    apart: tuple[Warehouse, list[Warehouse]], snippet: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def made(warehouse: Warehouse) -> Counter[tuple[str, ...]]:
        desk = tmp_path / warehouse.root.parent.name
        desk.mkdir()
        (desk / "data").symlink_to(warehouse.root.parent)
        monkeypatch.chdir(desk)
        names: dict[str, Any] = {}
        exec(snippet, names)
        *_, frame = (value for value in names.values() if isinstance(value, pd.DataFrame))
        return told(frame.melt().dropna())

    together, alone = apart
    rows = made(together)
    assert rows
    assert rows == sum(map(made, alone), Counter())


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
