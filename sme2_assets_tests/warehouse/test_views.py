from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sme2_assets.warehouse import Warehouse
from sme2_assets.warehouse.read import RUN_VIEWS, SERIES
from sme2_assets_tests.made.run_folder import MadeRun, ingest
from sme2_assets_tests.warehouse.test_publish import VIEWS


@pytest.fixture(params=["made", "real"])
def either(request: pytest.FixtureRequest) -> Warehouse:
    """What must hold of any data is tested on known times and on measured ones."""
    name = {"made": "paired", "real": "real_warehouse"}[request.param]
    return request.getfixturevalue(name)


@pytest.mark.parametrize("view", sorted(VIEWS))
def test_a_view_that_names_variant_and_platform_has_the_whole_series(paired: Warehouse, view: str):
    columns = set(paired.query(f"FROM {view} LIMIT 0").columns)
    assert view not in RUN_VIEWS or "platform" in columns
    assert {"variant", "platform"} - columns or {*SERIES} <= columns


def test_no_view_has_a_function_that_older_clients_do_not_know(paired: Warehouse):
    """DuckDB 2 stores `if` as a function, which 1.5 reads as a name that it cannot find."""
    views = paired.query("SELECT view_name, sql FROM duckdb_views() WHERE NOT internal")
    assert len(views) > 40
    assert [name for name, sql in views.itertuples(index=False) if '"if"(' in sql or " if(" in sql] == []


def test_category_means_add_up_to_the_mean_inference(either: Warehouse):
    rows = either.query(
        """
        SELECT run_id, sum(mean_ns) AS mean_ns, sum(share) AS share,
            (SELECT avg(execute_ns) FROM inferences AS i
             WHERE i.run_id = category_summary.run_id AND pass = 'etdump' AND NOT is_warmup) AS execute_ns
        FROM category_summary WHERE fidelity <> 'emulated' GROUP BY run_id
        """
    )
    assert not rows.empty
    np.testing.assert_allclose(rows["mean_ns"], rows["execute_ns"], rtol=1e-12)
    np.testing.assert_allclose(rows["share"], 1, rtol=1e-12)


def test_operator_shares_and_the_share_of_overhead_make_one(either: Warehouse):
    rows = either.query(
        """
        SELECT (SELECT sum(share) FROM operator_summary WHERE run_id = runs.run_id)
            + (SELECT share FROM category_summary
               WHERE run_id = runs.run_id AND category = 'Overhead') AS share
        FROM runs WHERE fidelity <> 'emulated'
        """
    )
    assert not rows.empty
    np.testing.assert_allclose(rows["share"], 1, rtol=1e-12)


def test_categories_are_the_sums_of_their_operators(either: Warehouse):
    rows = either.query(
        """
        SELECT category, c.operators, c.mean_ns, o.operators AS counted, o.mean_ns AS summed_ns,
            -- A reference says nothing about SME2.
            c.sme2_operators IS NOT DISTINCT FROM
                CASE WHEN c.fidelity <> 'reference' THEN o.sme2_operators END AS unit_agrees
        FROM category_summary c JOIN (
            SELECT run_id, category, count(*) AS operators, sum(mean_ns) AS mean_ns,
                count(*) FILTER (on_sme_unit = 'on') AS sme2_operators
            FROM operator_facts GROUP BY run_id, category
        ) o USING (run_id, category)
        """
    )
    assert not rows.empty
    assert rows["operators"].tolist() == rows["counted"].tolist()
    assert rows["unit_agrees"].all()
    np.testing.assert_allclose(rows["mean_ns"], rows["summed_ns"], rtol=1e-12)


def test_latency_is_the_median_of_the_medians_of_the_processes(either: Warehouse):
    inferences = either.query("FROM inferences WHERE pass = 'latency' AND NOT is_warmup")
    summary = either.query("FROM latency_summary").set_index("run_id")
    assert len(summary) == len(either.query("FROM runs"))
    for run_id, rows in inferences.groupby("run_id"):
        medians = rows.groupby("round")["duration_ns"].median()
        assert summary.loc[run_id, "rounds"] == len(medians)
        assert summary.loc[run_id, "inferences"] == len(rows)
        if summary.loc[run_id, "fidelity"] == "emulated":
            continue
        assert summary.loc[run_id, "median_ns"] == medians.median()
        assert summary.loc[run_id, "min_ns"] == rows["duration_ns"].min()
        assert summary.loc[run_id, "p95_ns"] == pytest.approx(rows["duration_ns"].quantile(0.95))
        if len(medians) > 1:
            assert summary.loc[run_id, "round_cv"] == pytest.approx(medians.std() / medians.mean())
        else:
            assert np.isnan(summary.loc[run_id, "round_cv"])


def test_operator_times_are_the_medians_of_the_medians_of_the_processes(either: Warehouse):
    timeline = either.query(
        "FROM timeline WHERE kind = 'operator' AND NOT is_warmup AND fidelity <> 'emulated'"
    )
    keys = ["run_id", "backend", "delegate", "position"]
    expected = (
        timeline.groupby([*keys, "round"], dropna=False)["duration_ns"]
        .median()
        .groupby(level=keys, dropna=False)
        .median()
        .sort_index()
    )
    given = either.query("FROM operator_summary WHERE fidelity <> 'emulated'").set_index(keys)["median_ns"]
    given = given.sort_index()
    assert len(given)
    assert given.tolist() == expected.tolist()


