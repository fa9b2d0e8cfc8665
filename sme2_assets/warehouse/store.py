"""Writing rows, publishing the DuckDB file, and reading it.

Writers never share a file, so any number of them and of readers run at once: each run's rows are
one Parquet file per table, and in the tables once a commit lists them (commits.py). Publishing makes a
new DuckDB file (publish.py) and swaps a symlink, so an open session neither blocks nor is blocked.
"""

from __future__ import annotations

import atexit
import logging
import os
import re
import shutil
import threading
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import duckdb
from filelock import FileLock, Timeout

from sme2_assets.errors import WarehouseError
from sme2_assets.store import fsync, safe_name, sha256_of_file
from sme2_assets.warehouse.commits import (
    GROUP,
    Groups,
    TableFile,
    add_commit,
    files_now,
    last_commit,
    require_commits,
)
from sme2_assets.warehouse.merge import MERGE_AT, merge_runs
from sme2_assets.warehouse.publish import (
    SNAPSHOTS_KEPT,
    Built,
    Published,
    build,
    is_undamaged,
    name_of_published,
)
from sme2_assets.warehouse.schema import RUN_ID, RUNS, TABLES, Column, Table
from sme2_assets.warehouse.sql import layout_of, literal, quoted, rows_of_files, typed
from sme2_assets.warehouse.summaries import made, summary_tables

if TYPE_CHECKING:
    # Not imported to read: a question is answered before pandas is loaded.
    import pandas as pd

# Rows of a table, and the values of its keys.
Rows: TypeAlias = "tuple[Table, pd.DataFrame, Mapping[str, str]]"

_log = logging.getLogger(__name__)

# Rows per group of a Parquet file. The files of many runs have larger ones: to find a run, a query reads what
# each of them says about its groups. Merging has some of them in memory.
ROW_GROUP, MERGED_ROW_GROUP = 122_880, 262_144
# Version 2 stores times as differences, which are smaller and read twice as fast; but only where there is no
# dictionary, which is larger for numbers of which most occur a few times.
PARQUET = "FORMAT parquet, COMPRESSION zstd, PARQUET_VERSION V2, DICTIONARY_SIZE_LIMIT 1000"
# How many files are written at once, and how many rows may wait for that beside a long part.
WRITERS, FEW_ROWS = 2, 50_000
# No write takes this long: what is older in the staging folder belongs to a writer that was killed.
STAGING_LIFETIME_S = 24 * 3600
# Earlier releases had a longer hash at the end, or none.
_PUBLISHED = re.compile(r"warehouse-\d{6,}(-[0-9a-f]{8}|-[0-9a-f]{16})?\.duckdb")


@dataclass(frozen=True)
class _Snapshot:
    """An open snapshot, which never changes."""

    identity: tuple[int, int, int]
    connection: duckdb.DuckDBPyConnection

    def cursor(self) -> duckdb.DuckDBPyConnection:
        """A connection of its own for the caller, who closes it."""
        # USE is a setting of each connection.
        return self.connection.cursor().execute("USE warehouse")


