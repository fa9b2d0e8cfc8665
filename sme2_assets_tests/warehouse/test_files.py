"""A published state names its files: an open reader keeps it, a copy reads its own, damage is found."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
from dataclasses import replace
from pathlib import Path

import duckdb
import pytest
from click.testing import CliRunner

from sme2_assets.cli import main
from sme2_assets.evidence.foreign import Facts
from sme2_assets.exchange.ingest import ingest_paths
from sme2_assets.store import Store
from sme2_assets.warehouse import Warehouse
from sme2_assets.warehouse.check import check_store
from sme2_assets.warehouse.commits import files_now
from sme2_assets.warehouse.publish import SNAPSHOTS_KEPT
from sme2_assets.warehouse.rebuild import damaged_files, rebuild, runs_in_no_table, sync
from sme2_assets_tests.made.run_folder import MadeRun
from sme2_assets_tests.warehouse.test_rebuild import assert_all_is_as_the_evidence_says, quiet, write_pair

FIRST = MadeRun(rounds=1, iterations=1)
SECOND = replace(FIRST, session_id="20260102T000000-bbbbbb")
COUNT = "SELECT count(*), sum(duration_ns)::BIGINT FROM timeline"
FLIPS = 60


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    store = Store(tmp_path_factory.mktemp("measured") / "data")
    for off in (FIRST, SECOND):
        write_pair(store, off)
    assert sync(store, quiet).refused == []
    return store.root


@pytest.fixture
def store(measured: Path, tmp_path: Path) -> Store:
    return Store(Path(shutil.copytree(measured, tmp_path / "data", symlinks=True)))


def counted(store: Store) -> list[tuple]:
    with Warehouse(store.warehouse).connect() as connection:
        return connection.execute(COUNT).fetchall()


def findings(store: Store) -> list[str]:
    return [f"{each.what} {each.remedy}" for each in check_store(store, quiet)]


def test_an_open_reader_keeps_its_state_when_a_trace_is_ingested_again_under_another_name(
    store: Store, tmp_path: Path
):
    trace = store.run_dir(FIRST.run_id) / "round_00" / "etdump" / "trace.etdump"
    given = Path(shutil.copyfile(trace, tmp_path / "one.etdump"))
    ingest_paths(store, [given], Facts(model="one"))
    warehouse = Warehouse(store.warehouse)
    with duckdb.connect(str(warehouse.link), read_only=True) as analyst, warehouse.connect() as ours:
        before = analyst.execute(COUNT).fetchall()
        names = "SELECT DISTINCT variant FROM timeline ORDER BY 1"
        variants = analyst.execute(names).fetchall()
        # As often as states are kept.
        for number in range(SNAPSHOTS_KEPT - 1):
            ingest_paths(store, [given], Facts(model=f"other{number}"))
            for reader in (analyst, ours):
                assert reader.execute(COUNT).fetchall() == before
                assert reader.execute(names).fetchall() == variants
    assert counted(store) == before, "one trace is one run, whatever it is called"
    [name] = warehouse.query("SELECT variant FROM runs WHERE experiment = 'foreign'")["variant"]
    assert name == f"other{SNAPSHOTS_KEPT - 2}"


def test_files_that_no_kept_state_lists_are_removed_and_no_others(store: Store, tmp_path: Path):
    trace = store.run_dir(FIRST.run_id) / "round_00" / "etdump" / "trace.etdump"
    given = Path(shutil.copyfile(trace, tmp_path / "one.etdump"))
    warehouse = Warehouse(store.warehouse)
    for number in range(SNAPSHOTS_KEPT + 3):
        ingest_paths(store, [given], Facts(model=f"other{number % 4}"))
    listed: set[str] = set()
    for path in warehouse.published():
        with duckdb.connect(str(path), read_only=True) as connection:
            listed |= {row[0] for row in connection.execute("SELECT path FROM publishing.files").fetchall()}
    there = {str(path.relative_to(warehouse.tables)) for path in warehouse.tables.rglob("*.parquet")}
    assert there == listed


def test_a_copy_counts_its_own_rows_whatever_happens_to_the_original(store: Store, tmp_path: Path):
    copied = Store(Path(shutil.copytree(store.root, tmp_path / "copied", symlinks=True)))
    expected = counted(store)
    write_pair(store, replace(FIRST, session_id="20260103T000000-cccccc"))
    sync(store, quiet)
    assert counted(store) != expected
    assert counted(copied) == expected
    for path in (store.warehouse / "tables" / "timeline").rglob("*.parquet"):
        path.write_bytes(b"damaged")
    assert counted(copied) == expected
    shutil.rmtree(store.root)
    assert counted(copied) == expected
    with duckdb.connect(str(copied.warehouse.parent / "warehouse.duckdb"), read_only=True) as analyst:
        assert analyst.execute(COUNT).fetchall() == expected
    assert findings(copied) == []


def test_a_copy_that_nobody_published_again_says_so_instead_of_showing_the_original(
    store: Store, tmp_path: Path
):
    counted(store)
    copied = Path(shutil.copytree(store.root, tmp_path / "copied", symlinks=True))
    with (
        duckdb.connect(str(copied / "warehouse.duckdb"), read_only=True) as analyst,
        pytest.raises(duckdb.Error, match=r"copied or moved.*sme2 warehouse sync"),
    ):
        analyst.execute(COUNT).fetchall()
    told = CliRunner().invoke(main, ["--data", str(copied), "warehouse", "sync"])
    assert told.exit_code == 0, told.output
    with duckdb.connect(str(copied / "warehouse.duckdb"), read_only=True) as analyst:
        assert analyst.execute(COUNT).fetchall() == counted(store)


@pytest.mark.parametrize("words", [("sql", COUNT), ("explain", FIRST.variant), ("export", FIRST.run_id)])
def test_a_copy_that_cannot_be_written_says_so(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
):
    counted(store)
    copied = Path(shutil.copytree(store.root, tmp_path / "copied", symlinks=True))
    _make_read_only(monkeypatch)
    told = CliRunner().invoke(main, ["--data", str(copied), *words])
    assert told.exit_code == 1
    assert f"The data folder {copied} was moved or copied, and it cannot be written" in told.stderr
    assert "Make it writable" in told.stderr


@pytest.mark.parametrize("damage", ["overwritten", "half"])
def test_a_damaged_published_file_is_made_again_by_who_reads_it(store: Store, damage: str):
    warehouse = Warehouse(store.warehouse)
    before = counted(store)
    path = warehouse.link.resolve()
    path.write_bytes(
        b"nonsense" if damage == "overwritten" else path.read_bytes()[: path.stat().st_size // 2]
    )
    assert counted(store) == before
    assert warehouse.link.resolve() != path


def test_a_damaged_published_file_that_cannot_be_made_again_is_named(
    store: Store, monkeypatch: pytest.MonkeyPatch
):
    warehouse = Warehouse(store.warehouse)
    path = warehouse.link.resolve()
    path.write_bytes(b"nonsense")
    _make_read_only(monkeypatch)
    told = CliRunner().invoke(main, ["--data", str(store.root), "sql", COUNT])
    assert told.exit_code == 1
    assert f"The published file {path} cannot be read" in told.stderr
    assert "sme2 check" in told.stderr


def _make_read_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a read-only disk; the owner of these tests may be root, who may write everywhere."""

    def refuse(warehouse: Warehouse) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(warehouse.root))

    monkeypatch.setattr(Warehouse, "publish", refuse)


