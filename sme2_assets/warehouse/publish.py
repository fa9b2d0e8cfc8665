"""Builds the DuckDB file that people open, from the Parquet files that commits list.

The previous file is continued: only what was committed since is read, so that the cost of publishing a run
hardly depends on how many there are (benchmarks/growth_bench.py). Tables with many rows stay in Parquet,
behind views that name each file; the others are copied.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
import uuid
import zlib
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import astuple, dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, TypeVar

import duckdb

from sme2_assets.store import fsync, sha256_of_file
from sme2_assets.warehouse.commits import GROUP, Commit, Listing, TableFile, commits_after
from sme2_assets.warehouse.schema import RUN_ID, TABLES, Table
from sme2_assets.warehouse.sql import literal, no_rows, quoted, rows_of_files, sql_file
from sme2_assets.warehouse.summaries import EVENT_VIEWS_FILE, IN_PARQUET, SUMMARIES_FILE, summary_tables

T = TypeVar("T")

# Readable by DuckDB clients older than the one that writes.
STORAGE_VERSION = "v1.0.0"
# In this order: insights are views over the views of runs.
VIEW_FILES = (EVENT_VIEWS_FILE, "views.sql", "insight_views.sql")
# Published files that stay for readers of an earlier state, with the files that they name.
SNAPSHOTS_KEPT = 5
# How many files are read at a time.
BATCH = 1000

# What the file is made of. A schema of its own keeps it out of SHOW TABLES.
_RECORD = """
    CREATE SCHEMA publishing;
    CREATE TABLE publishing.layout (fingerprint VARCHAR, last_commit VARCHAR, folder VARCHAR);
    COMMENT ON TABLE publishing.layout IS 'What the file was made by (if that changes, it is made from scratch), the last commit in it, and where its files were.';
    CREATE TABLE publishing.files (path VARCHAR, sha256 VARCHAR, columns VARCHAR, part VARCHAR, table_name VARCHAR, run_id VARCHAR);
    COMMENT ON TABLE publishing.files IS 'The Parquet files whose rows are in this file, relative to the folder of the tables.';
    CREATE TABLE publishing.superseded (path VARCHAR, publication BIGINT);
    COMMENT ON TABLE publishing.superseded IS 'Files that are in no publication from this one on: they stay for readers of an earlier one.';
"""  # noqa: E501


@dataclass(frozen=True)
class _Change:
    """What commits change in a publication."""

    new: list[TableFile]
    gone: list[TableFile]
    # Runs whose rows change. Merging changes only their files.
    runs: set[str]
    # The files with all rows of these runs, and perhaps of others that were merged with them.
    of_runs: list[TableFile]
    # Whether these runs already have rows.
    replaces: bool
    superseded: set[str]
    last_commit: str | None

    def kinds_of_files(self) -> set[tuple[str, str]]:
        return {_kind_of(file) for file in (*self.new, *self.gone)}


@dataclass(frozen=True)
class Built:
    # Superseded files that are in no publication that is kept.
    needless: list[str]
    # Runs with files of their own.
    loose_runs: int
    # Whether it continues no earlier file.
    is_anew: bool


@contextmanager
def attached(
    instance: duckdb.DuckDBPyConnection, path: Path, options: str = ""
) -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection of this instance that uses a DuckDB file: starting an instance takes longer."""
    name = f"published_{uuid.uuid4().hex}"
    with instance.cursor() as connection:
        connection.execute(f"ATTACH '{quoted(path)}' AS {name} {options}")
        try:
            connection.execute(f"USE {name}")
            yield connection
        except BaseException:
            # A statement that failed leaves a transaction in which nothing can be detached.
            with suppress(duckdb.Error):
                connection.rollback()
            raise
        finally:
            connection.execute("USE memory")
            connection.execute(f"DETACH {name}")


def build(
    instance: duckdb.DuckDBPyConnection,
    path: Path,
    folder: Path,
    previous: Published | None,
    publication: int,
    complete: Callable[[], None],
) -> Built:
    """Makes `path` from the tables' files below `folder`; `previous` is the file that was made last.

    `complete` adds what older releases did not write; it is called when everything is made from scratch.
    """
    commits = _continued(path, previous, folder) if previous is not None else None
    is_anew = commits is None
    if commits is None:
        complete()
        path.write_bytes(_without_rows(_fingerprint()))
        commits = commits_after(folder, None) or []
    with attached(instance, path) as connection:
        if is_anew:
            layout = [_fingerprint(), str(folder)]
            connection.execute("INSERT INTO publishing.layout VALUES (?, NULL, ?)", layout)
        connection.begin()
        change = _change(connection, folder, commits)
        for table in _tables():
            if not table.published_as_view:
                _copy_rows(connection, table, folder, change)
        _record(connection, change, publication)
        moved = _folder_of(connection) != str(folder)
        _show_files(connection, folder, None if moved else change.kinds_of_files())
        connection.execute(
            "UPDATE publishing.layout SET last_commit = ?, folder = ?", [change.last_commit, str(folder)]
        )
        needless = connection.execute(
            "DELETE FROM publishing.superseded WHERE publication <= ? RETURNING path",
            [publication + 1 - SNAPSHOTS_KEPT],
        ).fetchall()
        [[loose]] = connection.execute(
            "SELECT count(*) FROM publishing.files WHERE table_name = 'runs' AND run_id IS NOT NULL"
        ).fetchall()
        connection.commit()
    fsync(path)
    return Built([name for (name,) in needless], loose, is_anew)


