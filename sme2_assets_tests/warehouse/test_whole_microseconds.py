"""Times that XNNPACK floors, from the trace to the verdict: made-up cases whose truth is known.

The truth is in nanoseconds; what the tables say of it must hold it, and what they cannot tell they leave out.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sme2_assets.report.content import session_document
from sme2_assets.report.explain import explain
from sme2_assets.report.insights import finding_points
from sme2_assets.report.markdown import markdown_of
from sme2_assets.report.tables import comparison_table
from sme2_assets.warehouse import Warehouse
from sme2_assets.warehouse.comparisons import compare_pair
from sme2_assets.warehouse.schema import RUN_ID, TABLES, TIMELINE
from sme2_assets.warehouse.sql import no_rows, typed
from sme2_assets.warehouse.summaries import make_summaries
from sme2_assets_tests.made.run_folder import ingest
from sme2_assets_tests.made.true_times import TrueOperator, TrueRun
from sme2_assets_tests.warehouse.made_operators import Op, OperatorRun, source

GEMM = "Fully Connected (NC, {}) GEMM"


def compared(
    warehouse: Warehouse,
    folder: Path,
    operators: Sequence[TrueOperator],
    on: dict[str, Any] | None = None,
    **both: Any,
) -> pd.DataFrame:
    """The stored comparison of two arms with these operators."""
    off = TrueRun(operators=tuple(operators), **{"rounds": 10, "iterations": 3, **both})
    arms = off, replace(off, sme2="on", **(on or {}))
    ingest(warehouse, *(arm.write(folder) for arm in arms))
    warehouse.publish()
    rows = compare_pair(warehouse, *(arm.run_id for arm in arms))
    warehouse.publish()
    return rows


def report_of(warehouse: Warehouse) -> str:
    session_id = warehouse.query("SELECT max(session_id) AS s FROM comparisons")["s"].iloc[0]
    return markdown_of(session_document(warehouse, session_id))


CATEGORIES = ("CONV", "GEMM", "Data Movement", "Elementwise")


def made_timeline(seed: int, longest_ns: float, overhead_ns: float) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Rows of one run as a trace would give them, and the same with the true times."""
    made = np.random.default_rng(seed)
    rows: list[dict[str, Any]] = []
    places = [(delegate, position) for delegate in range(2) for position in range(made.integers(1, 7))]
    for round_, iteration in [(r, i) for r in range(2) for i in range(made.integers(1, 5))]:
        process = {
            "run_id": "r",
            "pass": "etdump",
            "round": round_,
            "iteration": iteration,
            "is_warmup": False,
        }
        for delegate in range(2):
            hidden_ns = 0
            for position in (position for of, position in places if of == delegate):
                true_ns = int(made.uniform(0, longest_ns))
                hidden_ns += true_ns % 1000
                rows.append(
                    process
                    | {"kind": "operator", "backend": "xnnpack", "delegate": delegate, "position": position}
                    | {
                        "category": CATEGORIES[position % 4],
                        "duration_ns": true_ns // 1000 * 1000,
                        "true_ns": true_ns,
                    }
                )
            beyond_ns = int(made.uniform(0, overhead_ns))
            overhead = {"kind": "delegate_overhead", "backend": "framework", "delegate": delegate}
            rows.append(process | overhead | {"duration_ns": beyond_ns + hidden_ns, "true_ns": beyond_ns})
        exact_ns = int(made.uniform(1, longest_ns))
        portable = {"kind": "operator", "backend": "portable", "position": 0, "category": "GEMM"}
        rows.append(process | portable | {"duration_ns": exact_ns, "true_ns": exact_ns})
        rows.append(
            process
            | {"kind": "framework_overhead", "backend": "framework", "duration_ns": 700, "true_ns": 700}
        )
    frame = pd.DataFrame(rows)
    return frame.drop(columns="true_ns"), frame.assign(duration_ns=frame["true_ns"]).drop(columns="true_ns")


