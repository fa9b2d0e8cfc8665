from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from sme2_assets.analysis.insights.ceilings import projection
from sme2_assets.analysis.insights.insight import ArmRows, Insight
from sme2_assets.analysis.insights.ranking import KINDS, insights, ranked
from sme2_assets.analysis.projection import UNITS, Unit, projected_ns
from sme2_assets.errors import WarehouseError
from sme2_assets.report.answer import session_answer, unit_answer
from sme2_assets.report.explain import Explanation, explain
from sme2_assets.report.insights import explanation_json, finding_points
from sme2_assets.warehouse import Warehouse
from sme2_assets_tests.claims.zoo import Calls, zoo
from sme2_assets_tests.made.run_folder import ingest
from sme2_assets_tests.made.traces import Delegate
from sme2_assets_tests.warehouse.made_operators import (
    CNN_MACS,
    DELEGATE_OVERHEAD_NS,
    FRAMEWORK_OVERHEAD_NS,
    INSERTED,
    Op,
    OperatorRun,
    cnn,
    explained,
    made_warehouse,
    source,
)
from sme2_assets_tests.warehouse.newest import newest_session

__all__ = ["zoo"]

QUANTISE = source("a", "XNNConvert", edge_ops=["quantized_decomposed.quantize_per_tensor.default"])
DEQUANTISE = source("a", "XNNConvert", edge_ops=["quantized_decomposed.dequantize_per_tensor.default"])


def of_kind(explanation: Explanation, kind: str) -> list[Insight]:
    return [insight for insight in explanation.insights if insight.kind == kind]


def test_a_hardware_pair_has_every_kind_of_insight_but_a_projection():
    explanation = explained("made-fp32", "linux")
    assert {insight.kind for insight in explanation.insights} == set(KINDS) - {"projection"}
    assert explanation.subject.run["sme2"] == "on"
    for insight in explanation.insights:
        assert insight.basis == "measured"
        assert insight.evidence
        assert insight.rules_out
        assert any("run 20260101T000000" in text for text in insight.evidence), "the run is named"
        assert any("2 rounds, 6 inferences" in text for text in insight.evidence), "a number carries its n"


def test_insights_are_ranked_by_the_time_to_win():
    found = explained("made-fp32", "linux").insights
    assert found[0].kind == "bottleneck_shift", "what the rest is read against"
    wins = [insight.win_ns for insight in found[1:]]
    assert None not in wins
    assert wins == sorted(wins, reverse=True)


def test_the_shift_is_in_milliseconds_and_shares_of_both_arms():
    [shift] = of_kind(explained("made-fp32", "linux"), "bottleneck_shift")
    rows = {row["category"]: row for row in shift.rows}
    assert (rows["CONV"]["off_ms"], rows["CONV"]["on_ms"]) == (0.75, 0.35)
    off, on = (OperatorRun(cnn(sme2), sme2).inference_ns for sme2 in ("off", "on"))
    assert rows["CONV"]["off_share"] == pytest.approx(750_000 / off)
    assert rows["CONV"]["on_share"] == pytest.approx(350_000 / on)
    for arm in ("off", "on"):
        assert sum(row[f"{arm}_share"] for row in shift.rows) == pytest.approx(1)
    assert shift.title.startswith("CONV stays the largest part")
    assert "SME2 on: 76 of the 110 samples in kernels that compute CONV and GEMM are on SME" in shift.evidence
    assert shift.win_ns is None


def test_a_bottleneck_that_moved_is_named():
    arms = explained("made-fp32", "linux")
    assert arms.baseline is not None
    categories = arms.subject.category_summary.copy()
    categories["share"] = categories["category"].map({"Data Movement": 0.6}).fillna(0.05)
    moved = replace(arms.subject, category_summary=categories)
    [shift] = [found for found in insights(moved, arms.baseline) if found.kind == "bottleneck_shift"]
    assert shift.title.startswith("The bottleneck moved from CONV (")
    assert "to Data Movement (60% with it on)" in shift.title