def test_times_of_an_emulator_are_under_their_own_names_alone(paired: Warehouse):
    """Whatever is selected, summed or averaged of an emulated run: no time comes out that looks like one."""
    raw = {"emulated_ns", "emulated_execute_ns", "start_ns"}
    names = "_(ns|ms)$|^share$|cumulative_share|overhead$|round_cv|time_coverage|gops"
    timed = paired.query(
        "SELECT table_name, column_name FROM duckdb_columns() "
        "WHERE database_name = 'warehouse' AND schema_name = 'main' "
        f"AND regexp_matches(column_name, '{names}')"
    )
    assert len(timed) > 50
    leaks = {}
    for table, columns in timed.groupby("table_name")["column_name"]:
        if table == "regressions":  # of series, which emulated runs are not in
            continue
        key = {"comparisons": "b_run_id", "sme2_comparison": "on_run_id"}.get(table, "run_id")
        counts = ", ".join(f'count("{name}") AS "{name}"' for name in sorted(set(columns) - raw))
        emulated = "(SELECT run_id FROM runs WHERE fidelity = 'emulated')"
        found = paired.query(f"SELECT {counts} FROM {table} WHERE {key} IN {emulated}").iloc[0]
        leaks |= {f"{table}.{name}": int(count) for name, count in found.items() if count}
    assert leaks == {}
    kept = paired.query(
        "SELECT count(*) AS n, count(emulated_ns) AS kept FROM timeline WHERE fidelity = 'emulated'"
    )
    assert kept["kept"].iloc[0] == kept["n"].iloc[0] > 0


def test_one_position_of_two_delegates_is_two_operators(paired: Warehouse):
    rows = paired.query(
        "SELECT delegate, median_ns FROM operator_summary WHERE name LIKE 'Fully Connected%#1' "
        "AND platform = 'linux' AND sme2 = 'off' ORDER BY delegate"
    )
    assert rows["delegate"].tolist() == [0, 1]
    assert rows["median_ns"].round(-4).tolist() == [300_000, 100_000]


def test_warm_up_is_left_out_of_every_summary(warehouse: Warehouse, tmp_path: Path):
    with_warmup = MadeRun(rounds=2, warmup=3, iterations=2)
    ingest(warehouse, with_warmup.write(tmp_path))
    warehouse.publish()
    for view in ("latency_rounds", "operator_rounds", "category_rounds"):
        assert set(warehouse.query(f"FROM {view}")["inferences"]) == {2}, view
    expected = warehouse.query(
        "SELECT avg(duration_ns) AS mean FROM timeline WHERE NOT is_warmup AND name LIKE 'Convolution%'"
    )["mean"].iloc[0]
    with_all = warehouse.query(
        "SELECT avg(duration_ns) AS mean FROM timeline WHERE name LIKE 'Convolution%'"
    )["mean"].iloc[0]
    given = warehouse.query("FROM operator_summary WHERE name LIKE 'Convolution%'")["mean_ns"].iloc[0]
    assert given == pytest.approx(expected)
    assert given != pytest.approx(with_all, rel=1e-9)


def test_the_latest_run_is_the_newest_of_its_variant_target_and_thread_count(
    warehouse: Warehouse, tmp_path: Path
):
    day = timedelta(days=1)
    first = datetime(2026, 1, 1, tzinfo=UTC)
    base = MadeRun(rounds=1, warmup=0, iterations=1)
    runs = [
        # Written in another order than measured; an older session id does not matter.
        replace(base, session_id="z", started_at=first),
        replace(base, session_id="b", started_at=first + 2 * day),
        replace(base, session_id="c", started_at=first + day),
        replace(base, session_id="d", started_at=first, threads=4),
        replace(base, session_id="e", started_at=first, sme2="on"),
        replace(base, session_id="f", started_at=first, variant="toy_cnn-int8"),
    ]
    ingest(warehouse, *(run.write(tmp_path) for run in runs))
    warehouse.publish()
    assert len(warehouse.query("FROM runs")) == len(runs), "history is kept"
    latest = {session.partition(".")[0] for session in warehouse.query("FROM latest_runs")["session_id"]}
    assert latest == {"b", "d", "e", "f"}


def test_unknown_operators_are_counted(warehouse: Warehouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("sme2_assets_tests.made.run_folder.PORTABLE", "native_call_frobnicate.out")
    ingest(warehouse, MadeRun(rounds=1).write(tmp_path))
    warehouse.publish()
    other = warehouse.query("FROM category_summary WHERE category = 'Other'").iloc[0]
    assert (other["operators"], other["unknown_operators"]) == (2, 1)
    unknown = warehouse.query("FROM operator_summary WHERE NOT known")
    assert unknown["name"].tolist() == ["native_call_frobnicate.out"]


def scans_of(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if "Table" in plan["extra_info"]:
        yield plan["extra_info"]
    for child in plan["children"]:
        yield from scans_of(child)


@pytest.mark.parametrize(
    "view",
    [
        *("latency_summary", "operator_summary", "category_summary", "operator_facts", "kernel_usage"),
        *("bottlenecks", "module_summary", "headroom", "attribution_coverage", "delegation_report"),
    ],
)
def test_a_question_about_one_run_reads_no_other(paired: Warehouse, view: str):
    """Else every page and report takes longer with each night."""
    run_id = paired.query("SELECT min(run_id) AS run_id FROM runs")["run_id"].iloc[0]
    with paired.connect() as connection:
        [[_, plan]] = connection.execute(
            f"EXPLAIN (FORMAT json) SELECT * FROM {view} WHERE run_id = '{run_id}'"
        ).fetchall()
    scans = list(scans_of(json.loads(plan)[0]))
    assert scans
    for scan in scans:
        assert run_id in str(scan.get("Filters")), scan
