"""What may be removed from the data folder, and how it is removed everywhere at once.

Belongs here: which things of each kind are old and no longer needed, and their removal. Evidence (`runs`) is
removed only when asked for by name; the tables are then made again from what is left, as in any rebuild.
"""

from __future__ import annotations

import re
import shutil
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import dagster as dg

from sme2_assets.errors import EvidenceError, Sme2Error, told
from sme2_assets.evidence.folder import RunFolder, run_folders
from sme2_assets.evidence.leftovers import leftovers
from sme2_assets.store import Store, one_at_a_time
from sme2_assets.targets.lease import lease
from sme2_assets.warehouse.commits import files_now
from sme2_assets.warehouse.read import latest_comparisons, latest_sessions
from sme2_assets.warehouse.rebuild import Refused, rebuild, runs_in_no_table, runs_without_folder
from sme2_assets.warehouse.store import STAGING_LIFETIME_S, Warehouse

Log = Callable[[str], None]
#: Dagster's instance is opened only where it is needed: that takes room on the disk, which may be full.
OpenDagster = Callable[[], AbstractContextManager[dg.DagsterInstance]]
#: Everything that can be made again when needed, and what Dagster remembers; then the evidence.
KINDS = ("leftovers", "exports", "reports", "snapshots", "runners", "models", "dagster", "runs")
_ENDED = (dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED)
_BATCH = 500
_MOST_NAMES = 5


@dataclass(frozen=True)
class Item:
    """One thing that can be removed: its files, and how long ago it last changed."""

    kind: str
    name: str
    paths: tuple[Path, ...]
    size_bytes: int
    age_s: float


@dataclass(frozen=True)
class Wanted:
    """What is to go: these runs with their sessions, everywhere, or what is old of these kinds."""

    run_ids: Sequence[str] = ()
    kinds: Sequence[str] = ()
    older_than_s: float = 0
    # How much of each kind stays, newest first.
    keep_bytes: int | None = None


@dataclass(frozen=True)
class Collected:
    items: list[Item]
    # What of the evidence that is left gave no rows, and why Dagster's records are still there.
    refused: list[Refused]


def collect(
    store: Store, open_dagster: OpenDagster, wanted: Wanted, log: Log, note: Log, *, go: bool
) -> Collected:
    """Lists what is wanted; removes it if it is to go.

    What is said to `log` passes with the work, what is said to `note` stays.
    """
    with ExitStack() as held:
        if go:
            # What another process is removing must not be listed.
            waiting_for = "waiting for another `sme2 gc`"
            held.enter_context(one_at_a_time(store.root / "gc.lock", waiting_for, log))
        items: list[Item] = []
        refused: list[Refused] = []
        for listed in (
            # What can be made again goes first: on a full disk it makes room for the rest.
            lambda: _old(store, open_dagster, wanted, {*wanted.kinds} - {"runs"}, note),
            lambda: [
                *_sessions(store, open_dagster, wanted.run_ids, note),
                *_old(store, open_dagster, wanted, {*wanted.kinds} & {"runs"}, note),
            ],
        ):
            found = listed()
            items += found
            if go and found:
                refused += remove(store, open_dagster, found, log)
    return Collected(items, refused)


def _old(
    store: Store, open_dagster: OpenDagster, wanted: Wanted, kinds: Collection[str], log: Log
) -> list[Item]:
    found = _candidates(store, open_dagster, [kind for kind in KINDS if kind in kinds], log)
    return chosen(found, wanted.older_than_s, wanted.keep_bytes)


def _sessions(store: Store, open_dagster: OpenDagster, run_ids: Sequence[str], log: Log) -> list[Item]:
    found = (item for run_id in run_ids for item in _session(store, open_dagster, run_id, log))
    # Two runs may be of one session.
    return list({(item.kind, item.name): item for item in found}.values())


def _candidates(store: Store, open_dagster: OpenDagster, kinds: Sequence[str], log: Log) -> list[Item]:
    """Everything of these kinds that is not needed, oldest first."""
    found: list[Item] = []
    # Before the others: whoever opens the instance removes leftovers.
    if "dagster" in kinds:
        found += _from_dagster(open_dagster, _dagster_runs, log)
    for kind in kinds:
        found += _LISTS[kind](store) if kind != "dagster" else []
    return sorted(found, key=lambda item: -item.age_s)


