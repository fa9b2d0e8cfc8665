"""What others do while tables are replaced, and what a rebuild that was killed leaves: nothing is lost."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from sme2_assets.cli import main
from sme2_assets.evidence.foreign import Facts
from sme2_assets.exchange.ingest import ingest_paths
from sme2_assets.store import Store
from sme2_assets.warehouse import Warehouse
from sme2_assets.warehouse.check import check_store
from sme2_assets.warehouse.rebuild import Derived, Difference, differences, rebuild, sync
from sme2_assets_tests.made.run_folder import MadeRun

OFF = MadeRun(rounds=1, iterations=2)
PATIENCE_S = 600


def quiet(message: str) -> None:
    """Progress that nobody watches."""


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    store = Store(tmp_path_factory.mktemp("measured") / "data")
    for run in (OFF, replace(OFF, sme2="on")):
        run.write(store.runs)
    assert sync(store, quiet).refused == []
    return store.root


@pytest.fixture
def store(measured: Path, tmp_path: Path) -> Store:
    return Store(Path(shutil.copytree(measured, tmp_path / "data", symlinks=True)))


@pytest.fixture
def trace(store: Store, tmp_path: Path) -> Path:
    kept = store.run_dir(OFF.run_id) / "round_00" / "etdump" / "trace.etdump"
    return Path(shutil.copyfile(kept, tmp_path / "given.etdump"))


def findings(store: Store) -> list[str]:
    return [f"{each.what} {each.remedy}" for each in check_store(store, quiet)]


def in_tables(store: Store) -> set[str]:
    return {*Warehouse(store.warehouse).query("SELECT run_id FROM runs")["run_id"]}


def paused(
    real: Callable[..., Any], *, before: bool, reached: threading.Event, go_on: threading.Event
) -> Any:
    """A step of a writer that waits; not that of the rebuild, which writes elsewhere."""

    def call(self: Warehouse, *arguments: Any) -> Any:
        made = None if before else real(self, *arguments)
        if self.root.parent.name != "rebuild":
            reached.set()
            assert go_on.wait(PATIENCE_S)
        return real(self, *arguments) if before else made

    return call


@pytest.mark.parametrize("before", [True, pytest.param(False, marks=pytest.mark.thorough)])
def test_a_trace_that_is_stored_while_tables_are_replaced_is_in_the_new_ones(
    store: Store, trace: Path, monkeypatch: pytest.MonkeyPatch, before: bool
):
    reached, go_on = threading.Event(), threading.Event()
    step = paused(Warehouse.summaries, before=before, reached=reached, go_on=go_on)
    monkeypatch.setattr(Warehouse, "summaries", step)

    with ThreadPoolExecutor() as others:
        ingesting = others.submit(ingest_paths, store, [trace], Facts())
        assert reached.wait(PATIENCE_S)
        done = rebuild(store, quiet)
        go_on.set()
        [added] = ingesting.result(PATIENCE_S).traces
    assert done.refused == []
    assert added.run_id in in_tables(store)
    assert findings(store) == []
    assert differences(store, quiet)[0] == []


def test_a_run_that_is_stored_again_during_a_rebuild_has_its_newest_rows(store: Store, trace: Path):
    ingest_paths(store, [trace], Facts(model="wrong"))

    def ingest_again(message: str) -> None:
        if message.startswith("comparing"):
            ingest_paths(store, [trace], Facts(model="right"))

    done = rebuild(store, ingest_again)
    models = {*Warehouse(store.warehouse).query("SELECT model FROM runs")["model"]}
    assert "right" in models
    assert "wrong" not in models
    assert len(done.taken) == len({*done.taken}) == 3
    assert findings(store) == []


@pytest.mark.thorough
def test_a_second_rebuild_waits_for_the_first_and_says_so(store: Store):
    second_waits = threading.Event()

    def watch_second(message: str) -> None:
        if message == "waiting for another rebuild":
            second_waits.set()

    with ThreadPoolExecutor() as others:
        started = []

        def start_second(message: str) -> None:
            if not started:
                started.append(others.submit(rebuild, store, watch_second))
                assert second_waits.wait(PATIENCE_S)

        assert rebuild(store, start_second).refused == []
        assert started[0].result(PATIENCE_S).refused == []
    assert in_tables(store) == {path.name for path in store.runs.iterdir() if path.is_dir()}
    assert findings(store) == []


@pytest.mark.thorough
def test_a_run_that_is_removed_during_a_rebuild_is_not_refused(store: Store):
    gone = replace(OFF, session_id="20260104T000000-ffffff")
    for run in (gone, replace(gone, sme2="on")):
        run.write(store.runs)

    def remove(message: str) -> None:
        for path in store.runs.glob(f"{gone.session_id}*"):
            shutil.rmtree(path)

    assert rebuild(store, remove).refused == []
    assert findings(store) == []


def commits(store: Store) -> list[Path]:
    return sorted((store.warehouse / "tables" / "commits").iterdir())


@pytest.mark.parametrize("which", ["first", pytest.param("middle", marks=pytest.mark.thorough), "last"])
def test_a_commit_that_is_missing_is_found(store: Store, trace: Path, which: str):
    ingest_paths(store, [trace], Facts())
    path = commits(store)[{"first": 0, "middle": 1, "last": -1}[which]]
    assert len(commits(store)) > 2
    path.unlink()
    told = findings(store)
    assert told[0] == f"{path} is missing. Run `sme2 warehouse rebuild`: it makes all tables again."
    assert rebuild(store, quiet).refused == []
    assert findings(store) == []


@pytest.mark.thorough
def test_a_commit_that_does_not_belong_to_the_others_is_found(store: Store):
    first = commits(store)[0]
    other = Store(store.root.parent / "other")
    run = replace(OFF, session_id="20260104T000000-ffffff")
    for arm in (run, replace(run, sme2="on")):
        arm.write(other.runs)
    sync(other, quiet)
    foreign = Path(shutil.copy(commits(other)[0], first.parent))
    told = [each for each in findings(store) if "does not follow" in each]
    assert len(told) >= 1
    assert all("sme2 warehouse rebuild" in each for each in told)
    assert any(foreign.name in each or first.name in each for each in told)
    assert rebuild(store, quiet).refused == []
    assert findings(store) == []


@pytest.mark.parametrize(
    "name", ["tables/commits/zz.json", "tables/commits/1-copy.json", "snapshots/warehouse-copy.duckdb"]
)
def test_a_file_that_is_not_ours_is_named_and_stops_nothing(store: Store, trace: Path, name: str):
    path = store.warehouse / name
    path.write_text("{}")
    told = CliRunner().invoke(main, ["--data", str(store.root), "ingest", str(trace)])
    assert told.exit_code == 0, told.output
    assert len(in_tables(store)) == 3
    assert findings(store) == [
        f"{path} is not a file of the warehouse. Move it elsewhere: nothing reads it here."
    ]
    path.unlink()
    assert findings(store) == []


@pytest.mark.parametrize("kind", ["folder", "dangling link", "damaged"])
@pytest.mark.parametrize("word", ["sync", pytest.param("rebuild", marks=pytest.mark.thorough)])
def test_the_newest_published_file_is_replaced_if_it_is_damaged(store: Store, kind: str, word: str):
    before = in_tables(store)
    path = Warehouse(store.warehouse).published()[-1]
    content = path.read_bytes()
    path.unlink()
    if kind == "folder":
        path.mkdir()
    elif kind == "dangling link":
        path.symlink_to("nowhere.duckdb")
    else:
        path.write_bytes(content[:-100] + os.urandom(100))
    [told] = findings(store)
    said = {
        "folder": "is a folder, and not a file.",
        "dangling link": "is a link to a file that is not there.",
        "damaged": "is damaged: its content is not what was written.",
    }[kind]
    assert told == f"{path} {said} Run `sme2 warehouse sync`: it publishes the tables again."
    done = CliRunner().invoke(main, ["--data", str(store.root), "warehouse", word])
    assert done.exit_code == 0, done.output
    assert findings(store) == []
    assert in_tables(store) == before


@pytest.mark.thorough
def test_a_folder_in_place_of_an_old_published_file_is_named_and_later_removed(store: Store, trace: Path):
    path = Warehouse(store.warehouse).published()[0]
    path.unlink()
    path.mkdir()
    [told] = findings(store)
    assert told.startswith(f"{path} is a folder, and not a file. Remove it")
    for number in range(5):
        ingest_paths(store, [trace], Facts(model=f"other{number}"))
    assert findings(store) == []


@pytest.mark.thorough
def test_of_two_checks_of_the_rows_at_once_one_waits_for_the_other(store: Store):
    waits, told = threading.Event(), []

    def second_says(message: str) -> None:
        told.append(message)
        waits.set()

    with ThreadPoolExecutor() as pool:
        second: list[Future[tuple[list[Difference], Derived]]] = []

        def first_says(message: str) -> None:
            if not second:
                second.append(pool.submit(differences, store, second_says))
                assert waits.wait(PATIENCE_S)

        assert differences(store, first_says)[0] == []
        assert second[0].result()[0] == []
    assert told[0] == "waiting for another check of the rows"
