"""The files of a run: their names and columns, and that their contents add up."""

from __future__ import annotations

import csv
import json
import re
import shutil
from pathlib import Path

import duckdb
import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from scipy import stats

from sme2_assets.cli import main
from sme2_assets.cli.exchange import FORMAT_NAMES
from sme2_assets.errors import Sme2Error
from sme2_assets.evidence.foreign import Facts
from sme2_assets.exchange import perfetto
from sme2_assets.exchange.export import FORMATS, LISTING_FILE, export_run, find_run
from sme2_assets.exchange.ingest import ingest_paths
from sme2_assets.exchange.summaries import robust_statistics
from sme2_assets.exchange.tables import KIT_KERNEL_COLUMNS, KIT_STATS_COLUMNS, KIT_TIMELINE_COLUMNS
from sme2_assets.store import Store
from sme2_assets.warehouse import Warehouse
from sme2_assets.warehouse.csv_files import write_csv
from sme2_assets_tests.exchange.kit_folder import write_kit_folder
from sme2_assets_tests.exchange.measured_pair import Exported
from sme2_assets_tests.made.traces import Portable, inference, trace_bytes
from sme2_assets_tests.warehouse.conftest import paired

__all__ = ["paired"]

ARMS = ("off", "on")


@pytest.mark.parametrize(
    ("name", "columns"),
    [
        ("exec_all_runs_timeline", KIT_TIMELINE_COLUMNS),
        ("exec_run0_timeline", KIT_TIMELINE_COLUMNS),
        ("exec_ops_stats", KIT_STATS_COLUMNS),
        ("kernels", KIT_KERNEL_COLUMNS),
    ],
)
def test_tables_of_the_kit_begin_with_its_columns_and_are_the_same_as_csv_and_parquet(
    pair_files: Exported, name: str, columns: tuple[str, ...]
):
    for sme2 in ARMS:
        csv = pd.read_csv(pair_files.table(sme2, f"{name}.csv"))
        assert tuple(csv.columns[: len(columns)]) == columns
        # Through the warehouse's own engine: what DuckDB reads, analysts read.
        parquet = duckdb.read_parquet(str(pair_files.table(sme2, f"{name}.parquet"))).df()
        assert list(parquet.columns) == list(csv.columns)
        assert len(parquet) == len(csv)
        for column in csv.select_dtypes("number").columns:
            np.testing.assert_allclose(
                csv[column].to_numpy(float), pd.to_numeric(parquet[column]).to_numpy(float), rtol=1e-12
            )


@pytest.mark.parametrize("sme2", ARMS)
def test_the_timeline_counts_every_nanosecond_once(pair_files: Exported, sme2: str):
    rows = pd.read_csv(pair_files.table(sme2, "exec_all_runs_timeline.csv"))
    parts = rows[rows["kind"] != "inference"].groupby("run_index")["duration_ns"].sum()
    whole = rows[rows["name"] == "Method::execute"].set_index("run_index")["duration_ns"]
    assert parts.equals(whole)
    measured = pair_files.warehouse.query(
        "SELECT execute_ns FROM inferences WHERE run_id = ? AND pass = 'etdump' AND NOT is_warmup "
        "ORDER BY round, iteration",
        [pair_files.run(sme2)["run_id"]],
    )["execute_ns"]
    assert whole.tolist() == measured.tolist()
    shares = rows[rows["kind"] != "inference"].groupby("run_index")["pct_total"].sum()
    np.testing.assert_allclose(shares, 100)
    # One number for one thing, in every run.
    assert (rows.groupby("node_id")["name"].nunique() == 1).all()
    assert (rows.groupby("run_index")["node_id"].nunique() == rows["node_id"].nunique()).all()
    first = pd.read_csv(pair_files.table(sme2, "exec_run0_timeline.csv"))
    pd.testing.assert_frame_equal(first, rows[rows["run_index"] == 0], check_dtype=False)


