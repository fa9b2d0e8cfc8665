"""Summaries of a run's rows, made once when it is stored (summaries.sql), so that no query has to repeat it.

A summary is a table like any other: a file of the run, listed by the commit that lists its other files.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import duckdb

from sme2_assets.warehouse.commits import TableFile
from sme2_assets.warehouse.schema import RUN_ID, TABLES, TARGET, VARIANT, Column, Table
from sme2_assets.warehouse.sql import rows_of_files, sql_file

EVENT_VIEWS_FILE, SUMMARIES_FILE = "event_views.sql", "summaries.sql"
KEYS = (VARIANT, TARGET, RUN_ID)
_COMMENT = re.compile(r"^COMMENT ON .*;$", re.MULTILINE)
# Summaries with many rows per run stay in Parquet, as events do.
IN_PARQUET = {"operator_details", "function_samples", "module_times", "category_rounds", "part_rounds"}


@cache
def summary_tables() -> tuple[Table, ...]:
    """The tables that summaries.sql makes, as it declares them."""
    with duckdb.connect() as connection, made(connection, Path(), []):
        for name in (EVENT_VIEWS_FILE, SUMMARIES_FILE):
            connection.execute("\n".join(_COMMENT.findall(sql_file(name))))
        return tuple(_declared(connection, name) for name in _names(connection))


@contextmanager
def made(
    connection: duckdb.DuckDBPyConnection, folder: Path, files: Sequence[TableFile]
) -> Iterator[duckdb.DuckDBPyConnection]:
    """The connection with the summaries of the runs whose rows are all in these files."""
    schema = f"made_{uuid.uuid4().hex}"
    connection.execute(f"CREATE SCHEMA memory.{schema}")
    try:
        connection.execute(f"USE memory.{schema}")
        for table in TABLES:
            of_table = [file for file in files if file.table == table.name]
            connection.execute(f"CREATE VIEW {table.name} AS {rows_of_files(table, folder, of_table)}")
        for name in (EVENT_VIEWS_FILE, SUMMARIES_FILE):
            # The comments alone would take longer than the rows of a small run.
            connection.execute(_COMMENT.sub("", sql_file(name)))
        yield connection
    finally:
        connection.execute("USE memory.main")
        connection.execute(f"DROP SCHEMA memory.{schema} CASCADE")


def _names(connection: duckdb.DuckDBPyConnection) -> list[str]:
    rows = connection.execute(
        "SELECT table_name FROM duckdb_tables() WHERE NOT temporary AND schema_name = current_schema() "
        "ORDER BY table_name"
    ).fetchall()
    return [name for (name,) in rows]


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
