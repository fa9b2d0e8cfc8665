"""Building the DuckDB file that people open, from the Parquet files of all runs.

The file before is continued: only what was written since is read, so that publishing a run hardly depends on
how many there are (benchmarks/growth_bench.py). Event tables stay in Parquet, behind views. What summaries
need of them is counted once, when a run is published (summaries.sql), because a query over the files of all
runs takes longer with each of them.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import TypeVar

import duckdb
import pandas as pd

from sme2_assets.analysis.unit import filled_in
from sme2_assets.warehouse.schema import RUN_ID, RUNS, TABLES, Table

T = TypeVar("T")

# Readable by DuckDB clients older than the one that writes.
STORAGE_VERSION = "v1.0.0"
FILE_NAME = "data.parquet"
SUMMARIES_FILE = "summaries.sql"
# In this order: insights are views over the views of runs.
VIEW_FILES = ("views.sql", "insight_views.sql")
# Files that are read at a time, and runs whose events are in memory.
BATCH = 200

# What the file is made of. A schema of its own keeps it out of SHOW TABLES.
_RECORD = """
    CREATE SCHEMA publishing;
    CREATE TABLE publishing.layout (fingerprint VARCHAR);
    COMMENT ON TABLE publishing.layout IS 'What all is made by: with another one, it is made anew.';
    CREATE TABLE publishing.files (table_name VARCHAR, keys VARCHAR, identity VARCHAR);
    COMMENT ON TABLE publishing.files IS 'The Parquet files whose rows are in this file.';
"""


@dataclass(frozen=True)
class _Part:
    """The rows of a table that are one Parquet file."""

    table: str
    # Names and values of its keys, as they are in the path.
    keys: str

    @property
    def values(self) -> dict[str, str]:
        return dict(part.split("=", 1) for part in self.keys.split("/") if part)

    @property
    def run_id(self) -> str | None:
        return self.values.get(RUN_ID.name)


# With the identity of each file: one that is written again has another.
_Parts = dict[_Part, str]


def build(path: Path, folder: Path, previous: Path | None) -> None:
    """Makes `path` from the tables' files below `folder`; `previous` is the file that was made last."""
    # Before anything is read: what is written from now on is found the next time.
    wanted = _of_published_runs(_parts_below(folder))
    with duckdb.connect() as connection:
        stored = _attach(connection, path, previous, _fingerprint(str(folder)))
        new = [part for part, identity in wanted.items() if stored.get(part) != identity]
        gone = [part for part, identity in stored.items() if wanted.get(part) != identity]
        # Another database, and so before the transaction, which can have but one.
        runs = _runs_with_other_events([*new, *gone])
        _summarise(connection, folder, runs, wanted)
        connection.execute("USE published")
        connection.begin()
        for table in TABLES:
            if table.published_as_view:
                before, now = (any(part.table == table.name for part in parts) for parts in (stored, wanted))
                # Made once for all files to come: making it opens every file.
                if before != now:
                    _show_events(connection, table, folder, now)
            else:
                _delete(connection, table.name, [part.values for part in gone if part.table == table.name])
                for some in _batches([part for part in new if part.table == table.name]):
                    connection.execute(f"INSERT INTO {table.name} {_rows(table, _listed(folder, some))}")
        if runs:
            for name in _summary_names(connection):
                _delete(connection, name, [{RUN_ID.name: run} for run in runs])
                connection.execute(f"INSERT INTO {name} FROM memory.main.{name}")
        _record(connection, new, gone, wanted)
        connection.commit()
        connection.execute("USE memory")
        connection.execute("DETACH published")
    fsync(path)


def _parts_below(folder: Path) -> _Parts:
    """Every file of the tables. Runs come first: each has all its other files by then."""
    parts: _Parts = {}
    for table in TABLES:
        for keys in _folders(folder / table.name, [key.name for key in table.keys]):
            try:
                facts = (folder / table.name / keys / FILE_NAME).stat()
            except FileNotFoundError:
                continue
            parts[_Part(table.name, keys)] = f"{facts.st_ino}-{facts.st_mtime_ns}-{facts.st_size}"
    return parts


def _folders(folder: Path, keys: Sequence[str], inside: str = "") -> Iterator[str]:
    """The folders that are named by all keys, relative to `folder`, in the order of their names."""
    if not keys:
        yield inside
        return
    try:
        names = sorted(entry.name for entry in os.scandir(folder / inside) if entry.is_dir())
    except FileNotFoundError:
        return
    for name in names:
        if name.startswith(f"{keys[0]}="):
            yield from _folders(folder, keys[1:], f"{inside}/{name}" if inside else name)


def _of_published_runs(parts: _Parts) -> _Parts:
    """Without the parts of runs that are not there yet: one file always shows one consistent state."""
    runs = {part.run_id for part in parts if part.table == RUNS.name}
    return {part: identity for part, identity in parts.items() if part.run_id is None or part.run_id in runs}


def is_current(connection: duckdb.DuckDBPyConnection, folder: Path) -> bool:
    """Whether the attached file is what this code would publish here: not of other code, and not moved."""
    try:
        row = connection.execute("SELECT fingerprint FROM warehouse.publishing.layout").fetchone()
    except duckdb.Error:
        return False
    return row == (_fingerprint(str(folder)),)


