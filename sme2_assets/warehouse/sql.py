"""SQL over the Parquet files of tables, and the SQL files of this package."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from functools import cache
from importlib import resources
from pathlib import Path

from sme2_assets.analysis.unit import filled_in
from sme2_assets.store import sha256_of_text
from sme2_assets.warehouse.commits import TableFile
from sme2_assets.warehouse.schema import Column, Table


@cache
def sql_file(name: str) -> str:
    return filled_in(resources.files(__package__).joinpath(name).read_text())


def quoted(path: Path) -> str:
    return str(path).replace("'", "''")


def literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def typed(columns: Sequence[Column], as_they_are: Collection[str] = ()) -> str:
    """Columns, each cast to its type, but those that are to stay as they are."""
    return ", ".join(
        f'"{column.name}"'
        if column.name in as_they_are
        else f'"{column.name}"::{column.type} AS "{column.name}"'
        for column in columns
    )


@cache
def layout_of(columns: tuple[Column, ...]) -> str:
    """Tells files with different columns apart."""
    return sha256_of_text(typed(columns))[:8]


def no_rows(table: Table) -> str:
    nulls = ", ".join(f'NULL::{column.type} AS "{column.name}"' for column in table.all_columns)
    return f"SELECT {nulls} WHERE false"


def stored_rows(folder: Path | str, files: Sequence[TableFile]) -> str:
    """SQL for the rows of one table's files as they are stored; there must be at least one file."""
    alike: dict[tuple[str, bool], list[str]] = defaultdict(list)
    for file in files:
        alike[file.columns, file.group is None].append(literal(f"{folder}/{file.path}"))
    # Files with the same columns together, so that only one of them is opened to learn the columns.
    # A file of one run has its keys in its path; a file of several runs has them inside.
    return " UNION ALL BY NAME ".join(
        f"FROM read_parquet([{', '.join(paths)}], "
        f"hive_partitioning = {keys_in_path}, hive_types_autocast = false)"
        for (_, keys_in_path), paths in alike.items()
    )


def rows_of_files(table: Table, folder: Path | str, files: Sequence[TableFile]) -> str:
    """SQL for the rows of files; rows written before a column was declared have NULL there, or are left
    out."""
    if table.only_as_declared:
        files = [file for file in files if file.columns == layout_of(table.columns)]
    if not files:
        return no_rows(table)
    rows = stored_rows(folder, files)
    complete = {(True, layout_of(table.all_columns)), (False, layout_of(table.columns))}
    if not complete.issuperset((file.group is not None, file.columns) for file in files):
        rows = f"({no_rows(table)}) UNION ALL BY NAME {rows}"
    return f"SELECT {typed(table.all_columns)} FROM ({rows})"
