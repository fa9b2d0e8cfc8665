from __future__ import annotations

import re

import pandas as pd
import pytest

from sme2_assets.analysis.insights.values import shown_name
from sme2_assets.report.tables import (
    TextTable,
    category_table,
    comparison_table,
    latency_table,
    operator_table,
    speedup_text,
)
from sme2_assets.warehouse import Warehouse
from sme2_assets_tests.warehouse.newest import newest_comparison

# A number with a fraction, a percentage, a ratio: none of them may stand in an emulated table.
TIME = re.compile(r"\d\.\d|\d%|\dx")


def tables(warehouse: Warehouse, platform: str) -> dict[str, TextTable]:
    of_run = "FROM {} WHERE platform = ? AND sme2 = 'on'"
    compared = newest_comparison(warehouse, "toy_cnn-fp32", platform)
    return {
        "latency": latency_table(warehouse.query(of_run.format("latency_summary"), [platform])),
        "operators": operator_table(warehouse.query(of_run.format("operator_facts"), [platform])),
        "categories": category_table(warehouse.query(of_run.format("category_summary"), [platform])),
        **{level: comparison_table(compared, level) for level in ("model", "category", "operator")},
    }


def test_every_row_is_as_wide_as_the_header(paired: Warehouse):
    for platform in ("linux", "emulated"):
        for name, table in tables(paired, platform).items():
            assert table.rows, name
            assert {len(row) for row in table.rows} == {len(table.header)}, name


def test_hardware_tables_show_times(paired: Warehouse):
    for name, table in tables(paired, "linux").items():
        assert any(TIME.search(cell) for row in table.rows for cell in row), name


def test_emulated_tables_show_no_times(paired: Warehouse):
    for name, table in tables(paired, "emulated").items():
        shown = [cell for row in table.rows for cell in row if TIME.search(cell)]
        assert shown == [], name


def test_times_are_in_milliseconds(paired: Warehouse):
    [row] = tables(paired, "linux")["latency"].rows
    median_ns = paired.query(
        "SELECT median_ns FROM latency_summary WHERE platform = 'linux' AND sme2 = 'on'"
    )["median_ns"].iloc[0]
    assert row[1:3] == ["a-cpu-0a1b2c (aarch64)", f"{median_ns / 1e6:.3f}"]


def test_operators_of_the_same_name_are_told_apart_by_their_place(paired: Warehouse):
    rows = tables(paired, "linux")["operator"].rows
    places = [tuple(row[:2]) for row in rows]
    assert len(set(places)) == len(rows) == 8
    assert ("-", "0") in places, "the portable operator is in no delegate"
    names = [row[2] for row in rows]
    assert "Fully Connected (NC, F32) GEMM #1 -> Fully Connected (NC, PF32) GEMM #1" in names
    assert "Fully Connected (NC, F32) GEMM #1" in names


def compared_row(**values: object) -> pd.DataFrame:
    row = {
        "level": "operator",
        "factor": "sme2",
        "a_value": "off",
        "b_value": "on",
        "fidelity": "hardware",
        "delegate": 0,
        "position": 0,
        "a_name": "A",
        "b_name": "A",
        "sme2_operators_a": 0,
        "sme2_operators_b": 0,
        "sme2_operators_unknown": 0,
        "a_ns": None,
        "b_ns": None,
        "speedup": None,
        "speedup_low": None,
        "speedup_high": None,
        "verdict": "not comparable",
    }
    return pd.DataFrame([{**row, **values}])


@pytest.mark.parametrize(
    ("off", "on", "shown"),
    [("A", "A", "A"), ("A", "B", "A -> B"), (None, "B", "(absent) -> B"), ("A", None, "A -> (absent)")],
)
def test_an_operator_is_shown_with_its_names_in_both_arms(off, on, shown):
    [row] = comparison_table(compared_row(a_name=off, b_name=on), "operator").rows
    assert row[2] == shown
    assert row[-2:] == ["-", "not comparable"]


def test_an_unknown_operator_is_marked(paired: Warehouse):
    operators = paired.query("FROM operator_facts WHERE platform = 'linux' AND sme2 = 'on'")
    operators.loc[operators["name"] == "native_call_mean.out", "known"] = False
    marked = [row for row in operator_table(operators).rows if "(unknown operator)" in row[3]]
    assert [row[2] for row in marked] == ["native_call_mean.out"]


def test_a_speedup_carries_its_interval_and_n():
    row = {"speedup": 2.3149, "speedup_low": 2.2849, "speedup_high": 2.351, "n": 6.0}
    assert speedup_text(row) == "2.31x (2.28 to 2.35, n=6)"


def test_no_number_of_a_speedup_is_rounded_onto_1_or_beyond_it():
    row = {"speedup": 1.0296, "speedup_low": 1.0021, "speedup_high": 1.0547, "n": 6}
    assert speedup_text(row) == "1.03x (1.002 to 1.05, n=6)"
    row = {"speedup": 0.9964, "speedup_low": 0.98, "speedup_high": 0.99996, "n": 6}
    assert speedup_text(row) == "0.996x (0.98 to 0.99996, n=6)"
    row = {"speedup": None, "speedup_low": 0.9964, "speedup_high": 1.2, "n": 6}
    assert speedup_text(row) == "0.996x to 1.20x (n=6)"
    assert speedup_text({"speedup": 1.0, "speedup_low": 1.0, "speedup_high": 1.0, "n": 6}) == (
        "1.00x (1.00 to 1.00, n=6)"
    )


def test_a_speedup_without_interval_says_so():
    row = {"speedup": 2.0, "speedup_low": float("nan"), "speedup_high": None, "n": 3}
    assert speedup_text(row) == "2.00x (no interval, n=3)"


@pytest.mark.parametrize("nothing", [None, float("nan"), pd.NA])
def test_no_speedup_is_a_dash(nothing):
    assert speedup_text({"speedup": nothing, "speedup_low": None, "speedup_high": None, "n": None}) == "-"


def test_cells_cannot_break_out_of_a_markdown_table():
    table = TextTable.of(["name"], [["a | b"], ["two\nlines"], ["carriage\r\nreturn"]])
    lines = table.markdown().splitlines()
    assert lines == ["| name |", "| --- |", r"| a \| b |", "| two lines |", "| carriage return |"]


@pytest.mark.parametrize(
    ("value", "cell"),
    [
        (None, "-"),
        (float("nan"), "-"),
        (pd.NA, "-"),
        (3.0, "3"),
        (3.5, "3.5"),
        (0, "0"),
        ("", ""),
        ("x", "x"),
    ],
)
def test_cells_read_well(value, cell):
    assert TextTable.of(["x"], [[value]]).rows == [[cell]]


def test_an_operator_that_xnnpack_has_no_name_for_is_called_what_the_program_calls_it():
    row = {
        "name": "Invalid Unary Op #1",
        "op_type": "Invalid Unary Op",
        "edge_ops": ["aten.hardswish.default"],
    }
    assert shown_name(row) == "hardswish (Invalid Unary Op #1)"
    assert shown_name(row | {"edge_ops": None}) == "Invalid Unary Op #1"
    assert shown_name(row | {"name": "HardSwish (NC) #1", "op_type": "HardSwish"}) == "HardSwish (NC) #1"
