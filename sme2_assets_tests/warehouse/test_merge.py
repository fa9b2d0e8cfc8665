"""Old runs in fewer files: the same rows, for new readers and for open ones, whatever happens meanwhile."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import pytest
from filelock import FileLock, Timeout

from sme2_assets.errors import WarehouseError
from sme2_assets.store import Store
from sme2_assets.warehouse import Warehouse
from sme2_assets.warehouse import commits as commit_chain
from sme2_assets.warehouse import merge as merge_module
from sme2_assets.warehouse.check import check_store
from sme2_assets.warehouse.commits import TableFile, add_commit, files_now, groups_now
from sme2_assets.warehouse.merge import merge_runs
from sme2_assets.warehouse.publish import SNAPSHOTS_KEPT
from sme2_assets.warehouse.rebuild import differences, rebuild, runs_in_no_table, sync
from sme2_assets.warehouse.schema import Table
from sme2_assets.warehouse.sessions import take_session
from sme2_assets_tests.made.run_folder import MadeRun, ingest
from sme2_assets_tests.warehouse.test_continued import contents
from sme2_assets_tests.warehouse.test_publish import write_nothing
from sme2_assets_tests.warehouse.test_rebuild import quiet, write_pair

SESSIONS = [MadeRun(rounds=1, iterations=1, session_id=f"2026010{n}T000000-aaaaaa") for n in (1, 2, 3)]
RUNS = [replace(run, sme2=sme2).run_id for run in SESSIONS for sme2 in ("off", "on")]


@pytest.fixture(autouse=True)
def groups_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sme2_assets.warehouse.merge.SMALL_GROUP_RUNS", 2)


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


def assert_only_current_files_stay(warehouse: Warehouse) -> None:
    for _ in range(SNAPSHOTS_KEPT):
        write_nothing(warehouse)
        warehouse.publish()
    there = {str(path.relative_to(warehouse.tables)) for path in warehouse.tables.rglob("*.parquet")}
    assert there == {file.path for file in files_now(warehouse.tables)}


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


def test_small_groups_are_merged_into_large_ones_which_are_left_alone(
    store: Store, warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
):
    before = contents(warehouse)
    merged(warehouse)
    monkeypatch.setattr("sme2_assets.warehouse.merge.LARGEST_GROUP_RUNS", 4)
    merged(warehouse)
    groups = {group: runs for group, runs in groups_now(warehouse.tables).items() if runs}
    assert sorted(map(len, groups.values())) == [2, 4]
    assert sorted(run for runs in groups.values() for run in runs) == sorted(RUNS)
    assert {file.group for file in files_now(warehouse.tables)} == {*groups, None}
    assert not merge_runs(warehouse), "one is large, and the other has none of its size beside it"
    assert_equal(contents(warehouse), before)
    take_session(store, warehouse, store.run_dir(RUNS[0]))
    warehouse.write_together([], [RUNS[2]])
    warehouse.publish()
    assert set(warehouse.query("FROM timeline")["run_id"]) == {*RUNS} - {RUNS[2]}
    assert sync(store, quiet).refused == []
    assert_only_current_files_stay(warehouse)
    shutil.rmtree(warehouse.snapshots)
    warehouse.publish()
    assert_equal(contents(warehouse), before)


def test_many_runs_at_once_are_merged_once(warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("sme2_assets.warehouse.merge.LARGEST_GROUP_RUNS", 4)
    merged(warehouse)
    assert sorted(map(len, groups_now(warehouse.tables).values())) == [2, 4]
    assert not merge_runs(warehouse)


def test_a_run_with_a_table_of_another_release_is_left_alone_and_the_others_are_merged(warehouse: Warehouse):
    first = RUNS[0]
    files = [file for file in files_now(warehouse.tables) if file.run_id == first]
    known = files[0]
    strange = replace(known, path=known.path.replace(known.table, "of_another_release", 1))
    (warehouse.tables / strange.path).parent.mkdir(parents=True)
    shutil.copyfile(warehouse.tables / known.path, warehouse.tables / strange.path)
    add_commit(warehouse.tables, [*files, strange], [first])
    warehouse.publish()
    merged(warehouse)
    in_groups = {run for runs in groups_now(warehouse.tables).values() for run in runs}
    assert first not in in_groups
    assert len(in_groups) == 4, "of five others, two by two"


def test_an_open_reader_keeps_its_files_and_then_they_go(warehouse: Warehouse):
    count = "SELECT count(*), sum(duration_ns)::BIGINT FROM timeline"
    with duckdb.connect(str(warehouse.link), read_only=True) as analyst:
        expected = analyst.execute(count).fetchall()
        merged(warehouse)
        for _ in range(SNAPSHOTS_KEPT - 2):
            write_nothing(warehouse)
            warehouse.publish()
            assert analyst.execute(count).fetchall() == expected
    assert_only_current_files_stay(warehouse)


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


def test_the_same_rows_again_have_files_of_their_own(store: Store, warehouse: Warehouse):
    """Those of before may be removed at any time once they are superseded."""
    before = {file.part: file for file in files_now(warehouse.tables) if file.run_id == RUNS[0]}
    take_session(store, warehouse, store.run_dir(RUNS[0]))
    again = {file.part: file for file in files_now(warehouse.tables) if file.run_id == RUNS[0]}
    [timeline] = [part for part, file in before.items() if file.table == "timeline"]
    assert again[timeline].sha256 == before[timeline].sha256
    assert {file.path for file in before.values()}.isdisjoint(file.path for file in again.values())


def test_a_merged_file_that_is_gone_costs_its_group_at_the_next_publication(
    store: Store, warehouse: Warehouse
):
    merged(warehouse)
    lost = next(file for file in files_now(warehouse.tables) if file.table == "timeline")
    (warehouse.tables / lost.path).unlink()
    write_pair(store, replace(SESSIONS[0], session_id="20260104T000000-aaaaaa"))
    ingest(warehouse, *(path for path in store.runs.iterdir() if path.name.startswith("20260104")))
    warehouse.publish()
    there = set(warehouse.query("FROM timeline")["run_id"])
    assert there == set(warehouse.query("FROM runs")["run_id"])
    assert {*RUNS} - there == {*groups_now(warehouse.tables)[lost.group or ""]}
    assert sync(store, quiet).refused == []
    assert {*RUNS} < set(warehouse.query("FROM timeline")["run_id"])


def test_a_merge_that_fails_costs_no_publication(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    def fail(warehouse: Warehouse) -> bool:
        raise WarehouseError("There is no memory left.")

    monkeypatch.setattr("sme2_assets.warehouse.store.MERGE_AT", 2)
    monkeypatch.setattr("sme2_assets.warehouse.store.merge_runs", fail)
    write_nothing(warehouse)
    assert warehouse.publish() == warehouse.link.resolve()
    assert "no memory left" in caplog.text


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


@pytest.mark.thorough
def test_a_run_that_changes_once_its_files_are_listed_keeps_its_change(
    store: Store, warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
):
    """Also if the change is published before its group is merged."""
    listed = merge_module._mergeable

    def listed_and_then_changed(warehouse: Warehouse) -> Any:
        there = listed(warehouse)
        warehouse.write_together([], [RUNS[0]])
        warehouse.publish()
        return there

    monkeypatch.setattr(merge_module, "_mergeable", listed_and_then_changed)
    merge_runs(warehouse)
    warehouse.publish()
    for table in ("runs", "timeline"):
        assert set(warehouse.query(f"FROM {table}")["run_id"]) == {*RUNS[1:]}
    assert_only_current_files_stay(warehouse)


@pytest.mark.thorough
def test_a_run_whose_files_go_while_it_is_merged_costs_its_group_and_no_error(
    store: Store, warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
):
    real = Warehouse.merged

    def merged_while_another_one_publishes(self: Warehouse, table: Table, *arguments: Any) -> TableFile:
        if table.name == "operators" and RUNS[0] in set(self.query("FROM runs")["run_id"]):
            self.write_together([], [RUNS[0]])
            for _ in range(SNAPSHOTS_KEPT + 1):
                write_nothing(self)
                self.publish()
        return real(self, table, *arguments)

    monkeypatch.setattr(Warehouse, "merged", merged_while_another_one_publishes)
    assert merge_runs(warehouse)
    warehouse.publish()
    assert set(warehouse.query("FROM runs")["run_id"]) == {*RUNS[1:]}
    assert len(groups_now(warehouse.tables)) == 2, "those of the other runs"


@pytest.mark.thorough
def test_nobody_else_merges_until_a_merge_is_published(warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch):
    """Another one would find the same runs, and merge them again."""
    real, may_others_merge = Warehouse._published_now, []

    def published_now(self: Warehouse) -> tuple[Path, int]:
        try:
            FileLock(warehouse.root / "merge.lock").acquire(timeout=0).lock.release()
            may_others_merge.append(True)
        except Timeout:
            may_others_merge.append(False)
        return real(self)

    monkeypatch.setattr("sme2_assets.warehouse.store.MERGE_AT", 2)
    monkeypatch.setattr(Warehouse, "_published_now", published_now)
    write_nothing(warehouse)
    warehouse.publish()
    assert groups_now(warehouse.tables)
    assert may_others_merge == [True, False]


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.thorough) for seed in (1, 2))])
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
