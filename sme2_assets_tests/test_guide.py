"""What the UI says of assets leads somewhere."""

from __future__ import annotations

import pandas as pd
import pytest

from sme2_assets.definitions import build_definitions
from sme2_assets.defs.assets.guide import GUIDES
from sme2_assets.report.glance import SHOWN_IN_PLACE, category_glance
from sme2_assets.report.pictures.style import CATEGORIES
from sme2_assets.store import CHECKOUT


def test_every_asset_says_where_to_read_on_and_what_it_takes():
    graph = build_definitions().resolve_asset_graph()
    for key in graph.get_all_asset_keys():
        node = graph.get(key)
        assert "Read on: [docs/" in node.description, key
        assert "](/sme2/docs/" in node.description, key
        assert {"takes", "occupies"} <= set(node.tags), key


def test_every_asset_that_makes_a_table_shows_its_columns_and_what_they_mean():
    graph = build_definitions().resolve_asset_graph()
    shown = {
        key.to_user_string(): graph.get(key).metadata["dagster/column_schema"]
        for key in graph.get_all_asset_keys()
        if "dagster/column_schema" in graph.get(key).metadata
    }
    assert {"timeline", "sme2_comparison", "advice", "regressions"} <= set(shown)
    for schema in shown.values():
        assert all(column.type and column.description for column in schema.columns)
    speedup = next(it for it in shown["sme2_comparison"].columns if it.name == "speedup")
    assert speedup.type == "DOUBLE"


@pytest.mark.parametrize("asset", GUIDES)
def test_the_page_and_the_section_are_there(asset: str):
    guide = GUIDES[asset]
    headings = [
        line.lstrip("# ") for line in (CHECKOUT / guide.page).read_text().splitlines() if line[:1] == "#"
    ]
    assert guide.section in headings


def test_docs_that_are_served_are_links():
    link = GUIDES["timeline"].link("https://docs.example/sme2/")
    anchor = "what-to-know-before-reading-a-number"
    assert f"](https://docs.example/sme2/docs/warehouse.md#{anchor})" in link


@pytest.mark.parametrize(
    ("fidelity", "instructions"), [("hardware", None), ("emulated", None), ("emulated", 2_288_215)]
)
def test_a_picture_is_small_enough_to_be_seen_without_a_click(fidelity: str, instructions: int | None):
    rows = [
        {
            "sme2": sme2,
            "category": category,
            "mean_ns": 1e6 + place,
            # Overhead is no operator.
            "operators": 0 if category == "Overhead" else 100 + place,
            "sme2_operators": 0 if category == "Overhead" or sme2 == "off" else 50,
            "sme2_unknown_operators": 1,
            "instructions": instructions,
            "fidelity": fidelity,
        }
        for sme2 in ("off", "on")
        for place, category in enumerate(CATEGORIES)
    ]
    assert len(category_glance(pd.DataFrame(rows))) < SHOWN_IN_PLACE