def summarised(rows: pd.DataFrame, keys_of: dict[str, list[str]]) -> dict[str, pd.DataFrame]:
    """What views say of the rows, each in the order of its keys."""
    rows = rows.reindex(columns=[column.name for column in TIMELINE.all_columns]).astype({"known": bool})
    with duckdb.connect() as connection:
        connection.register("made", rows)
        connection.execute("CREATE TYPE run_name AS ENUM ('r')")
        for table in (table for table in TABLES if RUN_ID in table.keys):
            found = f"SELECT {typed(table.all_columns)} FROM made" if table is TIMELINE else no_rows(table)
            connection.execute(
                f"CREATE TABLE {table.name} AS SELECT * REPLACE (run_id::run_name AS run_id) FROM ({found})"
            )
        list(make_summaries(connection))
        return {
            view: connection.execute(f"FROM {view} ORDER BY {', '.join(keys)}").df()
            for view, keys in keys_of.items()
        }


@settings(max_examples=25)
@given(st.integers(0, 2**32 - 1), st.sampled_from([1_500, 6_000, 90_000]), st.sampled_from([1, 900, 9_000]))
def test_what_is_said_of_a_floored_time_holds_the_true_one_always(
    seed: int, longest_ns: int, overhead_ns: int
):
    reported, true = made_timeline(seed, longest_ns, overhead_ns)
    keys_of = {
        "operator_rounds": ["round", "backend", "delegate", "position"],
        "category_rounds": ["round", "category"],
        "part_rounds": ["round"],
    }
    all_said, all_true = (summarised(rows, keys_of) for rows in (reported, true))
    for view in keys_of:
        said, truth = all_said[view], all_true[view]
        bounds = [("median_ns", "least_ns", "most_ns")]
        if view == "operator_rounds":
            bounds = [("median_ns", "median_ns", "most_ns"), ("mean_ns", "mean_ns", "mean_most_ns")]
        if view == "part_rounds":
            bounds = [
                (f"{part}_ns", f"{part}_ns", f"{part}_most_ns") for part in ("compute", "data_movement")
            ]
        for value, least, most in bounds:
            assert (said[least] <= truth[value] + 1e-6).all(), (view, value)
            assert (said[most] >= truth[value] - 1e-6).all(), (view, value)
        if view == "operator_rounds":
            exact = said["backend"] == "portable"
            assert (said["most_ns"] == said["median_ns"])[exact].all()
            # The call's own time says it better where it leaves less than a microsecond.
            assert (said["most_ns"] - said["median_ns"])[~exact].max() <= 1000


def test_the_exact_time_of_the_call_narrows_what_its_rows_can_hide():
    reported, _ = made_timeline(3, 6_000, 1)
    rows = summarised(reported, {"delegate_calls": ["round", "iteration", "delegate"]})["delegate_calls"]
    assert (rows["hidden_ns"] == np.minimum(rows["beyond_ns"], 1000 * rows["floored_rows"])).all()
    assert (rows["hidden_ns"] < 1000 * rows["floored_rows"]).any()


def test_forty_short_operators_that_are_twice_as_fast_are_not_called_anything_else(
    warehouse: Warehouse, tmp_path: Path
):
    made = random.Random(1)
    times = [made.uniform(3_000, 8_000) for _ in range(40)]
    rows = compared(warehouse, tmp_path, [TrueOperator(GEMM, ns, ns / 2) for ns in times], jitter=0.002)
    timed = rows[rows["speedup_low"].notna() & (rows["category"] == "GEMM")]
    assert len(timed) == 41
    assert ((timed["bound_low"] <= 2) & (timed["bound_high"] >= 2)).all()
    assert ((timed["speedup_low"] <= 2) & (timed["speedup_high"] >= 2)).all()
    assert timed["speedup"].isna().all(), "whole microseconds leave no number"
    [gemm] = timed[timed["level"] == "category"].to_dict("records")
    assert gemm["verdict"] == "faster", "which no flooring can hide"
    # The sum of the call says more than a microsecond for each of its rows would.
    assert gemm["bound_high"] / gemm["bound_low"] < 1.5
    cells = comparison_table(rows, "category").rows
    assert any(
        cell == f"{gemm['speedup_low']:.2f}x to {gemm['speedup_high']:.2f}x (n=10)"
        for row in cells
        for cell in row
    )


