from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import numpy as np
import pandas as pd
import pytest

from sme2_assets.warehouse import Warehouse
from sme2_assets.warehouse.checks import sme2_evidence_faults
from sme2_assets.warehouse.read import run_of_id
from sme2_assets_tests.warehouse.made_operators import (
    CNN_MACS,
    DELEGATE_OVERHEAD_NS,
    FRAMEWORK_OVERHEAD_NS,
    Op,
    OperatorRun,
    cnn,
    source,
)

VIEWS = ("bottlenecks", "emulated_twin", "missed_sme2", "module_summary", "headroom")
CONV, LINEAR = source("a", "XNNConv2d"), source("a", "XNNFullyConnected")


BASELINE = OperatorRun(cnn("off"), "off")
EMULATED = OperatorRun(
    cnn("on"), "on", platform="emulated", fidelity="emulated", session_id="20260102T000000-bbbbbb"
)

# Operators of a run with SME2 on that took no SME2 kernel, and why.
REASONS = [
    (Op("native_call_convolution.out", 9, None), "not delegated"),
    (Op("native_call_bmm.out", 9, None), "not delegated"),
    (Op("Convolution (NHWC, F32) DWConv #1", 9), "depthwise"),
    (Op("Convolution (NHWC, QC8) DWConv #1", 9), "depthwise"),
    (
        Op("Convolution (NHWC, F32) IGEMM #1", 9, 0, {**CONV, "groups": 8, "input_shape": "1x4x4x8"}),
        "depthwise",
    ),
    # One input channel: exported as depthwise, though it is an ordinary convolution.
    (
        Op(
            "Convolution (NHWC, F32) IGEMM #1",
            9,
            0,
            {**source("a", "XNNDepthwiseConv2d"), "groups": 1, "input_shape": "1x4x4x1"},
        ),
        "shape",
    ),
    (Op("Fully Connected (NC, F16) GEMM #1", 9, 0, CONV), "data type"),
    (Op("Fully Connected (NC, F16) GEMM #1", 9), "data type"),
    (Op("Deconvolution (NHWC, F32) IGEMM #1", 9), "data type"),
    (Op("Fully Connected (NC, QP8, F32, QB4W) GEMM #1", 9), "quantisation scheme"),
    (Op("Fully Connected (NC, QD8, F32, QC8W) GEMM #1", 9), "quantisation scheme"),
    (Op("Fully Connected (NC, F32, QC8W) GEMM #1", 9), "quantisation scheme"),
    (Op("Convolution (NHWC, QU8) IGEMM #1", 9), "quantisation scheme"),
    # Kernels with and without SME2 have this name: nothing tells.
    (Op("Fully Connected (NC, QP8, F32, QC8W) GEMM #1", 9), "unknown"),
    (
        Op("Convolution (NHWC, F32) IGEMM #1", 9, 0, {**CONV, "groups": 2, "input_shape": "1x4x4x8"}),
        "unknown",
    ),
    # A linear layer has a kernel in fp16, so the data type is no reason.
    (Op("Fully Connected (NC, F16) GEMM #1", 9, 0, LINEAR), "unknown"),
]
# What makes an emulated run no twin of the baseline.
NO_TWINS: dict[str, dict[str, Any]] = {
    "another model file": {"pte_sha256": "b" * 64},
    "another variant": {"variant": "other-fp32"},
    "an A/A session": {"experiment": "aa"},
    "SME2 off": {"sme2": "off"},
    "other operators": {"ops": cnn("on")[1:]},
}