def test_a_folder_that_is_reached_through_a_link_is_not_taken_for_a_copy(store: Store, tmp_path: Path):
    (tmp_path / "link").symlink_to(store.root)
    linked = Store(tmp_path / "link")
    expected = counted(store)
    for each in (linked, store):
        assert counted(each) == expected
        with duckdb.connect(str(each.root / "warehouse.duckdb"), read_only=True) as analyst:
            assert analyst.execute(COUNT).fetchall() == expected


def test_the_rows_of_one_run_are_read_from_its_file_alone(store: Store):
    with Warehouse(store.warehouse).connect() as connection:
        [[_, plan]] = connection.execute(
            "EXPLAIN ANALYZE SELECT sum(duration_ns) FROM timeline WHERE run_id = ?", [FIRST.run_id]
        ).fetchall()
    assert "Total Files Read: 1" in plan or "Scanning Files: 1/4" in plan, plan


def flipped(path: Path, chance: random.Random) -> bytes:
    """Changes one bit of a file; gives what was there."""
    before = path.read_bytes()
    content = bytearray(before)
    content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    path.write_bytes(content)
    return before


def test_every_flipped_bit_of_a_table_is_found(store: Store):
    chance = random.Random(16)
    warehouse = Warehouse(store.warehouse)
    files = [warehouse.tables / file.path for file in files_now(warehouse.tables)]
    assert findings(store) == []
    for _ in range(FLIPS):
        path = chance.choice(files)
        before = flipped(path, chance)
        assert [warehouse.tables / each.path for each in damaged_files(warehouse, quiet)] == [path]
        path.write_bytes(before)
    assert findings(store) == []