class _Opened:
    """The snapshot that was read last, kept open: opening one takes longer than most queries.

    One for the process and not one for each warehouse, so that nothing piles up.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._snapshot: _Snapshot | None = None

    def snapshot(self, link: Path, connect: Callable[[], duckdb.DuckDBPyConnection]) -> _Snapshot:
        with self._lock:
            # Not by name: a warehouse that was deleted and made again has other files of the same names.
            facts = link.stat()
            identity = (facts.st_dev, facts.st_ino, facts.st_mtime_ns)
            if self._snapshot is None or self._snapshot.identity != identity:
                # The one before closes when nobody reads it any more.
                self._snapshot = None
                self._snapshot = _Snapshot(identity, connect())
            return self._snapshot

    def close(self) -> None:
        with self._lock:
            if self._snapshot is not None:
                self._snapshot.connection.close()
            self._snapshot = None


_opened = _Opened()


@cache
def _scratch() -> duckdb.DuckDBPyConnection:
    """A database in memory in which rows become files: starting one takes longer than most of the files."""
    return duckdb.connect()


@atexit.register
def _let_go() -> None:
    """Connections that are still there when Python ends make DuckDB print a page of leaks."""
    _opened.close()
    _scratch.cache_clear()


class _Staged(NamedTuple):
    """A file that is complete, but not yet where the tables are."""

    path: Path
    file: TableFile


class Warehouse:
    """The warehouse below a folder; `<folder>/../warehouse.duckdb` is what people open."""

    def __init__(self, root: Path) -> None:
        # The published views name files of the warehouse, and people open them from anywhere.
        self.root = root.absolute()

    @property
    def link(self) -> Path:
        return self.root.parent / "warehouse.duckdb"

    @property
    def tables(self) -> Path:
        """The Parquet files of all rows: what everything else can be made from."""
        return self.root / "tables"

    @property
    def snapshots(self) -> Path:
        return self.root / "snapshots"

    @property
    def staging(self) -> Path:
        """Where files are made; nothing in it is ever read."""
        return self.root / "staging"

    def write(self, table: Table, rows: pd.DataFrame, keys: Mapping[str, str]) -> Path:
        """Stores rows of a table; the same keys replace what was there. Of a run they are all there is."""
        runs = [keys[RUN_ID.name]] if RUN_ID in table.keys else []
        return self.write_together([(table, rows, keys)], runs)[0]

    def write_together(
        self,
        parts: Iterable[Rows],
        runs: Sequence[str] = (),
        before_commit: Callable[[], None] = lambda: None,
    ) -> list[Path]:
        """Stores rows that appear together, and what summaries make of them. Of `runs` they are all there is:
        whatever else was there goes. Rows of a run are only stored as a whole.

        `before_commit` is called when all rows were made, so that nothing can be wrong with them any more.
        """
        require_commits(self.tables)
        files = self._files_of_frames(parts)
        strange = {file.run_id for file in files if file.run_id is not None} - {*runs}
        if strange:
            raise ValueError(f"only a part of {sorted(strange)}")
        files += self.summaries(files)
        before_commit()
        add_commit(self.tables, files, runs, self._without_runs)
        return [self.tables / file.path for file in files]

    def summaries(self, files: Sequence[TableFile]) -> list[TableFile]:
        """Writes the summaries of the runs that these files have all rows of."""
        runs = [file for file in files if file.table == RUNS.name]
        if not runs:
            return []
        tables = {table.name: table for table in summary_tables()}
        with (
            _scratch().cursor() as connection,
            made(connection, self.tables, files) as (schema, names),
            self._writing() as (write, written),
        ):
            for name in names:
                for file in runs:
                    part = "/".join((name, *file.part.split("/")[1:]))
                    rows = f"FROM {schema}.{name} WHERE run_id = {literal(file.keys['run_id'])}"
                    write(self._staged_rows, tables[name], rows, part)
        return written

    def merged(
        self, table: Table, files: Sequence[TableFile], group: str, runs: Collection[str]
    ) -> TableFile:
        """Writes the rows that files have of these runs as one file of a group, whose keys are columns."""
        import pandas as pd

        with _scratch().cursor() as connection:
            connection.register("members", pd.DataFrame({RUN_ID.name: list(runs)}, dtype="str"))
            rows = f"FROM ({rows_of_files(table, self.tables, files)}) SEMI JOIN members USING (run_id)"
            part = f"{table.name}/{GROUP}={group}"
            staged = self._staged(connection, table, rows, part, table.all_columns, MERGED_ROW_GROUP)
            return self._placed(staged)

    def _without_runs(self, left: Groups) -> tuple[list[TableFile], Groups]:
        """The files of these groups again, with only the runs left in them; none of a damaged one."""
        tables = {table.name: table for table in (*TABLES, *summary_tables())}
        files = [file for file in files_now(self.tables) if file.group in left]
        damaged = {file.group for file in files if not file.is_whole(self.tables)}
        kept = {group: () if group in damaged else runs for group, runs in left.items()}
        return [
            self.merged(tables[file.table], [file], file.group, kept[file.group])
            for file in files
            if file.group and kept[file.group]
        ], kept

    def _files_of_frames(self, parts: Iterable[Rows]) -> list[TableFile]:
        """Writes files that no commit names yet; none if one of them cannot be made."""
        known: Counter[str] = Counter()
        long: Future[_Staged] | None = None
        with self._writing() as (write, written):
            for table, rows, keys in parts:
                values = (f"{key.name}={safe_name(keys[key.name])}" for key in table.keys)
                part = "/".join((table.name, *values))
                number = f"/{known[part]}" if known[part] else ""
                known[part] += 1
                is_long = len(rows) > FEW_ROWS
                # One long part at a time, so that no rows pile up.
                if is_long and long is not None:
                    long.result()
                staged = write(self._staged_frame, table, rows, f"{part}{number}")
                if is_long:
                    long = staged
        return written

    @contextmanager
    def _writing(self) -> Iterator[tuple[Callable[..., Future[_Staged]], list[TableFile]]]:
        """Files are written while the next rows are made, and listed when all of them are there."""
        staged: list[Future[_Staged]] = []
        written: list[TableFile] = []

        def write(*what: Any) -> Future[_Staged]:
            staged.append(writers.submit(*what))
            return staged[-1]

        try:
            with ThreadPoolExecutor(WRITERS) as writers:
                yield write, written
            written += [self._placed(each.result()) for each in staged]
        finally:
            for each in staged:
                if each.exception() is None:
                    each.result().path.unlink(missing_ok=True)

    def _staged_rows(self, table: Table, rows: str, part: str) -> _Staged:
        with _scratch().cursor() as connection:
            return self._staged(connection, table, rows, part)

    def _staged_frame(self, table: Table, rows: pd.DataFrame, part: str) -> _Staged:
        missing = [column.name for column in table.columns if column.name not in rows.columns]
        surplus = [name for name in rows.columns if name not in {column.name for column in table.columns}]
        if missing or surplus:
            raise WarehouseError(
                f"Rows for {table.name} do not fit its schema: missing {missing}, surplus {surplus}.",
                "Change warehouse/schema.py and the code that makes the rows together.",
            )
        with _scratch().cursor() as connection:
            connection.register("incoming", rows)
            coded = _coded_texts(table, rows)
            return self._staged(connection, table, "FROM incoming", part, as_they_are=coded)

    def _staged(
        self,
        connection: duckdb.DuckDBPyConnection,
        table: Table,
        rows: str,
        part: str,
        stored: tuple[Column, ...] | None = None,
        row_group: int = ROW_GROUP,
        as_they_are: Collection[str] = (),
    ) -> _Staged:
        """Writes rows of a query as a file that no commit names yet."""
        columns = stored or table.columns
        self.staging.mkdir(parents=True, exist_ok=True)
        path = self.staging / f"{uuid.uuid4().hex}.parquet"
        try:
            connection.execute(
                f"COPY (SELECT {typed(columns, as_they_are)} {rows}) TO '{quoted(path)}' "
                f"({PARQUET}, ROW_GROUP_SIZE {row_group})"
            )
            fsync(path)
            sha256 = sha256_of_file(path)
        except BaseException as error:
            path.unlink(missing_ok=True)
            if isinstance(error, duckdb.Error):
                raise WarehouseError(f"Rows for {table.name} could not be written: {error}") from error
            raise
        # The same rows again get another name: a file that is superseded is removed some publications later,
        # whatever has been written in the meantime.
        name = f"{sha256[:16]}-{path.stem[:8]}.parquet"
        return _Staged(path, TableFile(f"{part}/{name}", sha256, layout_of(columns)))

    def _placed(self, staged: _Staged) -> TableFile:
        target = self.tables / staged.file.path
        target.parent.mkdir(parents=True, exist_ok=True)
        staged.path.replace(target)
        fsync(target.parent)
        return staged.file

    def publish(self) -> Path:
        """Makes a new DuckDB file of everything that was committed the current one."""
        final, loose_runs = self._published_now()
        if loose_runs >= MERGE_AT:
            # A lock of its own, for which nobody waits. It is held until the merge is published: before that,
            # another process would merge the same runs again.
            with suppress(Timeout), FileLock(self.root / "merge.lock", timeout=0):
                try:
                    merged = merge_runs(self)
                except WarehouseError as error:
                    # Everything is published: it is only slower to read.
                    _log.warning("Old runs were not merged: %s", error)
                    merged = False
                if merged:
                    final, _ = self._published_now()
        return final

    def _published_now(self) -> tuple[Path, int]:
        """The new file, and how many runs have files of their own in it."""
        require_commits(self.tables)
        self.snapshots.mkdir(parents=True, exist_ok=True)
        with FileLock(self.root / "publish.lock"):
            existing = self.published()
            previous = Published.read(_scratch(), existing[-1]) if existing else None
            if previous is not None and self._is_published(previous) and is_undamaged(previous.path):
                return previous.path, 0
            final, built = self._built(existing, previous)
        # After a merge there are thousands: nobody has to wait for them.
        for name in built.needless:
            (self.tables / name).unlink(missing_ok=True)
        return final, built.loose_runs

    def _built(self, existing: Sequence[Path], previous: Published | None) -> tuple[Path, Built]:
        """Makes the next file and points the link at it. Needs the lock."""
        number = 1 + (_number(existing[-1]) if existing else 0)
        building = self.staging / "publish"
        try:
            try:
                path = _emptied(building) / "warehouse.duckdb"
                built = build(_scratch(), path, self.tables, previous, number, self._complete)
            except duckdb.Error:
                # A file is missing, or cannot be read. Made anew, only its own session is left out.
                _scratch.cache_clear()
                path = _emptied(building) / "warehouse.duckdb"
                built = build(_scratch(), path, self.tables, None, number, self._complete)
            final = self.snapshots / name_of_published(number, path)
            path.replace(final)
            fsync(self.snapshots)
        except duckdb.Error:
            # A write that fails can leave the instance unusable, for whatever this process does next.
            _scratch.cache_clear()
            raise
        finally:
            shutil.rmtree(building, ignore_errors=True)
        self._point_link_at(final)
        # A file that could be continued is whole, and most are: not all of them are read each time.
        damaged = [old for old in existing if built.is_anew and is_damaged(old)]
        for old in {*existing[: 1 - SNAPSHOTS_KEPT], *damaged}:
            is_folder = old.is_dir() and not old.is_symlink()
            shutil.rmtree(old, ignore_errors=True) if is_folder else old.unlink(missing_ok=True)
        self._drop_abandoned_files()
        return final, built

    def _is_published(self, newest: Published) -> bool:
        """Whether people open this file, and it is what would be published now."""
        return (
            self.link.resolve() == newest.path
            and (newest.last_commit or "") == last_commit(self.tables)
            and newest.is_current(self.tables)
        )

    def _complete(self) -> None:
        """Runs that were stored before there were summaries get them, from the rows that they have."""
        files: dict[str, list[TableFile]] = defaultdict(list)
        names = {table.name for table in summary_tables()}
        for file in files_now(self.tables):
            if file.run_id is not None:
                files[file.run_id].append(file)
        for run in files:
            if names.isdisjoint(file.table for file in files[run]):
                try:
                    add_commit(self.tables, self.summaries(files[run]), ())
                except (duckdb.Error, WarehouseError):
                    # A file of it is damaged, and so the run is in no table.
                    continue

    def published(self) -> list[Path]:
        """The published files that are kept, oldest first."""
        named = (path for path in self.snapshots.glob("*.duckdb") if _PUBLISHED.fullmatch(path.name))
        return sorted(named, key=_number)

    def not_published(self) -> list[Path]:
        """Files among the published ones that are none."""
        return sorted({*self.snapshots.glob("[!.]*.duckdb")} - {*self.published()})

    @contextmanager
    def connect(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """A read-only connection to the published state. Reads no file outside the warehouse."""
        connection = self._snapshot().cursor()
        try:
            yield connection
        finally:
            connection.close()

    def query(self, sql: str, parameters: list[object] | dict[str, object] | None = None) -> pd.DataFrame:
        """Rows of a SELECT over the published state; anything but a SELECT is refused."""
        with self._snapshot().cursor() as connection:
            try:
                statements = connection.extract_statements(sql)
                if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
                    raise WarehouseError(
                        "Only a single query is allowed here.",
                        "Use SELECT, DESCRIBE, SHOW TABLES or SUMMARIZE; only the assets write.",
                    )
                return connection.execute(sql, parameters or []).df()
            except duckdb.Error as error:
                raise WarehouseError(
                    f"The query failed: {error}",
                    "`sme2 sql 'SHOW TABLES'` lists tables and views; docs/tables.md explains them.",
                ) from error

    def _snapshot(self) -> _Snapshot:
        if not self.link.exists():
            self.publish()
        return _opened.snapshot(self.link, self.open_published)

    def open_published(
        self, settings: Mapping[str, str] | None = None, folders: Iterable[Path] = ()
    ) -> duckdb.DuckDBPyConnection:
        """A new connection to the published state, locked to it: it reads the tables' files and those
        below `folders`, and its settings cannot be changed. The caller closes it."""
        connection = duckdb.connect()
        try:
            self._attach_published(connection)
            # A query looks at each file of a table, which are many, and never change.
            connection.execute("SET GLOBAL parquet_metadata_cache = true")
            for name, value in (settings or {}).items():
                connection.execute(f"SET {name} = {literal(value)}")
            allowed = ", ".join(f"'{quoted(folder)}'" for folder in (self.tables, *folders))
            connection.execute(f"SET allowed_directories = [{allowed}]")
            connection.execute("SET enable_external_access = false")
            connection.execute("SET lock_configuration = true")
        except BaseException:
            connection.close()
            raise
        return connection

    def _attach_published(self, connection: duckdb.DuckDBPyConnection) -> None:
        """Attached, not opened: connections to one file share its settings within a process, so the
        locks that `connect` puts on one would fail the next, and disturb an analyst's own connection."""
        for attempts_left in reversed(range(5)):
            if not self.link.exists():
                self.publish()
            path = self.link.resolve()
            published = None
            try:
                connection.execute(f"ATTACH '{quoted(path)}' AS warehouse (READ_ONLY)")
                connection.execute("USE warehouse")
                published = Published.opened(connection, path)
                if published is not None and published.is_current(self.tables):
                    return
                unreadable = None
            except duckdb.Error as error:
                unreadable = error
            # Between reading the link and opening the file, others may have published so often that the file
            # was pruned; the link then points to a newer one. A data folder that was moved or copied names
            # files where it was; one of an older release has older views. These, and damage, are mended by
            # publishing.
            is_replaced = self.link.resolve() != path
            if not attempts_left or not (is_replaced or self._published_again()):
                break
            connection.execute("USE memory")
            connection.execute("DETACH DATABASE IF EXISTS warehouse")
        if unreadable is not None:
            raise WarehouseError(
                f"The published file {path} cannot be read: {str(unreadable).splitlines()[0]}",
                "`sme2 check` says what is damaged. Publishing the tables again needs a data folder that can "
                "be written: make it writable, or copy it.",
            ) from unreadable
        # Of an older release it is read as it is.
        if published is not None and not published.is_of(self.tables):
            raise WarehouseError(
                f"The data folder {self.root.parent} was moved or copied, and it cannot be written: the "
                f"published file lists its events in {published.folder}.",
                "Make it writable, or copy it to where you can write.",
            )

    def _published_again(self) -> bool:
        try:
            self.publish()
        except OSError:
            return False
        return True

    def _drop_abandoned_files(self) -> None:
        """Removes what killed writers left in the staging folder."""
        oldest = time.time() - STAGING_LIFETIME_S
        for path in self.staging.iterdir():
            try:
                if path.stat().st_mtime < oldest:
                    path.unlink()
            except OSError:
                continue

    def _point_link_at(self, snapshot: Path) -> None:
        staged = self.link.with_name(f".{self.link.name}.{os.getpid()}")
        staged.unlink(missing_ok=True)
        staged.symlink_to(os.path.relpath(snapshot, self.link.parent))
        staged.replace(self.link)


def _coded_texts(table: Table, rows: pd.DataFrame) -> list[str]:
    """Columns of text that are codes already, which DuckDB writes as such: as text it looks up every row."""
    import pandas as pd

    texts = [column.name for column in table.columns if column.type == "VARCHAR"]
    dtypes = {name: rows[name].dtype for name in texts}
    return [
        name
        for name, dtype in dtypes.items()
        if isinstance(dtype, pd.CategoricalDtype) and len(dtype.categories)
    ]


def _emptied(folder: Path) -> Path:
    """What was in it goes: a killed publisher leaves a file with a write-ahead log beside it, and DuckDB
    would replay that log into the next file of the same name."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def _number(path: Path) -> int:
    return int(path.stem.split("-")[1])


def is_damaged(published: Path) -> bool:
    """Whether a published file is not what was written. Those of early releases do not say what that was."""
    return published.stem.count("-") == 2 and not is_undamaged(published)