def scenarios() -> dict[str, list[OperatorRun]]:
    """Runs that tests ask for by name; each name is a variant of its own, so that none sees another."""
    qp8 = Op("Fully Connected (NC, QP8, F32, QC8W) GEMM #1", 9, samples=50, sme_samples=45)
    return {
        "pair": [
            replace(run, sme2=sme2, ops=cnn(sme2))
            for sme2 in ("off", "on")
            for run in (OperatorRun([]), OperatorRun([], platform="emulated", fidelity="emulated"))
        ],
        "reasons": [OperatorRun([op for op, _ in REASONS])],
        "shape": [
            OperatorRun(
                [
                    Op("Fully Connected (NC, PF32) GEMM #1", 9),
                    Op("Fully Connected (NC, F32) GEMM #1", 9),
                    Op("Convolution (NHWC, F32) IGEMM #1", 9),
                ]
            )
        ],
        "sampled": [OperatorRun([qp8, replace(qp8, sme_samples=0), Op("HardSwish (NC) #1", 9)])],
        "registered": [OperatorRun([Op("Fully Connected (NC, F32) GEMM #1", 9)])],
        "alone": [
            OperatorRun(
                [
                    Op("Convolution (NHWC, F32) DWConv #1", 9),
                    Op("Convolution (NHWC, F32) IGEMM #1", 9),
                    # With SME2 it may be QP8, and without a node it may be a linear layer.
                    Op("Fully Connected (NC, QD8, F32, QC8W) GEMM #1", 9),
                    Op("Fully Connected (NC, F16) GEMM #1", 9),
                    Op("Fully Connected (NC, F16) GEMM #2", 9, 0, CONV),
                ],
                sme2="off",
            )
        ],
        "twin": [
            BASELINE,
            # Sorts last by name, but is older.
            replace(EMULATED, session_id="z"),
            replace(EMULATED, started_at=EMULATED.started_at + timedelta(days=1)),
            # Newer, but of no length that a device has.
            replace(
                EMULATED,
                started_at=EMULATED.started_at + timedelta(days=2),
                session_id="y",
                sme_vector_bits=128,
            ),
        ],
        **{name: [BASELINE, replace(EMULATED, **change)] for name, change in NO_TWINS.items()},
        "identical arms": [replace(BASELINE, experiment="aa")],
    }


def runs_of(name: str) -> list[OperatorRun]:
    variant = f"{name.replace(' ', '_').replace('/', '_')}-fp32"
    return [
        run if run.variant == "other-fp32" else replace(run, variant=variant) for run in scenarios()[name]
    ]


@pytest.fixture(scope="module")
def all_scenarios(tmp_path_factory: pytest.TempPathFactory) -> Warehouse:
    """All of them in one warehouse: publishing once is quick. Only for reading."""
    warehouse = Warehouse(tmp_path_factory.mktemp("insights") / "warehouse")
    log = {"operator": "GEMM", "kernel": "k", "kernel_family": "gemm", "data_types": "f32", "isa": "sme2"}
    for name in scenarios():
        for run in runs_of(name):
            replace(run, registered=[log] if name == "registered" else []).write(warehouse)
    warehouse.publish()
    return warehouse


@pytest.fixture(scope="module")
def made(all_scenarios: Warehouse) -> Warehouse:
    return all_scenarios


@pytest.fixture(params=["made", "real_warehouse"])
def either(request: pytest.FixtureRequest) -> Warehouse:
    """What must hold of any data is tested on known times and on measured ones."""
    return request.getfixturevalue(request.param)


def missed_of(warehouse: Warehouse, run: OperatorRun) -> pd.DataFrame:
    return warehouse.query(
        "FROM missed_sme2 WHERE run_id = ? ORDER BY delegate NULLS LAST, position", [run.run_id]
    )


@pytest.mark.parametrize("view", VIEWS)
def test_no_view_shows_an_emulated_time(made: Warehouse, view: str):
    if view == "emulated_twin":
        return
    rows = made.query(f"FROM {view} WHERE fidelity = 'emulated'")
    assert not rows.empty
    times = [name for name in rows if name.endswith(("_ns", "share", "speedup", "gops")) or name == "rank"]
    assert times
    assert rows[times].isna().all().all()


def test_operators_are_ranked_by_time_and_keep_their_order_in_the_inference(made: Warehouse):
    rows = made.query(
        "FROM bottlenecks WHERE variant = 'pair-fp32' AND platform = 'linux' AND sme2 = 'on' "
        "ORDER BY execution_order"
    )
    assert rows["name"].tolist() == [op.name for op in cnn("on")], "portable operators stand in between"
    by_rank = rows.sort_values("rank")
    assert by_rank["rank"].tolist() == list(range(1, len(rows) + 1))
    assert by_rank["mean_ns"].is_monotonic_decreasing
    np.testing.assert_allclose(by_rank["cumulative_share"], by_rank["share"].cumsum())


