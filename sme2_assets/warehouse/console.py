"""A console over the warehouse: any query, within limits, and only for reading.

Belongs here: what a query may do, how long and with how much memory, and what is said when it fails. How
answers look on a terminal is up to the command line.

Two locks, either of them enough: only statements that DuckDB's own parser calls queries are run, and the
connection they run on cannot change its configuration, load code, or touch a file outside the warehouse's
tables.
"""

from __future__ import annotations

import json
import math
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path
from typing import IO, Any, Literal, TypeVar

import duckdb

from sme2_assets.errors import WarehouseError
from sme2_assets.warehouse.csv_files import write_csv
from sme2_assets.warehouse.sql import identifier, literal
from sme2_assets.warehouse.store import Warehouse

Answered = TypeVar("Answered")
FileFormat = Literal["csv", "json", "parquet"]

PATIENCE_S = 60.0
MEMORY = "2GB"
# What does not fit into memory is sorted in a folder that is removed afterwards.
MOST_TEMPORARY = "10GB"
_NESTED = {"list", "array", "struct", "map", "union", "variant"}
# How many bytes a character of a nested value can become as Python objects: `{'a': 1}, ` is a dict.
_BYTES_OF_CHARACTER = 32
_FETCHED_AT_ONCE = 256
_TOO_LARGE = "a value is larger than the memory that the query may have"


@dataclass(frozen=True)
class Answer:
    """Rows of a query; `more` if there are others beyond the number asked for."""

    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]
    more: bool = False


@dataclass(frozen=True)
class Limits:
    """What a query may use: time in seconds, and memory as DuckDB writes it, e.g. 2GB.

    DuckDB may have that much memory to compute, and the rows that are kept as much again.
    """

    timeout_s: float = PATIENCE_S
    memory: str = MEMORY


