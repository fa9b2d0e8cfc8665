"""Tables are made from run folders again: the same rows, whatever happened to the tables in the meantime."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from sme2_assets.analysis import timeline as analysis_timeline
from sme2_assets.cli import main
from sme2_assets.diagnostics.doctor import examine
from sme2_assets.evidence.blind import Truth
from sme2_assets.evidence.foreign import Facts
from sme2_assets.evidence.sequence import next_number
from sme2_assets.exchange.ingest import ingest_paths
from sme2_assets.store import Store, sha256_of_text
from sme2_assets.warehouse import Warehouse, history, ingest
from sme2_assets.warehouse.rebuild import differences, merge, rebuild, runs_in_no_table, sync
from sme2_assets_tests.evidence.old_data import ARCHIVES, unpack_old_data
from sme2_assets_tests.exchange.kit_folder import write_kit_folder
from sme2_assets_tests.made.run_folder import MadeRun

OFF = MadeRun(rounds=1, iterations=2)
LATER = replace(OFF, session_id="20260102T000000-bbbbbb", started_at=OFF.started_at + timedelta(days=1))


def quiet(message: str) -> None:
    """Progress that nobody watches."""


def write_pair(store: Store, off: MadeRun = OFF) -> None:
    for run in (off, replace(off, sme2="on")):
        run.write(store.runs)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder to be copied: two pairs on hardware, an emulated one, and two foreign runs."""
    folder = tmp_path_factory.mktemp("measured")
    store = Store(folder / "data")
    for off in (OFF, LATER, replace(OFF, platform="emulated", fidelity="emulated", rounds=1)):
        write_pair(store, off)
    assert sync(store, quiet).refused == []
    ingest_paths(store, [write_kit_folder(folder / "kit")], Facts())
    return store.root


@pytest.fixture
def store(measured: Path, tmp_path: Path) -> Store:
    return Store(Path(shutil.copytree(measured, tmp_path / "data", symlinks=True)))


def assert_all_is_as_the_evidence_says(store: Store) -> None:
    found, done = differences(store, quiet)
    assert found == []
    assert done.refused == []


@pytest.mark.parametrize("archive", [pytest.param(ARCHIVES[0], marks=pytest.mark.thorough), *ARCHIVES[1:]])
def test_the_data_folder_of_an_earlier_release_asks_for_a_rebuild_which_gives_its_rows(
    tmp_path: Path, archive: str
):
    store = Store(unpack_old_data(tmp_path, archive))
    folders = {path.name for path in store.runs.iterdir()}
    for words in (["sql", "FROM runs"], ["warehouse", "sync"], ["check"], ["history", "toy_cnn-fp32"]):
        told = CliRunner().invoke(main, ["--data", str(store.root), *words])
        assert told.exit_code == 1, words
        assert "were written by an earlier release" in told.output
        assert "`sme2 warehouse rebuild`" in told.output
    assert "earlier release" in _doctor(store)
    done = CliRunner().invoke(main, ["--data", str(store.root), "warehouse", "rebuild", "--json"])
    assert done.exit_code == 0, done.output
    assert set(json.loads(done.stdout)["taken"]) == folders
    assert_all_is_as_the_evidence_says(store)
    rows = Warehouse(store.warehouse).query("SELECT DISTINCT derivation FROM runs")
    assert rows["derivation"].tolist() == [ingest.DERIVATION]
    told = CliRunner().invoke(main, ["--data", str(store.root), "check"])
    assert told.exit_code == 0, told.output


def test_a_rebuild_gives_the_same_rows_of_every_table(store: Store):
    before = {name: _rows(store, name) for name in ("runs", "timeline", "comparisons", "kernel_usage")}
    done = rebuild(store, quiet)
    assert len(done.taken) == 8
    assert len(done.compared) == 3
    assert {name: _rows(store, name) for name in before} == before
    assert_all_is_as_the_evidence_says(store)
    assert sorted(path.name for path in store.warehouse.iterdir() if path.is_dir()) == [
        "snapshots",
        "staging",
        "tables",
    ]


