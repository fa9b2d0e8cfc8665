"""Makes tables from run folders again: those of all runs, of runs in no table, or of another lab's runs.

Run folders are the evidence, and every row can be made from them. So a rebuild applies a change in the code
that makes rows to all of history, and two labs are merged by copying folders. A folder that cannot be read
costs only itself: it is reported with a remedy, and all others are added.
"""

from __future__ import annotations

import shutil
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import duckdb

from sme2_assets.errors import EvidenceError, Sme2Error
from sme2_assets.evidence.blind import TRIAL_FILE, Trial, revealed, trial_folders, write_trial
from sme2_assets.evidence.folder import (
    RunFolder,
    finish_sessions,
    identity_of,
    run_folders,
)
from sme2_assets.store import Store, fsync, one_at_a_time
from sme2_assets.warehouse.advice import write_advice
from sme2_assets.warehouse.blind import write_blind_trials
from sme2_assets.warehouse.commits import (
    Commit,
    TableFile,
    begin_anew,
    files_now,
    forget_before,
    groups_now,
    last_commit,
    require_commits,
)
from sme2_assets.warehouse.comparisons import compare_session
from sme2_assets.warehouse.history import write_regressions
from sme2_assets.warehouse.ingest import DERIVATION
from sme2_assets.warehouse.read import runs_in_tables
from sme2_assets.warehouse.schema import ADVICE, REGRESSIONS, TABLES, Table
from sme2_assets.warehouse.sessions import take_session
from sme2_assets.warehouse.sql import no_rows, stored_rows
from sme2_assets.warehouse.store import Warehouse
from sme2_assets.warehouse.summaries import summary_tables

Log = Callable[[str], None]

# Next to the tables: those of a rebuild in progress.
REBUILD = "rebuild"


@dataclass(frozen=True)
class Refused:
    """A folder or session that gave no rows, and why."""

    what: str
    error: Sme2Error


@dataclass
class Derived:
    """What happened to a number of run folders."""

    taken: list[str] = field(default_factory=list)
    already_there: list[str] = field(default_factory=list)
    compared: list[str] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)
    # Runs that had rows, and whose folders are gone.
    dropped: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Difference:
    """How many rows of a table differ from what the evidence gives."""

    table: str
    only_stored: int
    only_derived: int


def runs_in_no_table(store: Store) -> list[Path]:
    """Run folders whose rows are missing: the measurement succeeded, but a later step did not.

    Runs that were slowed down on purpose belong in no table.
    """
    finish_sessions(store.runs)
    known = runs_in_tables(Warehouse(store.warehouse))
    return [path for path in run_folders(store.runs) if path.name not in known and not _is_slowed(path)]


def runs_without_folder(store: Store) -> list[str]:
    """Runs with rows that no evidence is left of. Whoever removes evidence with `sme2 gc` leaves none."""
    tables = Warehouse(store.warehouse).tables
    stored = {file.run_id for file in files_now(tables)}.union(*groups_now(tables).values())
    return sorted(run for run in stored if run is not None and not store.run_dir(run).is_dir())


def runs_of_other_code(store: Store) -> int:
    """How many runs have rows that were made by another version of the code."""
    rows = Warehouse(store.warehouse).query(
        "SELECT count(*) AS n FROM runs WHERE derivation IS DISTINCT FROM ?", [DERIVATION]
    )
    return int(rows["n"].iloc[0])


def sync(store: Store, log: Log, again: Collection[str] = ()) -> Derived:
    """Adds runs that are in no table, in a damaged one, or in `again`, and compares pairs that are not
    compared yet."""
    warehouse = Warehouse(store.warehouse)
    warehouse.publish()
    done = Derived()
    damaged = damaged_files(warehouse, log)
    _finish(store, done)
    missing = {path.name: path for path in runs_in_no_table(store)}
    groups = groups_now(warehouse.tables)
    lost = {run for file in damaged for run in (file.run_id, *groups.get(file.group or "", ()))}
    missing |= {run: store.run_dir(run) for run in (*lost, *again) if run is not None}
    _derive_all(store, warehouse, [missing[name] for name in sorted(missing)], done, log)
    warehouse.publish()
    _compare_all(warehouse, done, log, {file.keys.get("session_id") for file in damaged})
    if any(file.table == REGRESSIONS.name for file in damaged):
        write_regressions(warehouse, store.root / "acknowledged.txt")
    warehouse.publish()
    if any(trial_folders(store.blind)):
        _judge_trials(store, warehouse, done)
        warehouse.publish()
    if any(file.table == ADVICE.name for file in damaged):
        _take_advice(store, warehouse, done)
        warehouse.publish()
    return done


def damaged_files(warehouse: Warehouse, log: Log) -> list[TableFile]:
    """The files of the tables that are missing or damaged."""
    require_commits(warehouse.tables)
    files = files_now(warehouse.tables)
    log(f"looking at {len(files)} files of the tables")
    return [file for file in files if not file.is_whole(warehouse.tables)]