class Console:
    """One published state of the warehouse, open for queries. Made by `open_console`."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, limits: Limits) -> None:
        self._connection = connection
        self._limits = limits
        in_bytes = connection.execute("SELECT parse_formatted_bytes(current_setting('memory_limit'))")
        [[self._memory_bytes]] = in_bytes.fetchall()

    def queries_in(self, text: str) -> list[str]:
        """The statements of a text; anything but a query is refused before any of them runs."""
        with self._useful_errors():
            statements = self._connection.extract_statements(text)
            if not statements:
                raise WarehouseError(
                    "There is no query in it.", 'Give one, e.g. sme2 sql "SELECT * FROM sme2_comparison".'
                )
            for statement in statements:
                try:
                    kind = statement.type
                except ValueError:
                    # UPDATE EXTENSIONS has no name in Python.
                    raise _refusal("something else") from None
                if kind != duckdb.StatementType.SELECT:
                    raise _refusal(str(kind).rpartition(".")[2])
            return [statement.query.strip() for statement in statements]

    def ask(self, query: str, most: int | None = None) -> Answer:
        """The rows of one query, at most `most` of them."""

        def answer(cursor: duckdb.DuckDBPyConnection) -> Answer:
            columns = self._start(cursor, query)
            kept: list[tuple[Any, ...]] = []
            size = 0
            for row in _fetched(cursor):
                if len(kept) == most:
                    return Answer(columns, kept, more=True)
                size += _bytes_of(row)
                if size > self._memory_bytes:
                    raise self._no_memory()
                kept.append(row)
            return Answer(columns, kept)

        [query] = self._single(query)
        return self._within_limits(answer)

    def write(self, query: str, path: Path, file_format: FileFormat) -> None:
        """The rows of one query as a file below the folder that the console was opened with."""
        [query] = self._single(query)

        def write(cursor: duckdb.DuckDBPyConnection) -> None:
            if file_format == "json":
                columns = self._start(cursor, query)
                with path.open("w", encoding="utf-8") as file:
                    _write_json(columns, _fetched(cursor), file)
                return
            rows = cursor.sql(query)
            if file_format == "csv":
                write_csv(rows, path)
            else:
                rows.write_parquet(str(path), compression="zstd")

        self._within_limits(write)

    def relations(self) -> Answer:
        """Every table and view, with what it holds."""
        return self.ask(_RELATIONS)

    def schema(self, name: str) -> Answer:
        """The columns of a table or view, with their meaning."""
        columns = self.ask(_COLUMNS.format(name=literal(name)))
        if not columns.rows:
            # DuckDB's own error names the nearest match.
            self.ask(f"DESCRIBE {identifier(name)}")
        return columns

    def _start(self, cursor: duckdb.DuckDBPyConnection, query: str) -> tuple[str, ...]:
        """Starts a query, whose rows are then fetched from the cursor, and gives the names of its columns.

        Turning one nested value into Python objects can be neither interrupted nor limited, so DuckDB refuses
        those that are too large.
        """
        try:
            rows = cursor.sql(query)
        except duckdb.BinderException:
            # This way, the error names the line.
            cursor.execute(query)
            raise
        columns = tuple(rows.columns)
        nested = [str(kind.id) in _NESTED for kind in rows.types]
        if any(nested):
            most = self._memory_bytes // _BYTES_OF_CHARACTER // sum(nested)
            cells = [
                # By position: two columns may have the same name.
                (
                    f"if(length(#{number}::VARCHAR) > {most}, error('{_TOO_LARGE}'), #{number})"
                    if is_nested
                    else f"#{number}"
                )
                + f" AS {identifier(column)}"
                for number, (column, is_nested) in enumerate(zip(columns, nested, strict=True), start=1)
            ]
            query = rows.project(", ".join(cells)).sql_query()
        cursor.execute(query)
        return columns

    def _no_memory(self) -> WarehouseError:
        return WarehouseError(
            f"The query needs more memory than the {self._limits.memory} it may have.",
            "Ask for less (WHERE run_id = ...), or give it more with --memory.",
        )

    def _single(self, text: str) -> list[str]:
        queries = self.queries_in(text)
        if len(queries) > 1:
            raise WarehouseError(f"These are {len(queries)} queries; only one is allowed here.", "Give one.")
        return queries

    def _within_limits(self, work: Callable[[duckdb.DuckDBPyConnection], Answered]) -> Answered:
        """Does the work in a thread of its own: DuckDB ignores signals while it computes, and checks its own
        time limit only until the first row."""
        done: list[Answered] = []
        failed: list[BaseException] = []
        # USE applies to one connection. Each query has its own, so that nothing of a stopped one is left.
        cursor = self._connection.cursor().execute("USE warehouse")

        # Not `join`: Ctrl-C in it makes a running thread look finished.
        finished = threading.Event()

        def run() -> None:
            try:
                done.append(work(cursor))
            except BaseException as error:
                failed.append(error)
            finally:
                finished.set()

        threading.Thread(target=run, name="query", daemon=True).start()
        try:
            late = not finished.wait(min(self._limits.timeout_s, threading.TIMEOUT_MAX))
        finally:
            _stop(cursor, finished)
            cursor.close()
        if done:
            return done[0]
        if late:
            raise WarehouseError(
                f"The query was stopped: it took longer than {self._limits.timeout_s:g} seconds.",
                "Ask for less (WHERE run_id = ...), or give it more time with --timeout.",
            )
        with self._useful_errors():
            raise failed[0]

    @contextmanager
    def _useful_errors(self) -> Iterator[None]:
        """Reports what DuckDB found, with the line and the nearest names, and what to do about it."""
        try:
            yield
        except duckdb.OutOfMemoryException as error:
            raise self._no_memory() from error
        except duckdb.PermissionException as error:
            raise WarehouseError(
                f"The query reaches outside the warehouse: {str(error).splitlines()[0]}",
                "Ask for tables and views only. To join a file of your own, open the warehouse with DuckDB, "
                "as docs/warehouse.md shows.",
            ) from error
        except duckdb.CatalogException as error:
            raise WarehouseError(
                f"The query failed. {error}",
                "`sme2 sql 'SHOW TABLES'` lists tables and views; docs/tables.md explains them.",
            ) from error
        except duckdb.BinderException as error:
            raise WarehouseError(
                f"The query failed. {error}",
                "`sme2 sql 'DESCRIBE <table>'` lists columns; docs/tables.md explains them.",
            ) from error
        except duckdb.Error as error:
            if _TOO_LARGE in str(error):
                raise self._no_memory() from error
            raise WarehouseError(f"The query failed. {error}") from error


@contextmanager
def open_console(
    warehouse: Warehouse, limits: Limits | None = None, writable: Path | None = None
) -> Iterator[Console]:
    """A console on the state published now. `writable` is the only folder it may write files in."""
    limits = limits or Limits()
    with tempfile.TemporaryDirectory(prefix="sme2-sql-") as spill:
        try:
            connection = warehouse.open_published(
                settings={
                    "memory_limit": limits.memory,
                    "temp_directory": spill,
                    "max_temp_directory_size": MOST_TEMPORARY,
                    "python_enable_replacements": "false",
                },
                folders=[writable] if writable else [],
            )
        except duckdb.ParserException as error:
            raise WarehouseError(
                f"{limits.memory!r} is not an amount of memory.", "Write it like 500MB or 4GB."
            ) from error
        try:
            yield Console(connection, limits)
        finally:
            connection.close()


def _stop(cursor: duckdb.DuckDBPyConnection, finished: threading.Event) -> None:
    """Interrupts a query until it ends; nothing may be closed before that."""
    while not finished.is_set():
        try:
            # Once is not always enough: between two statements there is nothing to interrupt.
            cursor.interrupt()
            finished.wait(0.1)
        except KeyboardInterrupt:
            continue


def _fetched(cursor: duckdb.DuckDBPyConnection) -> Iterator[tuple[Any, ...]]:
    """The rows of a query that runs, a few at a time, so that it can be stopped and never has all of them."""
    while rows := cursor.fetchmany(_FETCHED_AT_ONCE):
        yield from rows


def _bytes_of(value: Any) -> int:
    size = sys.getsizeof(value)
    if isinstance(value, dict):
        return size + sum(map(_bytes_of, value.items()))
    return size + sum(map(_bytes_of, value)) if isinstance(value, list | tuple) else size


def _write_json(columns: tuple[str, ...], rows: Iterator[tuple[Any, ...]], file: IO[str]) -> None:
    """An array of objects; repeated names are numbered, as DuckDB numbers them in files."""
    names: dict[str, str] = {}
    for column in columns:
        name, number = column, 0
        while name.lower() in names:
            number += 1
            name = f"{column}_{number}"
        names[name.lower()] = name
    separator = "["
    for row in rows:
        record = dict(zip(names.values(), json_row(row), strict=True))
        text = json.dumps(record, indent=2, allow_nan=False).replace("\n", "\n  ")
        file.write(f"{separator}\n  {text}")
        separator = ","
    file.write("[]\n" if separator == "[" else "\n]\n")


def json_row(row: tuple[Any, ...]) -> list[Any]:
    """A row as strict JSON; values that JSON does not have become null or text."""
    return [_json_value(value) for value in row]


def _json_value(value: Any) -> Any:
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, date | datetime):
        return value.isoformat()
    if isinstance(value, dict):
        return {str(key): _json_value(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_json_value(inner) for inner in value]
    return str(value)


def _refusal(name: str) -> WarehouseError:
    if name == "MULTI":
        return WarehouseError(
            "This PIVOT is more than one query.", "List its values: PIVOT ... ON sme2 IN ('off', 'on')."
        )
    return WarehouseError(
        f"Only queries are allowed here, and this is {name}: the console reads and never writes.",
        "Use SELECT, DESCRIBE, SHOW TABLES or SUMMARIZE; only the assets write.",
    )


_RELATIONS = """
    SELECT table_name AS name, 'table' AS kind, comment AS holds
    FROM duckdb_tables() WHERE database_name = 'warehouse' AND schema_name = 'main'
    UNION ALL
    SELECT view_name, 'view', comment FROM duckdb_views()
    WHERE database_name = 'warehouse' AND schema_name = 'main' AND NOT internal
    ORDER BY kind, name
"""
_COLUMNS = """
    SELECT column_name AS "column", data_type AS "type", comment AS meaning FROM duckdb_columns()
    WHERE database_name = 'warehouse' AND table_name = {name} ORDER BY column_index
"""
