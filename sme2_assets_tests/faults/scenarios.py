"""What is done to a data folder while one call after the other fails, and what must be true afterwards.

    LD_PRELOAD=calls.so python -m sme2_assets_tests.faults.scenarios FOLDER SCENARIO KIND [SOME]

Each call by which a process changes files in the data folder (calls.c has the list: writes, renames, links,
syncs, new files and folders, removals) fails once: with an I/O error, because the disk is full from then on,
or because the process is killed in its place. Whatever was there before stays; nothing is half there; and
the same thing done again succeeds, and gives what it would have given at once. With SOME, only so many calls
fail, spread over all of them.

A fork does each: starting Python takes longer than all that it does.
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import shutil
import signal
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import dagster as dg

from sme2_assets.errors import Sme2Error, told
from sme2_assets.evidence.manifest import MANIFEST_FILE
from sme2_assets.evidence.sequence import next_number
from sme2_assets.evidence.shared import VARIABLE, SharedStore
from sme2_assets.store import Store, new_directories, write_text_atomically
from sme2_assets.warehouse import ingest as ingest_module
from sme2_assets.warehouse import merge as merge_module
from sme2_assets.warehouse import store as store_module
from sme2_assets.warehouse.check import check_store
from sme2_assets.warehouse.comparisons import compare_session
from sme2_assets.warehouse.publish import _fingerprint, _without_rows
from sme2_assets.warehouse.rebuild import rebuild, sync
from sme2_assets.warehouse.retention import Wanted, collect
from sme2_assets.warehouse.schema import TABLES
from sme2_assets.warehouse.sessions import take_session
from sme2_assets.warehouse.shared import catch_up
from sme2_assets.warehouse.store import Warehouse
from sme2_assets.warehouse.summaries import summary_tables
from sme2_assets_tests.made.run_folder import MadeRun

KINDS = {"broken": 1, "full": 2, "killed": 3}
# What is stored of a run: the other tables are written the same way.
FEW_TABLES = ("runs", "timeline", "category_times")
HALF = """
    SELECT session_id FROM runs GROUP BY session_id HAVING count(*) <> any_value(if(paired, 2, 1))
    UNION ALL
    SELECT session_id FROM runs WHERE run_id NOT IN (SELECT run_id FROM timeline)
        OR run_id NOT IN (SELECT run_id FROM category_times)
"""
_CALLS = ctypes.CDLL(None)


def quiet(_: str) -> None:
    """Progress that nobody watches."""


def session(number: int) -> MadeRun:
    """Alone, unless it is the second one, which is a pair."""
    return MadeRun(
        session_id=f"20260101T{number:06d}-aaaaaa",
        sequence=number,
        rounds=1,
        iterations=1,
        sampled=False,
        paired=number == 2,
    )


def sessions(numbers: Iterable[int]) -> set[str]:
    return {session(number).session_id for number in numbers}


def arms_of(off: MadeRun) -> list[MadeRun]:
    return [off, replace(off, sme2="on")] if off.paired else [off]


def write_session(runs: Path, number: int) -> MadeRun:
    off = session(number)
    for run in arms_of(off):
        run.write(runs)
    return off


class Scenario:
    """Something that is done to a data folder."""

    # The sessions that are in the tables before it, and after it.
    BEFORE: ClassVar[tuple[int, ...]] = (1,)
    AFTER: ClassVar[tuple[int, ...]] = (1, 2)
    # So many failures one after the other, and then what follows is looked at to the end.
    AT_ONCE = 20

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = Store(folder / "data")
        self.warehouse = Warehouse(self.store.warehouse)

    def prepare(self) -> None:
        """What is there before."""
        for number in self.BEFORE:
            write_session(self.store.runs, number)
        assert sync(self.store, quiet).refused == []

    def act(self) -> None:
        raise NotImplementedError

    def again(self) -> None:
        """What comes next, as a person or Dagster does it."""
        self.act()

    def after(self) -> set[str]:
        """The sessions that are to be in the tables in the end."""
        return sessions(self.AFTER)


class Save(Scenario):
    """A session's evidence is written as `measure_session` writes it."""

    AFTER = (1, 2, 3)
    # Each session is measured once.
    AT_ONCE = 1

    def prepare(self) -> None:
        super().prepare()
        for number in (2, 3, 4):
            write_session(self.folder / "made", number)

    def act(self) -> None:
        self._save(2)

    def again(self) -> None:
        # Whoever measures again has another session; the next command takes in what was finished.
        self._save(4 if self._is_whole(3) else 3)
        assert [each.what for each in sync(self.store, quiet).refused] == []

    def after(self) -> set[str]:
        return sessions((1, *(number for number in (2, 3, 4) if self._is_whole(number))))

    def _save(self, number: int) -> None:
        made, arms = self.folder / "made", arms_of(session(number))
        with new_directories([self.store.run_dir(arm.run_id) for arm in arms]) as stagings:
            for arm, staging in zip(arms, stagings, strict=True):
                shutil.copytree(
                    made / arm.run_id,
                    staging,
                    dirs_exist_ok=True,
                    ignore=shutil.ignore_patterns(MANIFEST_FILE),
                    copy_function=shutil.copyfile,
                )
            next_number(self.store.runs)
            for arm, staging in zip(arms, stagings, strict=True):
                text = (made / arm.run_id / MANIFEST_FILE).read_text()
                write_text_atomically(staging / MANIFEST_FILE, text)

    def _is_whole(self, number: int) -> bool:
        """Whether all arms have their manifests, under whichever names."""
        there = (path for path in self.store.runs.iterdir() if session(number).session_id in path.name)
        manifests = sum((path / MANIFEST_FILE).is_file() for path in there)
        return manifests == len(arms_of(session(number)))