def _fingerprint(*decides: str) -> str:
    """Of everything but the rows that decides what is in the file, and of what else is given."""
    sql = [_sql(name) for name in (SUMMARIES_FILE, *VIEW_FILES)]
    decides = (duckdb.__version__, STORAGE_VERSION, *decides, repr(TABLES), _RECORD, *sql)
    return hashlib.sha256("\n".join(decides).encode()).hexdigest()


def _attach(
    connection: duckdb.DuckDBPyConnection, path: Path, previous: Path | None, fingerprint: str
) -> _Parts:
    """Attaches the file with all its tables and views; gives the parts whose rows it has already."""
    stored = _continued(connection, path, previous, fingerprint) if previous is not None else None
    if stored is not None:
        return stored
    path.write_bytes(_without_rows(_fingerprint()))
    connection.execute(f"ATTACH '{quoted(path)}' AS published")
    connection.execute("USE published")
    connection.execute("INSERT INTO publishing.layout VALUES (?)", [fingerprint])
    return {}


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
    connection: duckdb.DuckDBPyConnection, path: Path, previous: Path, fingerprint: str
) -> _Parts | None:
    """The parts of the previous file, of which `path` is now a copy; None if it was made for others."""
    try:
        shutil.copyfile(previous, path)
        connection.execute(f"ATTACH '{quoted(path)}' AS published")
        connection.execute("USE published")
        if connection.execute("SELECT fingerprint FROM publishing.layout").fetchall() == [(fingerprint,)]:
            rows = connection.execute("SELECT table_name, keys, identity FROM publishing.files").fetchall()
            return {_Part(table, keys): identity for table, keys, identity in rows}
    except (duckdb.Error, OSError):
        # Of another version, damaged, or none of ours: it has nothing that the Parquet files have not.
        pass
    connection.execute("USE memory")
    connection.execute("DETACH DATABASE IF EXISTS published")
    return None


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
        connection.execute(f"CREATE VIEW {table.name} AS {_rows(table, None)}")
        _comment(connection, table, "VIEW")
    for name in VIEW_FILES:
        connection.execute(_sql(name))
    _comment_like_tables(connection)


def _show_events(connection: duckdb.DuckDBPyConnection, table: Table, folder: Path, any_files: bool) -> None:
    """The view over the Parquet files of an event table, present and future ones."""
    files = f"'{quoted(folder / table.name)}/**/{FILE_NAME}'" if any_files else None
    # Restricted to the runs that are published, whatever is being written meanwhile.
    select = f"FROM ({_rows(table, files)}) WHERE run_id IN (SELECT run_id FROM runs)"
    connection.execute(f"CREATE OR REPLACE VIEW {table.name} AS {select}")
    _comment(connection, table, "VIEW")


def _rows(table: Table, files: str | None) -> str:
    """SQL for the rows of files; what was written before a column was declared has NULL there."""
    nulls = ", ".join(f'NULL::{column.type} AS "{column.name}"' for column in table.all_columns)
    none = f"SELECT {nulls} WHERE false"
    if files is None:
        return none
    columns = ", ".join(f'"{column.name}"::{column.type} AS "{column.name}"' for column in table.all_columns)
    return (
        f"SELECT {columns} FROM (({none}) UNION ALL BY NAME FROM read_parquet({files}, "
        "hive_partitioning = true, hive_types_autocast = false, union_by_name = true))"
    )


def _event_tables() -> list[Table]:
    return [table for table in TABLES if table.published_as_view]


def _runs_with_other_events(changed: Iterable[_Part]) -> list[str]:
    events = {table.name for table in _event_tables()}
    return sorted({str(part.run_id) for part in changed if part.table in events})


def _summarise(
    connection: duckdb.DuckDBPyConnection, folder: Path, runs: Sequence[str], parts: Iterable[_Part]
) -> None:
    """Counts what the events of these runs have in the summaries, into tables in memory."""
    of_run: dict[str | None, list[_Part]] = defaultdict(list)
    for part in parts:
        of_run[part.run_id].append(part)
    for some in _batches(runs):
        connection.execute("CREATE SCHEMA memory.batch")
        connection.execute("USE memory.batch")
        for table in _event_tables():
            files = [part for run in some for part in of_run[run] if part.table == table.name]
            connection.execute(f"CREATE TABLE {table.name} AS {_rows(table, _listed(folder, files))}")
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


def _record(
    connection: duckdb.DuckDBPyConnection, new: Sequence[_Part], gone: Sequence[_Part], wanted: _Parts
) -> None:
    _delete(connection, "publishing.files", [{"table_name": part.table, "keys": part.keys} for part in gone])
    if new:
        rows = [(part.table, part.keys, wanted[part]) for part in new]
        connection.register("incoming", pd.DataFrame(rows))
        connection.execute("INSERT INTO publishing.files FROM incoming")
        connection.unregister("incoming")


def _listed(folder: Path, parts: Iterable[_Part]) -> str | None:
    """The files of parts as a list in SQL; None without any."""
    paths = [f"'{quoted(folder / part.table / part.keys / FILE_NAME)}'" for part in parts]
    return f"[{', '.join(paths)}]" if paths else None


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


def fsync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