def chosen(items: Iterable[Item], older_than_s: float, keep_bytes: int | None) -> list[Item]:
    """The items that are old enough; of each kind the oldest first, until only `keep_bytes` are left."""
    items = list(items)
    left: dict[str, int] = {}
    for item in items:
        left[item.kind] = left.get(item.kind, 0) + item.size_bytes
    go = []
    for item in items:
        if item.age_s >= older_than_s and (keep_bytes is None or left[item.kind] > keep_bytes):
            go.append(item)
            left[item.kind] -= item.size_bytes
    return go


def _session(store: Store, open_dagster: OpenDagster, run_id: str, log: Log) -> list[Item]:
    """A run with the other arm of its session, and everything that was made from them or mentions them."""
    if not store.run_dir(run_id).is_dir():
        raise Sme2Error(f"There is no run {run_id!r}.", _what_to_do_without(store, run_id))
    runs = next(
        item for item in _runs(store, keep_newest=False) if run_id in {path.name for path in item.paths}
    )
    said = [item for item in _reports(store) if _says(item, [*(path.name for path in runs.paths), runs.name])]
    run_ids = {path.name for path in runs.paths}
    known = _from_dagster(
        open_dagster,
        lambda instance: _dagster_items(instance, _dagster_runs_of(instance, run_ids)),
        log,
    )
    return [runs, *said, *known]


def remove(store: Store, open_dagster: OpenDagster, items: Sequence[Item], log: Log) -> list[Refused]:
    """Removes items while nothing is being measured, and makes the tables again if evidence is removed.

    Returns what of the evidence that is left gave no rows, and why Dagster's records are still there.
    """
    with ExitStack() as held:
        for lock in sorted(store.leases.glob("*.lock")):
            held.enter_context(lease(store.leases, lock.stem, log=log, patience_s=0, what="gc"))
        if not any(item.kind == "runs" for item in items):
            for item in items:
                _delete(store, item, log)
            return _removed_from_dagster(open_dagster, items)
        removed: list[str] = []
        try:
            for item in items:
                _delete(store, item, log)
                removed += [item.name] * (item.kind == "runs")
            refused = rebuild(store, log).refused
        except Exception as error:
            # An error that nobody expected keeps its traceback.
            if (why := told(error)) is None:
                raise
            raise _stopped(why, removed) from error
        # Last, because Dagster needs room on the disk to remove anything.
        return refused + _removed_from_dagster(open_dagster, items)


def _delete(store: Store, item: Item, log: Log) -> None:
    log(f"{item.kind}: {item.name}")
    if item.kind == "dagster":
        return
    if item.kind == "runs":
        # First all arms are out of sight, so that a process that is killed leaves no half session.
        with tempfile.TemporaryDirectory(prefix=".removed.", dir=store.runs) as folder:
            for path in item.paths:
                path.rename(Path(folder, path.name))
    for path in _beside(store, item) if item.kind == "runs" else item.paths:
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)


def _stopped(why: Sme2Error, removed: Sequence[str]) -> Sme2Error:
    shown = ", ".join(removed[:_MOST_NAMES])
    more = f" and {len(removed) - _MOST_NAMES} more" if len(removed) > _MOST_NAMES else ""
    gone = f"The evidence of {shown}{more} is already removed" if removed else "Some evidence may be removed"
    return Sme2Error(
        f"{why.what}\n{gone}, and the tables still have rows of it.",
        f"{why.remedy or ''} Then run `sme2 warehouse rebuild`: it drops those rows.".strip(),
    )


def _what_to_do_without(store: Store, run_id: str) -> str:
    if run_id in runs_without_folder(store):
        return "The tables have rows of it, and its evidence is gone: `sme2 warehouse rebuild` removes them."
    return "`sme2 sql 'SELECT run_id FROM runs'` lists the runs."