def _copy_rows(connection: duckdb.DuckDBPyConnection, table: Table, folder: Path, change: _Change) -> None:
    if RUN_ID not in table.keys:
        _delete(connection, table.name, [file.keys for file in change.gone if file.table == table.name])
        for some in _batches([file for file in change.new if file.table == table.name]):
            connection.execute(f"INSERT INTO {table.name} {rows_of_files(table, folder, some)}")
        return
    if change.replaces:
        _delete(connection, table.name, [{RUN_ID.name: run} for run in change.runs])
    for some in _batches([file for file in change.of_runs if file.table == table.name]):
        rows = rows_of_files(table, folder, some)
        if any(file.group for file in some):
            rows += " WHERE run_id IN (SELECT unnest($changed::VARCHAR[]))"
            connection.execute(f"INSERT INTO {table.name} {rows}", {"changed": sorted(change.runs)})
        else:
            connection.execute(f"INSERT INTO {table.name} {rows}")


def _change(connection: duckdb.DuckDBPyConnection, folder: Path, commits: Sequence[Commit]) -> _Change:
    """What commits change in the publication that they continue."""
    runs = {run for commit in commits for run in commit.all_runs}
    parts = {file.part for commit in commits for file in commit.files}
    stored = _stored(connection, runs, parts, {group for commit in commits for group in commit.groups})
    listing = Listing(stored.values())
    for commit in commits:
        listing.apply(commit)
    changed: set[str] = set()
    for commit in commits:
        changed |= commit.changed_runs | {file.run_id for file in commit.files if file.run_id is not None}
        # A session with a damaged file counts as missing, as if not added yet; `sync` then adds it.
        current = [file for file in commit.files if listing.files.get(file.part) == file]
        if any(file != stored.get(file.part) and not file.is_whole(folder) for file in current):
            for file in current:
                listing.files.pop(file.part)
            for run in commit.runs:
                listing.drop(run)
            changed.update(commit.runs, *commit.groups.values())
    now = listing.files
    new = [file for part, file in now.items() if stored.get(part) != file]
    gone = [file for part, file in stored.items() if now.get(part) != file]
    written = {file.path for commit in commits for file in commit.files} | {file.path for file in gone}
    superseded = written - {file.path for file in now.values()}
    [[replaces]] = connection.execute(
        "SELECT count(*) > 0 FROM runs WHERE run_id IN (SELECT unnest($1::VARCHAR[]))", [list(changed)]
    ).fetchall()
    last = commits[-1].name if commits else _last_commit(connection)
    of_runs = [file for file in now.values() if file.run_id in changed or file.group is not None]
    return _Change(new, gone, changed, of_runs, replaces, superseded, last)


def _stored(
    connection: duckdb.DuckDBPyConnection,
    runs: Collection[str],
    parts: Collection[str],
    groups: Collection[str],
) -> dict[str, TableFile]:
    """The published files of these runs, parts and groups."""
    rows = connection.execute(
        "SELECT path, sha256, columns FROM publishing.files "
        "WHERE run_id IN (SELECT unnest(?::VARCHAR[])) OR part IN (SELECT unnest(?::VARCHAR[])) "
        f"OR regexp_extract(part, '/{GROUP}=(.*)$', 1) IN (SELECT unnest(?::VARCHAR[]))",
        [list(runs), list(parts), list(groups)],
    ).fetchall()
    files = [TableFile(*row) for row in rows]
    return {file.part: file for file in files}