def merge(store: Store, source: Path, log: Log) -> Derived:
    """Copies the run folders of another data folder here, and adds them to the tables.

    Runs that belong in no table stay where they are.
    """
    runs = source / "runs" if (source / "runs").is_dir() else source
    found = [path for path in run_folders(runs) if identity_of(path) is not None]
    if not found:
        raise Sme2Error(
            f"There is no run folder in {source}.",
            "Give another data folder, or the folder `runs` of one.",
        )
    done, warehouse, theirs = Derived(), Warehouse(store.warehouse), Store(runs.parent)
    copied: set[str] = set()
    for number, path in enumerate(found, start=1):
        if path.name in copied or _is_slowed(path):
            continue
        log(f"{number} of {len(found)}: {path.name}")
        try:
            if _is_here(path, store.run_dir(path.name)):
                done.already_there.append(path.name)
            else:
                copied.update(take_session(store, warehouse, path, theirs))
        except Sme2Error as error:
            done.refused.append(Refused(path.name, error))
    for path in trial_folders(theirs.blind):
        try:
            if not (store.blind / path.name).exists():
                trial = Trial.read(path / TRIAL_FILE)
                if trial.session_id != path.name:
                    raise EvidenceError(
                        f"{path} holds the trial {trial.session_id}.",
                        f"Give the folder its name back: {trial.session_id}.",
                    )
                write_trial(store.blind, trial, revealed(path, trial))
        except Sme2Error as error:
            done.refused.append(Refused(path.name, error))
    taken = sync(store, log)
    refused = {each.what for each in done.refused}
    done.refused += [each for each in taken.refused if each.what not in refused]
    done.taken, done.compared = sorted({*copied, *taken.taken}), taken.compared
    return done


def rebuild(store: Store, log: Log) -> Derived:
    """Makes every table again from all run folders. The old ones stay until all of the new ones are there."""
    with one_at_a_time(store.warehouse / "rebuild.lock", "waiting for another rebuild", log):
        return _rebuilt(store, log)


def _rebuilt(store: Store, log: Log) -> Derived:
    warehouse = Warehouse(store.warehouse)
    began = last_commit(warehouse.tables)
    with _beside(warehouse, REBUILD) as made:
        done = _derived_anew(store, made, log)
        done.dropped = runs_without_folder(store)
        since = _replace(warehouse, made, began, log)
    # Runs that were stored during the rebuild were in the tables that it replaced.
    stored = {run for commit in since for run in commit.changed_runs if store.run_dir(run).is_dir()}
    refused = {each.what for each in done.refused}
    if stored or any(path.name not in refused for path in runs_in_no_table(store)):
        late = sync(store, log, stored)
        done.taken = sorted({*done.taken, *late.taken})
        done.compared += late.compared
        tried_again = {*late.taken, *late.compared, *(each.what for each in late.refused)}
        done.refused = [each for each in done.refused if each.what not in tried_again] + late.refused
    return done


@contextmanager
def _beside(warehouse: Warehouse, name: str) -> Iterator[Warehouse]:
    """An empty warehouse in a folder of another one, for a while. What a killed process left there goes."""
    folder = warehouse.root / name
    shutil.rmtree(folder, ignore_errors=True)
    try:
        yield Warehouse(folder / "warehouse")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _replace(warehouse: Warehouse, made: Warehouse, began: str, log: Log) -> list[Commit]:
    """Puts the tables that were made in place of all others, at once, and publishes them; returns the commits
    since `began` that this ended."""
    files, groups = files_now(made.tables), groups_now(made.tables)
    folders = {(warehouse.tables / file.path).parent for file in files}
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
    for file in files:
        (made.tables / file.path).rename(warehouse.tables / file.path)
    for folder in folders:
        fsync(folder)
    replaced = begin_anew(warehouse.tables, files, groups)
    log("publishing")
    warehouse.publish()
    # Whoever has begun to publish the earlier ones has ended.
    forget_before(warehouse.tables)
    for file in (file for commit in replaced for file in commit.files):
        (warehouse.tables / file.path).unlink(missing_ok=True)
    names = [commit.name for commit in replaced]
    return replaced[names.index(began) + 1 if began in names else 0 :]


def differences(store: Store, log: Log) -> tuple[list[Difference], Derived]:
    """Makes every table again next to the existing ones, and returns how they differ. Changes nothing."""
    warehouse = Warehouse(store.warehouse)
    require_commits(warehouse.tables)
    with ExitStack() as cleaned_up:
        # Two at once would remove each other's tables.
        lock, waiting = warehouse.root / "check.lock", "waiting for another check of the rows"
        cleaned_up.enter_context(one_at_a_time(lock, waiting, log))
        made = cleaned_up.enter_context(_beside(warehouse, "check"))
        done = _derived_anew(store, made, log)
        found = [_difference(table, warehouse, made) for table in (*TABLES, *summary_tables())]
    return [each for each in found if each.only_stored or each.only_derived], done


