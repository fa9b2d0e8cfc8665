"""What was counted of an emulated pair: every instruction in one row, and faults that somebody planted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import sme2_assets
from sme2_assets.errors import EvidenceError
from sme2_assets.evidence.folder import RunFolder
from sme2_assets.evidence.operators import Delegate, ProgramOperators
from sme2_assets.evidence.work import WorkFile
from sme2_assets.exchange.export import export_run, find_run
from sme2_assets.warehouse import Warehouse
from sme2_assets.warehouse.checks import executed_kernel_faults, work_faults
from sme2_assets.warehouse.ingest import RunRows, rows_of_run, write_runs
from sme2_assets.warehouse.read import run_of_id
from sme2_assets.work.counts import operator_work_rows, owners
from sme2_assets_tests.archive import archived_run, archived_store
from sme2_assets_tests.made.run_folder import PROGRAM
from sme2_assets_tests.made.traces import Delegate as DelegateCall
from sme2_assets_tests.made.traces import inference, trace

Change = Callable[[pd.DataFrame], pd.DataFrame]


@pytest.fixture(scope="module")
def pair() -> dict[str, RunRows]:
    return {sme2: rows_of_run(archived_run("emulated", sme2)) for sme2 in ("on", "off")}


def stored(
    rows: RunRows, folder: Path, change: Change = lambda work: work
) -> tuple[Warehouse, dict[str, Any]]:
    warehouse = Warehouse(folder / "warehouse")
    write_runs(warehouse, replace(rows, operator_work=change(rows.operator_work.copy())))
    warehouse.publish()
    return warehouse, run_of_id(warehouse, rows.manifest.run_id)


@pytest.mark.parametrize("sme2", ["on", "off"])
def test_every_counted_instruction_is_in_one_row(pair: dict[str, RunRows], tmp_path: Path, sme2: str) -> None:
    [process] = RunFolder.open(archived_run("emulated", sme2)).processes("work")
    work = process.work
    executed = zip(work.executions.block, work.executions.times, strict=True)
    warehouse, run = stored(pair[sme2], tmp_path)
    counted = warehouse.query("SELECT * FROM operator_work")
    assert counted["instructions"].sum() == sum(
        len(work.blocks.words[block]) * times for block, times in executed
    )
    columns = [
        "kind",
        "backend",
        "delegate",
        "position",
        "thread_kind",
        "library",
        "function_offset",
        "symbol",
    ]
    assert not counted.duplicated([*columns, "class", "instruction", "unit"]).any()
    # Each operator of the timeline executed something, and nothing is of an operator that is not there.
    place = "count(DISTINCT (backend, delegate, position)) FILTER (kind = 'operator') AS n"
    operators = warehouse.query(
        f"SELECT {place} FROM timeline UNION ALL SELECT {place} FROM operator_work UNION ALL "
        "SELECT count(*) FROM operator_facts WHERE instructions > 0"
    )["n"]
    assert operators.nunique() == 1
    assert work_faults(warehouse, run) is executed_kernel_faults(warehouse, run) is None


def test_where_the_borders_are_not_those_of_the_trace_nothing_is_attributed(
    pair: dict[str, RunRows], tmp_path: Path
) -> None:
    [process] = RunFolder.open(archived_run("emulated", "on")).processes("work")
    kinds = process.work.borders.kind
    last_reading = len(kinds) - 1 - kinds[::-1].index("clock")
    missing = process.work.model_dump()
    missing["borders"]["kind"][last_reading] = "begin"
    rows = operator_work_rows(WorkFile.of({"schema": 1, **missing}, "work.json"), process.events, None, 512)
    assert set(rows["kind"]) == {"unattributed"}
    assert rows["instructions"].sum() == pair["on"].operator_work["instructions"].sum()
    warehouse, run = stored(pair["on"], tmp_path, lambda whole: whole.assign(**rows.iloc[0][["kind"]]))
    assert work_faults(warehouse, run)


def test_a_concatenation_owns_the_copy_of_each_of_its_inputs() -> None:
    rows = [
        ("Add (ND) #1", 1000),
        ("Copy (NC, X32) #1", 5000),
        ("TanH (NC) #1", 1000),
        ("Copy (NC, X32) #2", 2000),
    ]
    events = trace(inference([DelegateCall(rows, 20_000)], 30_000))
    node = PROGRAM.delegates[0].nodes[0]
    joined = [
        node.model_copy(update={"kind": f"XNNConcatenate{inputs}", "input_shapes": [[1]] * inputs})
        for inputs in (5, 2)
    ]
    program = ProgramOperators(
        delegates=[Delegate(backend="XnnpackBackend", nodes=[node, joined[0], node, joined[1]])], portable=[]
    )
    # The clock is read before the first operator, and after each copy: 1 + 5 + 1 + 2.
    kinds = ["begin", "begin", *["clock"] * 10, "end", "end"]
    borders = pd.DataFrame({"kind": kinds, "address": [0, 0, 1, *[2] * 9, 0, 0]})
    owned = owners(borders, events, program)[3:12]
    names = [events.names[events.name[row]].partition(" ")[0] for row in owned]
    assert names == ["Add", *["Copy"] * 5, "TanH", *["Copy"] * 2]
    assert len(set(owned)) == 4
    with pytest.raises(EvidenceError, match="ends 9 operators, its trace has 4"):
        owners(borders, events, None)


def test_the_unit_is_where_an_operator_multiplied(pair: dict[str, RunRows], tmp_path: Path) -> None:
    warehouse, _ = stored(pair["on"], tmp_path)
    facts = warehouse.query("SELECT * FROM operator_facts WHERE on_sme_unit IS NOT NULL").set_index("name")
    assert set(facts["sme2_evidence"]) == {"executed", "none"}
    off = facts[facts["on_sme_unit"] == "off"]
    assert list(off.index) == ["Convolution (NHWC, F32) DWConv #1"]
    assert (off["macs_on_unit"] == 0).all()
    on = facts[facts["on_sme_unit"] == "on"]
    assert (on["macs_on_unit"] == on["macs_executed"]).all()
    assert (on["streaming_entries"] > 0).all()


def changed(name: str, column: str, to: Callable[[pd.Series], pd.Series]) -> Change:
    """What was counted of an operator by its position in the delegate, changed where it multiplies."""

    def change(work: pd.DataFrame) -> pd.DataFrame:
        there = (work["kind"] == "operator") & (work["position"] == int(name)) & (work["delegate"] == 0)
        there &= work["multiply_accumulates"] > 0
        assert there.any()
        work.loc[there, column] = to(work.loc[there, column])
        return work

    return change


@pytest.mark.parametrize("factor", [0.9, 20.0])
def test_an_operator_that_multiplies_less_or_far_more_than_the_model_is_named(
    pair: dict[str, RunRows], tmp_path: Path, factor: float
) -> None:
    planted = changed("1", "multiply_accumulates", lambda macs: (macs * factor).astype("int64"))
    warehouse, run = stored(pair["on"], tmp_path, planted)
    assert "Convolution (NHWC, PF32) IGEMM #1" in (work_faults(warehouse, run) or "")


def test_a_name_that_promises_sme2_is_not_believed(pair: dict[str, RunRows], tmp_path: Path) -> None:
    moved = changed("1", "class", lambda classes: classes.map(lambda _: "SIMD multiply-add"))
    warehouse, run = stored(pair["on"], tmp_path, moved)
    assert "Convolution (NHWC, PF32) IGEMM #1" in (executed_kernel_faults(warehouse, run) or "")
    [unit] = warehouse.query("SELECT on_sme_unit FROM operator_facts WHERE name LIKE '%PF32) IGEMM #1'")[
        "on_sme_unit"
    ]
    assert unit == "off"


def test_an_instruction_of_sme_with_sme2_off_is_a_fault(pair: dict[str, RunRows], tmp_path: Path) -> None:
    moved = changed("1", "class", lambda classes: classes.map(lambda _: "streaming entry"))
    warehouse, run = stored(pair["off"], tmp_path, moved)
    assert executed_kernel_faults(warehouse, run)


def test_threads_that_wait_are_not_the_work_of_an_operator(pair: dict[str, RunRows], tmp_path: Path) -> None:
    def spun(work: pd.DataFrame) -> pd.DataFrame:
        first = work[(work["kind"] == "operator") & (work["class"] == "branch")].head(1)
        pool = first.assign(thread_kind="pool", symbol=None, instructions=1_000_000)
        threads = [pool.assign(library="libexecutorch_threadpool.so"), pool.assign(symbol="syscall")]
        return pd.concat([work, *threads], ignore_index=True)

    counts = [
        stored(pair["on"], tmp_path / name, change)[0].query(
            "SELECT name, instructions FROM operator_facts ORDER BY execution_order"
        )
        for name, change in (("quiet", lambda work: work), ("spun", spun))
    ]
    pd.testing.assert_frame_equal(*counts)


def test_a_pair_has_the_work_of_both_arms_side_by_side_and_in_its_files(tmp_path: Path) -> None:
    store = archived_store(tmp_path / "data", "emulated", published=True)
    pair = sme2_assets.open(store.root).compare("toy_cnn-fp32", "emulated")
    totals = pair.work.filter(regex="^(off|on)_(?!run_id).+_|_instructions$")
    work = Warehouse(store.warehouse).query("FROM operator_work WHERE kind = 'operator'")
    work = work[~work["library"].str.contains("threadpool") & (work["symbol"] != "syscall")]
    model = pair.work[pair.work["level"] == "model"].iloc[0]
    for side, run_id in (("off", pair.off_run_id), ("on", pair.on_run_id)):
        arm = work[work["run_id"] == run_id]
        classes = arm.groupby("class")["instructions"].sum()
        assert model[f"{side}_instructions"] == arm["instructions"].sum()
        assert model[f"{side}_macs_executed"] == arm["multiply_accumulates"].sum()
        assert model[f"{side}_outer_products"] == classes.get("outer product", 0)
        assert model[f"{side}_streaming_entries"] == classes.get("streaming entry", 0)
    for level in ("category", "module", "operator"):
        rows = pair.work["level"] == level
        assert rows.sum() > 1
        assert (totals[rows].sum() == totals[pair.work["level"] == "model"].iloc[0]).all(), level

    run = find_run(Warehouse(store.warehouse), "latest", "toy_cnn-fp32", "emulated", "on")
    files = export_run(store, run, ["csv"], tmp_path / "out")
    tables = {path.stem.rpartition("fp32_")[2]: pd.read_csv(path) for path in files if path.suffix == ".csv"}
    exported = tables["work_comparison"]
    assert exported.loc[exported["level"] == "model", "on_instructions"].tolist() == [
        model["on_instructions"]
    ]
    everything = Warehouse(store.warehouse).query("FROM operator_work WHERE run_id = ?", [pair.on_run_id])
    counted = tables["emulated_sme2_on_t1_work"]["instructions"].sum()
    assert counted == everything["instructions"].sum()


@pytest.mark.parametrize(
    "damage",
    [
        {"functions": []},
        {"blocks": {"function": [0], "words": [[1], [2]]}},
        {"blocks": {"function": [0, 0], "words": [[1], [1 << 32]]}},
        {"borders": {"kind": ["begin", "end"], "address": [0, 0]}},
        {"borders": {"kind": ["stop", "begin"], "address": [0, 0]}},
        {"executions": {"stretch": [2], "block": [0], "thread": [0], "times": [1]}},
        {"executions": {"stretch": [0], "block": [2], "thread": [0], "times": [1]}},
        {"executions": {"stretch": [0], "block": [0], "thread": [0], "times": [-1]}},
    ],
)
def test_a_damaged_work_file_is_refused(damage: dict[str, Any]) -> None:
    whole = {
        "schema": 1,
        "functions": [{"library": "a.so", "offset": 0, "symbol": None}],
        "blocks": {"function": [0, 0], "words": [[1], [2]]},
        "borders": {"kind": ["begin", "stop"], "address": [0, 0]},
        "executions": {"stretch": [1], "block": [1], "thread": [0], "times": [3]},
    }
    assert WorkFile.of(whole, "work.json").executions.times == [3]
    with pytest.raises(EvidenceError):
        WorkFile.of({**whole, **damage}, "work.json")