def test_own_times_of_all_modules_add_up_to_the_inference(either: Warehouse):
    rows = either.query("FROM module_summary WHERE fidelity <> 'emulated'")
    inferences = either.query("FROM inferences WHERE pass = 'etdump' AND NOT is_warmup")
    assert not rows.empty
    for run_id, modules in rows.groupby("run_id"):
        execute = inferences.loc[inferences["run_id"] == run_id, "execute_ns"].mean()
        [whole] = modules[modules["depth"] == 0].to_dict("records")
        assert whole["mean_ns"] == pytest.approx(execute, rel=1e-9)
        assert modules["own_ns"].sum() == pytest.approx(execute, rel=1e-9)
        for module in modules.to_dict("records"):
            children = modules[modules["parent"] == module["module"]]
            assert module["own_ns"] + children["mean_ns"].sum() == pytest.approx(module["mean_ns"], abs=1e-6)


def test_modules_have_the_work_and_the_kernels_of_all_below_them(made: Warehouse):
    rows = made.query(
        "FROM module_summary WHERE variant = 'pair-fp32' AND platform = 'linux' AND sme2 = 'on'"
    ).set_index("module")
    features = rows.loc["features"]
    assert (features["operators"], features["own_operators"]) == (3, 0)
    assert (features["matrix_operators"], features["sme2_operators"]) == (2, 1)
    assert features["macs"] == CNN_MACS + 1_000_000
    assert features["mean_ns"] == 380_000
    assert features["gops"] == pytest.approx(2 * features["macs"] / 380_000)
    assert rows.loc["features.0.conv", ["depth", "parent", "module_type"]].tolist() == [
        3,
        "features.0",
        "Conv2d",
    ]
    assert rows.loc["(unattributed)", "mean_ns"] == 60_000, "the inserted transposes"
    assert rows.loc["(top level)", "mean_ns"] == 65_000, "the model's own forward"
    overhead_ns = 2 * DELEGATE_OVERHEAD_NS + FRAMEWORK_OVERHEAD_NS
    assert rows.loc["(overhead)", ["mean_ns", "operators"]].tolist() == [overhead_ns, 0]


def test_the_parts_of_headroom_are_those_of_the_categories(either: Warehouse):
    rows = either.query(
        """
        SELECT headroom.*,
            (SELECT sum(mean_ns) FROM category_summary AS c
             WHERE c.run_id = headroom.run_id AND category IN ('CONV', 'GEMM')) AS matrix_ns,
            (SELECT sum(mean_ns) FROM category_summary AS c
             WHERE c.run_id = headroom.run_id AND category = 'Overhead') AS overhead_ns,
            (SELECT sum(mean_ns) FROM category_summary AS c WHERE c.run_id = headroom.run_id) AS all_ns
        FROM headroom WHERE fidelity <> 'emulated'
        """
    )
    assert not rows.empty
    np.testing.assert_allclose(rows["inference_ns"], rows["all_ns"], rtol=1e-9)
    np.testing.assert_allclose(rows["compute_ns"], rows["matrix_ns"], rtol=1e-9)
    overhead = rows["delegate_overhead_ns"] + rows["framework_overhead_ns"]
    np.testing.assert_allclose(overhead, rows["overhead_ns"], rtol=1e-9)


def test_the_ceilings_are_those_of_amdahl(made: Warehouse):
    [row] = made.query(
        "FROM headroom WHERE variant = 'pair-fp32' AND platform = 'linux' AND sme2 = 'on'"
    ).to_dict("records")
    run = OperatorRun(cnn("on"))
    assert row["inference_ns"] == run.inference_ns
    assert (row["compute_ns"], row["data_movement_ns"], row["portable_ns"]) == (400_000, 60_000, 60_000)
    # Each of the three operators may have taken a microsecond more than XNNPACK says.
    assert row["compute_most_ns"] == 403_000
    assert row["without_compute_ns"] == run.inference_ns - 403_000
    assert row["without_compute_speedup"] == pytest.approx(run.inference_ns / (run.inference_ns - 403_000))
    assert row["without_data_movement_speedup"] == pytest.approx(
        run.inference_ns / (run.inference_ns - 62_000)
    )
    assert (row["rounds"], row["inferences"]) == (2, 6)
    assert (row["operators"], row["portable_operators"], row["delegate_calls"]) == (8, 1, 2)


