"""A published file continues the one before: it must hold what one made anew would hold."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import duckdb
import pandas as pd
import pytest

from sme2_assets.store import sha256_of_file
from sme2_assets.warehouse import Warehouse
from sme2_assets.warehouse.ingest import RUN_TABLES, keys_of, rows_of_run, write_runs
from sme2_assets.warehouse.merge import merge_runs
from sme2_assets.warehouse.schema import TABLES
from sme2_assets.warehouse.summaries import summary_tables
from sme2_assets_tests.made.run_folder import MadeRun, ingest
from sme2_assets_tests.warehouse.newest import compare_newest
from sme2_assets_tests.warehouse.test_publish import RELATIONS

STEPS = 14


@pytest.fixture(autouse=True)
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sme2_assets.warehouse.merge.SMALL_GROUP_RUNS", 2)
    monkeypatch.setattr("sme2_assets.warehouse.merge.LARGEST_GROUP_RUNS", 4)


def run_of(number: int, sme2: str = "off", **other: object) -> MadeRun:
    made = MadeRun(
        session_id=f"20260101T0000{number:02d}-aaaaaa", sme2=sme2, rounds=1, warmup=0, iterations=2
    )
    return replace(made, **other)  # type: ignore[arg-type]


def contents(warehouse: Warehouse) -> dict[str, pd.DataFrame]:
    """Every row of every table and view, in one order."""
    return {name: warehouse.query(f"SELECT * FROM {name} ORDER BY ALL") for name in sorted(RELATIONS)}


def files_of(warehouse: Warehouse, run: MadeRun) -> list[Path]:
    return sorted(warehouse.tables.rglob(f"run_id={run.run_id}/*.parquet"))


class Walk:
    """Things that happen to a warehouse between two publications, in any order."""

    def __init__(self, warehouse: Warehouse, folder: Path, chance: random.Random) -> None:
        self.warehouse, self.folder, self.chance = warehouse, folder, chance
        self.steps = 0

    def written(self, run: MadeRun) -> Path:
        self.steps += 1
        return run.write(self.folder / str(self.steps))

    def some_run(self) -> MadeRun:
        return run_of(self.chance.randrange(4), self.chance.choice(("off", "on")))

    def measure(self) -> None:
        """A pair; the second time over its own files, with other times."""
        number, speedup = self.chance.randrange(4), self.chance.uniform(0.5, 4)
        for sme2 in ("off", "on"):
            ingest(self.warehouse, self.written(run_of(number, sme2, matrix_speedup=speedup)))

    def measure_without_samples(self) -> None:
        run = replace(self.some_run(), sampled=False)
        ingest(self.warehouse, self.written(run))

    def measure_with_few_samples(self) -> None:
        rows = rows_of_run(self.written(self.some_run()))
        write_runs(self.warehouse, replace(rows, kernel_samples=rows.kernel_samples.head(3)))

    def merge(self) -> None:
        """Whatever is published, two runs at a time."""
        self.warehouse.publish()
        merge_runs(self.warehouse)

    def compare(self) -> None:
        self.warehouse.publish()
        runs = self.warehouse.query(
            "SELECT session_id FROM latest_runs WHERE variant = 'toy_cnn-fp32' "
            "GROUP BY ALL HAVING count(DISTINCT sme2) = 2"
        )
        if not runs.empty:
            compare_newest(self.warehouse, "toy_cnn-fp32", "linux")

    def remove_a_run(self) -> None:
        self.warehouse.write_together([], [self.some_run().run_id])

    def damage_a_file_that_is_not_published_yet(self) -> None:
        run = replace(self.some_run(), seed=self.chance.randrange(99))
        ingest(self.warehouse, self.written(run))
        newest = max(files_of(self.warehouse, run), key=lambda path: path.stat().st_mtime_ns)
        newest.write_bytes(newest.read_bytes()[:-1])

    def store_as_something_else(self) -> None:
        rows = rows_of_run(self.written(self.some_run()))
        keys = {**keys_of(rows.manifest), "variant": "other-fp32"}
        parts = [(table, getattr(rows, table.name), keys) for table in RUN_TABLES]
        self.warehouse.write_together(parts, [rows.manifest.run_id])

    def publish(self) -> None:
        self.warehouse.publish()

    def step(self) -> None:
        actions: list[Callable[[], None]] = [
            *(self.measure, self.measure, self.publish, self.publish, self.compare),
            *(self.measure_without_samples, self.measure_with_few_samples, self.remove_a_run),
            *(self.merge, self.merge),
            *(self.store_as_something_else, self.damage_a_file_that_is_not_published_yet),
        ]
        self.chance.choice(actions)()


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.thorough) for seed in (1, 2, 3))])
def test_whatever_happens_in_between_it_holds_what_one_made_anew_holds(
    warehouse: Warehouse, tmp_path: Path, seed: int
):
    walk = Walk(warehouse, tmp_path / "runs", random.Random(seed))
    walk.measure()
    warehouse.publish()
    for _ in range(STEPS):
        walk.step()
    warehouse.publish()
    continued = contents(warehouse)
    shutil.rmtree(warehouse.snapshots)
    warehouse.publish()
    for name, rows in contents(warehouse).items():
        pd.testing.assert_frame_equal(continued[name], rows, obj=f"{name} (seed {seed})")
    assert not continued["timeline"].empty


def test_what_was_published_is_not_read_again(warehouse: Warehouse, tmp_path: Path):
    """Neither its rows nor its events, although queries for events still need their files."""
    first, second = run_of(1), run_of(2)
    ingest(warehouse, first.write(tmp_path))
    warehouse.publish()
    question = "FROM operator_summary WHERE run_id = ? ORDER BY backend, delegate, position"
    expected = warehouse.query(question, [first.run_id])
    in_parquet = {table.name for table in (*TABLES, *summary_tables()) if table.published_as_view}
    for path in files_of(warehouse, first):
        # Of those that are behind a view, one file is opened to learn the columns.
        if path.relative_to(warehouse.tables).parts[0] not in in_parquet:
            path.write_bytes(b"x" * path.stat().st_size)
    ingest(warehouse, replace(second, sampled=False).write(tmp_path))
    warehouse.publish()
    assert set(warehouse.query("FROM runs")["run_id"]) == {first.run_id, second.run_id}
    again = warehouse.query(question, [first.run_id])
    pd.testing.assert_frame_equal(again, expected)


@pytest.mark.parametrize("damage", [pytest.param(b"", marks=pytest.mark.thorough), b"no database", None])
def test_a_file_that_cannot_be_continued_is_made_anew(
    warehouse: Warehouse, tmp_path: Path, damage: bytes | None
):
    ingest(warehouse, run_of(1).write(tmp_path))
    published = warehouse.publish()
    before = contents(warehouse)
    if damage is None:
        # A file of another version, in which nothing tells what it was made of.
        with duckdb.connect(str(tmp_path / "other.duckdb")) as other:
            other.execute("CREATE TABLE runs (run_id INTEGER)")
        (tmp_path / "other.duckdb").replace(published)
    else:
        published.write_bytes(damage)
    warehouse.publish()
    for name, rows in contents(warehouse).items():
        pd.testing.assert_frame_equal(before[name], rows, obj=name)


def test_a_file_of_a_release_that_copied_a_summary_is_made_anew(
    warehouse: Warehouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    first, second = run_of(1), run_of(2)
    ingest(warehouse, first.write(tmp_path))
    with monkeypatch.context() as older:
        for module in ("publish", "summaries"):
            older.setattr(f"sme2_assets.warehouse.{module}.IN_PARQUET", set())
        try:
            summary_tables.cache_clear()
            warehouse.publish()
        finally:
            summary_tables.cache_clear()
    ingest(warehouse, second.write(tmp_path))
    warehouse.publish()
    for table in ("category_rounds", "operator_details"):
        runs = set(warehouse.query(f"SELECT run_id FROM {table}")["run_id"])
        assert runs == {first.run_id, second.run_id}, table


def test_a_state_lists_the_files_it_is_made_of_by_path_and_content(warehouse: Warehouse, tmp_path: Path):
    run = run_of(1)
    ingest(warehouse, run.write(tmp_path))
    warehouse.publish()
    listed = warehouse.query("SELECT path, sha256 FROM publishing.files")
    assert dict(listed.to_numpy().tolist()) == {
        str(path.relative_to(warehouse.tables)): sha256_of_file(path) for path in files_of(warehouse, run)
    }


def test_a_moved_data_folder_is_whole_after_the_next_publication(warehouse: Warehouse, tmp_path: Path):
    ingest(warehouse, run_of(1).write(tmp_path / "runs"))
    warehouse.publish()
    before = contents(warehouse)
    moved = tmp_path / "moved" / "data"
    shutil.copytree(warehouse.root, moved / "warehouse")
    shutil.rmtree(warehouse.root)
    elsewhere = Warehouse(moved / "warehouse")
    elsewhere.publish()
    for name, rows in contents(elsewhere).items():
        pd.testing.assert_frame_equal(before[name], rows, obj=name)