# The odd ones remove a file, the others damage it.
@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.thorough) for seed in (2, 3))])
def test_a_damaged_table_costs_its_own_session_and_is_made_again_from_evidence(store: Store, seed: int):
    chance = random.Random(seed)
    warehouse = Warehouse(store.warehouse)
    before = counted(store)
    path = (
        warehouse.tables / chance.choice([each for each in files_now(warehouse.tables) if each.run_id]).path
    )
    if seed % 2:
        path.unlink()
    else:
        flipped(path, chance)
    told = CliRunner().invoke(main, ["--data", str(store.root), "check"])
    assert told.exit_code == 1
    assert str(path) in told.output.replace("\n", "")
    assert "sme2 warehouse sync" in told.output
    # Even where the published file is lost, too, all other sessions are there.
    shutil.rmtree(warehouse.snapshots)
    warehouse.publish()
    left = set(warehouse.query("SELECT DISTINCT session_id FROM runs")["session_id"])
    assert len(left) == 1
    assert len(runs_in_no_table(store)) == 2
    assert sync(store, quiet).refused == []
    assert counted(store) == before
    assert findings(store) == []
    assert_all_is_as_the_evidence_says(store)


@pytest.mark.parametrize("damage", ["overwritten", "missing"])
def test_a_damaged_table_stops_no_publication(store: Store, tmp_path: Path, damage: str):
    warehouse = Warehouse(store.warehouse)
    before = counted(store)
    trace = store.run_dir(FIRST.run_id) / "round_00" / "etdump" / "trace.etdump"
    given = Path(shutil.copyfile(trace, tmp_path / "one.etdump"))
    [path, *_] = sorted((warehouse.tables / "timeline").rglob("*.parquet"))
    path.write_bytes(b"nonsense") if damage == "overwritten" else path.unlink()
    [added] = ingest_paths(store, [given], Facts()).traces
    assert len(warehouse.query("FROM runs WHERE run_id = ?", [added.run_id])) == 1
    assert sync(store, quiet).refused == []
    shutil.rmtree(store.run_dir(added.run_id))
    rebuild(store, quiet)
    assert counted(store) == before


@pytest.mark.parametrize("part", ["manifest", "trace", "commit", "published", "comparison"])
def test_damage_anywhere_is_found_with_what_to_do(store: Store, part: str):
    warehouse = Warehouse(store.warehouse)
    before = counted(store)
    path = {
        "manifest": store.run_dir(FIRST.run_id) / "manifest.json",
        "trace": store.run_dir(FIRST.run_id) / "round_00" / "etdump" / "trace.etdump",
        "commit": next(iter(sorted((warehouse.tables / "commits").iterdir()))),
        "published": warehouse.link.resolve(),
        "comparison": next((warehouse.tables / "comparisons").rglob("*.parquet")),
    }[part]
    if part == "manifest":
        # A number that no other check could doubt.
        kept = path.read_bytes()
        path.write_text(path.read_text().replace('"load_before": 0.1', '"load_before": 0.3'))
    else:
        kept = flipped(path, random.Random(1))
    told = CliRunner().invoke(main, ["--data", str(store.root), "check", "--json"])
    assert told.exit_code == 1, told.output
    found = json.loads(told.stdout)
    assert len(found) >= 1
    assert all(each["remedy"] for each in found)
    if part in ("manifest", "trace"):
        assert FIRST.run_id in found[0]["what"]
        path.write_bytes(kept)
    else:
        word = "rebuild" if part == "commit" else "sync"
        assert f"sme2 warehouse {word}" in found[0]["remedy"]
        done = CliRunner().invoke(main, ["--data", str(store.root), "warehouse", word])
        assert done.exit_code == 0, done.output
    assert findings(store) == []
    assert counted(store) == before


def test_half_a_session_of_evidence_is_named_and_not_taken_in(store: Store):
    third = replace(FIRST, session_id="20260103T000000-cccccc")
    third.write(store.runs)
    [refused] = sync(store, quiet).refused
    assert "the folder of another one is missing" in refused.error.what
    assert any("the folder of another one is missing" in each for each in findings(store))
    assert Warehouse(store.warehouse).query("FROM runs WHERE run_id = ?", [third.run_id]).empty