def _runs(store: Store, keep_newest: bool = True) -> Iterator[Item]:
    """Sessions: arms that were measured together are removed together. The newest of every series stays, and
    what is in no table yet: nobody knows whether there is a newer one."""
    warehouse = Warehouse(store.warehouse)
    rows = warehouse.query("SELECT run_id, session_id FROM runs WHERE session_id IS NOT NULL")
    in_tables = dict(zip(rows["run_id"], rows["session_id"], strict=True))
    sessions: dict[str, list[Path]] = {}
    for path in run_folders(store.runs):
        # The tables also know the session of a folder that was damaged later.
        sessions.setdefault(in_tables.get(path.name) or _session_of(path), []).append(path)
    needed: set[str] = set()
    if keep_newest:
        if gone := runs_without_folder(store):
            raise Sme2Error(
                f"The tables have rows of {len(gone)} runs whose evidence is gone, such as {gone[0]}: they "
                "do not say which evidence is the newest that is left.",
                "Run `sme2 warehouse rebuild` first: it drops those rows.",
            )
        needed = {run["session_id"] for run in latest_sessions(warehouse)} | latest_comparisons(warehouse)
        needed |= {_session_of(path) for path in runs_in_no_table(store)}
    for session, paths in sessions.items():
        if session not in needed:
            yield _item("runs", session, paths)


def _session_of(path: Path) -> str:
    """What a folder says. A trace from elsewhere, or a damaged folder, is a session of its own."""
    try:
        return RunFolder.open(path).manifest.session_id
    except EvidenceError:
        return path.name


def _beside(store: Store, item: Item) -> list[Path]:
    """What is kept about a session outside its run folders."""
    places = [store.root / "annotations", store.root / "exports"]
    found = [place / path.name for place in places for path in item.paths] + [store.blind / item.name]
    return [path for path in found if path.exists()]


def _reports(store: Store) -> Iterator[Item]:
    for folder in sorted({page.parent for page in store.reports.rglob("report.*")}):
        yield _item("reports", str(folder.relative_to(store.reports)), [folder])


def _says(item: Item, names: Sequence[str]) -> bool:
    # As a whole: not as a part of a longer name.
    named = re.compile(rf"(?<![\w.-])({'|'.join(map(re.escape, names))})(?![\w-]|\.\w)".encode())
    pages = (page.read_bytes() for folder in item.paths for page in folder.glob("report.*"))
    return any(named.search(page) for page in pages)


def _leftovers(store: Store) -> Iterator[Item]:
    """What killed processes left: also files of tables that were complete, but never became part of them."""
    warehouse = Warehouse(store.warehouse)
    files = [path for path in warehouse.tables.rglob("*.parquet") if _age_s(path) > STAGING_LIFETIME_S]
    if files:
        needed = {file.path for file in files_now(warehouse.tables)}
        # Readers of an earlier state use these.
        needed |= {*warehouse.query("SELECT path FROM publishing.superseded")["path"]}
        files = [path for path in files if str(path.relative_to(warehouse.tables)) not in needed]
    for path in (*leftovers(store), *files):
        yield _item("leftovers", str(path), [path])


def _snapshots(store: Store) -> Iterator[Item]:
    """Publishing keeps few of them; only the one that the link points to is needed."""
    warehouse = Warehouse(store.warehouse)
    current = warehouse.link.resolve()
    for path in warehouse.published():
        if path.resolve() != current:
            yield _item("snapshots", path.name, [path])


def _artifacts(store: Store, kind: str, pattern: str) -> Iterator[Item]:
    """Artifacts that are not the current one of anything."""
    pointers = (store.root / "current").glob("*/*")
    current = {pointer.read_text().strip() for pointer in pointers if pointer.is_file()}
    for path in sorted((store.artifacts / kind).glob(pattern)):
        if path.is_dir() and path.name not in {*current, "logs"} and not path.name.startswith("."):
            lock = path.with_name(f".{path.name}.lock")
            yield _item(kind, str(path.relative_to(store.artifacts / kind)), [path, *[lock] * lock.exists()])


