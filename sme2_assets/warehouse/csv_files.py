"""Rows as a CSV file that a spreadsheet can open without running text as a formula."""

from __future__ import annotations

from pathlib import Path

import duckdb

# What a spreadsheet takes for the start of a formula. The usual guard is an apostrophe in front.
_FORMULA = r"^[=+\-@\t\r]"


def write_csv(rows: duckdb.DuckDBPyRelation, path: Path) -> None:
    """Text that a spreadsheet would evaluate gets an apostrophe in front; numbers stay as they are."""
    cells = []
    for column, kind in zip(rows.columns, rows.types, strict=True):
        name = '"' + column.replace('"', '""') + '"'
        guarded = f"CASE WHEN regexp_matches({name}, '{_FORMULA}') THEN chr(39) || {name} ELSE {name} END"
        cells.append(f"{guarded} AS {name}" if str(kind) == "VARCHAR" else name)
    rows.project(", ".join(cells)).write_csv(str(path), header=True)
