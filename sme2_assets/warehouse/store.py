"""Writing rows, publishing the DuckDB file, and reading it.

Writers never share a file, so any number of them and of readers run at once: each run's rows are
one Parquet file per table, made outside the glob and renamed in. Publishing builds a new DuckDB
file and swaps a symlink, so an open session neither blocks nor is blocked.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib import resources
from pathlib import Path

import duckdb
import pandas as pd
from filelock import FileLock

from sme2_assets.errors import WarehouseError
from sme2_assets.store import safe_name
from sme2_assets.warehouse.schema import RUN_ID, RUNS, TABLES, Table

# Readable by DuckDB clients older than the one that writes.
STORAGE_VERSION = "v1.0.0"
SNAPSHOTS_KEPT = 5
# In this order: insights are views over the views of runs.
VIEW_FILES = ("views.sql", "insight_views.sql")
# No write takes this long: what is older in the staging folder belongs to a writer that was killed.
STAGING_LIFETIME_S = 24 * 3600


class _Opened:
    """The snapshot that was read last, kept open: opening one takes longer than most queries.

    One for the process and not one for each warehouse, so that nothing piles up.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._identity: tuple[int, int, int] | None = None
        self._connection: duckdb.DuckDBPyConnection | None = None

    def connection_to(
        self, link: Path, connect: Callable[[], duckdb.DuckDBPyConnection]
    ) -> duckdb.DuckDBPyConnection:
        """A connection of its own for the caller, who closes it."""
        with self._lock:
            # Not by name: a warehouse that was deleted and made anew has other files of the same names.
            facts = link.stat()
            identity = (facts.st_dev, facts.st_ino, facts.st_mtime_ns)
            if self._connection is None or self._identity != identity:
                if self._connection is not None:
                    self._connection.close()
                self._connection = None
                self._connection, self._identity = connect(), identity
            # USE is a setting of each connection.
            return self._connection.cursor().execute("USE warehouse")


_opened = _Opened()


