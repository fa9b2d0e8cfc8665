"""Passes that contradict one another: no headline anywhere, but the reason."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from rich.console import Console

from sme2_assets.report.content import session_document
from sme2_assets.report.terminal import show_session
from sme2_assets.warehouse import Warehouse
from sme2_assets.warehouse.checks import conservation_faults, passes_faults
from sme2_assets.warehouse.comparisons import compare_session
from sme2_assets.warehouse.ingest import rows_of_run
from sme2_assets.warehouse.read import run_of_id
from sme2_assets_tests.made.run_folder import MadeRun, ingest, vouch_for_what_is_there

TRUE = MadeRun(session_id="20260101T000000-aaaaaa")
# What was seen where a clock ramped: the untraced processes came first and were 40 % slower.
RAMPED = MadeRun(session_id="20260102T000000-bbbbbb", untraced_slowness=1.4)
ALONE = replace(RAMPED, session_id="20260103T000000-cccccc")
EMULATED = replace(RAMPED, session_id="20260104T000000-dddddd", fidelity="emulated", platform="emulated")
WHY = "Tracing costs time, yet the traced inferences took 28."


@pytest.fixture(scope="module")
def warehouse(tmp_path_factory: pytest.TempPathFactory) -> Warehouse:
    folder = tmp_path_factory.mktemp("passes")
    made = Warehouse(folder / "warehouse")
    pairs = [run for off in (TRUE, RAMPED) for run in (off, replace(off, sme2="on", untraced_slowness=1.0))]
    ingest(made, *(run.write(folder / "runs") for run in (*pairs, ALONE, EMULATED)))
    made.publish()
    for off in (TRUE, RAMPED):
        compare_session(made, off.session_id)
    made.publish()
    return made


def printed(warehouse: Warehouse, session_id: str) -> str:
    out = io.StringIO()
    show_session(Console(file=out, width=250), warehouse, session_id, None, False)
    return out.getvalue()


def test_the_passes_of_a_true_run_agree(warehouse: Warehouse):
    run = run_of_id(warehouse, TRUE.run_id)
    assert (bool(run["passes_agree"]), run["passes_reason"]) == (True, None)
    assert run["tracer_overhead_low"] <= run["tracer_overhead"] <= run["tracer_overhead_high"]
    assert passes_faults(warehouse, run) is None


def test_passes_that_contradict_one_another_are_told_in_the_warehouse_and_by_the_check(warehouse: Warehouse):
    run = run_of_id(warehouse, RAMPED.run_id)
    assert not run["passes_agree"]
    assert run["tracer_overhead"] == pytest.approx(1 / 1.4 - 1, abs=0.01)
    assert (passes_faults(warehouse, run) or "").startswith(WHY)


def test_emulated_times_are_not_reconciled(warehouse: Warehouse):
    run = run_of_id(warehouse, EMULATED.run_id)
    for column in (
        "passes_agree",
        "passes_reason",
        "tracer_overhead",
        "tracer_overhead_low",
        "sampler_overhead",
    ):
        assert pd.isna(run[column]), column


def test_a_pair_whose_passes_contradict_one_another_has_no_speedup_but_the_reason(warehouse: Warehouse):
    [row] = warehouse.query(
        "FROM comparisons WHERE session_id = ? AND level = 'model'", [RAMPED.session_id]
    ).to_dict("records")
    assert row["verdict"] == "not comparable"
    assert row["reason"].startswith(f"With SME2 off: {WHY}")
    assert pd.isna(row["speedup"])
    answer = session_document(warehouse, RAMPED.session_id).answer
    assert answer is not None
    assert answer.figure is None
    assert WHY in answer.why
    said = printed(warehouse, RAMPED.session_id)
    assert WHY in said
    assert "x (" not in said
    assert "faster" in printed(warehouse, TRUE.session_id), "the pair without contradiction has its speedup"


def test_a_baseline_whose_passes_contradict_one_another_has_no_figure_but_the_reason(warehouse: Warehouse):
    answer = session_document(warehouse, ALONE.session_id).answer
    assert answer is not None
    assert answer.figure is None
    assert WHY in answer.why
    said = printed(warehouse, ALONE.session_id)
    assert WHY in said
    assert "median ms" not in said


def test_stolen_time_and_cycles_reach_the_warehouse_and_what_is_not_counted_stays_unknown(tmp_path: Path):
    folder = MadeRun(rounds=1, warmup=5, iterations=3).write(tmp_path)
    manifest = json.loads((folder / "manifest.json").read_text())
    before, after = manifest["info"]["environment"]
    before["snapshot"]["counters"]["stolen_s"], after["snapshot"]["counters"]["stolen_s"] = 7.25, 7.75
    (folder / "manifest.json").write_text(json.dumps(manifest))
    path = folder / "round_00" / "latency" / "result.json"
    by_time = {
        "schema": 2,
        "warmup_iterations": 9,
        "warmup_stride": 2,
        "warmup_wall_ns": 300_000_000,
        "timed_wall_ns": 200_000_000,
        "warmup_traced": False,
        "iteration_cycles": [30, None, 32],
    }
    path.write_text(json.dumps(json.loads(path.read_text()) | by_time))
    vouch_for_what_is_there(folder)
    rows = rows_of_run(folder)
    assert rows.environment["stolen_s"].isna().tolist() == [True, False]
    assert rows.environment["stolen_s"].iloc[1] == 0.5
    latency = rows.inferences[rows.inferences["pass"] == "latency"]
    assert latency["iteration"].tolist() == [-9, -7, -5, -3, -1, 0, 1, 2]
    assert latency["is_warmup"].tolist() == [True] * 5 + [False] * 3
    assert latency["cycles"].isna().tolist() == [True] * 5 + [False, True, False]
    # An earlier run has its warm-up in the trace, and is told as it was.
    traced = rows.inferences[rows.inferences["pass"] == "etdump"]
    assert traced["iteration"].tolist() == list(range(8))
    assert traced["execute_ns"].notna().all()


def test_a_warm_up_that_is_not_traced_breaks_no_conservation(tmp_path: Path):
    folder = MadeRun(rounds=2, warmup=0, iterations=3).write(tmp_path)
    for directory in ("round_00", "round_01"):
        path = folder / directory / "etdump" / "result.json"
        result = json.loads(path.read_text()) | {
            "schema": 2,
            "warmup_iterations": 2,
            "warmup_ns": [9, 9],
            "warmup_stride": 1,
            "warmup_wall_ns": 20,
            "timed_wall_ns": 20,
            "warmup_traced": False,
            "iteration_cycles": None,
        }
        path.write_text(json.dumps(result))
    vouch_for_what_is_there(folder)
    made = Warehouse(tmp_path / "warehouse")
    ingest(made, folder)
    made.publish()
    assert conservation_faults(made, run_of_id(made, folder.name)) is None
