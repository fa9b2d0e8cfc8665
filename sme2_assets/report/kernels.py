"""What ran, as tables: kernels by operator, and the units they kept busy, by samples or counted instructions.

Instructions are work, not time, and their column says so. Samples of an emulated run, from before its
instructions were counted, have no shares: these would be read as shares of time.
"""

from __future__ import annotations

import re
from itertools import groupby
from typing import Any

import pandas as pd

from sme2_assets.analysis.insights.claims import MATRIX_SAMPLES, MATRIX_WORK
from sme2_assets.analysis.pairing import place_of
from sme2_assets.report import claims
from sme2_assets.report.tables import TextTable

# Itanium C++ ABI: _ZN, qualifiers, then each name with its length before it.
_NESTED_NAME = re.compile(r"_?_ZNK?(?:St)?")
_LENGTH = re.compile(r"[1-9]\d*")
# Functions below this share of their operator are left out.
LEAST_SHARE = 0.05
UNITS = {
    "SME": "sme_unit_share",
    "SVE": "sve_unit_share",
    "SIMD/FP": "simd_unit_share",
    "load/store": "load_store_share",
}


def kernel_table(usage: pd.DataFrame) -> TextTable:
    """Rows of `kernel_usage` of one run: each operator, and the functions that it mostly ran in."""
    measure = _measure(usage)
    rows: list[list[object]] = []
    operators = usage[usage["kind"] == "operator"].sort_values(
        ["delegate", "position", measure], ascending=[True, True, False], na_position="last"
    )
    large = operators[operators["share_of_operator"] >= LEAST_SHARE]
    for _, kernels in groupby(large.to_dict("records"), place_of):
        for number, kernel in enumerate(kernels):
            operator = [kernel["name"], _text(kernel["module"])] if number == 0 else ["", ""]
            rows.append(
                [
                    *operator,
                    readable_function(kernel["kernel"]),
                    _text(kernel["isa"]),
                    _text(kernel["role"]),
                    f"{int(kernel[measure]):,}",
                    f"{kernel['share_of_operator']:.0%}",
                ]
            )
    rows += _outside_operators(usage)
    table = TextTable.of(["operator", "module", "function", "ISA", "role", measure, "share"], rows)
    return table.without("share") if _only_counts_samples(usage) else table


def _measure(usage: pd.DataFrame) -> str:
    """What these rows of `kernel_usage` count."""
    return "instructions" if usage["instructions"].notna().any() else "samples"


def _only_counts_samples(usage: pd.DataFrame) -> bool:
    return _measure(usage) == "samples" and bool((usage["fidelity"] == "emulated").any())


def unit_table(usage: pd.DataFrame) -> TextTable:
    """The units of the instructions that ran, by category of the operator; empty if none is known."""
    rows: list[list[Any]] = []
    if usage[list(UNITS.values())].isna().all(axis=None):
        return TextTable.of([], rows)
    measure, without_shares = _measure(usage), _only_counts_samples(usage)
    where = usage["category"].where(usage["kind"] == "operator", usage["kind"])
    for name, kernels in usage.groupby(where, sort=True):
        total = int(kernels[measure].sum())
        parts = [float((kernels[column] * kernels[measure]).sum()) for column in UNITS.values()]
        in_kernels = [float(kernels["sme_samples"].sum())] if measure == "samples" else []
        shares = [round(part) if without_shares else f"{part / total:.0%}" for part in (*in_kernels, *parts)]
        rows.append([name, f"{total:,}", *shares])
    return TextTable.of(["category", measure, *(["on SME"] if measure == "samples" else []), *UNITS], rows)


def main_kernels(usage: pd.DataFrame) -> dict[tuple[object, ...], str]:
    """For each operator of one run, by its place, the function that it mostly ran in."""
    measure, without_shares = _measure(usage), _only_counts_samples(usage)
    operators = usage[usage["kind"] == "operator"].sort_values(measure, ascending=False, kind="stable")
    shown: dict[tuple[object, ...], str] = {}
    for row in operators.to_dict("records"):
        isa = "" if pd.isna(row["isa"]) else f", {row['isa']}"
        share = "" if without_shares else f", {row['share_of_operator']:.0%}"
        text = f"{readable_function(row['kernel'])} ({int(row[measure]):,} {measure}{share}{isa})"
        shown.setdefault(place_of(row), text)
    return shown


def readable_function(name: str) -> str:
    """The names of a mangled C++ function without its arguments: `torch::executor::mean_out`."""
    found = _NESTED_NAME.match(name)
    if found is None:
        return name
    parts, rest = [], name[found.end() :]
    while (length := _LENGTH.match(rest)) is not None:
        end = length.end() + int(length[0])
        parts.append(rest[length.end() : end])
        rest = rest[end:]
    return "::".join(parts) or name


def evidence_text(facts: pd.DataFrame) -> str:
    """What shows where CONV and GEMM ran, arm by arm; nothing for a reference."""
    said = []
    for sme2, rows in facts[facts["fidelity"] != "reference"].groupby("sme2", sort=True):
        matrix = rows[rows["on_sme_unit"].notna()]
        told, sme = matrix["telling_samples"].sum(), matrix["certain_sme_samples"].sum()
        these = {"run_id": rows["run_id"].iloc[0], "state": sme2}
        if matrix["macs_executed"].sum():
            done = {name: int(matrix[name].sum()) for name in ("macs_executed", "macs_on_unit")}
            said.append(f"{MATRIX_WORK.say(**these, **done)}.")
        elif told:
            said.append(f"{MATRIX_SAMPLES.say(**these, sme=sme, told=told)}.")
        elif named := int((matrix["sme2_evidence"] == "name").sum()):
            said.append(claims.NAMES_TELL.say(**these, named=named, count=len(matrix)))
        else:
            said.append(claims.NO_SAMPLE_TELLS.say(**these))
    return " ".join(said)


def _outside_operators(usage: pd.DataFrame) -> list[list[object]]:
    outside, measure = usage[usage["kind"] != "operator"], _measure(usage)
    total = usage[measure].sum()
    return [
        [f"({kind})", "", "", "", "", f"{int(count):,}", f"{count / total:.0%} of the run"]
        for kind, count in outside.groupby("kind")[measure].sum().items()
    ]


def _text(value: object) -> str:
    return "" if value is None or pd.isna(value) else str(value)