def _derived_anew(store: Store, made: Warehouse, log: Log) -> Derived:
    done = Derived()
    _finish(store, done)
    folders = [path for path in run_folders(store.runs) if not _is_slowed(path)]
    _derive_all(store, made, folders, done, log)
    # Some may have been removed since, which is no fault of theirs.
    done.refused = [each for each in done.refused if (store.runs / each.what).is_dir()]
    made.publish()
    _compare_all(made, done, log)
    made.publish()
    if (Warehouse(store.warehouse).tables / REGRESSIONS.name).is_dir():
        write_regressions(made, store.root / "acknowledged.txt")
    _judge_trials(store, made, done)
    _take_advice(store, made, done)
    return done


def _finish(store: Store, done: Derived) -> None:
    """Takes in what killed processes left complete, and names what they did not."""
    done.refused += [Refused(what, error) for what, error in finish_sessions(store.runs).items()]


def _judge_trials(store: Store, warehouse: Warehouse, done: Derived) -> None:
    """Judges blind trials. This comes after the A/A sessions, whose noise they are judged by."""
    done.refused += [Refused(what, error) for what, error in write_blind_trials(store, warehouse).items()]


def _take_advice(store: Store, warehouse: Warehouse, done: Derived) -> None:
    done.refused += [Refused(what, error) for what, error in write_advice(store, warehouse).items()]


def _derive_all(store: Store, warehouse: Warehouse, folders: Sequence[Path], done: Derived, log: Log) -> None:
    taken: set[str] = set()
    for number, path in enumerate(folders, start=1):
        # The other arm of an earlier one: a session is added as a whole.
        if path.name in taken:
            continue
        log(f"{number} of {len(folders)}: {path.name}")
        try:
            taken.update(take_session(store, warehouse, path))
        except Sme2Error as error:
            done.refused.append(Refused(path.name, error))
    done.taken += sorted(taken)


def _compare_all(warehouse: Warehouse, done: Derived, log: Log, again: Collection[str | None] = ()) -> None:
    """Compares the pairs that are not compared yet, and those in `again`; A/A sessions first, because the
    others are judged by their noise."""
    compared = set(warehouse.query("SELECT DISTINCT session_id FROM comparisons")["session_id"]) - {*again}
    waiting: dict[str, list[str]] = defaultdict(list)
    for row in warehouse.query(
        "SELECT session_id, experiment FROM runs WHERE paired GROUP BY ALL HAVING count(*) > 1 "
        "ORDER BY max(coalesce(sequence, 0)), session_id"
    ).itertuples():
        if row.session_id not in compared:
            waiting[row.experiment].append(row.session_id)
    for experiment in ("aa", "sme2", "arms"):
        for number, session_id in enumerate(waiting[experiment], start=1):
            log(f"comparing {number} of {len(waiting[experiment])}: {session_id}")
            try:
                compare_session(warehouse, session_id)
                done.compared.append(session_id)
            except Sme2Error as error:
                done.refused.append(Refused(session_id, error))
        if waiting[experiment]:
            warehouse.publish()


def _is_here(source: Path, target: Path) -> bool:
    """Whether the folder was copied before."""
    if not target.exists():
        return False
    if identity_of(source) != identity_of(target):
        raise EvidenceError(
            f"{source} and {target} have the same run id and different content.",
            "One of them was changed or made up: find out which, and remove it.",
        )
    return True


def _is_slowed(path: Path) -> bool:
    try:
        return RunFolder.open(path).is_slowed
    except EvidenceError:
        # A foreign run, or one that cannot be read, which is reported when it is added.
        return False


def _difference(table: Table, stored: Warehouse, derived: Warehouse) -> Difference:
    """Compares whole rows, except for columns that were not recorded yet when the rows were stored."""
    with duckdb.connect() as connection:
        columns = []
        for name, warehouse in (("stored", stored), ("derived", derived)):
            files = [file for file in files_now(warehouse.tables) if file.table == table.name]
            rows = no_rows(table)
            if files:
                stored_files = stored_rows(warehouse.tables, files)
                columns.append({row[0] for row in connection.execute(f"DESCRIBE {stored_files}").fetchall()})
                rows = f"{rows} UNION ALL BY NAME {stored_files}"
            connection.execute(f"CREATE VIEW {name} AS {rows}")
        shared = set.intersection(*columns) if columns else set()
        # The last digits of a sum of doubles depend on the order of its terms: summaries leave them out.
        inexact = table in summary_tables()
        chosen = ", ".join(
            f'"{column.name}"{"::FLOAT" if inexact and column.type == "DOUBLE" else ""}'
            for column in table.all_columns
            if column.name != "derivation" and (column.name in shared or not shared)
        )
        counts = [
            connection.execute(
                f"SELECT count(*) FROM (SELECT {chosen} FROM {one} EXCEPT ALL SELECT {chosen} FROM {other})"
            ).fetchone()
            for one, other in (("stored", "derived"), ("derived", "stored"))
        ]
    return Difference(table.name, *(int(count[0]) for count in counts if count))
