"""Renders the schema section of docs/tables.md from what is published, so that the two cannot differ.

`python -m sme2_assets.warehouse.docs` rewrites the section; a test fails if it is out of date.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from sme2_assets.errors import WarehouseError
from sme2_assets.store import CHECKOUT, write_text_atomically
from sme2_assets.warehouse.schema import TABLES
from sme2_assets.warehouse.store import Warehouse
from sme2_assets.warehouse.summaries import summary_tables

PAGE = CHECKOUT / "docs" / "tables.md"
BEGIN = "<!-- schema: written by `python -m sme2_assets.warehouse.docs` -->"
END = "<!-- end of schema -->"


def schema_markdown() -> str:
    """Every table and view with its columns, as an empty warehouse publishes them."""
    with (
        tempfile.TemporaryDirectory() as folder,
        Warehouse(Path(folder) / "warehouse").connect() as connection,
    ):
        relations = connection.execute(_RELATIONS).fetchall()
        columns = {name: connection.execute(_COLUMNS, [name]).fetchall() for _, name, _ in relations}
    tables = [table.name for table in TABLES]
    # First what is measured, in the order of declaration; then what is made from it.
    relations.sort(key=lambda relation: tables.index(relation[1]) if relation[1] in tables else len(tables))
    sections = []
    summaries = {table.name for table in summary_tables()}
    for what, name, comment in relations:
        # A view that has a table's columns says so in its comment: they are not listed again.
        new = name in tables or columns[name] not in [columns[table] for table in tables]
        kind = "Table" if name in tables else "Summary" if name in summaries else what
        sections.append(_section(f"{kind} `{name}`", comment, columns[name] if new else []))
    return "\n".join(sections)


def with_schema(page: str) -> str:
    """The page with a new schema section; the rest is as it was."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise WarehouseError(
            f"{PAGE.name} has no schema section.", f"Put the lines {BEGIN!r} and {END!r} where it belongs."
        )
    return f"{before}{BEGIN}\n\n{schema_markdown()}\n{END}{after}"


_RELATIONS = """
    (SELECT 'Summary', table_name, comment FROM duckdb_tables()
     WHERE database_name = 'warehouse' AND schema_name = 'main' ORDER BY table_name)
    UNION ALL
    (SELECT 'View', view_name, comment FROM duckdb_views()
     WHERE database_name = 'warehouse' AND schema_name = 'main' AND NOT internal ORDER BY view_name)
"""
_COLUMNS = """
    SELECT column_name, data_type, comment FROM duckdb_columns()
    WHERE database_name = 'warehouse' AND schema_name = 'main' AND table_name = ? ORDER BY column_index
"""


def _section(title: str, comment: str, columns: list[tuple[str, str, str]]) -> str:
    lines = [f"## {title}", "", comment, ""]
    if columns:
        lines += ["| column | type | meaning |", "|---|---|---|"]
        lines += [f"| `{name}` | {data_type} | {meaning} |" for name, data_type, meaning in columns]
        lines += [""]
    return "\n".join(lines)


def main() -> None:
    page = PAGE.read_text()
    write_text_atomically(PAGE, with_schema(page))


if __name__ == "__main__":
    main()
