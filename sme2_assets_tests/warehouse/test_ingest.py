from __future__ import annotations

import json
import shutil
from pathlib import Path

import pandas as pd
import pytest

from sme2_assets.errors import EvidenceError, Sme2Error, TraceError
from sme2_assets.evidence.manifest import Manifest
from sme2_assets.evidence.operators import OPERATORS_FILE, ProgramOperators
from sme2_assets.evidence.operators import Delegate as Lowered
from sme2_assets.store import Store
from sme2_assets.warehouse import Warehouse
from sme2_assets.warehouse import ingest as ingesting
from sme2_assets.warehouse.ingest import RunReader, rows_of_run, write_runs
from sme2_assets_tests.made.run_folder import MadeRun, ingest, run_with_trace, vouch_for_what_is_there
from sme2_assets_tests.made.traces import Delegate, inference, trace_bytes
from sme2_assets_tests.warehouse.newest import newest_run

TRACE = Path("round_01/etdump/trace.etdump")


@pytest.fixture
def folder(real_run: tuple[Store, Manifest], tmp_path: Path) -> Path:
    """A copy of a real run folder, to be spoiled."""
    store, manifest = real_run
    return Path(shutil.copytree(store.run_dir(manifest.run_id), tmp_path / manifest.run_id))


def assert_no_rows(warehouse: Warehouse) -> None:
    assert list(warehouse.root.rglob("*.parquet")) == []
    for table in ("runs", "inferences", "timeline"):
        assert warehouse.query(f"FROM {table}").empty


def test_a_real_run_becomes_rows(real_run: tuple[Store, Manifest], real_warehouse: Warehouse):
    _, manifest = real_run
    identity, context = manifest.identity, manifest.context
    run = newest_run(real_warehouse, identity.variant, identity.platform, "off")
    assert run["run_id"] == manifest.run_id
    assert run["session_id"] == manifest.session_id
    assert (run["rounds"], run["warmup"], run["iterations"], run["threads"]) == (2, 2, 4, 1)
    assert (run["fidelity"], run["sme2"], run["paired"]) == (context.fidelity, "off", False)
    assert (run["device"], run["arch"]) == (context.device, context.machine["arch"])
    assert (run["pte_sha256"], run["runner_sha256"]) == (identity.pte_sha256, identity.runner_sha256)
    assert run["sqnr_db"] >= run["sqnr_threshold_db"]
    assert run["started_at"].isoformat() == manifest.info.started_at
    assert list(run["cpu_features_seen"]) == manifest.context.cpu["features_seen"]
    counts = real_warehouse.query(
        "SELECT pass, is_warmup, count(*) AS n, "
        "bool_and((execute_ns IS NULL) = (pass = 'latency' OR is_warmup)) AS fits, min(iteration) AS first "
        "FROM inferences WHERE pass <> 'kernels' GROUP BY ALL ORDER BY ALL"
    )
    assert counts.to_numpy().tolist() == [
        ["etdump", False, 8, True, 0],
        ["etdump", True, 4, True, -2],
        ["latency", False, 8, True, 0],
        ["latency", True, 4, True, -2],
    ]


def test_the_rows_are_those_of_the_files(real_run: tuple[Store, Manifest], real_warehouse: Warehouse):
    store, manifest = real_run
    result = json.loads((store.run_dir(manifest.run_id) / "round_01" / "latency" / "result.json").read_text())
    durations = real_warehouse.query(
        "SELECT duration_ns FROM inferences WHERE pass = 'latency' AND round = 1 ORDER BY iteration"
    )["duration_ns"]
    assert durations.tolist() == [*result["warmup_ns"], *result["iteration_ns"]]


@pytest.mark.parametrize(
    "name", [TRACE, Path("round_00/latency/result.json"), Path("round_00/etdump/runner.log")]
)
def test_an_altered_file_is_refused(warehouse: Warehouse, folder: Path, name: Path):
    (folder / name).write_bytes((folder / name).read_bytes() + b"\n")
    with pytest.raises(EvidenceError, match=r"its content changed"):
        ingest(warehouse, folder)
    assert_no_rows(warehouse)


def test_a_missing_trace_is_refused(warehouse: Warehouse, folder: Path):
    (folder / TRACE).unlink()
    with pytest.raises(EvidenceError, match=r"trace.etdump is missing"):
        ingest(warehouse, folder)
    assert_no_rows(warehouse)