def test_an_emulated_pair_has_counts_and_no_times():
    explanation = explained("made-fp32", "emulated")
    kinds = {insight.kind for insight in explanation.insights}
    assert kinds == {"bottleneck_shift", "missed_sme2", "portable_cost", "layout_changes"}
    for insight in explanation.insights:
        assert insight.basis == "emulated"
        assert (insight.win_ns, insight.win_share) == (None, None)
        assert " ms" not in insight.title + insight.detail + insight.rules_out
        times = [
            value for row in insight.rows for name, value in row.items() if name.endswith(("ms", "share"))
        ]
        assert set(times) <= {None}
    [shift] = of_kind(explanation, "bottleneck_shift")
    assert shift.title == ("2 of 3 CONV and GEMM operators are on the SME unit with SME2 on, 0 with it off")
    conv = next(row for row in shift.rows if row["category"] == "CONV")
    assert (conv["off_sme2_operators"], conv["on_sme2_operators"]) == (0, 1)


def test_operators_above_five_percent_are_heavy_with_place_speed_and_the_time_without_sme2():
    explanation = explained("made-fp32", "linux")
    heavy = of_kind(explanation, "heavy_operator")
    inference_ns = OperatorRun(cnn("on")).inference_ns
    expected = [op for op in cnn("on") if 1000 * op.us > 0.05 * inference_ns]
    # XNNPACK's whole microseconds may hide one of each.
    wins = sorted((1000 * (op.us + (op.backend == "xnnpack")) for op in expected), reverse=True)
    assert [insight.win_ns for insight in heavy] == wins
    first = heavy[0]
    assert first.title.startswith("Convolution (NHWC, PF32) IGEMM #1 takes 35.")
    assert "features.0.conv (Conv2d), model.py:10" in first.detail
    assert "9.0 million multiply-accumulates at 90.0 GFLOP/s" in first.detail
    assert "0.600 ms with SME2 off" in first.detail, "paired by place: the name differs"
    assert "38 of 40 samples in SME kernels" in first.detail
    assert "not a missed kernel" in first.rules_out
    depthwise = next(insight for insight in heavy if "DWConv" in insight.title)
    assert "depthwise" in depthwise.rules_out


def test_missed_sme2_is_grouped_by_reason_with_the_time_of_its_operators():
    [missed] = of_kind(explained("made-fp32", "linux"), "missed_sme2")
    assert missed.title == "1 CONV or GEMM operator stayed off the SME unit: depthwise"
    assert missed.win_ns == 151_000
    assert missed.rows[0]["module"] == "features.1.conv"
    assert "0 of their 30 samples in kernels that compute are in SME kernels" in missed.evidence
    assert missed.rules_out.startswith("2 of 3 CONV and GEMM operators are on the SME unit (2 seen there")


def test_a_guess_is_of_medium_confidence_however_well_it_was_timed():
    explanation = explained("made-fp32", "linux")
    quiet = {"flags": [], "steady": True, "passes_agree": True}
    subject = replace(explanation.subject, run={**explanation.subject.run, **quiet})
    subject = replace(subject, latency={"rounds": 10}, headroom={**subject.headroom, "rounds": 10})
    sure = replace(explanation, subject=subject, baseline=None)
    levels = {
        each.kind: dict(finding_points(each, sure))["Confidence"].partition(":")[0]
        for each in explanation.insights
    }
    assert levels["portable_cost"] == "high"
    assert levels["layout_changes"] == "medium"


def test_portable_operators_and_overheads_have_their_time():
    explanation = explained("made-fp32", "linux")
    [portable] = of_kind(explanation, "portable_cost")
    assert (portable.win_ns, portable.rows[0]["source"]) == (60_000, "model.py:13")
    [delegates] = of_kind(explanation, "delegate_overhead")
    assert delegates.win_ns == 2 * DELEGATE_OVERHEAD_NS
    assert "up to 0.006 ms of it may be its operators' own" in delegates.rules_out
    [framework] = of_kind(explanation, "framework_overhead")
    assert framework.win_ns == FRAMEWORK_OVERHEAD_NS


