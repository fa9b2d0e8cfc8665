"""Rows as a CSV file that a spreadsheet can open without running text as a formula."""

from __future__ import annotations

from pathlib import Path

import duckdb

from sme2_assets.warehouse.sql import identifier

# What a spreadsheet takes for the start of a formula. The usual guard is an apostrophe in front.
_FORMULA = r"^[=+\-@\t\r]"


def write_csv(rows: duckdb.DuckDBPyRelation, path: Path) -> None:
    """Text that a spreadsheet would evaluate gets an apostrophe in front; numbers stay as they are."""
    cells = []
    for number, (column, kind) in enumerate(zip(rows.columns, rows.types, strict=True), start=1):
        # By position: two columns may have the same name, which the file then numbers.
        cell = f"#{number}"
        guarded = f"CASE WHEN regexp_matches({cell}, '{_FORMULA}') THEN chr(39) || {cell} ELSE {cell} END"
        cells.append(f"{guarded if str(kind) == 'VARCHAR' else cell} AS {identifier(column)}")
    rows.project(", ".join(cells)).write_csv(str(path), header=True)