def test_a_file_the_manifest_does_not_vouch_for_is_refused(warehouse: Warehouse, folder: Path):
    manifest = json.loads((folder / "manifest.json").read_text())
    del manifest["info"]["file_sha256"][str(TRACE)]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(EvidenceError, match="does not vouch"):
        ingest(warehouse, folder)
    assert_no_rows(warehouse)


def test_a_truncated_trace_writes_no_rows(warehouse: Warehouse, folder: Path):
    data = (folder / TRACE).read_bytes()
    (folder / TRACE).write_bytes(data[: len(data) // 2])
    vouch_for_what_is_there(folder)
    with pytest.raises(TraceError, match="cut off"):
        ingest(warehouse, folder)
    assert_no_rows(warehouse)


def test_a_trace_with_too_few_inferences_writes_no_rows(warehouse: Warehouse, folder: Path):
    one = inference([Delegate([("Convolution (NHWC, F32) IGEMM #1", 1000)], 1100)], 1200)
    (folder / TRACE).write_bytes(trace_bytes(one))
    vouch_for_what_is_there(folder)
    with pytest.raises(EvidenceError, match="holds 1 inferences, the runner traced 4"):
        ingest(warehouse, folder)
    assert_no_rows(warehouse)


def test_a_result_that_makes_no_sense_writes_no_rows(warehouse: Warehouse, folder: Path):
    path = folder / "round_00/latency/result.json"
    result = json.loads(path.read_text())
    result["iteration_ns"].pop()
    path.write_text(json.dumps(result))
    vouch_for_what_is_there(folder)
    with pytest.raises(EvidenceError):
        ingest(warehouse, folder)
    assert_no_rows(warehouse)


def test_a_folder_without_manifest_is_no_run(warehouse: Warehouse, folder: Path):
    (folder / "manifest.json").unlink()
    with pytest.raises(Sme2Error, match=r"manifest\.json is missing"):
        ingest(warehouse, folder)
    assert_no_rows(warehouse)


def test_rounds_whose_names_differ_are_stacked_without_loss(tmp_path: Path):
    """The second process went on to another branch."""
    folder = MadeRun(rounds=2, sampled=False).write(tmp_path)
    usual, branch = (
        inference([Delegate([(name, 5000)], 6000)], 7000) for name in ("Add (ND) #1", "Frobnicate (NC) #1")
    )
    (folder / "round_00/etdump/trace.etdump").write_bytes(trace_bytes(*[usual] * 4))
    (folder / TRACE).write_bytes(trace_bytes(usual, *[branch] * 3))
    vouch_for_what_is_there(folder)
    rows = rows_of_run(folder)
    timeline = rows.timeline
    assert rows.runs["paths"].tolist() == [2]
    names = timeline.groupby("round", observed=True)["name"].unique()
    assert "Frobnicate (NC) #1" not in set(names[0])
    assert {"Add (ND) #1", "Frobnicate (NC) #1"} < set(names[1])
    # Text columns stay codes: as Python strings a long trace would take many times the memory.
    assert timeline["name"].dtype == "category"
    assert int((~timeline["known"]).sum()) == 3


@pytest.mark.parametrize("hidden", ["nothing", "one moment", "everything"])
def test_a_machine_that_nobody_could_watch_is_not_called_quiet(tmp_path: Path, hidden: str):
    folder = MadeRun(sampled=False).write(tmp_path)
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    moments = manifest["info"]["environment"]
    for moment in {"nothing": [], "one moment": moments[-1:], "everything": moments}[hidden]:
        moment["snapshot"]["other_cores"] = None
    path.write_text(json.dumps(manifest))
    [flags] = rows_of_run(folder).runs["flags"]
    assert flags == ([] if hidden == "nothing" else None)
    moments[0]["flags"] = ["hot: 90 °C"]
    path.write_text(json.dumps(manifest))
    assert rows_of_run(folder).runs["flags"].tolist() == [["hot: 90 °C"]], "it was not, whatever else ran"


def test_processes_that_ran_different_operators_are_not_one_run(tmp_path: Path):
    folder = MadeRun(rounds=2).write(tmp_path)
    blocks = [inference([Delegate([("Frobnicate (NC) #1", 5000)], 6000)], 7000) for _ in range(4)]
    (folder / TRACE).write_bytes(trace_bytes(*blocks))
    vouch_for_what_is_there(folder)
    with pytest.raises(EvidenceError, match="different operator sequences"):
        rows_of_run(folder)


FOREIGN, XNNPACK, OPAQUE = [("conv2d", 5000)], [("Add (ND) #1", 5000)], []


@pytest.mark.parametrize(
    ("rows_of_calls", "backends", "named"),
    [
        ([FOREIGN, XNNPACK], ["CoreMLBackend", "XnnpackBackend"], ["CoreMLBackend", "xnnpack"]),
        # Another number of calls than the program has: nobody knows which call is which.
        ([FOREIGN, XNNPACK], ["CoreMLBackend"], ["other delegate", "xnnpack"]),
        # Traced without XNNPACK's own rows: the calls are its, and what they did is unknown.
        ([OPAQUE, XNNPACK], ["XnnpackBackend", "XnnpackBackend"], ["XnnpackBackend", "xnnpack"]),
        ([OPAQUE, XNNPACK], ["CoreMLBackend", "XnnpackBackend"], ["CoreMLBackend", "xnnpack"]),
        ([OPAQUE, XNNPACK], [], ["other delegate", "xnnpack"]),
    ],
)
def test_another_delegate_keeps_the_name_of_its_backend(
    warehouse: Warehouse,
    tmp_path: Path,
    rows_of_calls: list[list[tuple[str, int]]],
    backends: list[str],
    named: list[str],
):
    calls = [Delegate(rows, 6000) for rows in rows_of_calls]
    trace = tmp_path / "trace.etdump"
    trace.write_bytes(trace_bytes(inference(calls, 20_000)))
    folder = run_with_trace(tmp_path, trace)
    program = ProgramOperators(delegates=[Lowered(backend=name, nodes=[]) for name in backends], portable=[])
    (folder / OPERATORS_FILE).write_text(program.to_json())
    vouch_for_what_is_there(folder)
    ingest(warehouse, folder)
    warehouse.publish()
    for table in ("timeline", "operators"):
        rows = warehouse.query(
            f"FROM {table} WHERE position IS NOT NULL AND delegate IS NOT NULL ORDER BY delegate"
        )
        assert rows["backend"].tolist() == named


def test_a_trace_that_cannot_be_gives_no_rows(warehouse: Warehouse, tmp_path: Path):
    trace = tmp_path / "trace.etdump"
    trace.write_bytes(
        trace_bytes(inference([Delegate([("Convolution (NHWC, F32) #1", 600_000)], 12_000)], 20_000))
    )
    folder = run_with_trace(tmp_path, trace)
    with pytest.raises(TraceError, match="took 12 us, but the 1 rows inside 600 us"):
        ingest(warehouse, folder)
    assert_no_rows(warehouse)


def test_a_long_timeline_is_in_several_files_and_nobody_can_tell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    folder = MadeRun(rounds=3, warmup=1, iterations=4).write(tmp_path / "runs")
    whole, split = Warehouse(tmp_path / "a" / "warehouse"), Warehouse(tmp_path / "b" / "warehouse")
    ingest(whole, folder)
    monkeypatch.setattr(ingesting, "PART_ROWS", 10)
    ingest(split, folder)
    # In place of what was there, all of it.
    ingest(split, folder)
    for warehouse in (whole, split):
        warehouse.publish()
    files = "SELECT path FROM publishing.files WHERE path LIKE 'timeline/%'"
    assert len(whole.query(files)) == 1
    assert len(split.query(files)) == 3
    for table in ("timeline", "operators", "operator_summary", "category_summary", "inferences"):
        expected, found = (warehouse.query(f"FROM {table} ORDER BY ALL") for warehouse in (whole, split))
        assert len(found) > 0
        pd.testing.assert_frame_equal(found, expected)


def test_a_session_with_one_unreadable_arm_leaves_no_file(tmp_path: Path):
    arms = [MadeRun(sme2=sme2).write(tmp_path / "runs") for sme2 in ("off", "on")]
    trace = next(arms[1].rglob("trace.etdump"))
    trace.write_bytes(trace.read_bytes()[:-8])
    vouch_for_what_is_there(arms[1])
    warehouse = Warehouse(tmp_path / "warehouse")
    with pytest.raises(TraceError, match="cut off"):
        write_runs(warehouse, *map(RunReader, arms))
    assert_no_rows(warehouse)
