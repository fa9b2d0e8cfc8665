"""Building the DuckDB file that people open, from the Parquet files that commits list.

The file before is continued: only what was committed since is read, so that publishing a run hardly depends
on how many there are (benchmarks/growth_bench.py). Event tables stay in Parquet, behind views that name each
file. What summaries need of them is counted once, when a run is published (summaries.sql), because a query
over the files of all runs takes longer with each of them.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import astuple, dataclass
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

import duckdb
import pandas as pd

from sme2_assets.analysis.unit import filled_in
from sme2_assets.store import fsync, sha256_of_file
from sme2_assets.warehouse.commits import Commit, Listing, TableFile, commits_after
from sme2_assets.warehouse.schema import RUN_ID, TABLES, Table

T = TypeVar("T")

# Readable by DuckDB clients older than the one that writes.
STORAGE_VERSION = "v1.0.0"
SUMMARIES_FILE = "summaries.sql"
# In this order: insights are views over the views of runs.
VIEW_FILES = ("views.sql", "insight_views.sql")
# Files that are read at a time, and runs whose events are in memory.
BATCH = 200

# What the file is made of. A schema of its own keeps it out of SHOW TABLES.
_RECORD = """
    CREATE SCHEMA publishing;
    CREATE TABLE publishing.layout (fingerprint VARCHAR, last_commit VARCHAR, folder VARCHAR);
    COMMENT ON TABLE publishing.layout IS 'What all is made by (with another one, it is made anew), the last commit that is in it, and where its files were.';
    CREATE TABLE publishing.files (path VARCHAR, sha256 VARCHAR, columns VARCHAR, part VARCHAR, table_name VARCHAR, run_id VARCHAR);
    COMMENT ON TABLE publishing.files IS 'The Parquet files whose rows are in this file, relative to the folder of the tables.';
    CREATE TABLE publishing.superseded (path VARCHAR, publication BIGINT);
    COMMENT ON TABLE publishing.superseded IS 'Files that are in no publication from that one on: they stay for those who read an earlier one.';
