"""A model at several sizes: the same words for its use of the SME unit as in the rest of the report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sme2_assets.report.document import Grid
from sme2_assets.report.sizes import sizes_section
from sme2_assets.report.tables import TextTable
from sme2_assets.warehouse import Warehouse
from sme2_assets.warehouse.read import run_of_id
from sme2_assets_tests.warehouse.made_operators import Op, OperatorRun, source, write_runs

ON = ("Fully Connected (NC, PF32) GEMM #1", 60, 60)
OFF = ("Convolution (NHWC, F32) DWConv #1", 60, 0)
UNKNOWN = ("Fully Connected (NC, QP8, F32, QC4W) GEMM #2", 0, 0)
MIXES = {64: ((ON, 996), (OFF, 4)), 128: ((ON, 10), (UNKNOWN, 990)), 256: ((ON, 4), (OFF, 996))}


def _table(folder: Path, **differing: Any) -> TextTable:
    runs = [
        OperatorRun(
            [
                Op(name, 50, 0, source("head", "XNNFullyConnected", macs=macs), samples, sme)
                for (name, samples, sme), macs in mix
            ],
            variant=f"grow.size_seq_{size}-fp32",
            method="forward",
            **differing,
        )
        for size, mix in MIXES.items()
    ]
    warehouse = Warehouse(folder / "warehouse")
    write_runs(warehouse, *runs)
    warehouse.publish()
    [section] = sizes_section(warehouse, run_of_id(warehouse, runs[0].run_id))
    [grid] = [block for block in section.blocks if isinstance(block, Grid)]
    return grid.table


@pytest.mark.parametrize("fidelity", ["hardware", "emulated"])
def test_shares_near_all_and_nothing_are_neither(tmp_path: Path, fidelity: str):
    table = _table(tmp_path, fidelity=fidelity, platform="emulated" if fidelity == "emulated" else "linux")
    at = table.header.index("on the unit")
    assert [tuple(row[at : at + 2]) for row in table.rows] == [
        ("1 of 2", "over 99%"),
        ("1 of 2, 1 unknown", "1% to 100%"),
        ("1 of 2", "under 1%"),
    ]


def test_a_reference_has_no_columns_about_sme2(tmp_path: Path):
    table = _table(tmp_path, fidelity="reference", sme2="off")
    assert list(table.header) == ["seq", "median ms"]