@dataclass(frozen=True)
class Published:
    """What a published file says about itself."""

    path: Path
    fingerprint: str
    last_commit: str | None
    folder: str

    @classmethod
    def read(cls, instance: duckdb.DuckDBPyConnection, path: Path) -> Published | None:
        """None if it was made by another version of DuckDB, is damaged, or is open for writing here."""
        try:
            with attached(instance, path, "(READ_ONLY)") as connection:
                return cls.opened(connection, path)
        except duckdb.Error:
            return None

    @classmethod
    def opened(cls, connection: duckdb.DuckDBPyConnection, path: Path) -> Published | None:
        """The same of a file that a connection uses."""
        try:
            row = connection.execute(
                "SELECT fingerprint, last_commit, folder FROM publishing.layout"
            ).fetchone()
        except duckdb.Error:
            return None
        return cls(path, *row) if row is not None else None

    def is_current(self, folder: Path) -> bool:
        """Whether it is what this code would publish here: not by other code, and not moved."""
        return (self.fingerprint, self.folder) == (_fingerprint(), str(folder))

    def is_of(self, folder: Path) -> bool:
        """Whether its files are the ones there, perhaps by another path to them."""
        return Path(self.folder).resolve() == folder.resolve()

    def is_copied_whole(self, copy: Path) -> bool:
        return _ends_with_checksum(self.path, copy)


def name_of_published(number: int, path: Path) -> str:
    return f"warehouse-{number:06d}-{_checksum(path)}.duckdb"


def is_undamaged(published: Path) -> bool:
    """Whether a published file is what was written: its name ends with its checksum."""
    try:
        return _ends_with_checksum(published, published)
    except OSError:
        # Others may have published, and it is one of the old ones that are no longer kept.
        return False


def _ends_with_checksum(published: Path, content: Path) -> bool:
    said = published.stem.rpartition("-")[2]
    # Earlier releases had the start of a SHA-256.
    return said == (sha256_of_file(content)[:16] if len(said) == 16 else _checksum(content))


def _checksum(path: Path) -> str:
    """Finds damage, which no hash against forgery has to: that would take most of the time of publishing."""
    checksum = 0
    with path.open("rb") as handle:
        while chunk := handle.read(1 << 20):
            checksum = zlib.crc32(chunk, checksum)
    return f"{checksum:08x}"


def _fingerprint() -> str:
    """A hash of everything except the rows that determines what is in the file."""
    sql = [sql_file(name) for name in (SUMMARIES_FILE, *VIEW_FILES)]
    tables = _declared(tuple(TABLES), frozenset(IN_PARQUET))
    decides = (duckdb.__version__, STORAGE_VERSION, tables, _RECORD, *_KINDS_OF_FILES, _MOVED, *sql)
    return hashlib.sha256("\n".join(decides).encode()).hexdigest()


@cache
def _declared(tables: tuple[Table, ...], in_parquet: frozenset[str]) -> str:
    return repr((tables, sorted(in_parquet)))


@lru_cache(maxsize=1)
def _without_rows(fingerprint: str) -> bytes:
    """The file with all its tables and views, empty. Cached: making it takes half a second."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "empty.duckdb"
        options = f"(STORAGE_VERSION '{STORAGE_VERSION}')"
        with duckdb.connect() as instance, attached(instance, path, options) as connection:
            # One transaction: in hundreds of them, the comments would take longer than the rows.
            connection.begin()
            connection.execute(_RECORD)
            _create_tables_and_views(connection)
            connection.commit()
        return path.read_bytes()


def _continued(path: Path, previous: Published, folder: Path) -> list[Commit] | None:
    """The commits after the previous file, of which `path` is now a copy; None if it cannot be continued."""
    if previous.fingerprint != _fingerprint():
        return None
    try:
        shutil.copyfile(previous.path, path)
    except OSError:
        # Nothing is lost: the Parquet files have all of it.
        return None
    # Damage to the previous file must not carry over into this one.
    return commits_after(folder, previous.last_commit) if previous.is_copied_whole(path) else None


def _last_commit(connection: duckdb.DuckDBPyConnection) -> str | None:
    [[name]] = connection.execute("SELECT last_commit FROM publishing.layout").fetchall()
    return name


def _folder_of(connection: duckdb.DuckDBPyConnection) -> str:
    [[name]] = connection.execute("SELECT folder FROM publishing.layout").fetchall()
    return str(name)


def _tables() -> tuple[Table, ...]:
    return (*TABLES, *summary_tables())


def _create_tables_and_views(connection: duckdb.DuckDBPyConnection) -> None:
    for table in _tables():
        if table.published_as_view:
            # In two steps: a view over files is replaced with each new file, which would lose comments. Those
            # over merged files seldom are.
            for kind in _KINDS_OF_FILES:
                connection.execute(f"CREATE VIEW publishing.{table.name}_{kind} AS {no_rows(table)}")
            files = " UNION ALL ".join(f"FROM publishing.{table.name}_{kind}" for kind in _KINDS_OF_FILES)
            connection.execute(f"CREATE VIEW {table.name} AS {files}")
            _comment(connection, table, "VIEW")
        else:
            columns = ", ".join(f'"{column.name}" {column.type}' for column in table.all_columns)
            connection.execute(f"CREATE TABLE {table.name} ({columns})")
            _comment(connection, table, "TABLE")
    for name in VIEW_FILES:
        connection.execute(sql_file(name))
    _comment_like_tables(connection)


# DuckDB cannot name files relative to the one that lists them. In a copy the names lead to the original,
# which must not pass for the copy's own rows. When this package opens a copy, it publishes it again first.
_MOVED = """
    SELECT 1 WHERE CASE
        WHEN EXISTS (FROM duckdb_databases() WHERE starts_with(path, {here}) OR starts_with(path, {really}))
        THEN true
        ELSE error('This file was copied or moved, and its events are listed in ' || {here} || '. '
            || 'Open it there, or run `sme2 warehouse sync` on the data folder that it is in now.')
    END