@pytest.mark.parametrize("sme2", ARMS)
def test_operator_statistics_and_categories_add_up_to_the_inference(pair_files: Exported, sme2: str):
    timeline = pd.read_csv(pair_files.table(sme2, "exec_all_runs_timeline.csv"))
    execute_ms = timeline.loc[timeline["kind"] == "inference", "duration_ms"].mean()
    operators = pd.read_csv(pair_files.table(sme2, "exec_ops_stats.csv"))
    categories = pd.read_csv(pair_files.table(sme2, "categories.csv")).set_index("category")
    assert categories["mean_ms"].sum() == pytest.approx(execute_ms)
    assert operators["total_ms"].sum() + categories.loc["Overhead", "mean_ms"] == pytest.approx(execute_ms)
    by_category = operators.groupby("category")["total_ms"].sum()
    for category, total_ms in by_category.items():
        assert total_ms == pytest.approx(categories.loc[category, "mean_ms"])
    assert operators["count"].sum() == 8
    assert (operators["sme2_operators"].sum() > 0) == (sme2 == "on")


@pytest.mark.parametrize("sme2", ARMS)
def test_the_kernel_table_holds_every_sample_and_names_sme2_only_where_it_ran(
    pair_files: Exported, sme2: str
):
    kernels = pd.read_csv(pair_files.table(sme2, "kernels.csv"))
    [samples] = pair_files.warehouse.query(
        "SELECT sum(samples)::BIGINT AS n FROM kernel_samples WHERE run_id = ?",
        [pair_files.run(sme2)["run_id"]],
    )["n"]
    assert kernels["count"].sum() == samples
    assert kernels["pct_samples"].sum() == pytest.approx(100)
    assert kernels["has_sme2"].sum() == (1 if sme2 == "on" else 0)


def test_robust_statistics_are_those_of_numpy_and_scipy():
    random = np.random.default_rng(3)
    values = [*random.normal(10, 1, 57).tolist(), 100.0]
    found = robust_statistics(values)
    assert found["median_ms"] == np.median(values)
    assert found["std_dev_ms"] == pytest.approx(np.std(values, ddof=1))
    assert found["trimmed_mean_5_ms"] == pytest.approx(stats.trim_mean(values, 0.05))
    assert found["trimmed_mean_10_ms"] == pytest.approx(stats.trim_mean(values, 0.10))
    assert 100.0 in found["outliers"]["values"]
    assert found["robust_stats"]["mean_ms"] < 11 < found["mean_ms"]
    assert robust_statistics([2.0])["cv_percent"] is None, "one value has no scatter"


def test_latencies_and_pairs_are_there_under_the_names_of_the_kit(pair_files: Exported):
    stem = "toy_cnn_xnnpack_fp32"
    for sme2 in ARMS:
        [row] = pd.read_csv(pair_files.table(sme2, "e2e_latency.csv")).to_dict("records")
        kit = ["model_name", "num_runs", "total_ms", "avg_ms", "min_ms", "max_ms"]
        assert list(row)[: len(kit)] == kit
        times = pair_files.warehouse.query(
            "SELECT duration_ns / 1e6 AS ms FROM inferences WHERE run_id = ? AND pass = 'latency' "
            "AND NOT is_warmup",
            [pair_files.run(sme2)["run_id"]],
        )["ms"]
        assert (row["num_runs"], row["total_ms"]) == (len(times), pytest.approx(times.sum()))
        assert row["min_ms"] <= row["median_of_rounds_ms"] <= row["max_ms"]
    rows = pd.read_csv(pair_files.folder / f"{stem}_comparison.csv")
    arms = ["SME2-Off_ms", "SME2-On_ms", "speedup", "SME2-Off_pct", "SME2-On_pct"]
    assert list(rows.columns[:6]) == ["category", *arms]
    conv = rows.set_index("category").loc["CONV"]
    assert conv["speedup"] == pytest.approx(conv["SME2-Off_ms"] / conv["SME2-On_ms"], rel=0.02)
    assert conv["speedup_low"] <= conv["speedup"] <= conv["speedup_high"]
    [verdict] = pair_files.warehouse.query(
        "SELECT verdict FROM sme2_comparison WHERE level = 'category' AND category = 'CONV'"
    )["verdict"]
    assert (conv["verdict"], conv["n"]) == (verdict, 6)
    assert rows[["SME2-Off_pct", "SME2-On_pct"]].sum().tolist() == pytest.approx([100, 100])
    operators = pd.read_csv(pair_files.folder / f"{stem}_operators_comparison.csv")
    compared = pair_files.warehouse.query("SELECT * FROM sme2_comparison WHERE level = 'operator'")
    assert sorted(operators["off_name"]) == sorted(compared["off_name"])
    assert operators["SME2-Off_ms"].sum() == pytest.approx(compared["off_ns"].sum() / 1e6)
    told = json.loads((pair_files.folder / f"{stem}_robust_comparison.json").read_text())
    assert told["speedup"]["median_based"] == pytest.approx(
        told["config1"]["median_ms"] / told["config2"]["median_ms"]
    )
    assert (told["config1"]["name"], told["config2"]["name"]) == ("SME2-Off", "SME2-On")
    assert told["paired"]["speedup"] == pytest.approx(told["speedup"]["median_based"], rel=0.02)
    assert told["paired"]["verdict"] == "faster"


