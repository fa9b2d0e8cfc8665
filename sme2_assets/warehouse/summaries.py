"""Summaries of a run's rows, made once when it is stored (summaries.sql), so that no query has to repeat it.

A summary is a table like any other: a file of the run, listed by the commit that lists its other files.
"""

from __future__ import annotations

import atexit
import re
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import duckdb

from sme2_assets.warehouse.commits import TableFile
from sme2_assets.warehouse.schema import RUN_ID, TABLES, TARGET, VARIANT, Column, Table
from sme2_assets.warehouse.sql import literal, rows_of_files, sql_file

EVENT_VIEWS_FILE, FLOORS_FILE, SUMMARIES_FILE = "event_views.sql", "floors.sql", "summaries.sql"
KEYS = (VARIANT, TARGET, RUN_ID)
_COMMENT = re.compile(r"^COMMENT ON .*;$", re.MULTILINE)
_TABLE = re.compile(r"^CREATE TABLE (\w+)", re.MULTILINE)
# Summaries with many rows per run stay in Parquet, as events do.
IN_PARQUET = {"operator_details", "function_samples", "module_times", "category_rounds", "part_rounds"}


@cache
def summary_tables() -> tuple[Table, ...]:
    """The tables that summaries.sql makes, as it declares them."""
    with duckdb.connect() as connection, made(connection, Path(), []) as (_, names):
        found = sorted(names)
        connection.execute("\n".join(_COMMENT.findall(sql_file(SUMMARIES_FILE))))
        return tuple(_declared(connection, name) for name in found)


@contextmanager
def made(
    connection: duckdb.DuckDBPyConnection, folder: Path, files: Sequence[TableFile]
) -> Iterator[tuple[str, Iterator[str]]]:
    """The schema in which the connection has the summaries of the runs whose rows are all in these files, and
    their names, each as soon as it is made."""
    schema = f"memory.made_{uuid.uuid4().hex}"
    connection.execute(f"CREATE SCHEMA {schema}")
    try:
        connection.execute(f"USE {schema}")
        # A number in place of a long name: millions of rows are grouped by it.
        names = ", ".join(sorted({literal(file.run_id) for file in files if file.run_id is not None}))
        connection.execute(f"CREATE TYPE run_name AS ENUM ({names})")
        for table in _sources():
            rows = rows_of_files(table, folder, [file for file in files if file.table == table.name])
            connection.execute(
                f"CREATE VIEW {table.name} AS SELECT * REPLACE (run_id::run_name AS run_id) FROM ({rows})"
            )
        yield schema, make_summaries(connection)
    finally:
        connection.execute("USE memory.main")
        connection.execute(f"DROP SCHEMA {schema} CASCADE")


def make_summaries(connection: duckdb.DuckDBPyConnection) -> Iterator[str]:
    """Makes the summaries of the rows that the connection has, whose `run_id` is a `run_name`. Their names,
    each as soon as it is made."""
    # Not imported to read: a question is answered before pandas is loaded.
    from sme2_assets.warehouse.processes import process_times

    for name in (EVENT_VIEWS_FILE, FLOORS_FILE):
        for statement in _statements(name):
            connection.execute(statement)
    frames = process_times(connection)
    for name, rows in zip(("category_processes", "part_processes"), frames, strict=True):
        connection.register(name, rows)
    for statement in _statements(SUMMARIES_FILE):
        connection.execute(statement)
        if made_table := _TABLE.search(statement.query):
            yield made_table[1]


@cache
def _statements(file: str) -> tuple[duckdb.Statement, ...]:
    """Parsed once and without comments: both take longer than a small run."""
    return tuple(duckdb.extract_statements(_COMMENT.sub("", sql_file(file))))


# What is still there when Python ends makes DuckDB print a page of leaks.
atexit.register(_statements.cache_clear)


@cache
def _sources() -> tuple[Table, ...]:
    """The tables that the summaries are made from."""
    files = (EVENT_VIEWS_FILE, FLOORS_FILE, SUMMARIES_FILE)
    texts = " ".join(statement.query for file in files for statement in _statements(file))
    return tuple(table for table in TABLES if re.search(rf"\b{table.name}\b", texts))


def _declared(connection: duckdb.DuckDBPyConnection, name: str) -> Table:
    [[comment]] = connection.execute(
        "SELECT comment FROM duckdb_tables() WHERE table_name = ? AND schema_name = current_schema()", [name]
    ).fetchall()
    columns = connection.execute(
        "SELECT column_name, data_type, comment FROM duckdb_columns() "
        "WHERE table_name = ? AND schema_name = current_schema() ORDER BY column_index",
        [name],
    ).fetchall()
    # A column without a comment of its own means the same as the source tables' column of that name.
    said = {column.name: column.comment for table in reversed(TABLES) for column in table.all_columns}
    return Table(
        name,
        comment,
        KEYS,
        tuple(
            Column(column, data_type, text or said[column])
            for column, data_type, text in columns
            if column != RUN_ID.name
        ),
        published_as_view=name in IN_PARQUET,
    )