_LISTS: dict[str, Callable[[Store], Iterable[Item]]] = {
    "leftovers": _leftovers,
    "exports": lambda store: [
        _item("exports", path.name, [path]) for path in _visible(store.root / "exports")
    ],
    "reports": _reports,
    "snapshots": _snapshots,
    "runners": lambda store: _artifacts(store, "runners", "*"),
    "models": lambda store: _artifacts(store, "models", "*/*"),
    "runs": _runs,
}


def _from_dagster(
    open_dagster: OpenDagster, listed: Callable[[dg.DagsterInstance], Iterable[Item]], log: Log
) -> list[Item]:
    """What is listed in Dagster's instance; nothing, which is logged, where the disk does not let it open."""
    try:
        with open_dagster() as instance:
            return list(listed(instance))
    except Exception as error:
        if (why := told(error)) is None:
            raise
        log(f"What Dagster remembers is left out. {why.what}")
        return []


def _removed_from_dagster(open_dagster: OpenDagster, items: Sequence[Item]) -> list[Refused]:
    """Removes the Dagster runs among the items; returns why that was not possible."""
    runs = [item for item in items if item.kind == "dagster"]
    if not runs:
        return []
    try:
        with open_dagster() as instance:
            for item in runs:
                instance.delete_run(item.name)
                for path in item.paths:
                    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    except Exception as error:
        if (why := told(error)) is None:
            raise
        return [Refused("What Dagster remembers", why)]
    return []


def _dagster_runs(instance: dg.DagsterInstance) -> Iterator[Item]:
    """Runs that ended and that made no asset partition's latest materialisation."""
    needed: set[str] = set()
    for asset in instance.get_asset_keys():
        seen: set[str | None] = set()
        for record in _materialisations(instance, asset):
            if record.partition_key not in seen:
                seen.add(record.partition_key)
                needed.add(record.run_id)
    records = instance.get_run_records(dg.RunsFilter(statuses=list(_ENDED)))
    ended = [record.dagster_run.run_id for record in records]
    yield from _dagster_items(instance, set(ended) - needed)


def _dagster_runs_of(instance: dg.DagsterInstance, run_ids: set[str]) -> set[str]:
    """The Dagster runs that measured these runs."""
    found = set()
    for record in _materialisations(instance, dg.AssetKey("etdump_traces")):
        made = record.asset_materialization
        if made is not None and "run_id" in made.metadata and made.metadata["run_id"].value in run_ids:
            found.add(record.run_id)
    return found


def _materialisations(instance: dg.DagsterInstance, asset: dg.AssetKey) -> Iterator[dg.EventLogRecord]:
    """All materialisations of an asset, newest first."""
    cursor: str | None = None
    while True:
        page = instance.fetch_materializations(asset, limit=_BATCH, cursor=cursor)
        yield from page.records
        if not page.has_more:
            return
        cursor = page.cursor


def _dagster_items(instance: dg.DagsterInstance, run_ids: Iterable[str]) -> Iterator[Item]:
    home = Path(instance.root_directory)
    for run_id in sorted(run_ids):
        record = next(iter(instance.get_run_records(dg.RunsFilter(run_ids=[run_id]), limit=1)), None)
        if record is None:
            # The UI removes runs, too.
            continue
        files = (home / "history" / "runs" / f"{run_id}.db", home / "storage" / run_id)
        age_s = (datetime.now(UTC) - record.update_timestamp.replace(tzinfo=UTC)).total_seconds()
        paths = [path for path in files if path.exists()]
        yield Item("dagster", run_id, tuple(paths), sum(map(_size, paths)), age_s)


def _item(kind: str, name: str, paths: Sequence[Path]) -> Item:
    return Item(kind, name, tuple(paths), sum(map(_size, paths)), min(map(_age_s, paths), default=0))


def _age_s(path: Path) -> float:
    try:
        return time.time() - path.stat().st_mtime
    except FileNotFoundError:
        # Whoever publishes removes files too. There is nothing left to do about this one.
        return 0


def _size(path: Path) -> int:
    total = 0
    with suppress(OSError):
        for file in (path, *path.rglob("*")) if path.is_dir() else (path,):
            total += file.lstat().st_blocks * 512
    return total


def _visible(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*") if not path.name.startswith("."))
