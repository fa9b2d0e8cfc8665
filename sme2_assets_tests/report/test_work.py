"""What is shown of counted work: pictures, tables and findings, against the rows of `operator_work`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from sme2_assets.analysis.insights import claims
from sme2_assets.analysis.insights.insight import Insight
from sme2_assets.analysis.unit import IS_WAITING
from sme2_assets.report.answer import findings
from sme2_assets.report.content import session_document
from sme2_assets.report.explain import explain
from sme2_assets.report.glance import category_glance
from sme2_assets.report.insights import bottleneck_table, module_table
from sme2_assets.report.operators import operators_of_pair
from sme2_assets.report.pictures.work import category_pictures
from sme2_assets.report.tables import categories_of_pair, category_table
from sme2_assets.store import Store
from sme2_assets.warehouse import Warehouse
from sme2_assets.warehouse.ingest import RunRows, rows_of_run, write_runs
from sme2_assets.warehouse.read import comparison_of_session
from sme2_assets_tests.archive import archived_run
from sme2_assets_tests.claims.zoo import false_sentences, sentences, zoo

__all__ = ["zoo"]


@pytest.fixture(scope="module")
def warehouse(archived: Store) -> Warehouse:
    return Warehouse(archived.warehouse)


@pytest.fixture(scope="module")
def session_id(warehouse: Warehouse) -> str:
    return str(warehouse.query("SELECT session_id FROM runs WHERE platform = 'emulated'").iloc[0, 0])


def executed(warehouse: Warehouse) -> pd.Series:
    """Instructions of an emulated inference by arm and category, straight from what was counted."""
    return warehouse.query(
        f"""
        WITH placed AS (
            SELECT DISTINCT run_id, backend, delegate, position, category
            FROM timeline
            WHERE kind = 'operator'
        )
        SELECT sme2, coalesce(category, 'Overhead') AS category, sum(instructions)::BIGINT AS instructions
        FROM operator_work AS work
        JOIN runs USING (run_id)
        LEFT JOIN placed
            ON work.kind = 'operator' AND placed.run_id = work.run_id AND placed.backend = work.backend
            AND placed.delegate IS NOT DISTINCT FROM work.delegate AND placed.position = work.position
        WHERE work.kind <> 'between inferences' AND NOT {IS_WAITING}
        GROUP BY ALL
        """
    ).set_index(["sme2", "category"])["instructions"]


def of_pair(warehouse: Warehouse, session_id: str) -> pd.DataFrame:
    return warehouse.query("FROM category_summary WHERE session_id = ?", [session_id])


def test_bars_are_as_long_as_what_was_counted_and_say_that_it_is_not_time(
    warehouse: Warehouse, session_id: str
) -> None:
    [picture] = category_pictures(of_pair(warehouse, session_id))
    bars = pd.DataFrame(picture.spec["data"]["values"])
    bars["sme2"] = bars["arm"].str.removeprefix("SME2 ")
    drawn = bars.set_index(["sme2", "category"])["amount"] * 1e6
    pd.testing.assert_series_equal(
        drawn.sort_index(), executed(warehouse).sort_index(), check_names=False, check_dtype=False
    )
    axis = picture.spec["layer"][0]["encoding"]["x"]["title"]
    glance = category_glance(of_pair(warehouse, session_id))
    assert all("not time" in said for said in (axis, picture.caption, glance))


def test_tables_of_an_emulated_pair_have_its_counts(warehouse: Warehouse, session_id: str) -> None:
    counted = executed(warehouse)
    explanation = explain(warehouse, session_id)
    compared = comparison_of_session(warehouse, session_id)
    categories = categories_of_pair(compared, of_pair(warehouse, session_id))
    for sme2 in ("off", "on"):
        at = categories.header.index(f"instructions, SME2 {sme2}")
        shown = {row[0]: int(row[at].replace(",", "")) for row in categories.rows}
        assert shown == counted[sme2].to_dict()
    of_arm = category_table(explanation.subject.category_summary)
    assert [row[0] for row in of_arm.rows if row[0] == "Overhead"]
    modules = module_table(explanation.modules)
    [whole] = [row for row in modules.rows if row[0] == "(inference)"]
    assert whole[modules.header.index("instructions")] == f"{counted['on'].sum():,}"
    operators = operators_of_pair(explanation, compared, {})
    at = operators.header.index("instructions, SME2 on")
    amounts = [int(row[at].replace(",", "")) for row in operators.rows]
    assert amounts == sorted(amounts, reverse=True)
    assert sum(amounts) == counted["on"].drop("Overhead").sum()
    ranked = bottleneck_table(explanation.subject.bottlenecks, most=3)
    assert [row[0] for row in ranked.rows] == ["1", "2", "3"]


def test_modules_add_up_to_what_the_inference_executed(warehouse: Warehouse) -> None:
    rows = warehouse.query("FROM module_summary WHERE fidelity = 'emulated'")
    whole = rows[rows["depth"] == 0].set_index("sme2")["instructions"].to_dict()
    assert whole == executed(warehouse).groupby("sme2").sum().to_dict()
    first = rows[rows["depth"] == 1].groupby("sme2")["instructions"].sum().to_dict()
    assert first == whole
    assert rows[rows["depth"] == 1].groupby("sme2")["instructions_share"].sum().to_list() == pytest.approx(
        [1, 1]
    )


def test_runs_that_were_not_counted_have_no_work(paired: Warehouse) -> None:
    for view in ("category_summary", "module_summary", "bottlenecks"):
        rows = paired.query(f"FROM {view}")
        assert rows[["instructions", "instructions_share"]].isna().all(axis=None)
    emulated = paired.query("FROM category_summary WHERE fidelity = 'emulated'")
    assert "instructions" not in " ".join(category_table(emulated).header)


def explained(rows: dict[str, RunRows], folder: Path) -> list[Insight]:
    warehouse = Warehouse(folder / "warehouse")
    write_runs(warehouse, *rows.values())
    warehouse.publish()
    session = str(warehouse.query("SELECT session_id FROM runs").iloc[0, 0])
    return findings(explain(warehouse, session))


def test_an_operator_that_executes_most_is_the_first_of_the_heavy_ones(tmp_path: Path) -> None:
    rows = {sme2: rows_of_run(archived_run("emulated", sme2)) for sme2 in ("off", "on")}
    work = rows["on"].operator_work.copy()
    softmax = (
        rows["on"].timeline.query("category == 'Elementwise' and name.str.startswith('Softmax')").iloc[0]
    )
    its = (work["kind"] == "operator") & (work["position"] == softmax["position"])
    its &= work["delegate"] == softmax["delegate"]
    assert its.any()
    work.loc[its, "instructions"] *= 100_000
    found = explained({**rows, "on": replace(rows["on"], operator_work=work)}, tmp_path)
    heavy = [insight for insight in found if insight.kind == "heavy_operator"]
    assert heavy[0].title.startswith("Softmax (NC, F32) #1")
    assert heavy[0].win_ns is None
    # What an operator outside the delegates executes is told where it says how to bring it in.
    kinds = [insight.kind for insight in found]
    assert kinds[0] == "heavy_operator"
    assert kinds.index("portable_cost") < kinds.index("layout_changes")
    [shift] = [insight for insight in found if insight.kind == "bottleneck_shift"]
    assert "moved from CONV" in shift.title
    assert "to Elementwise" in shift.title


def test_the_report_shows_what_each_operator_does_on_the_unit(warehouse: Warehouse, session_id: str) -> None:
    document = session_document(warehouse, session_id)
    [section] = [section for section in document.sections if section.title == "Operators"]
    table = next(block.table for block in section.blocks if hasattr(block, "table"))
    at = table.header.index("outer products")
    shown = sum(int(row[at].replace(",", "")) for row in table.rows if row[at] != "-")
    counted = warehouse.query(
        "SELECT sum(instructions) FROM operator_work JOIN runs USING (run_id) "
        "WHERE sme2 = 'on' AND class = 'outer product' AND kind = 'operator'"
    ).iloc[0, 0]
    assert shown == counted > 0


OF_WORK = {
    claims.HEAVY_WORK,
    claims.WORK_TIMES,
    claims.WORK_OFF,
    claims.WORK_ON_UNIT,
    claims.FILL,
    claims.PACKING,
    claims.LIGHT_WORK,
    claims.WORK_IN_ALL,
    claims.WORK_CHANGE,
    claims.WORK_STAYS,
    claims.GAIN_INSTRUCTIONS,
}


def test_no_other_number_holds_of_what_was_counted(zoo: Callable[[str], Warehouse]) -> None:
    warehouse = zoo("a_counted_pair")
    said = {each.claim: each for each in sentences(warehouse) if each.claim in OF_WORK}
    assert said.keys() == OF_WORK
    others = [
        replace(each, values={**each.values, name: value * 1.01 + (value > 1)})
        for each in said.values()
        for name, value in each.parameters.items()
        if isinstance(value, int | float) and name not in ("delegate", "position", "limit")
    ]
    assert len(others) > len(OF_WORK)
    assert len(false_sentences(warehouse, others)) == len(others)