class Publish(Scenario):
    """A measured session becomes rows, which are published, compared, and published again."""

    def prepare(self) -> None:
        super().prepare()
        write_session(self.store.runs, 2)

    def act(self) -> None:
        take_session(self.store, self.warehouse, self.store.run_dir(session(2).run_id))
        self.warehouse.publish()
        compare_session(self.warehouse, session(2).session_id)
        self.warehouse.publish()


class Merge(Scenario):
    """Old runs get files together, and all is published; then one of them is stored again."""

    BEFORE = AFTER = (1, 3)

    def act(self) -> None:
        merge_module.merge_runs(self.warehouse)
        self.warehouse.publish()

    def again(self) -> None:
        self.act()
        take_session(self.store, self.warehouse, self.store.run_dir(session(3).run_id))
        self.warehouse.publish()


class TakeOut(Scenario):
    """A session whose rows are in files together with others' is stored again."""

    BEFORE = AFTER = (1, 3)

    def prepare(self) -> None:
        super().prepare()
        assert merge_module.merge_runs(self.warehouse)
        self.warehouse.publish()

    def act(self) -> None:
        take_session(self.store, self.warehouse, self.store.run_dir(session(1).run_id))
        self.warehouse.publish()


class Rebuild(Scenario):
    """All tables are made again, with a session that is in none of them yet."""

    AFTER = (1, 3)

    def prepare(self) -> None:
        super().prepare()
        write_session(self.store.runs, 3)

    def act(self) -> None:
        for each in rebuild(self.store, quiet).refused:
            raise each.error


class Remove(Scenario):
    """Evidence is removed, and the tables are made again from what is left."""

    BEFORE, AFTER = (1, 2), (1,)

    def act(self) -> None:
        self._remove(session(2))

    def _remove(self, run: MadeRun) -> None:
        wanted = Wanted(run_ids=[run.run_id])
        found = collect(self.store, dg.DagsterInstance.ephemeral, wanted, quiet, quiet, go=True)
        for each in found.refused:
            raise each.error

    def again(self) -> None:
        if left := [run for run in arms_of(session(2)) if self.store.run_dir(run.run_id).is_dir()]:
            self._remove(left[0])
        else:
            assert rebuild(self.store, quiet).refused == []


class Give(Scenario):
    """A session is given to the store that several machines share, and somebody else fetches it."""

    BEFORE, AFTER = (), (2,)

    def prepare(self) -> None:
        write_session(self.store.runs, 2)

    def act(self) -> None:
        self._shared().push(self.store.runs, quiet)

    def again(self) -> None:
        self.act()
        other = Store(self.folder / "other")
        shutil.rmtree(other.root, ignore_errors=True)
        assert catch_up(other, quiet).refused == {}
        assert len(list(other.runs.iterdir())) == 2
        assert self._shared()._end() in (2, 3), "at most the same session twice"
        assert sync(self.store, quiet).refused == []

    def _shared(self) -> SharedStore:
        shared = SharedStore.of(self.store)
        assert shared is not None
        return shared


