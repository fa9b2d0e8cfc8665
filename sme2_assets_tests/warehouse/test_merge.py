"""Old runs in fewer files: the same rows, for new readers and for open ones, whatever happens meanwhile."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import pytest

from benchmarks.made.run_folder import MadeRun, ingest
from sme2_assets.store import Store
from sme2_assets.warehouse import Warehouse
from sme2_assets.warehouse import commits as commit_chain
from sme2_assets.warehouse import store as store_module
from sme2_assets.warehouse.check import check_store
from sme2_assets.warehouse.commits import add_commit, files_now, groups_now
from sme2_assets.warehouse.merge import merge_runs
from sme2_assets.warehouse.publish import SNAPSHOTS_KEPT
from sme2_assets.warehouse.rebuild import differences, rebuild, runs_in_no_table, sync
from sme2_assets.warehouse.sessions import take_session
from sme2_assets_tests.warehouse.test_continued import contents
from sme2_assets_tests.warehouse.test_publish import write_nothing
from sme2_assets_tests.warehouse.test_rebuild import quiet, write_pair

SESSIONS = [MadeRun(rounds=1, iterations=1, session_id=f"2026010{n}T000000-aaaaaa") for n in (1, 2, 3)]
RUNS = [replace(run, sme2=sme2).run_id for run in SESSIONS for sme2 in ("off", "on")]


@pytest.fixture(autouse=True)
def groups_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sme2_assets.warehouse.merge.LARGEST_GROUP_RUNS", 2)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    store = Store(tmp_path_factory.mktemp("measured") / "data")
    for run in SESSIONS:
        write_pair(store, run)
    assert sync(store, quiet).refused == []
    return store.root


@pytest.fixture
def store(measured: Path, tmp_path: Path) -> Store:
    return Store(Path(shutil.copytree(measured, tmp_path / "data", symlinks=True)))


@pytest.fixture
def warehouse(store: Store) -> Warehouse:
    """Of the copy, which names its own files."""
    warehouse = Warehouse(store.warehouse)
    warehouse.publish()
    return warehouse


def merged(warehouse: Warehouse) -> Warehouse:
    assert merge_runs(warehouse)
    warehouse.publish()
    return warehouse


def assert_equal(one: dict[str, pd.DataFrame], other: dict[str, pd.DataFrame]) -> None:
    for name, rows in other.items():
        pd.testing.assert_frame_equal(one[name], rows, obj=name)


def test_merged_runs_have_the_rows_they_had_in_a_file_per_table_and_group(warehouse: Warehouse):
    before = contents(warehouse)
    merged(warehouse)
    files = files_now(warehouse.tables)
    assert all(file.run_id is None for file in files)
    assert Counter(file.table for file in files)["timeline"] == 3
    assert sorted(run for runs in groups_now(warehouse.tables).values() for run in runs) == sorted(RUNS)
    assert_equal(contents(warehouse), before)
    # Continued, and made anew from the merged files.
    shutil.rmtree(warehouse.snapshots)
    warehouse.publish()
    assert_equal(contents(warehouse), before)


def test_an_open_reader_keeps_its_files_and_then_they_go(warehouse: Warehouse):
    count = "SELECT count(*), sum(duration_ns)::BIGINT FROM timeline"
    with duckdb.connect(str(warehouse.link), read_only=True) as analyst:
        expected = analyst.execute(count).fetchall()
        merged(warehouse)
        for _ in range(SNAPSHOTS_KEPT - 2):
            write_nothing(warehouse)
            warehouse.publish()
            assert analyst.execute(count).fetchall() == expected
    for _ in range(SNAPSHOTS_KEPT):
        write_nothing(warehouse)
        warehouse.publish()
    there = {str(path.relative_to(warehouse.tables)) for path in warehouse.tables.rglob("*.parquet")}
    assert there == {file.path for file in files_now(warehouse.tables)}


def test_a_merged_run_is_taken_in_again_and_removed_alone(store: Store, warehouse: Warehouse):
    before = contents(warehouse)
    merged(warehouse)
    take_session(store, warehouse, store.run_dir(RUNS[0]))
    warehouse.publish()
    assert_equal(contents(warehouse), before)
    warehouse.write_together([], [RUNS[2]])
    warehouse.publish()
    for table in ("runs", "timeline", "operator_details", "category_times"):
        runs = set(warehouse.query(f"SELECT DISTINCT run_id FROM {table}")["run_id"])
        assert runs == {*RUNS} - {RUNS[2]}, table


def test_a_run_that_changes_while_it_is_merged_keeps_its_change(
    store: Store, warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
):
    def change(tables: Path, *arguments: Any) -> bool:
        add_commit(tables, [], [RUNS[0]])
        return commit_chain.add_group(tables, *arguments)

    monkeypatch.setattr("sme2_assets.warehouse.merge.add_group", change)
    assert not merge_runs(warehouse) or RUNS[0] not in {
        run for runs in groups_now(warehouse.tables).values() for run in runs
    }
    warehouse.publish()
    assert RUNS[0] not in set(warehouse.query("FROM runs")["run_id"])


@pytest.mark.parametrize("seed", range(3))
def test_damage_to_a_merged_file_is_found_and_its_runs_are_made_again(
    store: Store, warehouse: Warehouse, seed: int
):
    before = contents(warehouse)
    merged(warehouse)
    assert list(check_store(store, quiet)) == []
    chance = random.Random(seed)
    file = chance.choice([file for file in files_now(warehouse.tables) if file.group])
    path = warehouse.tables / file.path
    content = bytearray(path.read_bytes())
    content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    path.write_bytes(content)
    [finding] = check_store(store, quiet)
    assert str(path) in finding.what
    assert "sme2 warehouse sync" in finding.remedy
    shutil.rmtree(warehouse.snapshots)
    warehouse.publish()
    lost = {folder.name for folder in runs_in_no_table(store)}
    assert lost == {*groups_now(warehouse.tables)[file.group or ""]}, "no others"
    assert sync(store, quiet).refused == []
    assert_equal(contents(warehouse), before)
    assert list(check_store(store, quiet)) == []


def test_merged_rows_are_what_the_evidence_gives_and_a_rebuild_gives_them_again(
    store: Store, warehouse: Warehouse
):
    before = contents(merged(warehouse))
    found, done = differences(store, quiet)
    assert (found, done.refused) == ([], [])
    assert rebuild(store, quiet).refused == []
    assert_equal(contents(warehouse), before)


def test_publishing_merges_once_enough_runs_have_files_of_their_own(
    store: Store, warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("sme2_assets.warehouse.store.MERGE_AT", len(RUNS) + 2)
    warehouse.publish()
    assert groups_now(warehouse.tables) == {}
    write_pair(store, replace(SESSIONS[0], session_id="20260104T000000-aaaaaa"))
    assert sync(store, quiet).refused == []
    assert len(groups_now(warehouse.tables)) == 4
    assert len(warehouse.query("FROM publishing.files WHERE table_name = 'timeline'")) == 4


def test_who_waited_takes_what_another_one_published(warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch):
    """One publication for all that was written while somebody published, and not one for each writer."""
    builds, asked, go_on = [], [], threading.Event()
    real_build, real_last = store_module.build, store_module.last_commit

    def build(*arguments: Any) -> Any:
        built = real_build(*arguments)
        builds.append(None)
        go_on.wait(600)
        return built

    def last_commit(tables: Path) -> str:
        asked.append(None)
        return real_last(tables)

    monkeypatch.setattr(store_module, "build", build)
    monkeypatch.setattr(store_module, "last_commit", last_commit)

    def write_and_publish(run: str) -> None:
        warehouse.write_together([], [run])
        published.append(warehouse.publish())

    published: list[Path] = []
    writers = [threading.Thread(target=write_and_publish, args=[run]) for run in RUNS[:5]]
    writers[0].start()
    while not builds:
        time.sleep(0.01)
    for writer in writers[1:]:
        writer.start()
    while len(asked) < len(writers):
        time.sleep(0.01)
    go_on.set()
    for writer in writers:
        writer.join()
    assert len(builds) == 2
    assert len({*published}) == 2
    assert set(warehouse.query("FROM runs")["run_id"]) == {RUNS[5]}


def test_who_finds_its_rows_published_leaves_without_the_lock(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
):
    """Else all who waited would leave one after the other, each of them when it gets the lock."""
    published, go_on = threading.Event(), threading.Event()

    def pause(self: Warehouse) -> None:
        """While the lock is held, after others can see what was published."""
        published.set()
        go_on.wait(600)

    monkeypatch.setattr(Warehouse, "_drop_abandoned_files", pause)
    write_nothing(warehouse)
    publisher = threading.Thread(target=warehouse.publish)
    publisher.start()
    assert published.wait(600)
    left: list[Path] = []
    waiting = threading.Thread(target=lambda: left.append(warehouse.publish()))
    waiting.start()
    waiting.join(120)
    left_with_the_lock_held = [*left]
    go_on.set()
    publisher.join()
    waiting.join()
    assert left_with_the_lock_held == [warehouse.link.resolve()]


KILLED = """
import sys
from pathlib import Path
from sme2_assets.warehouse import Warehouse, merge
from sme2_assets_tests.warehouse.crashes import die_at
merge.LARGEST_GROUP_RUNS = 2
warehouse = Warehouse(Path(sys.argv[1]))
warehouse.query("FROM runs")
die_at(int(sys.argv[2]))
merge.merge_runs(warehouse)
"""


def test_a_merge_that_is_killed_changes_nothing_and_the_next_one_goes_on(store: Store, warehouse: Warehouse):
    before = contents(warehouse)
    for step in (2, 33, 70, 110):
        killed = subprocess.run([sys.executable, "-c", KILLED, str(warehouse.root), str(step)], check=False)
        assert killed.returncode == -signal.SIGKILL, step
        warehouse.publish()
        assert_equal(contents(warehouse), before)
    assert list(check_store(store, quiet)) == []
    merged(warehouse)
    assert_equal(contents(warehouse), before)


def test_runs_of_before_there_were_summaries_get_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = SESSIONS[0].write(tmp_path / "runs")
    old, new = (Warehouse(tmp_path / name / "warehouse") for name in ("old", "new"))
    with monkeypatch.context() as patched:
        patched.setattr(Warehouse, "summaries", lambda self, files: [])
        ingest(old, folder)
        old.publish()
    assert old.query("FROM operator_summary").empty
    # As after an update, whose views are others: all is made anew.
    shutil.rmtree(old.snapshots)
    ingest(new, folder)
    for warehouse in (old, new):
        warehouse.publish()
    assert_equal(contents(old), contents(new))