def test_summaries_agree_with_the_warehouse_and_name_files_that_are_there(pair_files: Exported):
    documents = {
        name: json.loads((pair_files.folder / name).read_text())
        for name in (
            *("manifest.json", "metrics.json", "analysis_summary.json"),
            "toy_cnn_xnnpack_fp32_pipeline_summary.json",
        )
    }
    for result in documents["manifest.json"]["results"]:
        assert {"etdump", "timeline_all", "robust_stats", "kernel_csv"} <= set(result["artifacts"])
        for reference in result["artifacts"].values():
            assert (pair_files.folder / reference["relative_path"]).is_file()
    medians = pair_files.warehouse.query("SELECT run_id, median_ns FROM latency_summary").set_index("run_id")
    for result in documents["metrics.json"]["results"]:
        told = result["metrics"]["median_of_rounds_ms"]
        assert told == pytest.approx(medians.loc[result["run_id"], "median_ns"] / 1e6)
    [verdict] = pair_files.warehouse.query("SELECT * FROM sme2_comparison WHERE level = 'model'").to_dict(
        "records"
    )
    summary = documents["toy_cnn_xnnpack_fp32_pipeline_summary.json"]
    assert summary["comparison"]["verdict"] == verdict["verdict"] == "faster"
    assert summary["comparison"]["speedup_low"] == pytest.approx(verdict["speedup_low"])
    text = (pair_files.folder / "toy_cnn_xnnpack_fp32_pipeline_summary.md").read_text()
    assert f"{verdict['speedup']:.3f}" in text
    assert verdict["reason"] in text
    totals = documents["analysis_summary.json"]["category_totals_ms"]
    assert totals["CONV"] < documents["analysis_summary.json"]["per_etdump"][1]["categories_ms"]["CONV"]


def test_what_was_exported_can_be_ingested_and_gives_the_same_times(pair_files: Exported, tmp_path: Path):
    store = Store(tmp_path)
    traces = [path for path in pair_files.folder.rglob("*_t1.etdump") if "_r0" not in path.name]
    done = ingest_paths(store, traces, Facts())
    assert done.refused == []
    assert {(t.facts.variant, t.facts.platform, t.facts.sme2, t.facts.threads) for t in done.traces} == {
        ("toy_cnn-fp32", "linux", sme2, 1) for sme2 in ARMS
    }
    [first] = [t for t in done.traces if t.source.endswith("linux_sme2_on_t1.etdump")]
    ours, theirs = (
        warehouse.query(
            "SELECT delegate, position, name, duration_ns FROM timeline WHERE run_id = ? AND round = 0 "
            "ORDER BY iteration, kind, delegate, position",
            [run_id],
        )
        for warehouse, run_id in (
            (pair_files.warehouse, pair_files.run("on")["run_id"]),
            (Warehouse(store.warehouse), first.run_id),
        )
    )
    pd.testing.assert_frame_equal(ours, theirs)