class Warehouse:
    """The warehouse below a folder; `<folder>/../warehouse.duckdb` is what people open."""

    def __init__(self, root: Path) -> None:
        # The published views name files of the warehouse, and people open them from anywhere.
        self.root = root.absolute()

    @property
    def link(self) -> Path:
        return self.root.parent / "warehouse.duckdb"

    @property
    def snapshots(self) -> Path:
        return self.root / "snapshots"

    @property
    def staging(self) -> Path:
        """Where files are made; nothing in it is ever read."""
        return self.root / "staging"

    def write(self, table: Table, rows: pd.DataFrame, keys: Mapping[str, str]) -> Path:
        """Stores one run's rows of a table; the same keys replace what was there."""
        folder = self.root / "tables" / table.name
        for key in table.keys:
            folder = folder / f"{key.name}={safe_name(keys[key.name])}"
        missing = [column.name for column in table.columns if column.name not in rows.columns]
        surplus = [name for name in rows.columns if name not in {column.name for column in table.columns}]
        if missing or surplus:
            raise WarehouseError(
                f"Rows for {table.name} do not fit its schema: missing {missing}, surplus {surplus}.",
                "Change warehouse/schema.py and the code that makes the rows together.",
            )
        columns = ", ".join(f'"{column.name}"::{column.type} AS "{column.name}"' for column in table.columns)
        self.staging.mkdir(parents=True, exist_ok=True)
        staged = self.staging / f"{uuid.uuid4().hex}.parquet"
        target = folder / "data.parquet"
        try:
            with duckdb.connect() as connection:
                connection.register("incoming", rows)
                connection.execute(
                    f"COPY (SELECT {columns} FROM incoming) TO '{_quoted(staged)}' "
                    "(FORMAT parquet, COMPRESSION zstd)"
                )
            _fsync(staged)
            folder.mkdir(parents=True, exist_ok=True)
            staged.replace(target)
            _fsync(folder)
        except duckdb.Error as error:
            raise WarehouseError(f"Rows for {table.name} could not be written: {error}") from error
        finally:
            staged.unlink(missing_ok=True)
        return target

    def drop_other_copies(self, table: Table, keys: Mapping[str, str]) -> None:
        """Removes a run's rows that stand under other keys: it was stored before, as something else."""
        folder = self.root / "tables" / table.name
        kept = folder.joinpath(*(f"{key.name}={safe_name(keys[key.name])}" for key in table.keys))
        depth = "/".join("*" for _ in table.keys[:-1])
        for copy in folder.glob(f"{depth}/{RUN_ID.name}={safe_name(keys[RUN_ID.name])}"):
            if copy != kept:
                shutil.rmtree(copy)

    def publish(self) -> Path:
        """Builds a new DuckDB file from all Parquet files and makes it the current one."""
        self.snapshots.mkdir(parents=True, exist_ok=True)
        with FileLock(self.root / "publish.lock"):
            existing = sorted(self.snapshots.glob("warehouse-*.duckdb"), key=_number)
            number = 1 + (_number(existing[-1]) if existing else 0)
            final = self.snapshots / f"warehouse-{number:06d}.duckdb"
            # A folder of its own, emptied first: a killed publisher leaves a file with a write-ahead log
            # beside it, and DuckDB would replay that log into the next file of the same name.
            building = self.staging / "publish"
            shutil.rmtree(building, ignore_errors=True)
            building.mkdir(parents=True)
            try:
                self._build(building / final.name)
                (building / final.name).replace(final)
            finally:
                shutil.rmtree(building, ignore_errors=True)
            self._point_link_at(final)
            for old in existing[: 1 - SNAPSHOTS_KEPT]:
                old.unlink(missing_ok=True)
            self._drop_abandoned_files()
        return final

    @contextmanager
    def connect(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """A read-only connection to the published state. Reads no file outside the warehouse."""
        if not self.link.exists():
            self.publish()
        connection = _opened.connection_to(self.link, self.open_published)
        try:
            yield connection
        finally:
            connection.close()

    def query(self, sql: str, parameters: list[object] | dict[str, object] | None = None) -> pd.DataFrame:
        """Rows of a SELECT over the published state; anything but a SELECT is refused."""
        with self.connect() as connection:
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
                    "`sme2 sql 'SHOW TABLES'` lists tables and views; docs/warehouse.md explains them.",
                ) from error

    def open_published(
        self, settings: Mapping[str, str] | None = None, folders: Iterable[Path] = ()
    ) -> duckdb.DuckDBPyConnection:
        """A new connection to the published state, locked to it: it reads the tables' files and those
        below `folders`, and its settings cannot be changed. The caller closes it."""
        connection = duckdb.connect()
        try:
            self._attach_published(connection)
            for name, value in (settings or {}).items():
                connection.execute(f"SET {name} = {_literal(value)}")
            allowed = ", ".join(f"'{_quoted(folder)}'" for folder in (self.root / "tables", *folders))
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
            try:
                connection.execute(f"ATTACH '{_quoted(self.link.resolve())}' AS warehouse (READ_ONLY)")
                break
            except duckdb.IOException:
                # Between reading the link and opening the file, others may have published so often that
                # the file was pruned; the link then points to a newer one.
                if not attempts_left:
                    raise
        connection.execute("USE warehouse")

    def _drop_abandoned_files(self) -> None:
        """Removes what killed writers left in the staging folder."""
        oldest = time.time() - STAGING_LIFETIME_S
        for path in self.staging.iterdir():
            try:
                if path.stat().st_mtime < oldest:
                    path.unlink()
            except OSError:
                continue

    def _build(self, path: Path) -> None:
        with duckdb.connect() as connection:
            connection.execute(f"ATTACH '{_quoted(path)}' AS published (STORAGE_VERSION '{STORAGE_VERSION}')")
            connection.execute("USE published")
            # One transaction: as hundreds of them the comments would take longer than the rows.
            connection.begin()
            for table in TABLES:
                self._build_table(connection, table)
            for name in VIEW_FILES:
                connection.execute(resources.files(__package__).joinpath(name).read_text())
            _comment_views_like_tables(connection)
            connection.commit()
            connection.execute("USE memory")
            connection.execute("DETACH published")
        _fsync(path)

    def _build_table(self, connection: duckdb.DuckDBPyConnection, table: Table) -> None:
        folder = self.root / "tables" / table.name
        columns = ", ".join(
            f'"{column.name}"::{column.type} AS "{column.name}"' for column in table.all_columns
        )
        # An empty relation with all columns, so that views exist before the first run, and rows that were
        # written before a column was declared have NULL there.
        nulls = ", ".join(f'NULL::{column.type} AS "{column.name}"' for column in table.all_columns)
        select = f"SELECT {nulls} WHERE false"
        if next(folder.rglob("data.parquet"), None) is not None:
            select = (
                f"SELECT {columns} FROM (({select}) UNION ALL BY NAME "
                f"FROM read_parquet('{_quoted(folder)}/**/data.parquet', hive_partitioning = true, "
                "hive_types_autocast = false, union_by_name = true))"
            )
        if RUN_ID in table.keys and table is not RUNS:
            # Restricted to the runs that are published (they come first), so that one file always shows
            # one consistent state, whatever is being written meanwhile.
            select = f"FROM ({select}) WHERE run_id IN (SELECT run_id FROM runs)"
        what = "VIEW" if table.published_as_view else "TABLE"
        connection.execute(f"CREATE {what} {table.name} AS {select}")
        connection.execute(f"COMMENT ON {what} {table.name} IS {_literal(table.comment)}")
        for column in table.all_columns:
            connection.execute(
                f'COMMENT ON COLUMN {table.name}."{column.name}" IS {_literal(column.comment)}'
            )

    def _point_link_at(self, snapshot: Path) -> None:
        staged = self.link.with_name(f".{self.link.name}.{os.getpid()}")
        staged.unlink(missing_ok=True)
        staged.symlink_to(os.path.relpath(snapshot, self.link.parent))
        staged.replace(self.link)


def _comment_views_like_tables(connection: duckdb.DuckDBPyConnection) -> None:
    """A view's column without a comment of its own means what the table's column of that name means."""
    comments = {column.name: column.comment for table in reversed(TABLES) for column in table.all_columns}
    bare = connection.execute(
        "SELECT table_name, column_name FROM duckdb_columns() "
        "WHERE database_name = 'published' AND comment IS NULL"
    ).fetchall()
    for table_name, column_name in bare:
        if column_name in comments:
            connection.execute(
                f'COMMENT ON COLUMN {table_name}."{column_name}" IS {_literal(comments[column_name])}'
            )


def _number(path: Path) -> int:
    return int(path.stem.rsplit("-", 1)[1])


def _quoted(path: Path) -> str:
    return str(path).replace("'", "''")


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _fsync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
