"""Rows as a CSV file that a spreadsheet can open without running text as a formula."""

from __future__ import annotations

from pathlib import Path

import duckdb

# What a spreadsheet takes for the start of a formula. The usual guard is an apostrophe in front.
_FORMULA = r"^[=+\-@\t\r]"


def write_csv(rows: duckdb.DuckDBPyRelation, path: Path) -> None:
    """Text that a spreadsheet would evaluate gets an apostrophe in front; numbers stay as they are."""
    # By position: two columns may have the same name, which the file then numbers.
    cells = []
    for number, (column, kind) in enumerate(zip(rows.columns, rows.types, strict=True)):
        cell, name = f"c{number}", '"' + column.replace('"', '""') + '"'
        guarded = f"CASE WHEN regexp_matches({cell}, '{_FORMULA}') THEN chr(39) || {cell} ELSE {cell} END"
        cells.append(f"{guarded if str(kind) == 'VARCHAR' else cell} AS {name}")
    positions = ", ".join(f"c{number}" for number in range(len(cells)))
    query = f"SELECT {', '.join(cells)} FROM given AS given({positions})"
    rows.query("given", query).write_csv(str(path), header=True)