def test_an_export_that_fails_leaves_the_earlier_one_as_it_was(
    pair_files: Exported, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    folder = tmp_path / "out"
    export_run(pair_files.store, pair_files.run("on"), ["markdown"], folder)
    before = sorted(folder.rglob("*"))

    def full_disk(*_: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(perfetto, "write_trace", full_disk)
    with pytest.raises(OSError, match="No space"):
        export_run(pair_files.store, pair_files.run("on"), ["markdown", "perfetto"], folder)
    assert sorted(folder.rglob("*")) == before
    assert list(tmp_path.iterdir()) == [folder], "something half-written is left"


def test_a_folder_that_is_no_export_is_not_replaced(pair_files: Exported, tmp_path: Path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(Sme2Error, match="not an earlier export"):
        export_run(pair_files.store, pair_files.run("on"), ["csv"], tmp_path)
    # Other programs have files of this name, too.
    (tmp_path / LISTING_FILE).write_text('{"mine": 1}')
    with pytest.raises(Sme2Error, match="not an earlier export"):
        export_run(pair_files.store, pair_files.run("on"), ["csv"], tmp_path)
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


def test_what_somebody_put_beside_an_export_is_not_lost_with_it(pair_files: Exported, tmp_path: Path):
    folder = tmp_path / "out"
    export_run(pair_files.store, pair_files.run("on"), ["markdown"], folder)
    export_run(pair_files.store, pair_files.run("on"), ["json"], folder)
    (folder / "linux_sme2_on" / "notes.txt").write_text("years of work")
    with pytest.raises(Sme2Error, match=r"notes.txt is not part of it"):
        export_run(pair_files.store, pair_files.run("on"), ["json"], folder)
    assert (folder / "linux_sme2_on" / "notes.txt").read_text() == "years of work"


def test_arms_keep_the_names_they_are_given_and_the_file_that_asked_is_told(
    pair_files: Exported, tmp_path: Path
):
    run, names = pair_files.run("on"), {"off": "baseline", "on": "with-sme2"}
    config = tmp_path / "mine.yaml"
    export_run(pair_files.store, run, FORMATS, tmp_path / "out", called=names, config=config)
    stem = "toy_cnn_xnnpack_fp32"
    for name in names.values():
        for ending in ("t1.etdump", "t1.log", "t1_exec_all_runs_timeline.csv"):
            assert (tmp_path / "out" / name / f"{stem}_{name}_{ending}").is_file()
    told = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert [result["experiment"] for result in told["results"]] == ["with-sme2", "baseline"]
    assert all(result["artifacts"].keys() >= {"etdump", "log"} for result in told["results"])
    assert told["config"] == str(config)


def test_the_commit_of_executorch_is_that_of_the_wheel_that_measured():
    from executorch.version import git_version

    from sme2_assets.exchange.summaries import _executorch_commit
    from sme2_assets.toolchain.sdk import installed_sdk

    here = {"executorch": installed_sdk().version.partition("+")[0], "executorch_record_sha256": "0" * 64}
    assert _executorch_commit({"info": {"versions": here}}) == git_version
    from_source = {"executorch": here["executorch"]}
    for other in ({**here, "executorch": "1.4.0"}, from_source, {}, None):
        assert _executorch_commit({"info": {"versions": other}}) is None
    assert _executorch_commit(None) is None


def test_the_command_finds_the_latest_run_and_lists_what_it_wrote(pair_files: Exported, tmp_path: Path):
    folder = tmp_path / "out"
    words = ["--data", str(pair_files.store.root), "export", "latest", "--model", "toy_cnn", "--sme2", "off"]
    done = CliRunner().invoke(
        main,
        [*words, "--format", "json", "--format", "markdown", "--output", str(folder)],
        catch_exceptions=False,
    )
    assert done.exit_code == 0, done.output
    listed = json.loads((folder / LISTING_FILE).read_text())
    assert listed["run_id"] == pair_files.run("off")["run_id"]
    assert {Path(name).suffix for name in listed["file_sha256"]} == {".json", ".md"}
    assert all(Path(name).name in done.output for name in listed["file_sha256"])
    nothing = CliRunner().invoke(main, [*words, "--platform", "mac"])
    assert nothing.exit_code == 1
    assert set(FORMAT_NAMES) == set(FORMATS)


def test_a_foreign_run_is_exported_but_is_never_the_latest(tmp_path: Path):
    store = Store(tmp_path / "data")
    done = ingest_paths(store, [write_kit_folder(tmp_path)], Facts())
    warehouse = Warehouse(store.warehouse)
    with pytest.raises(Sme2Error, match="no run"):
        find_run(warehouse, "latest", None, None, None)
    run = find_run(warehouse, done.traces[0].run_id, None, None, None)
    files = export_run(store, run, FORMATS, tmp_path / "out")
    [metrics] = [json.loads(path.read_text()) for path in files if path.name == "metrics.json"]
    [result] = metrics["results"]
    assert result["metrics"]["latency_ms"] == [0.055, 0.056, 0.057]
    assert result["metrics"]["pass"] == "etdump"
    [summary] = [path.read_text() for path in files if path.name.endswith("_pipeline_summary.md")]
    assert "It supports no verdict" in summary


def test_an_export_of_an_emulated_pair_has_no_times(paired: Warehouse, tmp_path: Path):
    store = Store(paired.root.parent)
    run = find_run(paired, "latest", "toy_cnn-fp32", "emulated", "on")
    files = export_run(store, run, ["csv", "json", "markdown"], tmp_path / "out")
    metrics = json.loads((tmp_path / "out" / "metrics.json").read_text())
    tables = {path.stem: pd.read_csv(path) for path in files if path.suffix == ".csv"}
    assert len(tables) == 19
    compared = tables["toy_cnn_xnnpack_fp32_comparison"].set_index("category")
    assert compared.loc["CONV", "sme2_operators_on"] > compared.loc["CONV", "sme2_operators_off"] == 0
    assert len(tables["toy_cnn_xnnpack_fp32_operators_comparison"]) > 0
    raw = {"emulated_ns", "start_us"}
    for name, table in tables.items():
        times = [column for column in table if re.search("_(ns|ms|us)$|^pct_total$|^share$|gops", column)]
        assert table[[column for column in times if column not in raw]].isna().all(axis=None), name
    assert tables["toy_cnn_xnnpack_fp32_emulated_sme2_on_t1_exec_run0_timeline"]["emulated_ns"].notna().all()
    assert all(result["metrics"]["median_ms"] is None for result in metrics["results"])
    assert [result["metrics"]["sme2_kernel_rows"] for result in metrics["results"]] == [1, 0]
    [text] = [path.read_text() for path in files if path.suffix == ".md"]
    assert "Emulated times mean nothing" in text
    assert "0.3" not in text.split("## Time by category")[1]


FORMULAS = ("=cmd|' /C calc'!A0", "+1", "-1", "@SUM(A1)", "\t=1", "plain", "a=b")


def test_a_spreadsheet_takes_no_name_for_a_formula(tmp_path: Path):
    frame = pd.DataFrame({"name": FORMULAS, "ns": range(-3, 4)})
    with duckdb.connect() as connection:
        write_csv(connection.from_df(frame), tmp_path / "names.csv")
    with (tmp_path / "names.csv").open(newline="") as handle:
        rows = list(csv.DictReader(handle))
    assert [row["name"] for row in rows] == [f"'{name}" for name in FORMULAS[:5]] + list(FORMULAS[5:])
    assert [int(row["ns"]) for row in rows] == list(range(-3, 4)), "numbers are no names"


@pytest.mark.parametrize(
    ("wanted", "file", "damage", "said"),
    [
        ("json", "manifest.json", "overwritten", "manifest.json is not a JSON document"),
        ("etdump", "trace.etdump", "missing", "trace.etdump is missing"),
        ("etdump", "trace.etdump", "overwritten", "trace.etdump is not the file that was measured"),
        ("csv", "*.parquet", "overwritten", "cannot be read"),
        ("csv", "*.parquet", "missing", "cannot be read"),
    ],
)
def test_what_was_damaged_is_not_exported(
    pair_files: Exported, tmp_path: Path, wanted: str, file: str, damage: str, said: str
):
    store = Store(tmp_path / "data")
    for folder in (pair_files.store.runs, pair_files.store.warehouse):
        shutil.copytree(folder, store.root / folder.name, symlinks=True)
    run = find_run(Warehouse(store.warehouse), "latest", None, None, "on")
    below = store.warehouse / "tables" / "timeline" if wanted == "csv" else store.run_dir(run["run_id"])
    for path in sorted(below.rglob(file)):
        path.write_bytes(b"nonsense") if damage == "overwritten" else path.unlink()
    words = ["--data", str(store.root), "export", run["run_id"], "--format", wanted]
    told = CliRunner().invoke(main, words)
    assert told.exit_code == 1
    assert said in told.stderr
    assert "What to do" in told.stderr
    assert not list((store.root / "exports").iterdir())


def test_a_trace_whose_inferences_take_no_time_is_exported_without_shares(tmp_path: Path):
    store = Store(tmp_path / "data")
    given = tmp_path / "one.etdump"
    given.write_bytes(trace_bytes(*[inference([Portable("native_call_mean.out", 0, 0)], 0)] * 3))
    [taken] = ingest_paths(store, [given], Facts(model="toy_cnn", sme2="off")).traces
    run = find_run(Warehouse(store.warehouse), taken.run_id, None, None, None)
    files = export_run(store, run, FORMATS, tmp_path / "out")
    made = {path.name: path for path in files}
    [arm] = json.loads(made["analysis_summary.json"].read_text())["per_etdump"]
    assert set(arm["categories_pct"].values()) == {None}
    assert "nan %" not in made["toy_cnn_pipeline_summary.md"].read_text()
