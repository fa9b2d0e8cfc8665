"""The trace for the Perfetto UI: slices lie inside one another, no nanosecond is lost or counted twice."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from benchmarks.made.traces import Delegate, inference, trace_bytes
from sme2_assets.evidence.foreign import Facts
from sme2_assets.evidence.manifest import Manifest
from sme2_assets.exchange.ingest import ingest_paths
from sme2_assets.exchange.perfetto import faults_of_trace, trace_of_runs
from sme2_assets.store import Store
from sme2_assets.warehouse import Warehouse
from sme2_assets.warehouse.read import run_of_id
from sme2_assets_tests.exchange.measured_pair import Exported
from sme2_assets_tests.warehouse.conftest import real_run, real_warehouse

__all__ = ["real_run", "real_warehouse"]

Trace = dict[str, Any]


@pytest.fixture(scope="module")
def document(pair_files: Exported) -> Trace:
    return json.loads((pair_files.folder / "toy_cnn_xnnpack_fp32.perfetto.json").read_text())


def slices(document: Trace) -> pd.DataFrame:
    """Slices with whole nanoseconds, and their arguments as columns."""
    opened: dict[tuple[int, int], list[dict[str, Any]]] = {}
    rows = []
    for event in document["traceEvents"]:
        track = (event["pid"], event["tid"])
        if event["ph"] in "Bi":
            named = {key: event[key] for key in ("name", "cat", "pid", "tid")}
            begun = {**event["args"], **named, "start": round(event["ts"] * 1000)}
            if event["ph"] == "i":
                rows.append({**begun, "length": 0})
            else:
                opened.setdefault(track, []).append(begun)
        elif event["ph"] == "E":
            ended = opened[track].pop()
            rows.append({**ended, "length": round(event["ts"] * 1000) - ended["start"]})
    return pd.DataFrame(rows)


def process_names(document: Trace) -> dict[str, int]:
    return {
        event["args"]["name"]: event["pid"]
        for event in document["traceEvents"]
        if event["name"] == "process_name"
    }


def check_against_timeline(warehouse: Warehouse, run_id: str, drawn: pd.DataFrame) -> None:
    """Slices of one arm's etdump pass against its timeline, inference by inference."""
    wholes = drawn[drawn["cat"] == "inference"]
    for _, whole in wholes.iterrows():
        inside = drawn[
            (drawn["start"] >= whole["start"])
            & (drawn["start"] + drawn["length"] <= whole["start"] + whole["length"])
            & drawn["cat"].isin(["operator", "delegate_overhead", "framework_overhead"])
        ]
        assert inside["length"].sum() == whole["length"], "a nanosecond is in no slice, or in two"
        measured = warehouse.query(
            "SELECT kind, delegate, position, name, duration_ns FROM timeline "
            "WHERE run_id = ? AND round = ? AND iteration = ?",
            [run_id, int(whole["round"]), int(whole["iteration"])],
        )
        assert measured["duration_ns"].sum() == whole["length"]
        operators = inside[inside["cat"] == "operator"]
        expected = measured[measured["kind"] == "operator"]
        assert sorted(
            zip(
                operators["name"],
                operators["position"].astype(int),
                operators["duration_ns"].astype(int),
                strict=True,
            )
        ) == sorted(zip(expected["name"], expected["position"], expected["duration_ns"], strict=True))
        if not inside.get("cut", pd.Series(dtype=object)).notna().any():
            for kind in ("delegate_overhead", "framework_overhead"):
                assert (
                    inside.loc[inside["cat"] == kind, "length"].sum()
                    == measured.loc[measured["kind"] == kind, "duration_ns"].sum()
                )


def test_both_arms_are_processes_whose_slices_are_the_timeline(pair_files: Exported, document: Trace):
    assert faults_of_trace(document) == []
    names = process_names(document)
    assert set(names) == {
        *("SME2 off", "SME2 on", "SME2 off, kernels pass (sampled)", "SME2 on, kernels pass (sampled)")
    }
    drawn = slices(document)
    for sme2 in ("off", "on"):
        of_arm = drawn[drawn["pid"] == names[f"SME2 {sme2}"]]
        # Six rounds of three timed inferences, warm-up left out.
        assert (of_arm["cat"] == "inference").sum() == 18
        check_against_timeline(pair_files.warehouse, pair_files.run(sme2)["run_id"], of_arm)
    starts = drawn[(drawn["cat"] == "inference") & (drawn["iteration"] == 1)]
    assert (starts.groupby("round")["start"].nunique() <= 2).all(), "rounds of the arms do not start together"