def test_ceilings_are_in_milliseconds_and_as_a_factor():
    explanation = explained("made-fp32", "linux")
    inference_ns = OperatorRun(cnn("on")).inference_ns
    [compute] = of_kind(explanation, "amdahl_compute")
    # Each of the three may have taken a microsecond more than XNNPACK says.
    left_ns = inference_ns - 403_000
    assert f"{left_ns / 1e6:.3f} ms would be left, {inference_ns / left_ns:.2f}x at most" in compute.title
    [movement] = of_kind(explanation, "amdahl_data_movement")
    assert movement.win_share == pytest.approx(62_000 / inference_ns)


@pytest.mark.parametrize(("variant", "basis"), [("alone-fp32", "predicted"), ("twin-fp32", "emulated")])
def test_a_baseline_without_sme2_hardware_is_projected_and_labelled_so(variant: str, basis: str):
    explanation = explained(variant, "linux")
    assert explanation.baseline is None
    assert of_kind(explanation, "bottleneck_shift") == []
    [missed] = of_kind(explanation, "missed_sme2")
    assert missed.basis == basis
    assert "would stay off" in missed.title
    assert missed.title.endswith("(predicted)") == (basis == "predicted")
    last = explanation.insights[-1]
    assert (last.kind, last.basis) == ("projection", "projection")
    assert last.title.startswith("Projection, not a measurement")
    assert (last.win_ns, last.win_share) == (None, None), "never ranked with measurements"
    # A convolution of 1024 x 61, and a product of one row: by hand, at 2000 GFLOP/s and 120 GB/s.
    conv_ns, conv_bytes = 2 * CNN_MACS / 2000, 4 * (32 * 32 * 16 + 1024 * 61 + CNN_MACS / 1024)
    linear_ns, linear_bytes = 2 * 2e6 / 2000, 4 * (2000 + 1000 + 2e6)
    fast_ns = conv_ns + linear_bytes / 120
    # Inputs are packed: written and read. One row uses one of 32 rows of accumulators.
    packed_bytes = 4 * 2 * (CNN_MACS / 61 + 2000)
    slow_ns = conv_ns * 64 / 61 + linear_ns * 32 * 1008 / 1000
    slow_ns += (conv_bytes + linear_bytes + packed_bytes) / 120
    inference_ns = OperatorRun(cnn("off")).inference_ns
    rest_ns = inference_ns - 700_000
    row, slower = last.rows
    assert row["speedup_high"] == pytest.approx(inference_ns / (rest_ns + fast_ns))
    assert row["speedup_low"] == pytest.approx(inference_ns / (rest_ns + slow_ns))
    assert slower["speedup_high"] < row["speedup_high"]
    assert (row["operators"], row["of_operators"]) == (2, 3), "depthwise has no SME2 kernel"
    assert ("emulated run" in last.evidence[1]) == (basis == "emulated")


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_a_batch_of_products_takes_as_long_as_its_products(unit: Unit):
    """Each of them leaves tiles idle, and has a right-hand side of its own."""

    def of_batch(batch: int) -> tuple[float, float]:
        shapes = {"input_shape": f"{batch}x4x64", "output_shape": f"{batch}x4x20"}
        product = {"node_kind": "XNNBatchMatrixMultiply", "data_type": "F32", "macs": batch * 4 * 64 * 20}
        return projected_ns(pd.DataFrame([product | shapes]), unit)

    assert of_batch(8) == pytest.approx([8 * ns for ns in of_batch(1)])


def test_where_sme2_can_be_measured_nothing_is_projected():
    assert of_kind(explained("capable-fp32", "linux"), "projection") == []


@pytest.mark.parametrize("features", [None, []])
def test_of_a_cpu_whose_features_are_not_known_nothing_is_projected(features: list[str] | None):
    subject = explained("alone-fp32", "linux").subject
    assert list(projection(subject))
    assert not list(projection(replace(subject, run={**subject.run, "cpu_features_seen": features})))


@pytest.mark.parametrize(("weights", "projected"), [("QC8W", True), ("QC4W", False), ("QB4W", False)])
def test_a_model_with_weights_of_four_bits_is_not_projected(weights: str, projected: bool):
    subject = explained("alone-fp32", "linux").subject
    operators = subject.bottlenecks.copy()
    operators.loc[operators["op_type"] == "Fully Connected", "data_type"] = f"QD8, F32, {weights}"
    assert bool(list(projection(replace(subject, bottlenecks=operators)))) == projected


