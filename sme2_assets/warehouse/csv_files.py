"""Rows as a CSV file that a spreadsheet can open without running what a name says."""

from __future__ import annotations

from pathlib import Path

import duckdb

# What a spreadsheet takes for the beginning of a formula. The usual guard is an apostrophe before it.
_FORMULA = r"^[=+\-@\t\r]"


def write_csv(rows: duckdb.DuckDBPyRelation, path: Path) -> None:
    """Texts that a spreadsheet would calculate get an apostrophe in front; numbers are as they are."""
    cells = []
    for column, kind in zip(rows.columns, rows.types, strict=True):
        name = '"' + column.replace('"', '""') + '"'
        guarded = f"CASE WHEN regexp_matches({name}, '{_FORMULA}') THEN chr(39) || {name} ELSE {name} END"
        cells.append(f"{guarded} AS {name}" if str(kind) == "VARCHAR" else name)
    rows.project(", ".join(cells)).write_csv(str(path), header=True)
