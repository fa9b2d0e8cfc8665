from __future__ import annotations

from pathlib import Path

import pytest

from sme2_assets.analysis.claims import heard
from sme2_assets.report.kernels import (
    evidence_text,
    kernel_table,
    main_kernels,
    readable_function,
    unit_table,
)
from sme2_assets.warehouse import Warehouse
from sme2_assets.warehouse.read import rows_of_view
from sme2_assets_tests.claims.zoo import false_sentences
from sme2_assets_tests.made.run_folder import SME2_KERNEL
from sme2_assets_tests.warehouse.made_operators import Op, OperatorRun, write_runs


@pytest.mark.parametrize(
    ("symbol", "readable"),
    [
        (SME2_KERNEL, SME2_KERNEL),
        (
            "_ZN5torch8executor6native12mean_dim_outERN10executorch7runtimeE",
            "torch::executor::native::mean_dim_out",
        ),
        ("libc.so.6+0x1234", "libc.so.6+0x1234"),
        ("_ZN", "_ZN"),
        ("_Z3foov", "_Z3foov"),
    ],
)
def test_a_mangled_function_is_shown_by_its_names(symbol: str, readable: str):
    assert readable_function(symbol) == readable


def test_each_operator_is_listed_with_its_functions_and_their_share(paired: Warehouse):
    run_id = paired.query("SELECT run_id FROM runs WHERE sme2 = 'on' AND platform = 'linux'")["run_id"].iloc[
        0
    ]
    usage = rows_of_view(paired, "kernel_usage", run_id)
    rows = {row[0]: row for row in kernel_table(usage).rows}
    convolution = rows["Convolution (NHWC, PF32) IGEMM #1"]
    assert convolution[1:5] == ["features.0.conv", SME2_KERNEL, "sme2", "compute"]
    assert convolution[6] == "100%"
    units = {row[0]: row[2:4] for row in unit_table(usage).rows}
    assert units["CONV"] == ["100%", "100%"]
    assert units["Elementwise"] == ["0%", "0%"]


def test_samples_of_an_emulated_run_are_counted_and_not_made_shares(paired: Warehouse):
    run_id = paired.query("SELECT run_id FROM runs WHERE sme2 = 'on' AND platform = 'emulated'")[
        "run_id"
    ].iloc[0]
    usage = rows_of_view(paired, "kernel_usage", run_id)
    cells = [cell for table in (kernel_table(usage), unit_table(usage)) for row in table.rows for cell in row]
    assert [cell for cell in cells if "%" in cell] == []
    units = {row[0]: row[1:4] for row in unit_table(usage).rows}
    assert units["CONV"] == ["3", "3", "3"]
    assert main_kernels(usage)[("xnnpack", 0, 1)] == f"{SME2_KERNEL} (3 samples, sme2)"


@pytest.mark.parametrize(
    ("packed", "told"), [("PF32", "; the names of 1 of 2 say SME2."), ("F32", "computed CONV and GEMM.")]
)
def test_without_samples_it_is_said_what_else_tells(tmp_path: Path, packed: str, told: str):
    warehouse = Warehouse(tmp_path / "warehouse")
    ops = [Op(f"Fully Connected (NC, {packed}) GEMM #1", 50), Op("Convolution (NHWC, F32) DWConv #1", 9)]
    run = OperatorRun(ops)
    write_runs(warehouse, run)
    warehouse.publish()
    with heard() as claims:
        said = evidence_text(rows_of_view(warehouse, "operator_facts", run.run_id))
    assert "no sample shows which kernels computed" in said
    assert said.endswith(told)
    assert false_sentences(warehouse, claims) == []