@pytest.mark.parametrize(("shortest_ns", "longest_ns"), [(1_000, 8_000), (300, 990)])
def test_what_explain_says_of_short_operators_holds_the_true_times(
    shortest_ns: int, longest_ns: int, warehouse: Warehouse, tmp_path: Path
):
    """Truly, everything but the overhead is GEMM in both arms, and SME2 halves it."""
    made = random.Random(1)
    times = [made.uniform(shortest_ns, longest_ns) for _ in range(35)]
    compared(warehouse, tmp_path, [TrueOperator(GEMM, ns, ns / 2) for ns in times])
    session_id = warehouse.query("SELECT max(session_id) AS s FROM comparisons")["s"].iloc[0]
    explanation = explain(warehouse, session_id)
    inference_ns = {arm.run["sme2"]: arm.headroom["inference_ns"] for arm in explanation.arms}
    [shift] = [each for each in explanation.insights if each.kind == "bottleneck_shift"]
    assert not shift.title.startswith("The bottleneck moved")
    [gemm] = [row for row in shift.rows if row["category"] == "GEMM"]
    for arm, true_ns in (("off", sum(times)), ("on", sum(times) / 2)):
        share = true_ns / inference_ns[arm]
        assert gemm[f"{arm}_least"] <= share * 1.01
        assert gemm[f"{arm}_most"] >= share * 0.99
    for each in explanation.insights:
        if each.kind == "amdahl_compute":
            assert each.win_ns is None, "what would be left is below the clock's resolution"
            assert "at most" not in each.title
    for each in (each for each in explanation.insights if each.kind == "heavy_operator"):
        assert each.win_ns is not None
        assert each.win_ns >= times[int(each.rows[0]["position"])] / 2 * 0.99


def test_a_difference_that_flooring_made_is_no_difference(warehouse: Warehouse, tmp_path: Path):
    operators = [TrueOperator("Softmax (NC, F32)", 2_990, 3_002), TrueOperator(GEMM, 300_000, 150_000)]
    rows = compared(warehouse, tmp_path, operators).query("level == 'operator'").to_dict("records")
    softmax, gemm = rows
    assert (softmax["a_ns"], softmax["b_ns"]) == (2_000, 3_000)
    assert softmax["verdict"] == "insufficient data"
    assert pd.isna(softmax["speedup"])
    assert softmax["speedup_low"] <= 2_990 / 3_002 <= softmax["speedup_high"]
    assert softmax["p_value"] == 1
    assert gemm["speedup"] == pytest.approx(2, rel=0.01)


def test_what_whole_microseconds_can_hide_altogether_has_no_ratio(warehouse: Warehouse, tmp_path: Path):
    operators = [TrueOperator("Copy (NC, X32)", 990, 450), TrueOperator(GEMM, 300_000, 150_000)]
    rows = compared(warehouse, tmp_path, operators)
    [copy] = rows[rows["op_type"] == "Copy"].to_dict("records")
    assert copy["verdict"] == "insufficient data"
    assert copy["reason"].startswith("Below the clock's resolution")
    assert pd.isna([copy[name] for name in ("speedup", "speedup_low", "bound_low", "p_value")]).all()
    # The same overhead in both arms; what the operators hide is counted there.
    [overhead] = rows[rows["category"] == "Overhead"].to_dict("records")
    assert overhead["bound_low"] < 1 < overhead["bound_high"]
    assert pd.isna(overhead["speedup"])


def test_a_rate_is_of_the_time_that_stands_beside_it_and_names_what_it_counts(
    warehouse: Warehouse, tmp_path: Path
):
    # One round in five is so slow that mean and median differ, and not so slow that it is disturbed.
    compared(warehouse, tmp_path, [TrueOperator(GEMM, 66_000, 40_000)], pace=(1.24, 1, 1, 1, 1) * 2)
    facts = warehouse.query("SELECT * FROM operator_facts WHERE gops IS NOT NULL")
    assert (facts["mean_ns"] != facts["median_ns"]).any()
    assert facts["gops"].tolist() == pytest.approx((2 * facts["macs"] / facts["mean_ns"]).tolist())
    assert set(facts["rate_unit"]) == {"GFLOP/s"}


@pytest.mark.parametrize(
    ("types", "unit"),
    [
        ("F32", "GFLOP/s"),
        ("PF16", "GFLOP/s"),
        ("F32, QC8W", "GFLOP/s"),
        ("QS8, QC8W", "GOP/s"),
        ("PQS8, QC8W", "GOP/s"),
        ("QP8, F32, QC8W", "GOP/s"),
        ("QD8, F32, QC4W", "GOP/s"),
    ],
)
def test_products_of_integers_have_another_unit(types: str, unit: str, warehouse: Warehouse):
    facts = source("head", "XNNFullyConnected", macs=9_400_000)
    OperatorRun([Op(f"Fully Connected (NC, {types}) GEMM #1", 66, 0, facts)]).write(warehouse)
    warehouse.publish()
    for view in ("operator_facts", "bottlenecks"):
        [row] = warehouse.query(f"FROM {view}").to_dict("records")
        assert (row["gops"], row["rate_unit"]) == (pytest.approx(2 * 9_400_000 / 66_000), unit)
    module = warehouse.query("FROM module_summary WHERE module = 'head'").iloc[0]
    assert (module["gops"], module["rate_unit"]) == (pytest.approx(2 * 9_400_000 / 66_000), unit)