"""  # noqa: E501


@dataclass(frozen=True)
class _Change:
    """What commits change in a publication."""

    new: list[TableFile]
    gone: list[TableFile]
    # Of all runs whose events change, in the state that is published.
    events: dict[str, list[TableFile]]
    superseded: set[str]
    last_commit: str | None

    def tables(self) -> set[str]:
        return {file.table for file in (*self.new, *self.gone)}


def build(path: Path, folder: Path, previous: Path | None, publication: int, kept: int) -> list[str]:
    """Makes `path` from the tables' files below `folder`; `previous` is the file that was made last.

    Gives the superseded files that none of the last so many publications has.
    """
    with duckdb.connect() as connection:
        commits = _attach(connection, path, previous, folder)
        change = _change(connection, folder, commits)
        # Another database, and so before the transaction, which can have but one.
        _summarise(connection, folder, change.events)
        connection.execute("USE published")
        connection.begin()
        for table in TABLES:
            if not table.published_as_view:
                _delete(
                    connection, table.name, [file.keys for file in change.gone if file.table == table.name]
                )
                for some in _batches([file for file in change.new if file.table == table.name]):
                    connection.execute(f"INSERT INTO {table.name} {_rows(table, folder, some)}")
        if change.events:
            for name in _summary_names(connection):
                _delete(connection, name, [{RUN_ID.name: run} for run in change.events])
                connection.execute(f"INSERT INTO {name} FROM memory.main.{name}")
        _record(connection, change, publication)
        moved = _folder_of(connection) != str(folder)
        for table in _event_tables():
            if moved or table.name in change.tables():
                _show_events(connection, table, folder)
        connection.execute(
            "UPDATE publishing.layout SET last_commit = ?, folder = ?", [change.last_commit, str(folder)]
        )
        needless = connection.execute(
            "DELETE FROM publishing.superseded WHERE publication <= ? RETURNING path",
            [publication + 1 - kept],
        ).fetchall()
        connection.commit()
        connection.execute("USE memory")
        connection.execute("DETACH published")
    fsync(path)
    return [name for (name,) in needless]


def _change(connection: duckdb.DuckDBPyConnection, folder: Path, commits: Sequence[Commit]) -> _Change:
    """What commits make of the publication that they continue."""
    runs = {run for commit in commits for run in commit.runs} | {
        file.run_id for commit in commits for file in commit.files if file.run_id is not None
    }
    parts = {file.part for commit in commits for file in commit.files}
    stored = _stored(connection, runs, parts)
    listing = Listing(stored.values())
    for commit in commits:
        listing.apply(commit)
    for commit in commits:
        # A session with a damaged file is none: as if it had not been taken in yet, which `sync` then does.
        current = [file for file in commit.files if listing.files.get(file.part) == file]
        if any(file != stored.get(file.part) and not file.is_whole(folder) for file in current):
            for file in current:
                listing.files.pop(file.part)
            for run in commit.runs:
                listing.drop(run)
    now = listing.files
    new = [file for part, file in now.items() if stored.get(part) != file]
    gone = [file for part, file in stored.items() if now.get(part) != file]
    names = {table.name for table in _event_tables()}
    events: dict[str, list[TableFile]] = {
        str(file.run_id): [] for file in (*new, *gone) if file.table in names
    }
    for file in now.values():
        if file.table in names and file.run_id in events:
            events[file.run_id].append(file)
    written = {file.path for commit in commits for file in commit.files} | {file.path for file in gone}
    superseded = written - {file.path for file in now.values()}
    return _Change(new, gone, events, superseded, commits[-1].name if commits else _last_commit(connection))


def _stored(
    connection: duckdb.DuckDBPyConnection, runs: Collection[str], parts: Collection[str]
) -> dict[str, TableFile]:
    """The published files of these runs and parts."""
    rows = connection.execute(
        "SELECT path, sha256, columns FROM publishing.files "
        "WHERE run_id IN (SELECT unnest(?::VARCHAR[])) OR part IN (SELECT unnest(?::VARCHAR[]))",
        [list(runs), list(parts)],
    ).fetchall()
    files = [TableFile(*row) for row in rows]
    return {file.part: file for file in files}


def is_current(connection: duckdb.DuckDBPyConnection, folder: Path) -> bool:
    """Whether the attached file is what this code would publish here: not of other code, and not moved."""
    try:
        row = connection.execute("SELECT fingerprint, folder FROM warehouse.publishing.layout").fetchone()
    except duckdb.Error:
        return False
    return row == (_fingerprint(), str(folder))


def _fingerprint() -> str:
    """Of everything but the rows that decides what is in the file."""
    sql = [_sql(name) for name in (SUMMARIES_FILE, *VIEW_FILES)]
    decides = (duckdb.__version__, STORAGE_VERSION, repr(TABLES), _RECORD, _MOVED, *sql)
    return hashlib.sha256("\n".join(decides).encode()).hexdigest()


def _attach(
    connection: duckdb.DuckDBPyConnection, path: Path, previous: Path | None, folder: Path
) -> list[Commit]:
    """Attaches the file with all its tables and views; gives the commits that are not in it yet."""
    commits = _continued(connection, path, previous, folder) if previous is not None else None
    if commits is not None:
        return commits
    path.write_bytes(_without_rows(_fingerprint()))
    connection.execute(f"ATTACH '{quoted(path)}' AS published")
    connection.execute("USE published")
    connection.execute("INSERT INTO publishing.layout VALUES (?, NULL, ?)", [_fingerprint(), str(folder)])
    return commits_after(folder, None) or []


@lru_cache(maxsize=1)
def _without_rows(fingerprint: str) -> bytes:
    """The file with all its tables and views, empty. Kept: to make it takes half a second."""
    with tempfile.TemporaryDirectory() as folder, duckdb.connect() as connection:
        path = Path(folder) / "empty.duckdb"
        connection.execute(f"ATTACH '{quoted(path)}' AS published (STORAGE_VERSION '{STORAGE_VERSION}')")
        connection.execute("USE published")
        # One transaction: as hundreds of them the comments would take longer than the rows.
        connection.begin()
        connection.execute(_RECORD)
        _create_tables_and_views(connection)
        connection.commit()
        connection.execute("USE memory")
        connection.execute("DETACH published")
        return path.read_bytes()


def _continued(
    connection: duckdb.DuckDBPyConnection, path: Path, previous: Path, folder: Path
) -> list[Commit] | None:
    """The commits after the previous file, of which `path` is now a copy; None if it cannot be continued."""
    try:
        shutil.copyfile(previous, path)
        # What was damaged since must not live on in what follows.
        if sha256_of_file(path)[:16] == hash_in_name(previous):
            connection.execute(f"ATTACH '{quoted(path)}' AS published")
            connection.execute("USE published")
            row = connection.execute("SELECT fingerprint, last_commit FROM publishing.layout").fetchone()
            if row is not None and row[0] == _fingerprint():
                commits = commits_after(folder, row[1])
                if commits is not None:
                    return commits
    except (duckdb.Error, OSError):
        # Of another version, damaged, or none of ours: it has nothing that the Parquet files have not.
        pass
    connection.execute("USE memory")
    connection.execute("DETACH DATABASE IF EXISTS published")
    return None


def hash_in_name(published: Path) -> str:
    """The beginning of the hash that a whole file has; it is named warehouse-<number>-<hash>.duckdb."""
    return published.stem.rpartition("-")[2]


def _last_commit(connection: duckdb.DuckDBPyConnection) -> str | None:
    [[name]] = connection.execute("SELECT last_commit FROM publishing.layout").fetchall()
    return name


def _folder_of(connection: duckdb.DuckDBPyConnection) -> str:
    [[name]] = connection.execute("SELECT folder FROM publishing.layout").fetchall()
    return str(name)


def _create_tables_and_views(connection: duckdb.DuckDBPyConnection) -> None:
    for table in TABLES:
        columns = ", ".join(f'"{column.name}" {column.type}' for column in table.all_columns)
        connection.execute(f"CREATE TABLE {table.name} ({columns})")
        if not table.published_as_view:
            _comment(connection, table, "TABLE")
    # Made of the empty tables of events, whose places their views take afterwards.
    connection.execute(_sql(SUMMARIES_FILE))
    for table in _event_tables():
        connection.execute(f"DROP TABLE {table.name}")
        connection.execute(f"CREATE VIEW {table.name} AS {_rows(table, Path(), [])}")
        _comment(connection, table, "VIEW")
    for name in VIEW_FILES:
        connection.execute(_sql(name))
    _comment_like_tables(connection)


# DuckDB cannot name files relative to the one that lists them. In a copy the names lead to the original: that
# must not look like the copy's own rows. Opened through this package, a copy is published again first.
_MOVED = """
    SELECT 1 WHERE CASE
        WHEN EXISTS (FROM duckdb_databases() WHERE starts_with(path, {here}) OR starts_with(path, {really}))
        THEN true
        ELSE error('This file was copied or moved, and its events are listed in ' || {here} || '. '
            || 'Open it there, or run `sme2 warehouse sync` on the data folder that it is in now.')
    END