def test_what_nobody_knows_is_not_out_of_reach_and_bounds_nothing(zoo: Callable[[str], Warehouse]):
    warehouse = zoo("operators_that_nobody_knows")
    explanation = explain(warehouse, newest_session(warehouse, "toy_cnn-fp32", "linux"))
    unknown = [each for each in explanation.insights if "ethos" in each.title or "fused" in each.title]
    heavy = [each for each in unknown if each.kind == "heavy_operator"]
    assert len(heavy) == 3
    for each in heavy:
        assert each.rules_out.startswith("What it computes is not known")
    [compute] = of_kind(explanation, "amdahl_compute")
    assert "What 3 operators compute is not known, and takes 1.000 ms" in compute.rules_out
    [calls] = of_kind(explanation, "delegate_overhead")
    assert "(2 operators, a microsecond each)" in calls.rules_out, "those of XNNPACK"
    theirs = explain(warehouse, newest_session(warehouse, "theirs-fp32", "linux"))
    [calls] = of_kind(theirs, "delegate_overhead")
    assert "None of it is rounding by XNNPACK" in calls.rules_out
    emulated = explain(warehouse, newest_session(warehouse, "theirs-fp32", "emulated"))
    [shift] = of_kind(emulated, "bottleneck_shift")
    assert shift.rules_out == (
        "Nothing: what is computed by 4 of its operators is not known, so neither is whether SME2 has a "
        "kernel for it."
    )


def test_the_headline_carries_the_share_that_is_known(zoo: Callable[[str], Warehouse]):
    """Of 1.06 ms, the matrix product takes 0.3: all of it on the unit says little of the inference."""
    warehouse = zoo("operators_that_nobody_knows")
    [run_id] = warehouse.query("SELECT run_id FROM runs WHERE variant = 'toy_cnn-fp32' AND sme2 = 'on'")[
        "run_id"
    ]
    [row] = warehouse.query("SELECT * FROM headroom WHERE run_id = ?", [run_id]).to_dict("records")
    assert row["known_share"] == pytest.approx(1 - 1_000_000 / row["inference_ns"], abs=0.05)
    assert "is in operators that are known" in unit_answer(warehouse, run_id)
    assert row["known_share"] < 0.8
    assert pd.isna(row["without_compute_speedup"])
    explanation = explain(warehouse, newest_session(warehouse, "toy_cnn-fp32", "linux"))
    [compute] = of_kind(explanation, "amdahl_compute")
    assert compute.title.startswith("No ceiling is known")
    assert compute.win_ns is None


def test_a_call_that_its_rows_hardly_explain_has_no_ceiling(tmp_path: Path):
    """Rows of 60 us in a call of 1 ms: whatever else it computes may be faster as well."""
    rows = [("Fully Connected (NC, F32) GEMM #1", 50_000), ("Softmax (NC, F32) #1", 10_000)]
    pair = Calls(calls=(Delegate(rows, 1_000_000),))
    warehouse = Warehouse(tmp_path / "warehouse")
    ingest(warehouse, *(replace(pair, sme2=sme2).write(tmp_path / "runs") for sme2 in ("off", "on")))
    warehouse.publish()
    headroom = warehouse.query("SELECT * FROM headroom")
    assert headroom["known_share"].between(0.04, 0.09).all()
    assert headroom["without_compute_speedup"].isna().all()
    assert headroom["without_data_movement_speedup"].isna().all()


def test_rows_that_may_be_all_of_the_inference_have_no_ceiling(zoo: Callable[[str], Warehouse]):
    warehouse = zoo("a_call_whose_rows_may_hide_all_of_it")
    headroom = warehouse.query("FROM headroom")
    assert (headroom["compute_most_ns"] <= headroom["inference_ns"]).all()
    assert headroom[["without_compute_ns", "without_compute_speedup"]].isna().all().all()
    explanation = explain(warehouse, newest_session(warehouse, "toy_cnn-fp32", "linux"))
    [compute] = of_kind(explanation, "amdahl_compute")
    assert compute.title.startswith("No ceiling is known")
    assert compute.win_ns is None
    [shift] = of_kind(explanation, "bottleneck_shift")
    assert "what faster kernels for them bring at most is not known" in shift.rules_out
    assert of_kind(explained("made-fp32", "linux"), "projection") == []