def test_one_disturbed_round_decides_no_rank_and_no_mean(warehouse: Warehouse, tmp_path: Path):
    operators = [TrueOperator(GEMM, 300_000, 300_000), TrueOperator("Softmax (NC, F32)", 100_000, 100_000)]
    compared(warehouse, tmp_path, operators, pace=(1, 1, 40, 1, 1, 1, 1, 1, 1, 1))
    headroom = warehouse.query("SELECT * FROM headroom")
    assert (headroom["rounds"].tolist(), headroom["disturbed_rounds"].tolist()) == ([10, 10], [1, 1])
    assert headroom["inference_ns"].max() < 410_000
    facts = warehouse.query("SELECT sum(share) AS share FROM operator_summary GROUP BY run_id")
    assert facts["share"].max() < 1
    assert "1 of 10 rounds were disturbed" in report_of(warehouse)


def test_where_half_of_the_rounds_deviate_none_is_the_exception(warehouse: Warehouse, tmp_path: Path):
    compared(warehouse, tmp_path, [TrueOperator(GEMM, 300_000, 300_000)], pace=(1, 2) * 5)
    assert not warehouse.query("SELECT bool_or(disturbed) AS any FROM traced_rounds")["any"].iloc[0]


PLACEBOS = [
    TrueOperator("Softmax (NC, F32)", 80_000, 80_000),
    TrueOperator("Max Pooling (NHWC, F32)", 60_000, 60_000),
    TrueOperator("Transpose (ND, X32)", 40_000, 40_000),
]


def test_operators_with_the_same_kernel_show_that_nothing_else_differs(warehouse: Warehouse, tmp_path: Path):
    rows = compared(warehouse, tmp_path, [TrueOperator(GEMM, 300_000, 150_000), *PLACEBOS], jitter=0.005)
    model = rows[rows["level"] == "model"].iloc[0]
    assert (model["verdict"], model["placebo_operators"]) == ("faster", 3)
    assert model["placebo_low"] <= 1 <= model["placebo_high"]
    placebos = rows[rows["placebo"].fillna(False).astype(bool)]
    assert set(placebos["op_type"]) == {"Softmax", "Max Pooling", "Transpose"}
    said = report_of(warehouse)
    assert "3 operators have the same kernel in both arms, and together a ratio of" in said
    stored = warehouse.query("SELECT placebo_ratio, confidence FROM sme2_comparison WHERE level = 'model'")
    assert stored["placebo_ratio"].tolist() == [model["placebo_ratio"]]


@pytest.mark.parametrize(("off", "slower"), [(1.08, "off"), (1 / 1.08, "on")])
def test_a_bias_in_operators_with_the_same_kernel_leaves_no_verdict(
    warehouse: Warehouse, tmp_path: Path, off: float, slower: str
):
    biased = [replace(operator, off_ns=off * operator.on_ns) for operator in PLACEBOS]
    rows = compared(warehouse, tmp_path, [TrueOperator(GEMM, 324_000, 150_000), *biased], jitter=0.005)
    timed = rows[rows["a_ns"].notna() & ~rows["category"].eq("Overhead")]
    assert (timed["verdict"] == "not comparable").all()
    assert rows["speedup"].isna().all()
    model = rows[rows["level"] == "model"].iloc[0]
    assert model["placebo_low"] > 1.02 or model["placebo_high"] < 1 / 1.02
    found = re.match(
        r"3 operators have the same kernel in both arms, and yet took 1\.0[78]\d* times as long with SME2 "
        rf"{slower} \(95 % interval ([\d.]+) to ([\d.]+)\)",
        model["reason"],
    )
    assert found is not None, model["reason"]
    assert 1.02 < float(found[1]) < float(found[2])
    assert model["confidence"] == "low"
    said = report_of(warehouse)
    assert "differ in something other than SME2" in said
    assert not re.search(r"\d\.\d+x \(", said.partition("\n## ")[0]), "no headline"
    explanation = explain(warehouse, model["session_id"])
    for insight in explanation.insights:
        assert dict(finding_points(insight, explanation))["Confidence"].startswith("low: ")


