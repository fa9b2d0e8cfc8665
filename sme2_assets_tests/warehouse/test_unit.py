"""Does an operator run on the SME unit? One answer, of three, wherever it is shown."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import dagster as dg
import duckdb
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from sme2_assets.analysis.unit import UNIT_STATE, filled_in, unsettled
from sme2_assets.defs.assets.summaries import kernel_metadata
from sme2_assets.exchange.tables import category_table, operator_stats_table
from sme2_assets.report.content import session_document
from sme2_assets.report.explain import explain
from sme2_assets.report.insights import finding_points
from sme2_assets.report.markdown import markdown_of
from sme2_assets.report.overview import overview_rows
from sme2_assets.report.terminal import show_session
from sme2_assets.report.unit_use import unit_use, work_text
from sme2_assets.warehouse import Warehouse
from sme2_assets.warehouse.comparisons import compare_session
from sme2_assets.warehouse.read import run_of_id
from sme2_assets_tests.warehouse.made_operators import Op, OperatorRun, source
from sme2_assets_tests.warehouse.test_blind import facts_of

QP8 = "Fully Connected (NC, QP8, F32, QC8W) GEMM #1"
SME_DOT = "kai_kernel_matmul_clamp_f32_qai8dxp1x4_qsi8cxp4vlx4_1x4vl_sme2_dot"
IN_SME = {"symbol": SME_DOT, "isa": "sme2", "role": "compute", "unit": "SVE"}
# What threads of the pool do most of the time, and what an operator does besides its product.
IDLE = (
    {"thread_kind": "pool", "library": "libc.so.6", "symbol": "syscall", "role": "other", "unit": "other"},
    {"thread_kind": "pool", "library": "libexecutorch_threadpool.so", "unit": "other"},
    {"thread_kind": "pool", "library": "libexecutorch_threadpool.so", "unit": "load/store"},
    {"symbol": "kai_run_lhs_quant_pack_qai8dxp_f32", "role": "pack", "unit": "SIMD/FP"},
    {"symbol": SME_DOT.replace("kernel", "get_nr"), "isa": "sme2", "role": "query", "unit": "other"},
    {"symbol": "xnn_invoke_runtime", "role": "other", "unit": "load/store"},
)


def waiting(samples: int) -> list[dict[str, Any]]:
    return [{**row, "samples": samples} for row in IDLE]


def in_sme(samples: int, near: int = 0) -> dict[str, Any]:
    return {**IN_SME, "samples": samples, "near_boundary_samples": near}


DEEP = "Convolution (NHWC, F32) DWConv #1"
CASES: dict[str, tuple[Op, str]] = {
    "QP8 in SME kernels": (Op(QP8, 9, samples=20, sme_samples=20), "on"),
    "many threads that wait": (Op(QP8, 9, more_samples=[in_sme(8), *waiting(300)]), "on"),
    "few samples": (Op(QP8, 9, more_samples=[in_sme(2), *waiting(300)]), "unknown"),
    "only at the border": (Op(QP8, 9, more_samples=[in_sme(50, near=50)]), "unknown"),
    "only threads that wait": (Op(QP8, 9, more_samples=waiting(300)), "unknown"),
    "no samples": (Op(QP8, 9), "unknown"),
    "QP8 in NEON kernels": (Op(QP8, 9, samples=40), "off"),
    "QP8 in too few NEON kernels": (Op(QP8, 9, samples=10), "unknown"),
    "half and half": (Op(QP8, 9, samples=40, sme_samples=15), "unknown"),
    "a packed name without samples": (Op("Fully Connected (NC, PF32) GEMM #1", 9), "on"),
    "a packed name and one sample": (
        Op("Convolution (NHWC, PF32) IGEMM #1", 9, more_samples=[in_sme(1)]),
        "on",
    ),
    "a packed name against its samples": (
        Op("Convolution (NHWC, PQS8, QC8W) IGEMM #1", 9, samples=40),
        "unknown",
    ),
    "depthwise": (Op(DEEP, 9), "off"),
    "depthwise and a late sample": (Op(DEEP, 9, samples=60, sme_samples=1), "off"),
    "depthwise in SME kernels": (Op(DEEP, 9, samples=9, sme_samples=9), "on"),
    "depthwise in SME kernels, too few to tell": (Op(DEEP, 9, samples=4, sme_samples=4), "unknown"),
    "not delegated": (Op("native_call_bmm.out", 9, None), "off"),
    "no packed name where others have one": (Op("Fully Connected (NC, F32) GEMM #2", 9), "off"),
    "no packed name where none has one": (Op("Convolution (NHWC, F16) IGEMM #1", 9), "unknown"),
}


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Warehouse:
    warehouse = Warehouse(tmp_path_factory.mktemp("unit") / "warehouse")
    # Delegates of their own, so that each has a place of its own.
    ops = [
        replace(op, delegate=None if op.delegate is None else number)
        for number, (op, _) in enumerate(CASES.values())
    ]
    for sme2 in ("on", "off"):
        OperatorRun([*ops, Op("Softmax (NC, F32) #1", 9, 99, samples=9, sme_samples=9)], sme2).write(
            warehouse
        )
    warehouse.publish()
    return warehouse


def test_each_operator_is_on_the_unit_off_it_or_unknown(cases: Warehouse):
    rows = cases.query("FROM operator_facts WHERE sme2 = 'on' ORDER BY delegate NULLS FIRST")
    found = {
        row["delegate"]: row["on_sme_unit"] for row in rows.to_dict("records") if not pd.isna(row["delegate"])
    }
    for number, (name, (op, truth)) in enumerate(CASES.items()):
        if op.delegate is not None:
            assert found[number] == truth, name
    assert rows[rows["backend"] == "portable"]["on_sme_unit"].tolist() == ["off"]
    assert rows[rows["op_type"] == "Softmax"]["on_sme_unit"].isna().all(), "only asked of CONV and GEMM"


def test_what_is_unknown_has_words_of_its_own(cases: Warehouse):
    missed = cases.query("FROM missed_sme2 WHERE sme2 = 'on'")
    unknown = missed[missed["on_sme_unit"] == "unknown"]
    assert len(unknown) == sum(truth == "unknown" for _, truth in CASES.values())
    assert set(unknown["reason"]) == {"unknown"}
    assert (missed[missed["on_sme_unit"] == "off"]["reason"] != "unknown").all()
    assert "on" not in set(missed["on_sme_unit"])


@st.composite
def operators(draw: st.DrawFn) -> dict[str, Any]:
    sme = draw(st.integers(0, 60))
    return {
        "fidelity": draw(st.sampled_from(["hardware", "emulated"])),
        "category": draw(st.sampled_from(["CONV", "GEMM"])),
        "sme2": draw(st.sampled_from(["on", "off"])),
        "named": draw(st.booleans()),
        "no_kernel": draw(st.booleans()),
        "telling_samples": sme + draw(st.integers(0, 300)),
        "certain_sme_samples": sme,
        "macs_on_unit": None,
    }


def states(rows: list[dict[str, Any]]) -> list[str]:
    with duckdb.connect() as connection:
        connection.register("rows", pd.DataFrame(rows).assign(number=range(len(rows))))
        found = connection.execute(f"SELECT {UNIT_STATE} FROM rows ORDER BY number").fetchall()
    return [state for (state,) in found]


@given(st.lists(operators(), min_size=1, max_size=30))
def test_no_operator_that_samples_show_on_the_unit_is_off_and_none_is_on_without_proof(rows):
    for row, state in zip(rows, states(rows), strict=True):
        sme, told = row["certain_sme_samples"], row["telling_samples"]
        if state == "off":
            assert sme <= told / 20, "more than a late sample"
            assert not row["named"]
            assert told >= 20 or row["no_kernel"] or row["sme2"] == "off", "nothing shows it"
        elif state == "on":
            assert row["named"] or (sme >= 5 and 2 * sme >= told)
        else:
            assert state == "unknown"


@given(operators(), st.integers(1, 100))
def test_another_sample_on_the_unit_never_speaks_against_it(row, more):
    [before, after] = states(
        [row, {**row, **{name: row[name] + more for name in ("telling_samples", "certain_sme_samples")}}]
    )
    assert (before, after) not in {("on", "off"), ("on", "unknown"), ("unknown", "off")}


@given(st.sampled_from(list(CASES)), st.integers(0, 10_000))
def test_threads_that_wait_change_nothing(name: str, idle: int):
    op, _ = CASES[name]

    def told(extra: list[dict[str, Any]]) -> list[Any]:
        run = OperatorRun([replace(op, more_samples=[*op.more_samples, *extra])])
        nulls = dict.fromkeys(("isa", "role", "symbol", "unit"))
        rows = pd.DataFrame([{**nulls, **row} for row in run._sample_rows()] or [nulls], dtype=object)
        query = filled_in("SELECT count(*) FILTER ({{IS_SME}}), count(*) FILTER ({{IS_TELLING}}) FROM rows")
        with duckdb.connect() as connection:
            connection.register("rows", rows.astype(pd.StringDtype()))
            return connection.execute(query).fetchall()

    assert told([]) == told(waiting(idle))


def test_a_session_samples_on_for_what_its_samples_leave_open():
    run = OperatorRun(
        [replace(op, delegate=n) for n, (op, _) in enumerate(CASES.values()) if op.delegate is not None]
    )
    columns = ("isa", "role", "symbol")
    samples = pd.DataFrame([{**dict.fromkeys(columns), **row} for row in run._sample_rows()])
    left = unsettled(pd.DataFrame(run._rows_of_an_inference()), samples)
    # A session does not know what the names of others mean for an operator.
    expected = [op.name for op, truth in CASES.values() if truth == "unknown"]
    expected += ["Fully Connected (NC, F32) GEMM #2"]
    assert sorted(left["name"]) == sorted(expected)


MIXED = [
    Op(QP8, 9, 0, source("a", "XNNFullyConnected", macs=500), more_samples=[in_sme(30), *waiting(99)]),
    Op(QP8.replace("#1", "#2"), 9, 0, source("b", "XNNFullyConnected", macs=400), samples=25, sme_samples=25),
    Op(QP8.replace("#1", "#3"), 9, 0, source("c", "XNNFullyConnected", macs=40), more_samples=waiting(50)),
    Op(DEEP, 9, 0, source("d", "XNNDepthwiseConv2d", macs=60, groups=8), samples=30),
    Op("HardSwish (NC) #1", 9, 0),
]


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Warehouse:
    """A pair under emulation: two operators on the unit, one off it, one unknown, one that is no product."""
    warehouse = Warehouse(tmp_path_factory.mktemp("mixed") / "warehouse")
    for sme2 in ("off", "on"):
        ops = MIXED if sme2 == "on" else [replace(op, sme_samples=0, more_samples=waiting(9)) for op in MIXED]
        OperatorRun(ops, sme2, platform="emulated", fidelity="emulated").write(warehouse)
    warehouse.publish()
    compare_session(warehouse, session_of(warehouse))
    warehouse.publish()
    return warehouse


def session_of(warehouse: Warehouse) -> str:
    return str(warehouse.query("SELECT DISTINCT session_id FROM runs")["session_id"].item())


def test_every_headline_tells_what_only_names_say(tmp_path: Path):
    """Emulated, as a plain timing configuration of the kit runs it: nothing was sampled."""
    packed, dense = "Fully Connected (NC, PF32) GEMM #1", "Fully Connected (NC, F32) GEMM #1"
    warehouse = Warehouse(tmp_path / "warehouse")
    for sme2, name in (("off", dense), ("on", packed)):
        ops = [Op(name, 9, 0, source("a", "XNNFullyConnected", macs=1_000)), Op(DEEP, 9)]
        OperatorRun(ops, sme2, platform="emulated", fidelity="emulated").write(warehouse)
    warehouse.publish()
    compare_session(warehouse, session_of(warehouse))
    warehouse.publish()

    document = session_document(warehouse, session_of(warehouse))
    assert document.answer is not None
    assert document.answer.figure == "1 of 2 (1 by name alone)"
    assert "run on the SME unit (1 by name alone: no sample shows it); " in document.answer.sentence
    assert (
        "1 of 2 convolutions and matrix products (1 by name alone)" in facts_of(document)["on the SME unit"]
    )
    [row] = overview_rows(warehouse).to_dict("records")
    assert row["on_unit"].startswith("1 of 2 (1 by name alone), ")
    run_id = warehouse.query("SELECT run_id FROM runs WHERE sme2 = 'on'")["run_id"].item()
    shown = kernel_metadata(warehouse, run_id)["CONV and GEMM on it by name alone"]
    assert shown == dg.MetadataValue.int(1)

    explanation = explain(warehouse, session_of(warehouse))
    assert explanation.insights[0].title.endswith("with SME2 on (1 by name alone), 0 with it off")
    for insight in explanation.insights:
        assert insight.basis == "implied"
        assert dict(finding_points(insight, explanation))["Confidence"].startswith("medium: ")


def test_every_place_shows_the_same_count(mixed: Warehouse):
    warehouse = mixed
    session = session_of(warehouse)
    run_id = warehouse.query("SELECT run_id FROM runs WHERE sme2 = 'on'")["run_id"].item()
    words = "2 of 4 convolutions and matrix products, 1 unknown, 90% to 94% of the multiply-accumulates"

    document = session_document(warehouse, session)
    assert document.answer is not None
    assert document.answer.word == "kernel evidence"
    assert document.answer.figure == "2 of 4, 1 unknown"
    assert document.answer.sentence.startswith(
        "2 of 4 matrix operators, 90% to 94% of the multiply-accumulates, run on the SME unit; "
    )
    assert document.answer.sentence.endswith("; 1 of 4 unknown.")
    assert f"SME2 on: {words}; SME2 off: 0 of 4" in facts_of(document)["on the SME unit"]

    [row] = overview_rows(warehouse).to_dict("records")
    assert row["on_unit"] == "2 of 4, 1 unknown, 90% to 94% of the multiply-accumulates"

    explanation = explain(warehouse, session)
    assert explanation.insights[0].title == (
        "2 of 4 CONV and GEMM operators are on the SME unit with SME2 on (1 unknown), 0 with it off"
    )
    [use] = unit_use(warehouse, [run_id])
    assert (use.as_json()["on_sme_unit"], use.as_json()["unknown"], use.as_json()["matrix_operators"]) == (
        2,
        1,
        4,
    )
    assert use.missed == {"depthwise": 1, "unknown": 1}

    counted = {
        "comparisons": "SELECT matrix_operators, sme2_operators_b, sme2_operators_unknown FROM comparisons "
        "WHERE level = 'model'",
        "categories": "SELECT sum(matrix_operators), sum(sme2_operators_b), sum(sme2_operators_unknown) "
        "FROM comparisons WHERE level = 'category'",
        "category_summary": "SELECT 4, sum(sme2_operators), sum(sme2_unknown_operators) "
        "FROM category_summary WHERE sme2 = 'on'",
        "module_summary": "SELECT matrix_operators, sme2_operators, sme2_unknown_operators "
        "FROM module_summary WHERE sme2 = 'on' AND depth = 0",
        "unit_use": "SELECT matrix_operators, on_unit, unknown FROM unit_use WHERE sme2 = 'on'",
    }
    for name, query in counted.items():
        assert [tuple(row) for row in warehouse.query(query).to_numpy()] == [(4, 2, 1)], name

    console = Console(record=True, width=200)
    show_session(console, warehouse, session, None, operators=False)
    assert document.answer.sentence in " ".join(console.export_text().split())

    run = run_of_id(warehouse, run_id)
    for table in (operator_stats_table(warehouse, run, "m"), category_table(warehouse, run, "m")):
        assert table[["sme2_operators", "sme2_unknown_operators"]].sum().tolist() == [2, 1]


def test_no_sentence_makes_a_no_of_an_unknown(mixed: Warehouse):
    warehouse = mixed
    text = str(markdown_of(session_document(warehouse, session_of(warehouse))))
    assert "border" not in text
    assert "cannot change" not in text
    unknown = [
        insight
        for insight in explain(warehouse, session_of(warehouse)).insights
        if "unknown" in insight.title
    ]
    assert [insight.title for insight in unknown[1:]] == [
        "Whether 1 CONV or GEMM operator ran on the SME unit: unknown"
    ]
    assert all("off the SME unit" not in insight.title for insight in unknown)
    assert unknown[1].win_ns is None


def test_work_that_is_not_counted_is_said_to_be(cases: Warehouse):
    [counts] = cases.query("FROM unit_use WHERE sme2 = 'on'").to_dict("records")
    assert work_text(counts) == "", "none is counted"
    partly = {**counts, "macs_on_unit": 0.5, "macs_on_unit_at_most": 0.5, "uncounted": 3}
    assert (
        work_text(partly) == "50% of the multiply-accumulates that are counted (3 of the operators are not)"
    )
