"""`sme2 gc`: shows what would go, removes only when told to, and never what somebody needs."""

from __future__ import annotations

import errno
import json
import os
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import dagster as dg
import pytest
from click.testing import CliRunner, Result

from sme2_assets.cli import main
from sme2_assets.cli.gc import KIND_NAMES
from sme2_assets.errors import Sme2Error
from sme2_assets.launch import open_instance
from sme2_assets.store import Store
from sme2_assets.warehouse import Warehouse, retention
from sme2_assets.warehouse.commits import files_now
from sme2_assets.warehouse.rebuild import differences, rebuild, sync
from sme2_assets.warehouse.retention import KINDS, Item, chosen
from sme2_assets.warehouse.sessions import take_session
from sme2_assets_tests.made.run_folder import MadeRun

OLD, NEW = "20260101T000000-aaaaaa", "20260201T000000-bbbbbb"
LONG_AGO = time.time() - 100 * 86400


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two sessions of one model."""
    store = Store(tmp_path_factory.mktemp("measured") / "data")
    for session in (OLD, NEW):
        for sme2 in ("off", "on"):
            MadeRun(sme2=sme2, session_id=session, rounds=2, sampled=False).write(store.runs)
    sync(store, print)
    return store.root


@pytest.fixture
def store(measured: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    store = Store(Path(shutil.copytree(measured, tmp_path / "data", symlinks=True)))
    # The copy names its own files.
    Warehouse(store.warehouse).publish()
    return store


def age(*paths: Path) -> None:
    for path in paths:
        os.utime(path, (LONG_AGO, LONG_AGO))


def gc(store: Store, *words: str) -> Result:
    done = CliRunner().invoke(main, ["--data", str(store.root), "gc", *words])
    assert not isinstance(done.exception, Exception), done.output
    return done


def items(store: Store, *words: str) -> set[tuple[str, str]]:
    done = gc(store, "--json", *words)
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("{"), done.output
    return {(item["kind"], item["name"]) for item in json.loads(done.stdout)["items"]}


def all_files(store: Store) -> set[Path]:
    return {path for path in store.root.rglob("*") if "dagster_home" not in path.parts}


def run_ids(store: Store) -> list[str]:
    return sorted(Warehouse(store.warehouse).query("SELECT run_id FROM runs")["run_id"])


def session(begun: str) -> str:
    return MadeRun(session_id=begun).session_id


def test_old_evidence_goes_by_name_only_and_the_newest_session_of_a_series_stays(store: Store):
    age(*store.runs.iterdir())
    before = all_files(store)
    assert not any(kind == "runs" for kind, _ in items(store))
    assert items(store, "--kind", "runs") == {("runs", session(OLD))}
    assert items(store, "--kind", "runs", "--older-than", "200") == set()
    assert items(store, "--kind", "runs", "--dry-run") == {("runs", session(OLD))}
    assert all_files(store) == before, "something went without --yes"

    assert gc(store, "--kind", "runs", "--yes").exit_code == 0
    assert len(list(store.runs.iterdir())) == 2
    assert all(session(NEW) in run_id for run_id in run_ids(store))
    sessions = Warehouse(store.warehouse).query("SELECT DISTINCT session_id FROM comparisons")["session_id"]
    assert sessions.tolist() == [session(NEW)]
    assert differences(store, print)[0] == [], "the tables are not what a rebuild gives"


def test_what_is_in_no_table_yet_is_not_taken_for_old(store: Store):
    only = MadeRun(variant="only-fp32", session_id="20260101T000000-cccccc", rounds=2, sampled=False)
    for sme2 in ("off", "on"):
        replace(only, sme2=sme2).write(store.runs)
    age(*store.runs.iterdir())
    assert items(store, "--kind", "runs") == {("runs", session(OLD))}
    assert gc(store, "--kind", "runs", "--yes").exit_code == 0
    assert only.run_id in run_ids(store), "the tables were made again from all that is left"


def test_an_arm_that_was_damaged_later_goes_and_stays_with_its_session(store: Store):
    for begun in (OLD, NEW):
        manifest = store.run_dir(MadeRun(sme2="on", session_id=begun).run_id) / "manifest.json"
        manifest.write_bytes(manifest.read_bytes()[:500])
    age(*store.runs.iterdir())
    assert items(store, "--kind", "runs") == {("runs", session(OLD))}
    done = gc(store, "--kind", "runs", "--yes")
    assert {path.name for path in store.runs.iterdir()} == {
        MadeRun(sme2=sme2, session_id=NEW).run_id for sme2 in ("off", "on")
    }
    assert done.exit_code == 1, "the other session is no longer in the tables"


def test_what_the_tables_lose_beside_what_was_removed_is_told(store: Store):
    damaged = MadeRun(sme2="on", session_id=NEW).run_id
    with (store.run_dir(damaged) / "round_00" / "latency" / "result.json").open("a") as result:
        result.write(" ")
    removed = MadeRun(session_id=OLD).run_id
    done = gc(store, "--run", removed, "--yes", "--json")
    assert done.exit_code == 1
    refused = {each["what"]: each["error"] for each in json.loads(done.stdout)["refused"]}
    assert "its content changed" in refused[damaged]


@pytest.mark.parametrize("suffix", ["md", "html"])
def test_a_report_of_any_format_goes_with_its_run(store: Store, suffix: str):
    run = MadeRun(session_id=NEW).run_id
    page = store.reports / "toy_cnn-fp32" / f"report.{suffix}"
    page.parent.mkdir(parents=True)
    page.write_text(f"of {run}")
    age(page.parent)
    assert ("reports", "toy_cnn-fp32") in items(store, "--kind", "reports")
    assert ("reports", "toy_cnn-fp32") in items(store, "--run", run)


def test_one_run_goes_everywhere_with_the_other_arm_of_its_session(store: Store):
    runs = {sme2: MadeRun(sme2=sme2, session_id=NEW).run_id for sme2 in ("off", "on")}
    report = store.reports / "toy_cnn-fp32" / "linux" / "a-cpu-t1"
    other = store.reports / "toy_cnn-fp32" / "mac" / "a-cpu-t1"
    for folder, said in ((report, runs["on"]), (other, "another run")):
        folder.mkdir(parents=True)
        (folder / "report.md").write_text(f"of {said}")
    for kept in ("exports", "annotations"):
        (store.root / kept / runs["on"]).mkdir(parents=True)
    with open_instance(store) as instance:

        @dg.asset(name="etdump_traces")
        def traces() -> dg.MaterializeResult:
            return dg.MaterializeResult(metadata={"run_id": runs["off"]})

        measured = dg.materialize([traces], instance=instance).run_id
    found = items(store, "--run", runs["off"])
    assert found == {
        ("runs", session(NEW)),
        ("reports", "toy_cnn-fp32/linux/a-cpu-t1"),
        ("dagster", measured),
    }
    assert gc(store, "--run", runs["off"], "--yes").exit_code == 0
    left = [str(path) for path in all_files(store) if session(NEW) in str(path)]
    assert [path for path in left if "/warehouse/tables/" not in path] == []
    assert all(session(OLD) in run_id for run_id in run_ids(store))
    assert other.is_dir()
    assert not report.exists()
    with open_instance(store) as instance:
        assert instance.get_run_by_id(measured) is None
    assert differences(store, print)[0] == []


@pytest.mark.thorough
def test_a_report_goes_with_the_run_that_it_names_and_not_with_one_of_a_longer_name(store: Store):
    run = MadeRun(session_id=NEW).run_id
    said = {
        "whole": f"of {run}.",
        "path": f"runs/{run}/manifest.json",
        "longer": f"of {run}-2",
        "within": f"of my-{run}.",
    }
    for name, text in said.items():
        (store.reports / name).mkdir(parents=True)
        (store.reports / name / "report.md").write_text(text)
    reports = {name for kind, name in items(store, "--run", run) if kind == "reports"}
    assert reports == {"whole", "path"}


@pytest.mark.parametrize("words", [["gc"], ["gc", "--yes"], ["check"]])
def test_a_data_folder_that_does_not_exist_is_told_and_not_made(tmp_path: Path, words: list[str]):
    done = CliRunner().invoke(main, ["--data", str(tmp_path / "typo"), *words])
    assert done.exit_code == 1
    assert f"There is no data folder {tmp_path / 'typo'}." in done.stderr
    assert not (tmp_path / "typo").exists()


def test_an_unknown_run_is_told(store: Store):
    done = gc(store, "--run", "never-measured")
    assert done.exit_code == 1
    assert "There is no run 'never-measured'" in done.output


def test_nothing_goes_while_anything_is_measured(store: Store):
    from sme2_assets.targets.lease import lease

    age(*store.runs.iterdir())
    with lease(store.leases, "phone", log=print):
        done = gc(store, "--kind", "runs", "--yes")
    assert done.exit_code == 1
    assert "still in use" in done.output
    assert len(list(store.runs.iterdir())) == 4


def test_artifacts_that_are_current_stay_and_published_files_but_the_newest_go(store: Store):
    runners, models = store.artifacts / "runners", store.artifacts / "models" / "toy_cnn-fp32"
    for folder in (runners / "old", runners / "new", runners / "logs", models / "old", models / "new"):
        folder.mkdir(parents=True)
        (folder / "file").write_bytes(bytes(5000))
        age(folder)
    store.set_current("runner", "linux-sme2_on", "new")
    store.set_current("model", "toy_cnn-fp32", "new")
    Warehouse(store.warehouse).publish()
    somebodys = store.warehouse / "snapshots" / "warehouse-copy.duckdb"
    somebodys.touch()
    age(*(store.warehouse / "snapshots").iterdir())
    found = items(store, "--kind", "runners", "--kind", "models", "--kind", "snapshots")
    assert {item for item in found if item[0] != "snapshots"} == {
        ("runners", "old"),
        ("models", "toy_cnn-fp32/old"),
    }
    assert len(found) > 2
    gc(store, "--yes")
    assert sorted(path.name for path in runners.iterdir()) == ["logs", "new"]
    assert [path.name for path in models.iterdir()] == ["new"]
    assert len({*(store.warehouse / "snapshots").glob("*.duckdb")} - {somebodys}) == 1
    assert somebodys.exists(), "not a published file"
    assert len(run_ids(store)) == 4, "the published state is still there"


def test_dagster_keeps_the_last_run_of_every_partition(store: Store):
    keys = dg.StaticPartitionsDefinition(["a", "b"])

    @dg.asset(partitions_def=keys)
    def thing() -> None: ...

    with open_instance(store) as instance:
        made = [dg.materialize([thing], instance=instance, partition_key=key).run_id for key in "aab"]
    assert items(store, "--kind", "dagster", "--older-than", "0") == {("dagster", made[0])}
    assert items(store, "--kind", "dagster") == set(), "none is a month old"
    gc(store, "--kind", "dagster", "--older-than", "0", "--yes")
    with open_instance(store) as instance:
        assert [instance.get_run_by_id(run_id) is not None for run_id in made] == [False, True, True]
        assert instance.get_latest_materialization_event(dg.AssetKey("thing")) is not None


def test_by_size_the_oldest_go_until_enough_is_left_of_each_kind():
    things = [Item("exports", str(age), (), 10, age) for age in (5, 4, 3, 2, 1)]
    things += [Item("reports", "only", (), 10, 9)]
    assert [item.name for item in chosen(things, 0, 25)] == ["5", "4", "3"]
    assert [item.name for item in chosen(things, 4, 0)] == ["5", "4", "only"]
    assert chosen(things, 0, 50) == []


@pytest.mark.parametrize(
    "words",
    [
        ("--dry-run", "--yes"),
        ("--run", "x", "--kind", "runs"),
        ("--run", "x", "--older-than", "30"),
        ("--run", "x", "--keep", "100G"),
        ("--keep", "ten"),
    ],
)
def test_what_contradicts_itself_is_refused(store: Store, words: tuple[str, ...]):
    assert gc(store, *words).exit_code == 2


def test_the_command_offers_every_kind():
    assert KIND_NAMES == KINDS
    assert KINDS[-1] == "runs", "evidence is not among the defaults"


def test_files_of_tables_that_no_commit_names_go_when_they_are_old(store: Store):
    """A writer that was killed before it could commit leaves them. Those of an earlier state have readers."""
    warehouse = Warehouse(store.warehouse)
    take_session(store, warehouse, next(path for path in store.runs.iterdir() if path.name.startswith(NEW)))
    warehouse.publish()
    files = set(warehouse.tables.rglob("*.parquet"))
    assert len(files) > len(files_now(warehouse.tables))
    some = next(iter(files))
    old, young = (some.with_name(f"{name}.parquet") for name in ("old", "young"))
    for path in (old, young):
        path.write_bytes(some.read_bytes())
    age(*files, old)
    assert items(store, "--kind", "leftovers") == {("leftovers", str(old))}
    assert gc(store, "--kind", "leftovers", "--yes").exit_code == 0
    assert set(warehouse.tables.rglob("*.parquet")) == {*files, young}


def test_what_others_remove_while_it_is_listed_is_no_error(store: Store, monkeypatch: pytest.MonkeyPatch):
    warehouse = Warehouse(store.warehouse)
    warehouse.publish()
    gone = warehouse.snapshots / "warehouse-000000-00000000.duckdb"
    listed = Path.glob
    monkeypatch.setattr(
        Path,
        "glob",
        lambda folder, pattern: [*listed(folder, pattern), *[gone] * (folder == warehouse.snapshots)],
    )
    assert gc(store, "--kind", "snapshots", "--yes").exit_code == 0


def test_while_rows_of_removed_runs_are_left_no_evidence_is_chosen_by_its_age(store: Store):
    """The tables still name the removed session as the newest of its series."""
    for path in store.runs.glob(f"{session(NEW)}*"):
        shutil.rmtree(path)
    done = gc(store, "--kind", "runs", "--older-than", "0", "--yes")
    assert done.exit_code == 1
    assert "rows of 2 runs whose evidence is gone" in done.stderr
    assert "`sme2 warehouse rebuild`" in done.stderr
    assert len(list(store.runs.iterdir())) == 2
    rebuild(store, print)
    assert gc(store, "--kind", "runs", "--older-than", "0", "--yes").exit_code == 0
    assert len(list(store.runs.iterdir())) == 2


def test_a_removal_that_fails_says_what_is_gone_and_how_to_finish(
    store: Store, monkeypatch: pytest.MonkeyPatch
):
    run = MadeRun(session_id=OLD).run_id

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(retention, "rebuild", full)
        done = gc(store, "--run", run, "--yes")
    assert done.exit_code == 1
    said = " ".join(done.stderr.split())
    assert "The disk is full" in said
    assert f"The evidence of {session(OLD)} is already removed" in said
    assert "Then run `sme2 warehouse rebuild`" in said
    rebuild(store, print)
    assert all(session(NEW) in run_id for run_id in run_ids(store))


def test_a_run_of_which_only_rows_are_left_is_not_looked_for_in_the_tables(store: Store):
    run = MadeRun(session_id=OLD).run_id
    shutil.rmtree(store.run_dir(run))
    done = gc(store, "--run", run)
    assert done.exit_code == 1
    assert "its evidence is gone: `sme2 warehouse rebuild`" in done.stderr


@pytest.mark.thorough
def test_of_two_at_once_one_waits_for_the_other(store: Store, monkeypatch: pytest.MonkeyPatch):
    age(*store.runs.iterdir())
    outcomes: list[Result] = []
    real, waits = retention.one_at_a_time, threading.Event()

    def overheard(lock: Path, waiting: str, log: Callable[[str], None]) -> AbstractContextManager[None]:
        def tell(message: str) -> None:
            log(message)
            waits.set()

        return real(lock, waiting, tell)

    monkeypatch.setattr(retention, "one_at_a_time", overheard)
    second = threading.Thread(target=lambda: outcomes.append(gc(store, "--kind", "runs", "--yes")))
    with real(store.root / "gc.lock", "waiting", print):
        second.start()
        # On a busy machine it takes a while until the second one finds the first.
        assert waits.wait(600)
        second.join(timeout=1)
        assert second.is_alive()
        assert len(list(store.runs.iterdir())) == 4
    second.join()
    assert outcomes[0].exit_code == 0
    assert "waiting for another `sme2 gc`" in outcomes[0].stderr
    assert len(list(store.runs.iterdir())) == 2


def no_dagster() -> AbstractContextManager[dg.DagsterInstance]:
    raise sqlite3.OperationalError("disk I/O error")


def test_a_dagster_run_that_is_gone_is_not_listed(store: Store):
    with open_instance(store) as instance:
        assert list(retention._dagster_items(instance, ["gone"])) == []


def test_where_dagster_does_not_open_the_other_kinds_go(store: Store, monkeypatch: pytest.MonkeyPatch):
    """A full disk is what it is run for, and SQLite needs room to open."""
    monkeypatch.setattr("sme2_assets.launch.open_instance", lambda store: no_dagster())
    export = store.root / "exports" / "old"
    export.mkdir(parents=True)
    age(export)
    assert items(store, "--kind", "exports") == {("exports", "old")}
    done = gc(store, "--yes")
    assert done.exit_code == 0
    assert "What Dagster remembers is left out. The disk is full or does not work" in done.stderr
    assert not export.exists()
    assert "left out" not in gc(store, "--kind", "exports", "--yes").stderr, "it was opened for nothing"


@pytest.mark.thorough
def test_dagster_records_that_cannot_be_removed_cost_nothing_else(store: Store):
    things = [Item("dagster", "some", (), 0, 0), *retention._runs(store)]
    refused = retention.remove(store, no_dagster, things, print)
    assert [each.what for each in refused] == ["What Dagster remembers"]
    assert isinstance(refused[0].error, Sme2Error)
    assert all(session(NEW) in run_id for run_id in run_ids(store))