class Fetch(Give):
    """A session of another machine is fetched, and becomes rows."""

    BEFORE, AFTER = (1,), (1, 2)

    def prepare(self) -> None:
        Scenario.prepare(self)
        other = Store(self.folder / "other")
        write_session(other.runs, 2)
        shared = SharedStore.of(other)
        assert shared is not None
        shared.push(other.runs, quiet)

    def act(self) -> None:
        for error in catch_up(self.store, quiet).refused.values():
            raise error

    def again(self) -> None:
        self.act()
        assert sync(self.store, quiet).refused == []


SCENARIOS = {
    each.__name__.lower(): each for each in (Save, Publish, Merge, TakeOut, Rebuild, Remove, Give, Fetch)
}


def seen(scenario: Scenario) -> set[str]:
    """The sessions that people see, all of them whole."""
    warehouse = Warehouse(scenario.store.warehouse)
    half = set(warehouse.query(HALF)["session_id"])
    assert not half, f"half a session is seen: {half}"
    return set(warehouse.query("SELECT session_id FROM runs")["session_id"])


def digest(scenario: Scenario) -> dict[str, str]:
    """What is in each table, whatever files it is in."""
    tables = [table.name for table in (*TABLES, *summary_tables())]
    rows = (f"SELECT '{name}', count(*) || ' ' || bit_xor(hash(t)) FROM {name} AS t" for name in tables)
    with Warehouse(scenario.store.warehouse).connect() as connection:
        return dict(connection.execute(" UNION ALL ".join(rows)).fetchall())


def state(scenario: Scenario) -> list[str]:
    """What names finished things; where it is as before, the same is done again, past what failures left."""
    data, shared = scenario.store.root, scenario.folder / "shared"
    named = [data / "runs", data / "warehouse" / "tables" / "commits", shared / "sessions", data / "current"]
    paths = [path for folder in named if folder.is_dir() for path in folder.iterdir()]
    visible = sorted(str(path) for path in paths if not path.name.startswith("."))
    return [*visible, str(scenario.warehouse.link.resolve())]


def look(scenario: Scenario) -> list[str]:
    """What is there now, of which nothing is half, and nothing is lost."""
    lost = sessions({*scenario.BEFORE} & {*scenario.AFTER}) - seen(scenario)
    assert not lost, f"lost: {lost}"
    return state(scenario)


def finish(scenario: Scenario, expected: dict[str, str] | None = None) -> dict[str, str]:
    """Goes on as people do, and looks at the end."""
    scenario.again()
    assert seen(scenario) == scenario.after(), f"in the end there are {seen(scenario)}"
    findings = [f"{each.what} {each.remedy}" for each in check_store(scenario.store, quiet)]
    assert not findings, f"findings: {findings}"
    found = digest(scenario)
    if expected is not None and scenario.after() == sessions(scenario.AFTER):
        different = {name: (found[name], expected[name]) for name in found if found[name] != expected[name]}
        assert not different, f"other rows: {different}"
    return found