def test_a_projection_is_in_no_table_of_the_warehouse():
    assert explained("alone-fp32", "linux").insights[-1].kind == "projection"
    made_warehouse().publish()
    assert made_warehouse().query("FROM comparisons").empty


def test_insights_are_strict_json():
    for variant, platform in (("made-fp32", "linux"), ("made-fp32", "emulated"), ("twin-fp32", "linux")):
        explanation = explained(variant, platform)
        found = explanation_json(explanation, session_answer(made_warehouse(), explanation))
        again = json.loads(json.dumps(found, allow_nan=False))
        assert len(again["insights"]) == len(found["insights"]) > 0


def test_what_was_never_measured_cannot_be_explained():
    with pytest.raises(WarehouseError, match="no session 'never'"):
        explain(made_warehouse(), "never")


def arm_of(ops: list[Op], fidelity: str = "hardware") -> ArmRows:
    """The rows that the views would give of these operators, as far as layout changes need them."""
    run = OperatorRun(ops, fidelity=fidelity)
    rows = pd.DataFrame(run._rows_of_an_inference()).query("kind == 'operator'")
    facts = pd.DataFrame(run._operator_rows())
    shared = ["backend", "delegate", "position"]
    rows = rows.reset_index(drop=True).merge(facts, on=shared, how="left").astype({"delegate": "Int64"})
    for column in ("input_shape", "output_shape", "edge_ops"):
        rows[column] = rows.get(column)
    timed = fidelity == "hardware"
    rows["execution_order"] = range(1, len(rows) + 1)
    rows["rank"] = rows["execution_order"]
    rows["per_inference_ns"] = rows["duration_ns"] if timed else None
    rows["path"] = 1
    headroom: dict[str, Any] = {"inference_ns": run.inference_ns, "rounds": 2, "inferences": 6}
    headroom.update(delegate_calls=0, operators=len(rows), portable_operators=0)
    for name in ("compute", "data_movement", "portable", "delegate_overhead", "framework_overhead"):
        headroom[f"{name}_ns"] = 0
        headroom[f"{name}_most_ns"] = 0
    rows["telling_samples"], rows["inferences"] = 0, 6
    rows["instructions"], rows["instructions_share"] = None, float("nan")
    for column in ("module", "module_type", "source", "share", "rounds", "samples", "on_sme_unit"):
        rows[column] = rows.get(column, 2 if column == "rounds" else None)
    rows["share"] = 0.0
    empty = pd.DataFrame(columns=["reason", "basis"])
    run_row = {
        "run_id": "r",
        "sme2": "on",
        "fidelity": fidelity,
        "device": "d",
        "arch": "aarch64",
        "cpu": "c",
    }
    return ArmRows(run_row, rows, rows, empty, headroom)


def layout_of(*ops: Op, fidelity: str = "hardware") -> Insight | None:
    found = [insight for insight in insights(arm_of(list(ops), fidelity)) if insight.kind == "layout_changes"]
    return found[0] if found else None


CONV = Op("Convolution (NHWC, F32) IGEMM #1", 100)
TRANSPOSE = Op("Transpose (ND, X32) #1", 7, 0, INSERTED)
CONVERT = Op("Convert (NC) #1", 3)


def shaped(op: Op, before: str, after: str) -> Op:
    return replace(op, facts={**op.facts, "input_shape": before, "output_shape": after})


def test_transposes_that_undo_one_another_could_both_go():
    there, back = shaped(TRANSPOSE, "1x2x4", "1x4x2"), shaped(TRANSPOSE, "1x4x2", "1x2x4")
    found = layout_of(CONV, there, back, CONV)
    assert found is not None
    assert [row["why"] for row in found.rows] == ["a transpose and one that undoes it"]
    assert found.win_ns == 14_000


def test_transposes_in_a_row_of_unknown_shape_could_be_one():
    found = layout_of(CONV, TRANSPOSE, replace(TRANSPOSE, us=5), CONV)
    assert found is not None
    assert [row["why"] for row in found.rows] == ["two transposes in a row that could be one"]
    assert found.win_ns == 5_000, "only the cheaper one goes"