def test_rows_that_somebody_changed_are_found_and_made_again(store: Store):
    warehouse = Warehouse(store.warehouse)
    rows = ingest.rows_of_run(store.run_dir(OFF.run_id))
    ingest.write_runs(warehouse, replace(rows, timeline=rows.timeline.tail(-1)))
    warehouse.publish()
    found, _ = differences(store, quiet)
    assert [(each.table, each.only_stored, each.only_derived) for each in found] == [("timeline", 0, 1)]
    rebuild(store, quiet)
    assert_all_is_as_the_evidence_says(store)


@pytest.mark.thorough
def test_what_is_measured_while_a_rebuild_is_under_way_is_taken_in_too(store: Store):
    late = replace(OFF, session_id="20260104T000000-ffffff")

    def measure_at_the_end(message: str) -> None:
        if message == "publishing":
            write_pair(store, late)

    done = rebuild(store, measure_at_the_end)
    assert {late.run_id, replace(late, sme2="on").run_id} <= set(done.taken)
    assert late.session_id in done.compared
    assert_all_is_as_the_evidence_says(store)


def _newer_version(folder: Path) -> None:
    path = folder / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "schema": 99}))


def _damaged_file(folder: Path) -> None:
    (folder / "round_00" / "etdump" / "trace.etdump").write_bytes(b"no trace")