def forked(work: Callable[[], Any]) -> Any:
    """What `work` gives in a process of its own; None where that was killed."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        try:
            answer = {"gives": work()}
        except BaseException as error:
            answer = {"error": "".join(traceback.format_exception(error))}
        os.write(writing, json.dumps(answer).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        return None
    answer = json.loads(text)
    if "error" in answer:
        raise AssertionError(answer["error"])
    return answer["gives"]


@contextmanager
def planned(folder: Path, kind: str, number: int) -> Iterator[Callable[[], tuple[int, str]]]:
    """The n-th call below the folder fails; gives how many there were, and which one failed."""

    def failed() -> tuple[int, str]:
        what = ctypes.create_string_buffer(5000)
        return _CALLS.planned(what, ctypes.c_size_t(len(what))), what.value.decode()

    _CALLS.planned.restype = ctypes.c_long
    _CALLS.plan(str(folder).encode(), KINDS[kind], ctypes.c_long(number))
    try:
        yield failed
    finally:
        _CALLS.plan(b"", 0, ctypes.c_long(0))


class Faults:
    """A scenario, over and over, with another call failing each time."""

    def __init__(self, scenario: Scenario, kind: str) -> None:
        self.scenario, self.kind = scenario, kind
        self._kept = scenario.folder.with_name("kept")
        scenario.folder.mkdir()
        forked(scenario.prepare)
        shutil.copytree(scenario.folder, self._kept, symlinks=True)
        self.calls, self._before, self._expected = forked(self._without_failure)

    def _without_failure(self) -> tuple[int, list[str], dict[str, str]]:
        before = look(self.scenario)
        with planned(self.scenario.folder, self.kind, 0) as failed:
            self.scenario.act()
            calls, _ = failed()
        return calls, before, finish(self.scenario)

    def problems(self, numbers: Sequence[int]) -> Iterator[str]:
        """What is wrong after the calls of these numbers failed, each in its turn."""
        at_once = self.scenario.AT_ONCE
        for some in (numbers[first : first + at_once] for first in range(0, len(numbers), at_once)):
            waiting = list(some)
            while waiting:
                self._restore()
                try:
                    ended = (
                        self._killed(waiting)
                        if self.kind == "killed"
                        else forked(partial(self._failed, waiting))
                    )
                    # Here, and not before: somebody else goes on than the process in which it failed.
                    forked(lambda: finish(self.scenario, self._expected))
                except AssertionError as error:
                    ended = self._last_number()
                    yield f"{self.kind} {ended} of {self.calls}: {error}"
                waiting = [number for number in waiting if number > ended]

    def _restore(self) -> None:
        shutil.rmtree(self.scenario.folder)
        shutil.copytree(self._kept, self.scenario.folder, symlinks=True)

    def _failed(self, numbers: Sequence[int]) -> int:
        """In one process, which goes on. Gives the first number after which there is something else than
        before, or the last one."""
        for number in numbers:
            self._note(number)
            with planned(self.scenario.folder, self.kind, number):
                try:
                    self.scenario.act()
                except Exception as error:
                    if not _is_told(error):
                        raise
            if look(self.scenario) != self._before:
                break
        finish(self.scenario, self._expected)
        return number

    def _killed(self, numbers: Sequence[int]) -> int:
        for number in numbers:
            self._note(number)

            def act(number: int = number) -> bool:
                with planned(self.scenario.folder, self.kind, number):
                    self.scenario.act()
                return True

            forked(act)
            if forked(lambda: look(self.scenario)) != self._before:
                break
        return number

    def _note(self, number: int) -> None:
        self._kept.with_name("number").write_text(str(number))

    def _last_number(self) -> int:
        return int(self._kept.with_name("number").read_text())


def _is_told(error: BaseException) -> bool:
    """Whether it ends in a sentence, as the command line and Dagster's steps end what fails."""
    return isinstance(error, Sme2Error) or told(error) is not None


def main(folder: Path, name: str, kind: str, some: int = 0) -> Iterator[str]:
    """What is wrong; then how many calls there are."""
    # One thread of each kind, so that the n-th call is the same one each time.
    os.sched_setaffinity(0, {random.choice(sorted(os.sched_getaffinity(0)))})
    store_module.WRITERS = 1
    merge_module.SMALL_GROUP_RUNS = 2
    _store_few_tables()
    os.environ[VARIABLE] = f"file://{folder}/all/shared" if name in ("give", "fetch") else ""
    # Made once, and not in each fork.
    summary_tables()
    _without_rows(_fingerprint())
    faults = Faults(SCENARIOS[name](folder / "all"), kind)
    numbers = range(1, faults.calls + 1)
    yield from faults.problems(numbers[:: max(1, len(numbers) // some)] if some else numbers)
    yield f"{faults.calls} calls"


def _store_few_tables() -> None:
    """Each table is written like any other, and each of its calls fails: a few of them show it."""
    real = store_module.made

    @contextmanager
    def made(*arguments: Any) -> Iterator[tuple[str, Iterator[str]]]:
        with real(*arguments) as (schema, names):
            yield schema, (name for name in names if name in FEW_TABLES)

    store_module.made = made
    ingest_module.RUN_TABLES = tuple(table for table in ingest_module.RUN_TABLES if table.name in FEW_TABLES)
    merged = [table for table in merge_module._tables() if table.name in FEW_TABLES]
    merge_module._tables = lambda: merged


if __name__ == "__main__":
    arguments = sys.argv[1:]
    for line in main(Path(arguments[0]), *arguments[1:3], *map(int, arguments[3:])):
        print(line, flush=True)