def test_transposes_of_different_tensors_do_not_belong_together():
    """As those of the query and the key of an attention, which only follow each other in time."""
    query, key = shaped(TRANSPOSE, "1x128x8x64", "1x8x128x64"), shaped(TRANSPOSE, "1x128x8x64", "1x8x64x128")
    assert layout_of(CONV, query, key, CONV) is None
    assert layout_of(CONV, query, Op("HardSwish (NC) #1", 9), key, CONV) is None
    again = layout_of(CONV, query, shaped(TRANSPOSE, "1x8x128x64", "1x8x64x128"), CONV)
    assert again is not None
    assert [row["why"] for row in again.rows] == ["two transposes in a row that could be one"]


def test_transposes_across_a_delegate_border_are_told_from_those_inside():
    second = replace(CONV, delegate=1)
    found = layout_of(CONV, TRANSPOSE, replace(TRANSPOSE, delegate=1), second)
    assert found is not None
    assert found.rows[0]["why"].endswith("across a delegate border")


def test_transposes_around_a_portable_operator_could_be_moved():
    mean = Op("native_call_mean.out", 50, None)
    found = layout_of(CONV, TRANSPOSE, mean, replace(TRANSPOSE, delegate=1), replace(CONV, delegate=1))
    assert found is not None
    assert [row["why"] for row in found.rows] == [
        "transposes around portable operators across a delegate border"
    ]
    assert found.rows[0]["places"] == [[0, 1], [1, 0]]


def test_transposes_around_elementwise_operators_could_be_moved_but_not_around_a_softmax():
    hardswish, softmax = Op("HardSwish (NC) #1", 9), Op("Softmax (NC, F32) #1", 9)
    moved = layout_of(CONV, TRANSPOSE, hardswish, TRANSPOSE, CONV)
    assert moved is not None
    assert "around elementwise operators" in moved.rows[0]["why"]
    assert layout_of(CONV, TRANSPOSE, softmax, TRANSPOSE, CONV) is None
    assert layout_of(CONV, TRANSPOSE, CONV, TRANSPOSE, CONV) is None


def test_dequantised_and_quantised_again_around_data_movement_could_go():
    reshape = Op("Static Reshape (NC) #1", 0)
    for first, second, counts in (
        (DEQUANTISE, QUANTISE, True),
        (QUANTISE, DEQUANTISE, False),
        ({}, {}, True),
    ):
        found = layout_of(CONV, replace(CONVERT, facts=first), reshape, replace(CONVERT, facts=second), CONV)
        assert (found is not None) == counts
        if found is not None:
            assert "if the scales agree" in found.rows[0]["why"]
    assert layout_of(CONV, CONVERT, CONV, CONVERT, CONV) is None


def test_what_a_delegate_begins_and_ends_with_is_at_its_border():
    found = layout_of(CONVERT, TRANSPOSE, CONV, TRANSPOSE)
    assert found is not None
    assert [row["why"] for row in found.rows] == [
        "a conversion that a delegate begins with",
        "a transpose that a delegate begins with",
        "a transpose that a delegate ends with",
    ]
    assert found.win_ns == 17_000
    assert layout_of(CONV, Op("Static Reshape (NC) #1", 1)) is None, "a view moves nothing"


def test_emulated_layout_changes_are_counted_without_times():
    found = layout_of(TRANSPOSE, CONV, fidelity="emulated")
    assert found is not None
    assert (found.win_ns, found.rows[0]["win_ms"]) == (None, None)


def test_ranking_keeps_projections_behind_what_was_measured():
    def insight(kind: str, win_ns: float | None) -> Insight:
        return Insight(kind, "", "", (), "", win_ns, None, "measured")

    found = [
        insight("projection", None),
        insight("missed_sme2", None),
        insight("heavy_operator", 5.0),
        insight("amdahl_compute", 9.0),
        insight("bottleneck_shift", None),
    ]
    assert [one.kind for one in ranked(found)] == [
        "bottleneck_shift",
        "amdahl_compute",
        "heavy_operator",
        "missed_sme2",
        "projection",
    ]
