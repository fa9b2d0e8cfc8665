from __future__ import annotations

import re

import pytest

from sme2_assets.errors import WarehouseError
from sme2_assets.warehouse import Warehouse
from sme2_assets.warehouse.docs import BEGIN, END, PAGE, schema_markdown, with_schema
from sme2_assets.warehouse.schema import TABLES

QUERIES = re.findall(r"^```sql\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)


def test_the_schema_in_the_docs_is_up_to_date():
    page = PAGE.read_text()
    assert page == with_schema(page), "run: python -m sme2_assets.warehouse.docs"


def test_every_column_of_every_table_is_in_the_docs():
    rendered = schema_markdown()
    for table in TABLES:
        assert f"### Table `{table.name}`\n\n{table.comment}" in rendered
        for column in table.all_columns:
            assert f"| `{column.name}` |" in rendered
            assert column.comment in rendered


def test_an_outdated_section_is_replaced_and_the_rest_kept():
    made = with_schema(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    assert made.startswith("before\n")
    assert made.endswith(f"{END}\nafter\n")
    assert "\nold\n" not in made
    assert with_schema(made) == made


@pytest.mark.parametrize("page", ["no section", f"only {BEGIN}", f"only {END}"])
def test_a_page_without_the_section_is_refused(page: str):
    with pytest.raises(WarehouseError, match="no schema section"):
        with_schema(page)


def test_there_are_example_queries():
    assert len(QUERIES) >= 6


@pytest.mark.parametrize("sql", QUERIES, ids=range(len(QUERIES)))
def test_the_example_queries_of_the_docs_run(paired: Warehouse, real_warehouse: Warehouse, sql: str):
    """On known times and on measured ones, which are of one arm alone and so have no comparison."""
    for warehouse in (paired, real_warehouse):
        rows = warehouse.query(sql)
        compared = "sme2_comparison" in sql and warehouse is real_warehouse
        assert rows.empty == (compared or "HAVING rows_ns <>" in sql), rows
        if "fidelity = 'hardware'" in sql and "platform" in rows:
            assert "emulated" not in set(rows["platform"])
