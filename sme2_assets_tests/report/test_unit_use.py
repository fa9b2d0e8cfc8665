"""The demo's table and its finding: each sentence holds in the rows it was made of, or is not said."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from sme2_assets.report.unit_use import (
    UnitUse,
    finding,
    most_telling,
    operators_not_known,
    unit_sentence,
    unit_table,
    unit_use,
    work_text,
)
from sme2_assets.warehouse import Warehouse
from sme2_assets_tests.warehouse.made_operators import Op, OperatorRun, source, write_runs

SEEN = {"samples": 40, "sme_samples": 38}
TYPES = {"fp32": ("F32", "PF32"), "fp16": ("F16", "PF16"), "int8": ("QS8, QC8W", "PQS8, QC8W")}
NOT_KNOWN = Op("native_call_fused_attention.out", 50, None)
EMULATED = OperatorRun([], platform="emulated", fidelity="emulated")

Used = Callable[..., list[UnitUse]]


def conv(precision: str, *, on: bool = True, seen: bool = True, delegate: int = 0) -> Op:
    """A dense 3x3 convolution."""
    facts = source("conv", "XNNConv2d", groups=1, kernel_size="3x3", input_shape="1x8x8x16")
    samples = SEEN if on and seen else {"samples": 40} if seen else {}
    return Op(f"Convolution (NHWC, {TYPES[precision][on]}) IGEMM #1", 100, delegate, facts, **samples)


def pointwise(precision: str, *, on: bool = True) -> Op:
    """A 1x1 convolution, which XNNPACK runs as a product."""
    facts = source("point", "XNNConv2d", groups=1, kernel_size="1x1", input_shape="1x8x8x16")
    return Op(
        f"Fully Connected (NC, {TYPES[precision][on]}) GEMM #1",
        50,
        0,
        facts,
        **(SEEN if on else {"samples": 40}),
    )


def depthwise(precision: str) -> Op:
    facts = source("deep", "XNNDepthwiseConv2d", groups=16, kernel_size="3x3", input_shape="1x8x8x16")
    return Op(f"Convolution (NHWC, {TYPES[precision][0]}) DWConv #1", 30, 0, facts, samples=20)


@pytest.fixture
def used(tmp_path: Path) -> Used:
    """What the runs of a model at these precisions, with these operators, used the unit for."""

    def make(**operators: list[Op]) -> list[UnitUse]:
        warehouse = Warehouse(tmp_path / "warehouse")
        runs = [
            replace(EMULATED, ops=ops, variant=f"net-{precision}", session_id=f"s-{precision}")
            for precision, ops in operators.items()
        ]
        write_runs(warehouse, *runs)
        warehouse.publish()
        return unit_use(warehouse, [run.run_id for run in runs])

    return make


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        (1.0, 1.0, "100%"),
        (0.996, 0.996, "over 99%"),
        (0.996, 1.0, "over 99% to 100%"),
        (0.9956, 0.9964, "99.56% to 99.64%"),
        (0.93, 0.93, "93%"),
        (0.931, 0.934, "93.1% to 93.4%"),
        (0.004, 0.004, "under 1%"),
        (0.0, 0.004, "0% to under 1%"),
        (0.0, 0.0, "0%"),
    ],
)
def test_nearly_all_is_not_all_and_a_range_stays_one(low: float, high: float, text: str):
    counts = {"run_id": "r", "macs_on_unit": low, "macs_on_unit_at_most": high, "uncounted": 0}
    assert work_text(counts) == f"{text} of the multiply-accumulates"


def test_a_kind_that_one_precision_keeps_off_the_unit_is_the_finding(used: Used):
    found = used(
        fp32=[conv("fp32"), pointwise("fp32"), pointwise("fp32"), depthwise("fp32")],
        fp16=[conv("fp16"), pointwise("fp16", on=False), pointwise("fp16", on=False), depthwise("fp16")],
        int8=[conv("int8"), pointwise("int8"), pointwise("int8"), depthwise("int8")],
    )
    assert unit_table(found, {}).rows == [
        ["net", "fp32", "emulated", "3 of 4", "-", "1 depthwise"],
        ["net", "fp16", "emulated", "1 of 4", "-", "2 data type, 1 depthwise"],
        ["net", "int8", "emulated", "3 of 4", "-", "1 depthwise"],
    ]
    said = finding(found)
    assert said is not None
    assert said.startswith(
        "At fp16 the 1x1 convolutions stay off the SME unit, while at fp32 and int8 they are on it."
    )
    assert "In fp16 XNNPACK has no SME2 kernel for 1x1 convolutions" in said
    telling = most_telling(found)
    assert telling is not None
    assert telling.variant == "net-fp16"


def test_a_kind_that_is_on_the_unit_only_in_part_is_no_finding(used: Used):
    found = used(
        fp32=[conv("fp32"), conv("fp32", on=False, delegate=1)],
        int8=[conv("int8"), conv("int8", delegate=1)],
    )
    assert [use.on_unit for use in found] == [1, 2]
    assert finding(found) is None


def test_two_runs_of_one_precision_are_both_heard(tmp_path: Path):
    """One of them keeps the layer off the unit and one does not: the precision does not decide it."""
    warehouse = Warehouse(tmp_path / "warehouse")
    places = {"a": ("fp32", True), "b": ("fp16", False), "c": ("fp16", True), "d": ("fp16", True)}
    runs = {
        name: replace(EMULATED, ops=[conv(what, on=on)], variant=f"net-{what}", session_id=name, device=name)
        for name, (what, on) in places.items()
    }
    write_runs(warehouse, *runs.values())
    warehouse.publish()

    def said(*names: str) -> str | None:
        return finding(unit_use(warehouse, [runs[name].run_id for name in names]))

    assert str(said("a", "b")).startswith("At fp16 the 3x3 convolution stays off the SME unit")
    assert said("a", "b", "c") is None
    assert said("a", "c", "b") is None
    assert said("c", "d") == "Every convolution and matrix product of net at fp16 is on the SME unit."


def test_a_convolution_of_one_input_channel_is_not_called_depthwise(used: Used):
    facts = source("stem", "XNNDepthwiseConv2d", groups=1, kernel_size="3x3", input_shape="1x8x8x1")
    stem = Op("Convolution (NHWC, F32) IGEMM #1", 30, 0, facts, samples=40)
    [use] = used(fp32=[stem, depthwise("fp32")])
    assert [operator.kind for operator in use.operators] == ["3x3 convolution", "depthwise convolution"]


def test_what_is_off_at_every_precision_is_told_as_such(used: Used):
    found = used(fp32=[conv("fp32"), depthwise("fp32")], int8=[conv("int8"), depthwise("int8")])
    assert finding(found) == (
        "All convolutions and matrix products of net at fp32 and int8 are on the SME unit, "
        "except its depthwise convolutions."
    )


def test_everything_on_the_unit_is_told_as_such(used: Used):
    found = used(fp32=[conv("fp32"), pointwise("fp32")], fp16=[conv("fp16")], int8=[conv("int8")])
    assert [row[3:] for row in unit_table(found, {}).rows] == [
        ["2 of 2", "-", "-"],
        ["1 of 1", "-", "-"],
        ["1 of 1", "-", "-"],
    ]
    assert finding(found) == (
        "Every convolution and matrix product of net at fp32, fp16 and int8 is on the SME unit."
    )


@pytest.mark.parametrize(
    ("operators", "said"),
    [
        ([conv("fp32")], "Every known convolution and matrix product of net at fp32 is on the SME unit."),
        (
            [conv("fp32", on=False)],
            "No known convolution or matrix product of net at fp32 is on the SME unit.",
        ),
        (
            [conv("fp32"), depthwise("fp32")],
            "All known convolutions and matrix products of net at fp32 are on the SME unit, "
            "except its depthwise convolutions.",
        ),
    ],
)
def test_of_operators_that_nobody_knows_nothing_is_said(used: Used, operators: list[Op], said: str):
    """What such an operator computes may be a convolution or a matrix product as well."""
    assert finding(used(fp32=[*operators, NOT_KNOWN])) == said


@pytest.mark.parametrize(
    ("operators", "said"),
    [
        ([], "the model has no convolution or matrix product"),
        ([NOT_KNOWN], "no operator of the model is known to be a convolution or matrix product"),
    ],
)
def test_that_there_is_no_matrix_product_is_said_where_all_operators_are_known(
    tmp_path: Path, operators: list[Op], said: str
):
    warehouse = Warehouse(tmp_path / "warehouse")
    run = replace(EMULATED, ops=[Op("Softmax (NC, F32) #1", 9), *operators])
    write_runs(warehouse, run)
    warehouse.publish()
    not_known = operators_not_known(warehouse, [run.run_id])
    assert unit_sentence(run.run_id, None, not_known[run.run_id]) == said


def test_nothing_on_the_unit_is_told_as_such(used: Used):
    found = used(fp32=[depthwise("fp32")])
    assert finding(found) == "No convolution or matrix product of net at fp32 is on the SME unit."


def test_unknown_is_counted_and_never_becomes_a_sentence(used: Used):
    # QP8 is the name of kernels with and without SME2, so without samples nothing tells.
    linear = source("head", "XNNFullyConnected")
    found = used(
        int8=[Op("Fully Connected (NC, QP8, F32, QC8W) GEMM #1", 50, 0, linear)],
        fp32=[Op("Fully Connected (NC, PF32) GEMM #1", 50, 0, linear)],
    )
    assert [row[3:] for row in unit_table(found, {}).rows] == [
        ["0 of 1, 1 unknown", "-", "1 unknown"],
        ["1 of 1 (1 by name alone)", "-", "-"],
    ]
    assert finding(found) is None


def test_only_the_runs_that_are_named_count_and_only_with_sme2_on(tmp_path: Path):
    warehouse = Warehouse(tmp_path / "warehouse")
    run = replace(EMULATED, ops=[conv("fp32")], variant="net-fp32")
    off = replace(run, ops=[conv("fp32", on=False)], sme2="off")
    newer = replace(run, ops=[conv("fp32", on=False)], session_id="later")
    write_runs(warehouse, run, off, newer)
    warehouse.publish()
    [use] = unit_use(warehouse, [off.run_id, run.run_id])
    assert (use.run_id, use.on_unit) == (run.run_id, 1)


def test_without_runs_there_is_nothing_to_say(tmp_path: Path):
    used = unit_use(Warehouse(tmp_path / "warehouse"), [])
    assert used == []
    assert finding(used) is None
    assert most_telling(used) is None


def test_speedups_have_a_column_where_there_are_any(used: Used):
    found = used(fp32=[conv("fp32")])
    assert "speedup" not in unit_table(found, {}).header
    table = unit_table(found, {found[0].run_id: "2.00x (1.90 to 2.10, n=10)"})
    assert table.rows[0][-1] == "2.00x (1.90 to 2.10, n=10)"