def _empty_folder(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()


@pytest.mark.parametrize(
    ("spoil", "said", "remedy"),
    [
        pytest.param(_newer_version, "version 99", "Update sme2_assets.", marks=pytest.mark.thorough),
        (_damaged_file, "its content changed", "Restore the folder from a copy"),
        pytest.param(
            *(_empty_folder, "manifest.json is missing", "Restore that folder"), marks=pytest.mark.thorough
        ),
    ],
)
def test_a_folder_that_cannot_be_read_is_named_and_all_others_are_rebuilt(
    store: Store, spoil: Callable[[Path], None], said: str, remedy: str
):
    spoil(store.run_dir(LATER.run_id))
    done = rebuild(store, quiet)
    # The other arm, too: a session is whole, or it is none.
    assert [refused.what for refused in done.refused] == [LATER.run_id, replace(LATER, sme2="on").run_id]
    for refused in done.refused:
        assert said in refused.error.what
        assert remedy in str(refused.error.remedy)
    assert len(done.taken) == 6
    told = CliRunner().invoke(main, ["--data", str(store.root), "warehouse", "rebuild"])
    assert told.exit_code == 1
    assert f"{LATER.run_id} was left out" in told.output


def test_a_run_whose_folder_is_gone_is_named_before_and_when_its_rows_are_dropped(store: Store):
    foreign, *_ = _foreign_runs(store)
    gone = sorted([LATER.run_id, replace(LATER, sme2="on").run_id, foreign])
    for run in gone:
        shutil.rmtree(store.run_dir(run))
    told = CliRunner().invoke(main, ["--data", str(store.root), "check", "--json"])
    assert told.exit_code == 1, told.output
    found = json.loads(told.stdout)
    assert [run for run in gone for each in found if run in each["what"]] == gone
    assert all("sme2 warehouse rebuild" in each["remedy"] for each in found)
    done = CliRunner().invoke(main, ["--data", str(store.root), "warehouse", "rebuild"])
    assert done.exit_code == 0, done.output
    assert [run for run in gone if f"{run} was dropped" in done.stderr] == gone
    told = CliRunner().invoke(main, ["--data", str(store.root), "check"])
    assert told.exit_code == 0, told.output


def test_a_run_that_is_in_no_table_is_found_and_taken_in(store: Store):
    assert runs_in_no_table(store) == []
    lost = replace(OFF, session_id="20260103T000000-cccccc")
    write_pair(store, lost)
    assert [path.name for path in runs_in_no_table(store)] == sorted(
        [lost.run_id, replace(lost, sme2="on").run_id]
    )
    assert "2 run folders are in no table" in _doctor(store)
    done = CliRunner().invoke(main, ["--data", str(store.root), "warehouse", "sync", "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["compared"] == [lost.session_id]
    assert runs_in_no_table(store) == []
    assert "every run folder is in the tables" in _doctor(store)
    assert_all_is_as_the_evidence_says(store)


def test_a_folder_that_cannot_be_added_is_not_said_to_be_one_that_sync_adds(store: Store):
    lost = replace(OFF, session_id="20260103T000000-cccccc")
    write_pair(store, lost)
    shutil.rmtree(store.run_dir(replace(lost, sme2="on").run_id))
    told = CliRunner().invoke(main, ["--data", str(store.root), "check", "--json"])
    found = [each for each in json.loads(told.stdout) if lost.run_id in each["what"]]
    assert len(found) == 1, found
    assert "the folder of another one is missing" in found[0]["what"]
    assert "sync" not in found[0]["remedy"]


def test_the_doctor_says_when_the_data_folder_cannot_be_written(
    store: Store, monkeypatch: pytest.MonkeyPatch
):
    def data_folder() -> str:
        return next(str(step) for step in examine(store).steps if step.name == "data folder")

    assert "cannot be written" not in data_folder()
    # Whoever runs as root may write everywhere but on a file system that is read-only.
    monkeypatch.setattr(os, "access", lambda path, mode: path != store.root)
    assert f"{store.root} cannot be written" in data_folder()


def test_another_lab_is_merged_by_its_run_folders(store: Store, tmp_path: Path):
    theirs = Store(tmp_path / "theirs")
    elsewhere = replace(OFF, device="another-cpu-ffffff", session_id="20260105T000000-dddddd")
    write_pair(theirs, elsewhere)
    shutil.copytree(store.run_dir(OFF.run_id), theirs.run_dir(OFF.run_id))
    done = merge(store, theirs.root, quiet)
    assert sorted(done.taken) == sorted([elsewhere.run_id, replace(elsewhere, sme2="on").run_id])
    assert (done.already_there, done.compared) == ([OFF.run_id], [elsewhere.session_id])
    devices = Warehouse(store.warehouse).query("SELECT DISTINCT device FROM latest_runs ORDER BY ALL")
    assert devices["device"].tolist() == ["a-cpu-0a1b2c", "another-cpu-ffffff"]
    assert_all_is_as_the_evidence_says(store)


def test_two_folders_with_one_run_id_and_different_content_are_refused(store: Store, tmp_path: Path):
    theirs = Store(tmp_path / "theirs")
    replace(OFF, seed=7).write(theirs.runs)
    before = _rows(store, "runs")
    done = merge(store, theirs.root, quiet)
    [refused] = done.refused
    assert "same run id and different content" in refused.error.what
    assert "find out which" in str(refused.error.remedy)
    assert _rows(store, "runs") == before


def _lab(tmp_path: Path) -> tuple[Store, MadeRun]:
    theirs = Store(tmp_path / "theirs")
    run = replace(OFF, session_id="20260105T000000-dddddd")
    write_pair(theirs, run)
    return theirs, run


@pytest.mark.parametrize("place", ["id_rsa", "round_00/id_rsa", "round_00/etdump/outputs"])
@pytest.mark.parametrize("target", ["secret", "folder", "device", "pipe"])
def test_a_merge_takes_nothing_but_files_of_the_run_folder(
    store: Store, tmp_path: Path, place: str, target: str
):
    theirs, run = _lab(tmp_path)
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    (secrets / "id_rsa").write_text("private")
    hostile = theirs.run_dir(run.run_id) / place
    if hostile.is_dir():
        shutil.rmtree(hostile)
    if target == "pipe":
        os.mkfifo(hostile)
    else:
        at = {"secret": secrets / "id_rsa", "folder": secrets, "device": Path("/dev/zero")}[target]
        hostile.symlink_to(at)
    done = merge(store, theirs.root, quiet)
    assert place in done.refused[0].error.what, done.refused
    assert run.run_id == done.refused[0].what
    assert not store.run_dir(run.run_id).exists()
    assert not [path for path in store.root.rglob("*") if path.name == "id_rsa"]


def test_a_merge_keeps_what_lies_in_a_run_folder_and_its_age(store: Store, tmp_path: Path):
    theirs, run = _lab(tmp_path)
    source = theirs.run_dir(run.run_id)
    (source / "notes").mkdir()
    (source / "notes" / "by_hand.txt").write_text("kept")
    os.utime(source, (1_700_000_000, 1_700_000_000))
    merge(store, theirs.root, quiet)
    copied = store.run_dir(run.run_id)
    assert copied.stat().st_mtime == 1_700_000_000
    names = sorted(path.relative_to(source) for path in source.rglob("*") if path.is_file())
    assert names == sorted(path.relative_to(copied) for path in copied.rglob("*") if path.is_file())
    assert all((source / name).read_bytes() == (copied / name).read_bytes() for name in names)


def test_a_merge_takes_no_log_that_is_a_link(store: Store, tmp_path: Path):
    theirs, run = _lab(tmp_path)
    (tmp_path / "id_rsa").write_text("private")
    note = ingest.annotation(theirs, run.run_id)
    note.parent.mkdir(parents=True)
    note.symlink_to(tmp_path / "id_rsa")
    done = merge(store, theirs.root, quiet)
    assert "xnnpack.log is a symbolic link" in done.refused[0].error.what
    assert not ingest.annotation(store, run.run_id).exists()


def _without_kernel(manifest: dict[str, Any]) -> None:
    del manifest["context"]["machine"]["kernel"]


def _wrong_architecture(manifest: dict[str, Any]) -> None:
    manifest["context"]["machine"]["arch"] = ["aarch64"]


def _without_plan(manifest: dict[str, Any]) -> None:
    manifest["info"]["plan"] = {}


def _no_date(manifest: dict[str, Any]) -> None:
    manifest["info"]["started_at"] = "not a date"


def _year_9999(manifest: dict[str, Any]) -> None:
    manifest["info"]["finished_at"] = "9999-12-31T23:59:59+00:00"


def _local_date(manifest: dict[str, Any]) -> None:
    manifest["info"]["started_at"] = "2026-01-01T00:00:00"


def _moment_without_date(manifest: dict[str, Any]) -> None:
    manifest["info"]["environment"][-1]["snapshot"]["at"] = "now and then"


def _processes_without_shares(manifest: dict[str, Any]) -> None:
    manifest["info"]["environment"][0]["snapshot"]["heavy_processes"] = [["cc1plus"]]


def _wrong_cores(manifest: dict[str, Any]) -> None:
    manifest["context"]["machine"]["cores"] = "a few"


def _hostile_number(manifest: dict[str, Any]) -> None:
    manifest["sequence"] = (1 << 62) - 1


IMPOSSIBLE = [
    _no_date,
    _year_9999,
    _local_date,
    _moment_without_date,
    _processes_without_shares,
    _without_kernel,
    _wrong_architecture,
    _without_plan,
    _wrong_cores,
    _hostile_number,
]


def _rewrite_manifest(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_text(json.dumps(manifest))


def _write_impossible(theirs: Store, change: Callable[[dict[str, Any]], None], number: int) -> set[str]:
    """A session of which one arm says something that no session writes; the names of its folders."""
    run = replace(OFF, session_id=f"20260107T0000{number:02d}-cccccc", iterations=1)
    arms = [run, replace(run, sme2="on")]
    folders = [arm.write(theirs.runs) for arm in arms]
    _rewrite_manifest(folders[number % 2], change)
    return {arm.run_id for arm in arms}


def test_a_session_that_gives_no_rows_is_not_merged_and_costs_only_itself(store: Store, tmp_path: Path):
    theirs, run = _lab(tmp_path)
    bad = {
        name for number, change in enumerate(IMPOSSIBLE) for name in _write_impossible(theirs, change, number)
    }
    before = {path.name for path in store.runs.iterdir()}
    done = merge(store, theirs.root, quiet)
    assert {each.what for each in done.refused} == bad
    both = {run.run_id, replace(run, sme2="on").run_id}
    assert {*done.taken} == both
    assert done.compared == [run.session_id]
    assert {path.name for path in store.runs.iterdir()} == before | both
    assert_all_is_as_the_evidence_says(store)


def test_a_session_that_gives_no_rows_and_is_here_already_stops_nothing(store: Store, tmp_path: Path):
    bad = {
        name for number, change in enumerate(IMPOSSIBLE) for name in _write_impossible(store, change, number)
    }
    good = replace(OFF, session_id="20260106T000000-eeeeee")
    write_pair(store, good)
    for make in (sync, rebuild, sync):
        done = make(store, quiet)
        assert {each.what for each in done.refused} == bad
        assert good.run_id in _runs_of(store)
        assert not bad & _runs_of(store)
    assert next_number(store.runs) == 1
    theirs, run = _lab(tmp_path)
    assert run.run_id in merge(store, theirs.root, quiet).taken
    _doctor(store)


def test_a_session_without_one_of_its_arms_is_not_merged(store: Store, tmp_path: Path):
    theirs, run = _lab(tmp_path)
    _damaged_file(theirs.run_dir(replace(run, sme2="on").run_id))
    alone = replace(OFF, session_id="20260106T000000-eeeeee")
    alone.write(theirs.runs)
    done = merge(store, theirs.root, quiet)
    assert alone.run_id in {each.what for each in done.refused}
    assert not [path for path in store.runs.iterdir() if run.session_id in path.name]
    assert not store.run_dir(alone.run_id).exists()
    # Once it is whole, it comes.
    replace(alone, sme2="on").write(theirs.runs)
    assert alone.run_id in merge(store, theirs.root, quiet).taken


@pytest.mark.parametrize("sme2", ["off", "on"])
def test_a_run_folder_that_is_a_link_is_not_merged(store: Store, tmp_path: Path, sme2: str):
    theirs, run = _lab(tmp_path)
    linked = theirs.run_dir(replace(run, sme2=sme2).run_id)
    linked.rename(tmp_path / linked.name)
    linked.symlink_to(tmp_path / linked.name)
    done = merge(store, theirs.root, quiet)
    assert f"{linked} is a symbolic link" in done.refused[0].error.what
    assert not [path for path in store.runs.iterdir() if run.session_id in path.name]


def test_an_arm_that_was_lost_comes_back_by_a_merge(store: Store, tmp_path: Path):
    theirs = Store(Path(shutil.copytree(store.root, tmp_path / "theirs", symlinks=True)))
    shutil.rmtree(store.run_dir(OFF.run_id))
    merge(store, theirs.root, quiet)
    assert_all_is_as_the_evidence_says(store)
    assert store.run_dir(OFF.run_id).is_dir()


def test_a_blind_trial_is_merged_under_its_own_name_only(store: Store, tmp_path: Path):
    theirs, _ = _lab(tmp_path)
    (theirs.blind / "trial").mkdir(parents=True)
    for session_id in (str(tmp_path / "anywhere"), "another"):
        content = {"session_id": session_id, "sequence": 0, "variant": "v", "platform": "p", "sme2": "on"}
        content |= {"device": "d", "arch": "a", "fidelity": "hardware", "threads": 1, "cpus": ""}
        content |= {"power_mode": "", "started_at": "t", "seconds": 1.0, "inference_seconds": 1.0}
        truth = Truth(dose_percent=1.0, salt="s")
        content |= {"a_ns": [1.0], "b_ns": [1.0], "truth_sha256": sha256_of_text(truth.to_json())}
        (theirs.blind / "trial" / "truth.json").write_text(truth.to_json())
        (theirs.blind / "trial" / "trial.json").write_text(json.dumps({"schema": 2, **content}))
        done = merge(store, theirs.root, quiet)
        assert [each.what for each in done.refused] == ["trial"]
        assert not (tmp_path / "anywhere").exists()
        assert not (store.blind / "another").exists()


@pytest.mark.thorough
def test_a_hidden_folder_that_is_no_unfinished_run_is_named_and_stops_nothing(store: Store, tmp_path: Path):
    hostile = store.runs / ".evil"
    shutil.copytree(store.run_dir(OFF.run_id), hostile)
    manifest = hostile / "manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "run_id": str(tmp_path / "moved")}))
    os.utime(manifest, (0, 0))
    lost = replace(OFF, session_id="20260103T000000-cccccc")
    write_pair(store, lost)
    for make in (sync, rebuild):
        done = make(store, quiet)
        assert [each.what for each in done.refused] == [".evil"]
        assert "run_id" in done.refused[0].error.what
        assert lost.run_id in {*done.taken, *_runs_of(store)}
    _doctor(store)
    assert hostile.is_dir()
    assert not (tmp_path / "moved").exists()


def test_a_folder_without_runs_is_not_merged(store: Store, tmp_path: Path):
    (tmp_path / "kit").mkdir()
    told = CliRunner().invoke(main, ["--data", str(store.root), "warehouse", "merge", str(tmp_path / "kit")])
    assert told.exit_code == 1
    assert "There is no run folder in" in told.output


def test_a_data_folder_that_was_moved_or_copied_works_at_once(store: Store, tmp_path: Path):
    count = "SELECT count(*) AS n, sum(duration_ns)::BIGINT AS ns FROM timeline"
    before = Warehouse(store.warehouse).query(count).to_dict("records")
    copied = Store(Path(shutil.copytree(store.root, tmp_path / "copied", symlinks=True)))
    shutil.rmtree(store.root)
    assert Warehouse(copied.warehouse).query(count).to_dict("records") == before
    assert_all_is_as_the_evidence_says(copied)


@pytest.mark.parametrize("experiment", ["sme2", pytest.param("foreign", marks=pytest.mark.thorough)])
def test_a_log_that_was_added_to_a_run_survives_a_rebuild(store: Store, tmp_path: Path, experiment: str):
    run_id = OFF.run_id if experiment == "sme2" else _foreign_runs(store)[0]
    log = tmp_path / "xnnpack.log"
    log.write_text("Using f32-gemm microkernel 'xnn_f32_gemm_minmax_ukernel_1x8__neonfma'.\n")
    words = ["--data", str(store.root), "kernel-log", str(log), "--run", run_id]
    told = CliRunner().invoke(main, words)
    assert told.exit_code == 0, told.output
    stored = Warehouse(store.warehouse).query("FROM registered_kernels WHERE run_id = ?", [run_id])
    assert list(stored["kernel"]) == ["xnn_f32_gemm_minmax_ukernel_1x8__neonfma"]
    before = _rows(store, "registered_kernels")
    rebuild(store, quiet)
    assert _rows(store, "registered_kernels") == before


def test_a_new_category_is_applied_to_history_and_makes_no_change_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    store = Store(tmp_path / "data")

    def night(number: int) -> None:
        replace(
            OFF,
            session_id=f"202602{number:02d}T000000-eeeeee",
            started_at=OFF.started_at + timedelta(days=30 + number),
            seed=number,
            paired=False,
        ).write(store.runs)

    for number in range(1, 8):
        night(number)
    sync(store, quiet)
    warehouse = Warehouse(store.warehouse)
    before = {key[-1]: len(rows) for key, rows in history.series_of(warehouse).items()}
    assert before["CONV"] == before["latency"] == 7
    # Of other code, a convolution is something else: its time moves from one category to another.
    real = analysis_timeline.classify

    def mended(name: str, *rest: Any, **known: Any) -> Any:
        return real("Softmax (NC, F32) #1" if name.startswith("Convolution") else name, *rest, **known)

    monkeypatch.setattr(analysis_timeline, "classify", mended)
    newer = ingest.DERIVATION + 1
    for module in ("ingest", "history", "rebuild"):
        monkeypatch.setattr(f"sme2_assets.warehouse.{module}.DERIVATION", newer)
    for number in range(8, 15):
        night(number)
    sync(store, quiet)
    assert history.find_regressions(warehouse, tmp_path / "none").empty, "other code is no slow-down"
    assert {len(rows) for key, rows in history.series_of(warehouse).items() if key[-1] != "latency"} == {7}
    rebuild(store, quiet)
    assert {len(rows) for rows in history.series_of(warehouse).values()} == {14}
    assert history.find_regressions(warehouse, tmp_path / "none").empty


def _doctor(store: Store) -> str:
    """What the doctor says of the tables."""
    with_tables = [step for step in examine(store).steps if step.name == "runs in the tables"]
    return str(with_tables[0])


def _runs_of(store: Store) -> set[str]:
    return set(Warehouse(store.warehouse).query("SELECT run_id FROM runs")["run_id"])


def _foreign_runs(store: Store) -> list[str]:
    rows = Warehouse(store.warehouse).query("SELECT run_id FROM runs WHERE experiment = 'foreign' ORDER BY 1")
    return list(rows["run_id"])


def _rows(store: Store, name: str) -> list[tuple]:
    with Warehouse(store.warehouse).connect() as connection:
        columns = [
            row[0] for row in connection.execute(f"DESCRIBE {name}").fetchall() if row[0] != "derivation"
        ]
        chosen = ", ".join(f'"{column}"' for column in columns)
        return connection.execute(f"SELECT {chosen} FROM {name} ORDER BY ALL").fetchall()