"""


def _show_events(
    connection: duckdb.DuckDBPyConnection, table: Table, folder: Path | str, guarded: bool = True
) -> None:
    """The view over the Parquet files of an event table, each by its name."""
    rows = connection.execute(
        "SELECT path, sha256, columns FROM publishing.files WHERE table_name = ? ORDER BY path", [table.name]
    ).fetchall()
    select = _rows(table, folder, [TableFile(*row) for row in rows])
    if rows and guarded:
        data = Path(folder).parent.parent
        guard = _MOVED.format(here=literal(f"{data}/"), really=literal(f"{data.resolve()}/"))
        select = f"SELECT events.* FROM ({select}) AS events, ({guard}) AS here"
    connection.execute(f"CREATE OR REPLACE VIEW {table.name} AS {select}")
    _comment(connection, table, "VIEW")


def _rows(table: Table, folder: Path | str, files: Sequence[TableFile]) -> str:
    """SQL for the rows of files; what was written before a column was declared has NULL there."""
    nulls = ", ".join(f'NULL::{column.type} AS "{column.name}"' for column in table.all_columns)
    none = f"SELECT {nulls} WHERE false"
    if not files:
        return none
    alike: dict[str, list[str]] = defaultdict(list)
    for file in files:
        alike[file.columns].append(literal(f"{folder}/{file.path}"))
    # Files of the same columns together: so only one of them is opened to learn which columns there are.
    read = " UNION ALL BY NAME ".join(
        f"FROM read_parquet([{', '.join(paths)}], hive_partitioning = true, hive_types_autocast = false)"
        for paths in alike.values()
    )
    columns = ", ".join(f'"{column.name}"::{column.type} AS "{column.name}"' for column in table.all_columns)
    return f"SELECT {columns} FROM (({none}) UNION ALL BY NAME {read})"


def write_for_readers_elsewhere(published: Path, path: Path, tables: str, folder: Path) -> None:
    """A copy of a published file whose events are read below the address `tables`, as those in `folder` are.

    DuckDB looks at every file that a view names when it is made: at those here, for asking a store a thousand
    times takes a minute.
    """
    shutil.copyfile(published, path)
    with duckdb.connect() as connection:
        if "://" in tables:
            connection.register_filesystem(_as_if_at(tables, folder))
        connection.execute(f"ATTACH '{quoted(path)}' AS published")
        connection.execute("USE published")
        connection.begin()
        for table in _event_tables():
            _show_events(connection, table, tables, guarded=False)
        connection.execute("UPDATE publishing.layout SET folder = ?", [tables])
        connection.commit()
        connection.execute("USE memory")
        connection.execute("DETACH published")


def _as_if_at(tables: str, folder: Path) -> Any:
    """A file system that has the files of a folder at another address."""
    from fsspec.implementations.local import LocalFileSystem

    class Here(LocalFileSystem):
        protocol = tables.partition("://")[0]
        cachable = False

        @classmethod
        def _strip_protocol(cls, path: Any) -> Any:
            return super()._strip_protocol(str(path).replace(tables, str(folder), 1))

    return Here()


def _event_tables() -> list[Table]:
    return [table for table in TABLES if table.published_as_view]


def _summarise(
    connection: duckdb.DuckDBPyConnection, folder: Path, events: dict[str, list[TableFile]]
) -> None:
    """Counts what the events of these runs have in the summaries, into tables in memory."""
    for some in _batches(list(events)):
        connection.execute("CREATE SCHEMA memory.batch")
        connection.execute("USE memory.batch")
        for table in _event_tables():
            files = [file for run in some for file in events[run] if file.table == table.name]
            connection.execute(f"CREATE TABLE {table.name} AS {_rows(table, folder, files)}")
        connection.execute(_sql(SUMMARIES_FILE))
        for name in _summary_names(connection):
            connection.execute(f"CREATE TABLE IF NOT EXISTS memory.main.{name} AS FROM {name} LIMIT 0")
            connection.execute(f"INSERT INTO memory.main.{name} FROM {name}")
        connection.execute("DROP SCHEMA memory.batch CASCADE")


def _summary_names(connection: duckdb.DuckDBPyConnection) -> list[str]:
    """The tables here that summaries.sql made."""
    here = connection.execute(
        "SELECT table_name FROM duckdb_tables() "
        "WHERE database_name = current_database() AND schema_name = current_schema()"
    ).fetchall()
    return sorted({name for (name,) in here} - {table.name for table in TABLES})


def _delete(connection: duckdb.DuckDBPyConnection, table: str, keys: list[dict[str, str]]) -> None:
    if not keys:
        return
    names = ", ".join(f'"{name}"' for name in keys[0])
    if not names:
        connection.execute(f"DELETE FROM {table}")
        return
    connection.register("gone", pd.DataFrame(keys))
    connection.execute(f"DELETE FROM {table} WHERE ({names}) IN (SELECT ({names}) FROM gone)")
    connection.unregister("gone")


def _record(connection: duckdb.DuckDBPyConnection, change: _Change, publication: int) -> None:
    _delete(connection, "publishing.files", [{"path": file.path} for file in change.gone])
    listed = [(*astuple(file), file.part, file.table, file.run_id) for file in change.new]
    _insert(connection, "publishing.files", listed)
    _delete(connection, "publishing.superseded", [{"path": file.path} for file in change.new])
    _insert(connection, "publishing.superseded", [(path, publication) for path in sorted(change.superseded)])


def _insert(connection: duckdb.DuckDBPyConnection, table: str, rows: list[tuple]) -> None:
    if rows:
        connection.register("incoming", pd.DataFrame(rows))
        connection.execute(f"INSERT INTO {table} FROM incoming")
        connection.unregister("incoming")


def _batches(items: Sequence[T]) -> Iterator[Sequence[T]]:
    return (items[start : start + BATCH] for start in range(0, len(items), BATCH))


def _comment(connection: duckdb.DuckDBPyConnection, table: Table, what: str) -> None:
    connection.execute(f"COMMENT ON {what} {table.name} IS {literal(table.comment)}")
    for column in table.all_columns:
        connection.execute(f'COMMENT ON COLUMN {table.name}."{column.name}" IS {literal(column.comment)}')


def _comment_like_tables(connection: duckdb.DuckDBPyConnection) -> None:
    """A column without a comment of its own means what the tables' column of that name means.

    Of several tables the first counts, and those of summaries come last.
    """
    columns = connection.execute(
        "SELECT table_name, column_name, comment FROM duckdb_columns() "
        "WHERE database_name = 'published' AND schema_name = 'main'"
    ).fetchall()
    summaries = _summary_names(connection)
    comments = {column: comment for table, column, comment in columns if table in summaries and comment}
    comments |= {column.name: column.comment for table in reversed(TABLES) for column in table.all_columns}
    bare = [(table, column) for table, column, comment in columns if comment is None]
    for table_name, column_name in bare:
        if column_name in comments:
            connection.execute(
                f'COMMENT ON COLUMN {table_name}."{column_name}" IS {literal(comments[column_name])}'
            )


def _sql(name: str) -> str:
    return filled_in(resources.files(__package__).joinpath(name).read_text())


def quoted(path: Path) -> str:
    return str(path).replace("'", "''")


def literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