def test_what_stayed_off_the_unit_has_its_reason(made: Warehouse):
    [run] = runs_of("reasons")
    missed = missed_of(made, run).set_index(["backend", "position"])
    places = {"xnnpack": 0, "portable": 0}
    for op, reason in REASONS:
        row = missed.loc[(op.backend, places[op.backend])]
        places[op.backend] += 1
        assert (row["name"], row["reason"]) == (op.name, reason)
        assert row["because"]
        assert row["mean_ns"] == 9000
    assert set(missed["basis"]) == {"observed"}
    assert set(missed["evidence_run_id"]) == {run.run_id}


def test_where_others_of_its_kind_took_a_kernel_the_shape_is_the_reason(made: Warehouse):
    [run] = runs_of("shape")
    assert missed_of(made, run)["reason"].tolist() == ["shape", "unknown"], "another kind proves nothing"


def test_what_was_sampled_in_an_sme_kernel_is_not_missed(made: Warehouse):
    [run] = runs_of("sampled")
    rows = missed_of(made, run)
    assert rows["position"].tolist() == [1]
    assert rows["samples"].tolist() == [50]


def test_a_registered_kernel_is_no_proof(made: Warehouse):
    [run] = runs_of("registered")
    assert missed_of(made, run)["sme2_evidence"].tolist() == ["registered"]


def test_of_a_pair_only_the_arm_with_sme2_on_misses_anything(made: Warehouse):
    rows = made.query("FROM missed_sme2 WHERE variant = 'pair-fp32'")
    assert set(rows["sme2"]) == {"on"}
    assert set(rows["name"]) == {"Convolution (NHWC, F32) DWConv #1"}
    assert sorted(rows["platform"]) == ["emulated", "linux"]


def test_a_baseline_alone_is_predicted_from_what_holds_of_any_machine(made: Warehouse):
    [run] = runs_of("alone")
    rows = missed_of(made, run)
    assert rows["position"].tolist() == [0, 4]
    assert rows["reason"].tolist() == ["depthwise", "data type"]
    assert set(rows["basis"]) == {"predicted"}
    assert rows["evidence_run_id"].isna().all()


def test_a_baseline_alone_borrows_the_evidence_of_the_newest_twin_under_emulation(made: Warehouse):
    baseline, _, newest, _ = runs_of("twin")
    rows = missed_of(made, baseline)
    assert rows["name"].tolist() == ["Convolution (NHWC, F32) DWConv #1"]
    assert rows["basis"].tolist() == ["emulated"]
    assert rows["evidence_run_id"].tolist() == [newest.run_id]
    assert rows["mean_ns"].tolist() == [150_000], "the time is the baseline's own"


@pytest.mark.parametrize("name", NO_TWINS)
def test_another_program_lends_no_evidence(made: Warehouse, name: str):
    baseline, _ = runs_of(name)
    assert set(missed_of(made, baseline)["basis"]) == {"predicted"}
    assert baseline.run_id not in set(made.query("FROM emulated_twin")["run_id"])


def test_an_a_a_session_misses_nothing(made: Warehouse):
    [run] = runs_of("identical arms")
    assert missed_of(made, run).empty


def test_a_model_that_no_sme2_kernel_fits_is_not_at_fault_for_having_none(made: Warehouse):
    runs = {name: runs_of(name)[0] for name in ("sampled", "registered")}
    faults = {name: sme2_evidence_faults(made, run_of_id(made, run.run_id)) for name, run in runs.items()}
    assert faults["sampled"] is None, "QP8 says nothing by name"
    assert "not even in Fully Connected (NC, F32) GEMM #1" in (faults["registered"] or "")
