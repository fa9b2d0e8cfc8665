"""Counted work before and after a change: what is planted is found, what scales with the model is not."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sme2_assets.gate.baseline import Baseline, ModelFacts
from sme2_assets.gate.judge import Tolerances, judge, updated
from sme2_assets.gate.take import taken_of
from sme2_assets.store import Store
from sme2_assets.warehouse import Warehouse
from sme2_assets.warehouse.ingest import RunRows, rows_of_run, write_runs
from sme2_assets_tests.archive import archived_run, archived_store
from sme2_assets_tests.gate.test_judge import facts, losses, operator

AS_IT_IS = Tolerances()
JUDGED = ("instructions", "macs_executed", "streaming_entries")

counts = st.integers(1, 10**10)
operators = st.lists(st.fixed_dictionaries(dict.fromkeys(JUDGED, counts)), min_size=1, max_size=8)


@given(operators, st.data())
def test_a_hundredth_more_of_what_one_operator_executes_is_found_and_an_exact_hundredth_passes(
    drawn: list[dict[str, int]], data: st.DataObject
):
    number = data.draw(st.integers(0, len(drawn) - 1))
    name = data.draw(st.sampled_from(JUDGED))
    unit = data.draw(st.sampled_from(["on", "off"]))
    before = [operator(index, unit=unit, **each) for index, each in enumerate(drawn)]
    was = getattr(before[number], name)
    within, beyond = was + was // 100, was + was // 100 + 1
    for now, expected in ((within, []), (beyond, [f"layer.{number} (model.py:{10 + number})"])):
        after = [*before]
        after[number] = before[number].model_copy(update={name: now})
        assert [it.where for it in judge(facts(*before), facts(*after), AS_IT_IS)] == expected
    # The way back is a gain.
    after[number] = before[number].model_copy(update={name: was * 2})
    assert [it.kind for it in judge(facts(*after), facts(*before), AS_IT_IS)] == ["gain"]


@given(st.integers(1, 10**12))
def test_a_hundredth_more_of_all_that_the_model_executes_is_found(was: int):
    before = facts(instructions=was)
    assert losses(before, facts(instructions=was + was // 100)) == []
    [found] = losses(before, facts(instructions=was + was // 100 + 1))
    assert found.where == "the model"


def test_a_finding_tells_where_the_difference_comes_from():
    before = operator(0, macs=900, instructions=1_310_000, packing_instructions=1_000_000)
    after = before.model_copy(update={"instructions": 1_520_000, "packing_instructions": 1_210_000})
    planted, whole = losses(facts(before, instructions=9_000_000), facts(after, instructions=9_215_000))
    assert planted.where == "layer.0 (model.py:10)"
    for part in ("1,520,000", "1,310,000", "+16.0%", "packing instructions +210,000", "outer products"):
        assert part in planted.what
    assert planted.what.endswith("unchanged")
    # What is not of the operators is told beside them.
    for part in ("9,215,000", "9,000,000", "+2.4%", "+210,000", "+5,000"):
        assert part in whole.what


@given(st.integers(1, 40), st.integers(1, 40))
def test_an_operator_that_is_larger_in_the_model_may_execute_more_in_proportion(was: int, now: int):
    """And nothing is said of one that executes less because it is smaller."""

    def of_size(size: int, extra: int = 0) -> ModelFacts:
        work = {"instructions": 5000 * size + extra, "macs_executed": 1000 * size, "streaming_entries": size}
        return facts(operator(0, macs=900 * size, shape=str(size), **work))

    assert judge(of_size(was), of_size(now), AS_IT_IS) == []
    if now >= was:
        [found] = losses(of_size(was), of_size(now, 50 * now + 1))
        assert "instructions" in found.what
        assert losses(updated(of_size(was), of_size(now, 40 * now), AS_IT_IS), of_size(now, 55 * now))


def test_tiles_that_are_filled_less_are_a_loss_even_if_the_model_multiplies_more():
    """97 channels after 96: an eighth of a tile more is computed for a hundredth of the work."""
    before = operator(0, macs=9600, macs_executed=9600)
    after = operator(0, macs=9700, macs_executed=11200)
    [found] = losses(facts(before), facts(after))
    assert "tile fill 86.6%, 100.0% before" in found.what


def test_what_moved_onto_the_unit_executes_something_else_and_that_is_no_loss_of_its_own():
    before = operator(0, unit="off", macs_on_unit=0, outer_products=0, streaming_entries=0)
    [found] = judge(facts(before), facts(operator(0)), Tolerances(macs=1))
    assert (found.kind, found.what[:20]) == ("gain", "runs on the SME unit")


def test_a_baseline_from_before_instructions_were_counted_is_read_and_its_work_is_not_judged(tmp_path: Path):
    path = tmp_path / "sme2_gate.json"
    now = facts(operator(0), operator(1))
    Baseline(executorch="1.5.1", models={"net-fp16": now}).write(path)
    content = json.loads(path.read_text())
    model = content["models"]["net-fp16"]
    del model["instructions"]
    fields = ("module", "source", "code", "category", "shape", "kernel", "backend", "unit", "macs")
    model["operators"] = [{name: each[name] for name in fields} for each in model["operators"]]
    model["operators"][1]["unit"] = "unknown"
    path.write_text(json.dumps({**content, "schema": 1}))
    before = Baseline.read(path).models["net-fp16"]
    [found] = judge(before, now, AS_IT_IS)
    assert (found.kind, "not counted in the baseline" in found.what) == ("note", True)
    assert updated(before, now, AS_IT_IS) == now


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory, artifacts_dir: Path) -> tuple[Store, RunRows]:
    """A data folder with the archived emulated run and the export that it is of."""
    store = archived_store(tmp_path_factory.mktemp("counted"), "emulated")
    (store.root / "artifacts").symlink_to(artifacts_dir)
    rows = rows_of_run(archived_run("emulated", "on"))
    [export] = (
        archived_run("emulated", "on").parents[1] / "models" / rows.manifest.identity.variant
    ).iterdir()
    store.set_current("model", rows.manifest.identity.variant, export.name)
    return store, rows


def test_work_that_is_planted_in_a_run_is_found_with_its_operator(counted: tuple[Store, RunRows]):
    store, rows = counted

    def measured(work: pd.DataFrame) -> ModelFacts:
        warehouse = Warehouse(store.warehouse)
        write_runs(warehouse, replace(rows, operator_work=work))
        warehouse.publish()
        taken_of.cache_clear()
        return taken_of(store, rows.manifest.run_id).facts

    before = measured(rows.operator_work)
    work = rows.operator_work
    inferred = work[work["kind"] != "between inferences"]
    assert before.instructions == inferred["instructions"].sum()
    [dense] = (each for each in before.operators if each.module == "dense.0.0")
    planted = work[(work["kind"] == "operator") & (work["symbol"].str.contains("mopa"))]
    planted = planted.nlargest(1, "instructions")
    grown = work.copy()
    grown.loc[planted.index, "instructions"] += dense.instructions // 90
    found = judge(before, measured(grown), AS_IT_IS)
    taken_of.cache_clear()
    assert [it.where for it in found if it.kind == "loss"] == [f"dense.0.0 ({dense.source})"]