def test_an_operator_tells_where_it_comes_from_and_what_shows_sme2(document: Trace):
    drawn = slices(document)
    [convolution] = (
        drawn[(drawn["cat"] == "operator") & (drawn["name"] == "Convolution (NHWC, PF32) IGEMM #1")][
            ["category", "sme2_evidence", "module", "source", "input_shape"]
        ]
        .drop_duplicates()
        .to_dict("records")
    )
    assert convolution == {
        "category": "CONV",
        "sme2_evidence": "executed",
        "module": "features.0.conv",
        "source": "model.py:2",
        "input_shape": "1x16x8x8",
    }


def test_every_sample_of_the_kernels_pass_is_a_slice_on_its_thread(pair_files: Exported, document: Trace):
    drawn = slices(document)
    samples = drawn[drawn["cat"] == "sample"]
    for sme2 in ("off", "on"):
        of_arm = samples[samples["pid"] == process_names(document)[f"SME2 {sme2}, kernels pass (sampled)"]]
        [expected] = pair_files.warehouse.query(
            "SELECT sum(samples)::BIGINT AS n FROM kernel_samples WHERE run_id = ?",
            [pair_files.run(sme2)["run_id"]],
        )["n"]
        assert len(of_arm) == expected
        in_sme2 = of_arm[of_arm["name"].str.contains("sme2_mopa")]
        assert len(in_sme2) == (6 if sme2 == "on" else 0)
        assert set(in_sme2["unit"]) <= {"SME"}


def test_a_really_measured_run_is_a_trace_that_adds_up(
    real_run: tuple[Store, Manifest], real_warehouse: Warehouse
):
    store, manifest = real_run
    run = run_of_id(real_warehouse, manifest.run_id)
    document = trace_of_runs(real_warehouse, [(run, store.run_dir(manifest.run_id))])
    assert faults_of_trace(document) == []
    drawn = slices(document)
    check_against_timeline(real_warehouse, manifest.run_id, drawn[drawn["pid"] == 1])
    assert (drawn["cat"] == "sample").any()
    assert {event["name"] for event in document["traceEvents"] if event["ph"] == "C"} >= {"load (1 min)"}


def test_operators_that_seem_longer_than_their_call_are_cut_and_keep_their_time(tmp_path: Path):
    """XNNPACK's microseconds can add up to more than the call took."""
    calls = [Delegate([("Softmax (NC, F32) #1", 3000), ("HardSwish (NC) #2", 4000)], 6500)]
    (tmp_path / "rounded.etdump").write_bytes(trace_bytes(inference(calls, 9000)))
    store = Store(tmp_path / "data")
    [taken] = ingest_paths(store, [tmp_path / "rounded.etdump"], Facts()).traces
    warehouse = Warehouse(store.warehouse)
    document = trace_of_runs(warehouse, [(run_of_id(warehouse, taken.run_id), store.run_dir(taken.run_id))])
    assert faults_of_trace(document) == []
    drawn = slices(document)
    check_against_timeline(warehouse, taken.run_id, drawn)
    last = drawn[drawn["name"] == "HardSwish (NC) #2"].iloc[0]
    assert (last["length"], last["duration_ns"], last["cut"]) == (3500, 4000, True)


def test_the_checker_of_traces_sees_what_perfetto_would_misplace(document: Trace):
    def with_fault(change: dict[str, Any], which: str) -> list[str]:
        broken = copy.deepcopy(document)
        event = next(event for event in broken["traceEvents"] if event.get("cat") == which)
        event.update(change)
        return faults_of_trace(broken)

    assert "is the innermost one" in " ".join(with_fault({"ph": "E"}, "operator"))
    assert "is the innermost one" in " ".join(with_fault({"name": "Method::init"}, "call"))
    assert "comes after what is later" in " ".join(with_fault({"ts": 1e6}, "operator"))
    assert "without a time" in with_fault({"ts": None}, "operator")[0]
    assert "without thread" in with_fault({"tid": "main"}, "operator")[0]
    assert "no known kind" in with_fault({"ph": "X"}, "operator")[0]
    assert faults_of_trace({"traceEvents": []})
    unnamed = [event for event in document["traceEvents"] if event["name"] != "process_name"]
    assert "has no name" in faults_of_trace({"traceEvents": unnamed})[0]
