"""Inferences that take several operator sequences: what each operator takes of an inference, and what
stands next to it."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from sme2_assets.analysis.insights.insight import Insight
from sme2_assets.report.answer import session_answer
from sme2_assets.report.explain import explain
from sme2_assets.warehouse import Warehouse
from sme2_assets_tests.made.run_folder import MadeRun, ingest, vouch_for_what_is_there
from sme2_assets_tests.made.traces import Delegate, inference, trace_bytes
from sme2_assets_tests.warehouse.newest import compare_newest

# Of eight inferences, of which the first is the warm-up, the fourth and the last take the branch.
EVERY = 4
OF_INFERENCES = 2 / 7


@pytest.fixture(scope="module")
def branching(tmp_path_factory: pytest.TempPathFactory) -> Warehouse:
    folder = tmp_path_factory.mktemp("branching")
    warehouse = Warehouse(folder / "warehouse")
    ingest(warehouse, MadeRun(iterations=7, branch_every=EVERY, sme2="on").write(folder / "runs"))
    warehouse.publish()
    return warehouse


def test_where_median_and_mean_disagree_neither_is_the_headline(tmp_path: Path):
    """Most inferences gain little, and two of seven have a long matrix product that SME2 halves."""
    warehouse = Warehouse(tmp_path / "warehouse")
    made = MadeRun(iterations=7, branch_every=EVERY)
    ingest(warehouse, *(replace(made, sme2=sme2).write(tmp_path / "runs") for sme2 in ("off", "on")))
    warehouse.publish()
    rows = compare_newest(warehouse, made.variant, made.platform)
    warehouse.publish()
    model = rows[rows["level"] == "model"].iloc[0]
    median, mean = (
        warehouse.query(
            f"SELECT {pick} FILTER (sme2 = 'off') / {pick} FILTER (sme2 = 'on') AS ratio "
            "FROM inferences JOIN runs USING (run_id) WHERE pass = 'latency' AND NOT is_warmup"
        )["ratio"].item()
        for pick in ("median(duration_ns)", "avg(duration_ns)")
    )
    assert mean / median > 1.1
    assert (model["verdict"], pd.isna(model["speedup"])) == ("insufficient data", True)
    told = [float(number) for number in re.findall(r"([0-9.]+)x", model["reason"])]
    assert told == pytest.approx([median, mean], abs=0.02)
    session_id = model["session_id"]
    answer = session_answer(warehouse, explain(warehouse, session_id))
    assert answer.figure is None
    assert answer.why == model["reason"]


def _operators(warehouse: Warehouse) -> list[dict]:
    """What each operator takes of an inference, added up from the rows of the trace."""
    return warehouse.query(
        "SELECT backend, delegate, position, name, sum(duration_ns) AS total_ns, count(*) AS ran, "
        "(SELECT count(*) FROM inferences WHERE pass = 'etdump' AND NOT is_warmup) AS inferences "
        "FROM timeline WHERE kind = 'operator' AND NOT is_warmup GROUP BY ALL"
    ).to_dict("records")


def test_an_operator_of_a_branch_takes_its_part_of_an_inference(branching: Warehouse):
    facts = branching.query("FROM bottlenecks").fillna({"delegate": -1})
    facts = facts.set_index(["backend", "delegate", "position"])
    execute_ns = branching.query(
        "SELECT avg(execute_ns) AS ns FROM inferences WHERE pass = 'etdump' AND NOT is_warmup"
    )["ns"].iloc[0]
    expected = _operators(branching)
    assert {row["ran"] / row["inferences"] for row in expected} == {OF_INFERENCES, 1 - OF_INFERENCES}
    for row in expected:
        delegate = -1 if pd.isna(row["delegate"]) else row["delegate"]
        fact = facts.loc[(row["backend"], delegate, row["position"])]
        per_inference_ns = row["total_ns"] / row["inferences"]
        assert fact["per_inference_ns"] == pytest.approx(per_inference_ns)
        assert fact["mean_ns"] == pytest.approx(row["total_ns"] / row["ran"])
        assert fact["share"] == pytest.approx(per_inference_ns / execute_ns)


def test_rounds_weigh_the_same_however_many_inferences_they_have(tmp_path: Path):
    """Added up from the rows of the trace, round by round, so that all times add up to the inference."""
    warehouse = Warehouse(tmp_path / "warehouse")
    ingest(warehouse, MadeRun(iterations=5, branch_every=4, uneven=True).write(tmp_path / "runs"))
    warehouse.publish()
    kept = warehouse.query("SELECT round FROM traced_rounds WHERE NOT disturbed")["round"]
    rows = warehouse.query("FROM timeline WHERE NOT is_warmup")
    rows = rows[rows["round"].isin(kept)]
    inferences = rows.groupby("round")["iteration"].nunique()
    assert inferences.nunique() == len(inferences) > 1
    operators = rows[rows["kind"] == "operator"].fillna({"delegate": -1})
    place = ["backend", "delegate", "position"]
    spent = operators.groupby([*place, "round"])["duration_ns"].sum().unstack(fill_value=0)
    expected = (spent / inferences).mean(axis=1)
    facts = warehouse.query("FROM bottlenecks").fillna({"delegate": -1}).set_index(place)
    assert facts["per_inference_ns"].sort_index().to_dict() == pytest.approx(expected.to_dict())
    [whole] = warehouse.query("SELECT mean_ns FROM module_summary WHERE depth = 0")["mean_ns"]
    [inference_ns] = warehouse.query("SELECT inference_ns FROM headroom")["inference_ns"]
    assert whole == pytest.approx(inference_ns, rel=1e-12)
    shares = (
        facts["share"].sum() + warehouse.query("FROM category_summary WHERE category = 'Overhead'")["share"]
    )
    assert shares.item() == pytest.approx(1, rel=1e-12)


def test_the_modules_of_a_program_with_branches_add_up_to_the_inference(branching: Warehouse):
    [whole] = branching.query("SELECT mean_ns FROM module_summary WHERE depth = 0")["mean_ns"]
    [inference] = branching.query("SELECT inference_ns FROM headroom")["inference_ns"]
    assert whole == pytest.approx(inference)


def test_operators_and_overhead_add_up_to_the_inference(branching: Warehouse):
    [operators] = branching.query("SELECT sum(per_inference_ns) AS ns FROM operator_facts")["ns"]
    [overhead] = branching.query("SELECT mean_ns FROM category_summary WHERE category = 'Overhead'")[
        "mean_ns"
    ]
    [inference] = branching.query("SELECT inference_ns FROM headroom")["inference_ns"]
    assert operators + overhead == pytest.approx(inference)


def test_a_rank_goes_by_the_time_of_an_inference(branching: Warehouse):
    rows = branching.query("FROM bottlenecks ORDER BY rank")
    assert rows["share"].is_monotonic_decreasing


def test_a_branch_that_only_a_later_round_took_is_part_of_the_program(tmp_path: Path):
    warehouse = Warehouse(tmp_path / "warehouse")
    for late in (False, True):
        folder = MadeRun(rounds=2, sampled=False, session_id=f"late{late}").write(tmp_path / "runs")
        usual, branch = (
            inference([Delegate([(name, 5000)], 6000)], 7000)
            for name in ("Add (ND) #1", "Softmax (NC, F32) #1")
        )
        for round_index in range(2):
            rest = branch if late and round_index else usual
            trace = folder / f"round_{round_index:02}" / "etdump" / "trace.etdump"
            trace.write_bytes(trace_bytes(usual, *[rest] * 3))
        vouch_for_what_is_there(folder)
        ingest(warehouse, folder)
    warehouse.publish()
    assert warehouse.query("SELECT DISTINCT program FROM programs").shape == (2, 1)


def _insights(warehouse: Warehouse) -> list[Insight]:
    return explain(warehouse, warehouse.query("SELECT session_id FROM runs")["session_id"].iloc[0]).insights


def test_nothing_that_can_be_won_exceeds_the_inference(branching: Warehouse):
    [inference] = branching.query("SELECT inference_ns FROM headroom")["inference_ns"]
    won = [(each.win_ns, each.win_share) for each in _insights(branching) if each.win_ns is not None]
    assert won
    for win_ns, win_share in won:
        assert win_ns <= inference
        assert win_share == pytest.approx(win_ns / inference)


def test_operators_of_two_branches_are_no_neighbours(branching: Warehouse):
    """The two sequences have a transpose each where the other has none."""
    together = branching.query(
        "SELECT round, iteration, list(delegate || '|' || position) AS places FROM timeline "
        "WHERE kind = 'operator' AND delegate IS NOT NULL AND NOT is_warmup GROUP BY ALL"
    )["places"].map(set)
    paths = branching.query(
        "SELECT path, list(delegate || '|' || position) AS places FROM operator_facts "
        "WHERE delegate IS NOT NULL GROUP BY path"
    )["places"].map(set)
    assert sorted(map(sorted, paths)) == sorted(map(list, {tuple(sorted(places)) for places in together}))
    [layout] = [each for each in _insights(branching) if each.kind == "layout_changes"]
    for row in layout.rows:
        places = {f"{delegate}|{position}" for delegate, position in row["places"]}
        assert any(places <= ran for ran in together), row["why"]