"""


# Of one run, or of a group of runs.
_KINDS_OF_FILES = ("loose", "merged")


def _kind_of(file: TableFile) -> tuple[str, str]:
    """The table, and the view over files like this one."""
    return file.table, _KINDS_OF_FILES[file.group is not None]


def _show_files(
    connection: duckdb.DuckDBPyConnection,
    folder: Path | str,
    changed: Collection[tuple[str, str]] | None = None,
    guarded: bool = True,
) -> None:
    """The views over the Parquet files of tables, each by its name: those whose files changed, or all."""
    views = [
        (table, kind)
        for table in _tables()
        for kind in _KINDS_OF_FILES
        if table.published_as_view and (changed is None or (table.name, kind) in changed)
    ]
    rows = connection.execute(
        "SELECT path, sha256, columns FROM publishing.files "
        "WHERE table_name IN (SELECT unnest(?::VARCHAR[])) ORDER BY path",
        [[table.name for table in _tables() if table.published_as_view]],
    ).fetchall()
    files: dict[tuple[str, str], list[TableFile]] = defaultdict(list)
    for file in (TableFile(*row) for row in rows):
        files[_kind_of(file)].append(file)
    # DuckDB looks for the files of a view when it is made.
    kept = [
        file for view, some in files.items() if changed is not None and view not in changed for file in some
    ]
    if missing := [file.path for file in kept if not Path(folder, file.path).exists()]:
        raise duckdb.IOException(f"no such file: {missing[0]}")
    for table, kind in views:
        shown = files[table.name, kind]
        select = rows_of_files(table, folder, shown)
        if shown and guarded:
            data = Path(folder).parent.parent
            guard = _MOVED.format(here=literal(f"{data}/"), really=literal(f"{data.resolve()}/"))
            select = f"SELECT events.* FROM ({select}) AS events, ({guard}) AS here"
        connection.execute(f"CREATE OR REPLACE VIEW publishing.{table.name}_{kind} AS {select}")


def write_for_readers_elsewhere(published: Path, path: Path, tables: str, folder: Path) -> None:
    """Copies a published file so that it reads events below the address `tables`, laid out as in `folder`.

    DuckDB looks at every file that a view names when the view is made. It is shown the local files, because
    asking a remote store a thousand times takes a minute.
    """
    shutil.copyfile(published, path)
    # An instance of its own, because it sees a file system that is not there.
    with duckdb.connect() as instance, attached(instance, path) as connection:
        if "://" in tables:
            connection.register_filesystem(_as_if_at(tables, folder))
        connection.begin()
        _show_files(connection, tables, guarded=False)
        connection.execute("UPDATE publishing.layout SET folder = ?", [tables])
        connection.commit()


def _as_if_at(tables: str, folder: Path) -> Any:
    """A file system that shows the files of a folder at another address."""
    from fsspec.implementations.local import LocalFileSystem

    class Here(LocalFileSystem):
        protocol = tables.partition("://")[0]
        cachable = False

        @classmethod
        def _strip_protocol(cls, path: Any) -> Any:
            return super()._strip_protocol(str(path).replace(tables, str(folder), 1))

    return Here()


def _delete(connection: duckdb.DuckDBPyConnection, table: str, keys: list[dict[str, str]]) -> None:
    if not keys:
        return
    names = ", ".join(f'"{name}"' for name in keys[0])
    if not names:
        connection.execute(f"DELETE FROM {table}")
        return
    import pandas as pd

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
        import pandas as pd

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
    """Gives columns without a comment of their own that of the tables' column of the same name.

    If several tables have one, the first counts; summaries come last.
    """
    bare = connection.execute(
        "SELECT table_name, column_name FROM duckdb_columns() "
        "WHERE database_name = current_database() AND schema_name = 'main' AND comment IS NULL"
    ).fetchall()
    comments = {column.name: column.comment for table in reversed(_tables()) for column in table.all_columns}
    for table_name, column_name in bare:
        if column_name in comments:
            connection.execute(
                f'COMMENT ON COLUMN {table_name}."{column_name}" IS {literal(comments[column_name])}'
            )