def test_a_slow_mode_in_a_third_of_the_rounds_gives_no_ratio(warehouse: Warehouse, tmp_path: Path):
    slow = {"pace": (1, 1, 1.33) * 4}
    rows = compared(
        warehouse, tmp_path, [TrueOperator(GEMM, 300_000, 300_000)], slow, rounds=12, jitter=0.003
    )
    model = rows[rows["level"] == "model"].iloc[0]
    assert model["a_ns"] == pytest.approx(model["b_ns"], rel=0.01), "equal medians"
    assert (model["slow_rounds_a"], model["slow_rounds_b"]) == (0, 4)
    assert model["verdict"] == "insufficient data"
    assert "4 of 12 rounds with SME2 on are a slow mode, 1.32 times as long as the others" in model["reason"]
    assert pd.isna(model["speedup"])
    assert pd.isna(model["speedup_high"])
    assert (model["confidence"], "some rounds are a slow mode (on)" in model["confidence_reason"]) == (
        "low",
        True,
    )


def test_what_is_true_of_both_modes_is_said_and_the_mode_with_it(warehouse: Warehouse, tmp_path: Path):
    slow = {"pace": (1, 1, 1.33) * 4}
    rows = compared(
        warehouse, tmp_path, [TrueOperator(GEMM, 900_000, 300_000)], slow, rounds=12, jitter=0.003
    )
    model = rows[rows["level"] == "model"].iloc[0]
    assert model["verdict"] == "faster"
    assert "are a slow mode" in model["reason"]


def test_slow_rounds_of_the_machine_are_taken_out_by_pairs(warehouse: Warehouse, tmp_path: Path):
    rows = compared(
        warehouse,
        tmp_path,
        [TrueOperator(GEMM, 300_000, 300_000)],
        rounds=12,
        jitter=0.003,
        pace=(1, 1, 1.33) * 4,
    )
    model = rows[rows["level"] == "model"].iloc[0]
    assert (model["slow_rounds_a"], model["slow_rounds_b"]) == (4, 4)
    assert model["verdict"] == "no difference"
    assert model["speedup"] == pytest.approx(1, abs=0.01)


def test_the_figures_of_a_stored_reason_are_those_of_the_rounds(warehouse: Warehouse, tmp_path: Path):
    operators = [TrueOperator(GEMM, 300_000, 150_000)]
    rows = compared(warehouse, tmp_path, operators, rounds=8, jitter=0.02)
    model = rows[rows["level"] == "model"].iloc[0]
    # All eight rounds are faster: the exact test gives 2 of 2^8.
    assert re.findall(r"(\d+) paired|p = ([\d.]*\d)", model["reason"]) == [("8", ""), ("", "0.0078")]
    scatter = warehouse.query(
        "SELECT max(cv) AS cv FROM (SELECT stddev_samp(ns) / avg(ns) AS cv FROM ("
        "SELECT run_id, 'traced' AS kind, round, avg(execute_ns) AS ns FROM inferences "
        "WHERE pass = 'etdump' AND NOT is_warmup GROUP BY ALL UNION ALL "
        "SELECT run_id, 'untraced', round, median(duration_ns) FROM inferences "
        "WHERE pass = 'latency' AND NOT is_warmup GROUP BY ALL) GROUP BY run_id, kind)"
    )["cv"].item()
    assert f"8 rounds that scatter by {scatter:.1%}" in model["confidence_reason"]


def test_rounds_that_scatter_are_never_of_high_confidence(warehouse: Warehouse, tmp_path: Path):
    made = random.Random(5)
    pace = tuple(made.choice((0.5, 0.8, 1.0, 1.6, 2.4)) for _ in range(10))
    rows = compared(warehouse, tmp_path, [TrueOperator(GEMM, 300_000, 150_000)], pace=pace)
    model = rows[rows["level"] == "model"].iloc[0]
    assert model["confidence"] == "low"
    assert "the rounds scatter by" in model["confidence_reason"]
    said = report_of(warehouse)
    assert "on a quiet machine" not in said
    assert "low: measured, but the rounds scatter by" in said
