"""Traces of other tools in the warehouse: what is known of them, and that they enter no verdict."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pandas as pd
import pytest
from click.testing import CliRunner

from sme2_assets.cli import main
from sme2_assets.cli.exchange import PLATFORM_NAMES
from sme2_assets.errors import Sme2Error
from sme2_assets.evidence.foreign import FOREIGN_FILE, Facts
from sme2_assets.exchange.ingest import Ingested, ingest_paths
from sme2_assets.exchange.trace_facts import KNOWN_PLATFORMS, facts_of, said_by_options
from sme2_assets.store import Store
from sme2_assets.warehouse import Warehouse
from sme2_assets.warehouse.checks import conservation_faults
from sme2_assets.warehouse.comparisons import compare_runs
from sme2_assets.warehouse.history import series_of
from sme2_assets.warehouse.read import latest_sessions, run_of_id
from sme2_assets.warehouse.schema import TABLES
from sme2_assets_tests.exchange.kit_folder import trace, write_kit_folder
from sme2_assets_tests.exchange.measured_pair import EMULATED, LINUX, make_pair
from sme2_assets_tests.made.build_trace import build_trace
from sme2_assets_tests.made.run_folder import MadeRun
from sme2_assets_tests.made.traces import LOADING, Delegate, inference
from sme2_assets_tests.warehouse.newest import newest_run

# What a foreign run says of itself, and nothing else.
TOLD = {
    "evidence_sha256",
    *("variant", "target", "run_id", "session_id", "experiment", "source", "arm", "paired"),
    *("model", "precision", "platform", "sme2", "threads"),
    *("rounds", "iterations", "paths", "samples", "samples_dropped", "derivation"),
}
# Views whose rows belong to one run each: a foreign run has rows of its own there, for those who ask for it.
OF_ONE_RUN = {
    *("latency_rounds", "latency_summary", "operator_rounds", "operator_summary"),
    *("judged_samples", "executed_functions"),
    *(
        "module_times",
        "run_times",
        "operator_facts",
        "kernel_usage",
        "delegation_report",
        "attribution_coverage",
    ),
    *("category_rounds", "category_summary", "bottlenecks", "module_summary", "headroom"),
    *("operator_details", "function_samples", "part_rounds", "programs", "traced_rounds", "delegate_calls"),
    *("category_times", "unit_use", "run_series", "executed_functions"),
}
# Views that verdicts, reports, history and nights are made from: nothing foreign is in them.
OF_VERDICTS = {
    *("latest_runs", "sme2_comparison", "aa_sessions", "history", "emulated_twin", "missed_sme2"),
    *("blind_rates", "work_comparison", "work_history"),
}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "data")


def take(store: Store, *paths: Path, **said: object) -> Ingested:
    return ingest_paths(store, paths, Facts(**said))  # type: ignore[arg-type]


def rows_of(warehouse: Warehouse, name: str) -> pd.DataFrame:
    """All rows of a table or view, as text in one order: two states of it can be compared.

    Rounded, because the last digit of a sum depends on the order of what is added.
    """
    rows = warehouse.query(f"SELECT * FROM {name}").round(6).astype(str)
    return rows.sort_values(by=list(rows.columns), ignore_index=True)


def test_a_run_folder_of_the_kit_becomes_a_foreign_run_for_each_trace(store: Store, tmp_path: Path):
    done = take(store, write_kit_folder(tmp_path))
    assert done.refused == []
    assert {taken.facts for taken in done.traces} == {
        Facts(model="toy_cnn", precision="fp16", platform="mac", sme2=sme2, threads=1)
        for sme2 in ("on", "off")
    }
    warehouse = Warehouse(store.warehouse)
    for taken in done.traces:
        run = run_of_id(warehouse, taken.run_id)
        assert (run["experiment"], run["paired"], run["variant"]) == ("foreign", False, "toy_cnn-fp16")
        made_up = {name for name, value in run.items() if name not in TOLD and not pd.isna(value)}
        assert made_up == set(), "a column has a value that nobody told"
        assert conservation_faults(warehouse, run) is None
        [execute_ns] = warehouse.query(
            "SELECT avg(execute_ns) AS ns FROM inferences WHERE run_id = ?", [taken.run_id]
        )["ns"]
        for view in ("category_summary", "operator_summary"):
            rows = warehouse.query(f"SELECT * FROM {view} WHERE run_id = ?", [taken.run_id])
            assert len(rows)
            if view == "category_summary":
                assert rows["mean_ns"].sum() == pytest.approx(execute_ns)


def test_the_names_tell_the_same_as_the_manifest(store: Store, tmp_path: Path):
    with_manifest = take(store, write_kit_folder(tmp_path / "a")).traces
    by_name = take(store, write_kit_folder(tmp_path / "b", manifest=False)).traces
    assert [taken.facts for taken in by_name] == [taken.facts for taken in with_manifest]
    assert [taken.replaced for taken in by_name] == [True, True], "the same content is the same run"


def test_a_bare_trace_is_taken_and_what_it_does_not_tell_stays_unknown(store: Store, tmp_path: Path):
    path = tmp_path / "some trace.etdump"
    path.write_bytes(trace(30))
    [taken] = take(store, path).traces
    assert taken.facts == Facts()
    run = run_of_id(Warehouse(store.warehouse), taken.run_id)
    assert (run["variant"], run["target"]) == ("unknown", "unknown-sme2_unknown")
    assert pd.isna(run["model"])
    assert pd.isna(run["sme2"])
    assert taken.inferences == 3


def test_options_win_over_names_and_a_second_ingest_moves_the_run(store: Store, tmp_path: Path):
    folder = write_kit_folder(tmp_path)
    first = take(store, folder)
    evidence = {path: path.read_bytes() for path in store.runs.rglob("trace.etdump")}
    said = said_by_options("my_model-int8", "android", None, 4, 1)
    second = ingest_paths(store, [folder], said)
    assert [taken.run_id for taken in second.traces] == [taken.run_id for taken in first.traces]
    rows = Warehouse(store.warehouse).query(
        "SELECT variant, target, threads, iterations FROM runs ORDER BY target"
    )
    assert rows["variant"].tolist() == ["my_model-int8"] * 2, "the rows under the former name are still there"
    assert rows["target"].tolist() == ["android-sme2_off", "android-sme2_on"]
    assert rows["iterations"].tolist() == [2, 2], "warm-up is left out"
    assert {path: path.read_bytes() for path in store.runs.rglob("trace.etdump")} == evidence
    assert not list(store.runs.glob(".foreign*"))


def test_a_second_ingest_that_is_refused_changes_nothing(store: Store, tmp_path: Path):
    path = tmp_path / "trace.etdump"
    path.write_bytes(trace(30))
    [taken] = take(store, path).traces
    statement = store.run_dir(taken.run_id) / FOREIGN_FILE
    before = statement.read_bytes()
    [refused] = ingest_paths(store, [path], Facts(warmup=1000)).refused
    assert "cannot be warm-up" in refused.what
    assert statement.read_bytes() == before
    assert [entry.name for entry in store.runs.iterdir()] == [taken.run_id]


def test_of_a_half_broken_folder_the_whole_ones_are_taken_and_the_broken_ones_named(
    store: Store, tmp_path: Path
):
    folder = write_kit_folder(tmp_path)
    whole = trace(40)
    broken = {
        "mac_sme2_on/cut_mac_sme2_on_t1.etdump": whole[: len(whole) // 2],
        "mac_sme2_on/empty_mac_sme2_on_t1.etdump": b"",
        "mac_sme2_on/text_mac_sme2_on_t1.etdump": b"this is not a trace of anything",
        # Of two names that contradict one another neither is believed.
        "mac_sme2_off/toy_cnn_mac_sme2_on_t1.etdump": trace(77),
        # The same trace as both arms would compare a run with itself.
        "mac_sme2_on/zz_copy_mac_sme2_on_t1.etdump": (
            folder / "mac_sme2_on" / "toy_cnn_xnnpack_fp16_mac_sme2_on_t1.etdump"
        ).read_bytes(),
    }
    for name, content in broken.items():
        (folder / name).write_bytes(content)
    (folder / "mac_sme2_on_t8").mkdir()
    (folder / "mac_sme2_on_t8" / "runner.log").write_text("Segmentation fault")
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["results"].append({"artifacts": {"etdump": {"relative_path": "gone/gone.etdump"}}})
    (folder / "manifest.json").write_text(json.dumps(manifest))

    done = CliRunner().invoke(main, ["--data", str(store.root), "ingest", str(folder), "--json"])
    assert done.exit_code == 1
    told = json.loads(done.stdout)
    assert {taken["facts"]["sme2"] for taken in told["ingested"]} == {"on", "off"}
    problems = {problem["source"]: problem["what"] for problem in told["refused"]}
    causes = (
        "cut off",
        "empty",
        "not an ETDump",
        "different SME2 states",
        "same content",
        "no .etdump",
        "gone",
    )
    for cause in causes:
        assert any(cause in what for what in problems.values()), (cause, problems)
    assert len(problems) == len(causes)
    assert all(problem["remedy"] for problem in told["refused"])
    assert len(list(store.runs.iterdir())) == 2, "something of a broken trace was kept"


def test_names_made_to_do_harm_are_only_names(store: Store, tmp_path: Path):
    names = [
        "'; DROP TABLE runs; --_mac_sme2_on_t1.etdump",
        "..-..-etc_mac_sme2_off_t1.etdump",
        "\x1b[2Jclear\n_mac_sme2_on_t2.etdump",
        "variant=x_mac_sme2_on_t99999.etdump",
    ]
    folder = tmp_path / "given"
    folder.mkdir()
    for number, name in enumerate(names):
        (folder / name).write_bytes(trace(30 + number))
    (folder / os.fsdecode(b"\xff\xfe_mac_sme2_on_t3.etdump")).write_bytes(trace(60))
    done = take(store, folder)
    assert done.refused == []
    rows = Warehouse(store.warehouse).query("SELECT variant, source, threads FROM runs")
    assert len(rows) == len(names) + 1
    assert set(rows["variant"]) == {"unknown"}, "a name that is none became the name of a model"
    assert all(source.isprintable() for source in rows["source"])
    assert rows["threads"].max() == 3
    assert {path.name for path in tmp_path.iterdir()} == {"data", "given"}


def test_only_regular_files_are_read_whatever_their_names_promise(store: Store, tmp_path: Path):
    secret = tmp_path / "secret"
    secret.write_text("for one reader only")
    secret.chmod(0o600)
    folder = tmp_path / "given"
    folder.mkdir()
    (folder / "device_sme2_on.etdump").symlink_to("/dev/zero")
    (folder / "link_sme2_on.etdump").symlink_to(secret)
    os.mkfifo(folder / "pipe_sme2_on.etdump")
    (folder / "logged_sme2_on.etdump").write_bytes(trace(30))
    (folder / "logged_sme2_on.log").symlink_to(secret)
    with (folder / "sparse_sme2_on.etdump").open("wb") as handle:
        handle.truncate(5 << 30)
    done = take(store, folder, folder / "link_sme2_on.etdump")
    assert done.traces == []
    told = {problem.source: problem.what for problem in done.refused}
    assert told["given/device_sme2_on.etdump"] == "It is a symbolic link."
    assert told["given/link_sme2_on.etdump"] == told["link_sme2_on.etdump"] == "It is a symbolic link."
    assert told["given/pipe_sme2_on.etdump"] == "It is not a regular file."
    assert "logged_sme2_on.log next to it cannot be copied. It is a symbolic link." in told.values()
    assert "5,368,709,120 bytes" in told["given/sparse_sme2_on.etdump"]
    assert all(problem.remedy for problem in done.refused)
    assert not list(store.runs.iterdir()), "something of a refused trace was kept"


def test_a_manifest_that_is_a_link_is_not_followed(store: Store, tmp_path: Path):
    folder = write_kit_folder(tmp_path, manifest=False)
    (folder / "manifest.json").symlink_to("/dev/zero")
    done = take(store, folder)
    assert done.traces == []
    assert any("manifest.json next to it cannot be copied" in problem.what for problem in done.refused)


def nested(depth: int) -> str:
    return "[" * depth + "]" * depth


@pytest.mark.parametrize(
    "config",
    [nested(900), nested(230), '"\\ud800"'],
    ids=["unwritable", "unreadable", "half a character"],
)
def test_a_manifest_that_cannot_be_kept_costs_its_traces_alone(store: Store, tmp_path: Path, config: str):
    bare = tmp_path / "bare_linux_sme2_on_t1.etdump"
    bare.write_bytes(trace(90))
    folder = write_kit_folder(tmp_path)
    manifest = folder / "manifest.json"
    manifest.write_text(manifest.read_text().replace("{", f'{{"config": {config}, ', 1))
    done = take(store, bare, folder)
    assert [taken.facts.model for taken in done.traces] == ["bare"]
    assert len(done.refused) == 2
    for refused in done.refused:
        assert "manifest.json next to it has values that cannot be kept" in refused.what
        assert len(refused.what) < 500
        assert refused.remedy
    assert len(Warehouse(store.warehouse).query("SELECT * FROM runs")) == 1
    assert len(list(store.runs.iterdir())) == 1, "something of a refused trace was kept"


def test_a_name_longer_than_any_file_has_is_of_a_trace_that_is_missing(store: Store, tmp_path: Path):
    folder = write_kit_folder(tmp_path)
    document = json.loads((folder / "manifest.json").read_text())
    document["results"].append({"artifacts": {"etdump": {"relative_path": "x" * 5000 + "/a.etdump"}}})
    (folder / "manifest.json").write_text(json.dumps(document))
    done = take(store, folder)
    assert len(done.traces) == 2
    [refused] = done.refused
    assert refused.source == "mac/manifest.json"
    assert "names a trace that is not there: xxx" in refused.what
    assert len(refused.what) < 500


def test_what_was_taken_before_an_unexpected_error_is_published(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    bare = tmp_path / "bare_linux_sme2_on_t1.etdump"
    bare.write_bytes(trace(90))
    take(store, bare)
    folder = write_kit_folder(tmp_path)
    calls = []

    def once(path: Path, said: Facts) -> object:
        calls.append(path)
        if len(calls) > 1:
            raise RuntimeError("a defect")
        return facts_of(path, said)

    monkeypatch.setattr("sme2_assets.exchange.ingest.facts_of", once)
    with pytest.raises(RuntimeError, match="a defect"):
        take(store, folder)
    assert len(Warehouse(store.warehouse).query("SELECT * FROM runs")) == 2


def kit_of_one(folder: Path, experiment: str, name: str) -> Path:
    """A trace and a manifest that says which experiment it is of."""
    folder.mkdir()
    (folder / name).write_bytes(trace(30))
    result = {"experiment": experiment, "artifacts": {"etdump": {"relative_path": name}}}
    (folder / "manifest.json").write_text(json.dumps({"results": [result]}))
    return folder


def test_the_manifest_tells_platform_and_state_by_its_experiment(store: Store, tmp_path: Path):
    [taken] = take(store, kit_of_one(tmp_path / "kit", "mac_sme2_off", "a.etdump")).traces
    assert (taken.facts.platform, taken.facts.sme2) == ("mac", "off")
    [taken] = take(store, kit_of_one(tmp_path / "other", "my mac", "a.etdump")).traces
    assert (taken.facts.platform, taken.facts.sme2) == (None, None)


def test_a_manifest_and_a_name_that_contradict_each_other_are_not_believed(store: Store, tmp_path: Path):
    folder = kit_of_one(tmp_path / "kit", "mac_sme2_off", "b_sme2_on.etdump")
    done = take(store, folder)
    assert done.traces == []
    assert "manifest.json says that SME2 was off, and its name or folder says on" in done.refused[0].what
    assert "--sme2" in (done.refused[0].remedy or "")
    [taken] = take(store, folder, sme2="on").traces
    assert (taken.facts.platform, taken.facts.sme2) == ("mac", "on")


YEAR_NS = 365 * 24 * 3600 * 10**9


@pytest.mark.parametrize(
    ("call", "execute_ns", "what"),
    [
        (Delegate([("Convolution (NHWC, F32) IGEMM #1", 25 * YEAR_NS)], 25 * YEAR_NS), 26 * YEAR_NS, "days"),
        (Delegate([("Convolution (NHWC, F32) IGEMM #1", 5000)], 6000), 2**63 - 2_000_000, "days"),
        (Delegate([("Convolution (NHWC, F32) IGEMM #1", 5000)], 6000), 2**64 - 2_000_000, "impossible time"),
        # Overhead of -1.001 us: more than the rounding to whole microseconds can explain.
        (Delegate([("Convolution (NHWC, F32) IGEMM #1", 9000)], 7999), 20_000, "took 7.999 us, but"),
        (Delegate([("x" * 2_000_000, 5000)], 6000), 20_000, "a name in it is too long"),
    ],
    ids=["25 years", "int64", "uint64", "overhead", "name"],
)
def test_a_trace_with_impossible_times_or_names_leaves_nothing(
    store: Store, tmp_path: Path, call: Delegate, execute_ns: int, what: str
):
    path = tmp_path / "odd_sme2_on.etdump"
    path.write_bytes(build_trace([LOADING, inference([call], execute_ns)]))
    done = take(store, path)
    assert done.traces == []
    assert what in done.refused[0].what
    assert len(done.refused[0].what) < 500
    assert done.refused[0].remedy
    assert not list(store.runs.iterdir())


def test_nothing_is_taken_from_a_folder_without_traces_or_from_a_run_of_our_own(store: Store, tmp_path: Path):
    (tmp_path / "nothing").mkdir()
    for sme2 in ("off", "on"):
        MadeRun(sme2=sme2, rounds=1).write(store.runs)
    done = take(store, tmp_path / "nothing", store.runs, tmp_path / "absent")
    assert done.traces == []
    assert [problem.what.split(":")[0] for problem in done.refused] == [
        "No .etdump file is below this folder.",
        "This is a run of `sme2 profile`, not one of another tool.",
        "This is a run of `sme2 profile`, not one of another tool.",
        "There is no such file or folder.",
    ]


def test_a_foreign_run_changes_no_row_of_any_view_that_verdicts_come_from(store: Store, tmp_path: Path):
    make_pair(store, LINUX, EMULATED, rounds=1)
    warehouse = Warehouse(store.warehouse)
    views = set(warehouse.query("SHOW TABLES")["name"]) - {table.name for table in TABLES}
    assert views == OF_ONE_RUN | OF_VERDICTS, "a new view: does anything foreign get into it?"
    tables = {"comparisons", "regressions", "numerics", "environment", "operators", "delegation"}
    before = {name: rows_of(warehouse, name) for name in views | tables}
    known = {
        "latest": [newest_run(warehouse, "toy_cnn-fp32", "linux", sme2)["run_id"] for sme2 in ("off", "on")],
        "newest": latest_sessions(warehouse),
        "series": list(series_of(warehouse)),
    }

    # It claims to be the same model on the same platform, so that only its being foreign keeps it out.
    folder = write_kit_folder(tmp_path)
    done = take(store, folder, model="toy_cnn", precision="fp32", platform="linux")
    emulated = tmp_path / "e_sme2_on.etdump"
    emulated.write_bytes(trace(90))
    done.traces += take(store, emulated, model="toy_cnn", precision="fp32", platform="emulated").traces
    foreign = [taken.run_id for taken in done.traces]
    assert len(foreign) == 3

    for name in OF_VERDICTS | tables:
        pd.testing.assert_frame_equal(rows_of(warehouse, name), before[name], obj=name)
    for name in OF_ONE_RUN:
        rows = rows_of(warehouse, name)
        own = rows[~rows["run_id"].isin(foreign)]
        pd.testing.assert_frame_equal(own.reset_index(drop=True), before[name], obj=name)
    for name in ("operator_summary", "category_summary", "operator_facts"):
        assert set(foreign) <= set(rows_of(warehouse, name)["run_id"])
    assert known["latest"] == [
        newest_run(warehouse, "toy_cnn-fp32", "linux", sme2)["run_id"] for sme2 in ("off", "on")
    ]
    assert [run["run_id"] for run in latest_sessions(warehouse)] == [run["run_id"] for run in known["newest"]]
    assert list(series_of(warehouse)) == known["series"]
    by_state = {taken.facts.sme2: taken.run_id for taken in done.traces[:2]}
    with pytest.raises(Sme2Error, match="not interleaved"):
        compare_runs(warehouse, by_state["off"], by_state["on"])
    with pytest.raises(Sme2Error, match="cannot be compared"):
        compare_runs(warehouse, str(known["latest"][0]), by_state["on"])


def test_the_command_line_shows_no_emulated_time(tmp_path: Path):
    given = tmp_path / "made-fp32_sme2_on.etdump"
    given.write_bytes(trace(90))

    def ingest(platform: str, *options: str) -> str:
        command = ["--data", str(tmp_path / "data"), "ingest", str(given), "--platform", platform]
        return CliRunner().invoke(main, [*command, *options], catch_exceptions=False).output

    [taken] = json.loads(ingest("mac", "--json"))["ingested"]
    time = f" {taken['median_execute_ns'] / 1e6:.4g} "
    assert time in ingest("mac")
    assert time not in ingest("emulated")
    [taken] = json.loads(ingest("emulated", "--json"))["ingested"]
    assert taken["median_execute_ns"] is None


def test_the_command_line_offers_every_known_platform():
    assert set(PLATFORM_NAMES) == set(KNOWN_PLATFORMS)
