"""What was sampled, as tables: kernels by operator, and the units they kept busy.

Which kernel ran is real under emulation, too. How long it ran is not, so the tables of an emulated run have
counts of samples but no shares, which would be read as shares of time.
"""

from __future__ import annotations

import re
from itertools import groupby
from typing import Any

import pandas as pd

from sme2_assets.analysis.insights.claims import MATRIX_SAMPLES
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
    """Rows of `kernel_usage` of one run: each operator, and the functions that most of its samples are in."""
    rows: list[list[object]] = []
    operators = usage[usage["kind"] == "operator"].sort_values(
        ["delegate", "position", "samples"], ascending=[True, True, False], na_position="last"
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
                    int(kernel["samples"]),
                    f"{kernel['share_of_operator']:.0%}",
                ]
            )
    rows += _outside_operators(usage)
    table = TextTable.of(["operator", "module", "function", "ISA", "role", "samples", "share"], rows)
    return table.without("share") if (usage["fidelity"] == "emulated").any() else table


def unit_table(usage: pd.DataFrame) -> TextTable:
    """The units of the sampled instructions, by category of the operator; empty if none is known."""
    rows: list[list[Any]] = []
    if usage[list(UNITS.values())].isna().all(axis=None):
        return TextTable.of([], rows)
    counted = bool((usage["fidelity"] == "emulated").any())
    where = usage["category"].where(usage["kind"] == "operator", usage["kind"])
    for name, kernels in usage.groupby(where, sort=True):
        samples = int(kernels["samples"].sum())
        units = [(kernels[column] * kernels["samples"]).sum() for column in UNITS.values()]
        parts = [float(kernels["sme_samples"].sum()), *map(float, units)]
        rows.append([name, samples, *(round(part) if counted else f"{part / samples:.0%}" for part in parts)])
    return TextTable.of(["category", "samples", "on SME", *UNITS], rows)


def main_kernels(usage: pd.DataFrame) -> dict[tuple[object, ...], str]:
    """For each operator of one run, by its place, the function that most of its samples are in."""
    operators = usage[usage["kind"] == "operator"].sort_values("samples", ascending=False, kind="stable")
    shown: dict[tuple[object, ...], str] = {}
    for row in operators.to_dict("records"):
        isa = "" if pd.isna(row["isa"]) else f", {row['isa']}"
        share = "" if row["fidelity"] == "emulated" else f", {row['share_of_operator']:.0%}"
        text = f"{readable_function(row['kernel'])} ({int(row['samples'])} samples{share}{isa})"
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


def sampled_text(facts: pd.DataFrame) -> str:
    """What CONV and GEMM were sampled in, arm by arm; nothing for a reference."""
    said = []
    for sme2, rows in facts[facts["fidelity"] != "reference"].groupby("sme2", sort=True):
        matrix = rows[rows["on_sme_unit"].notna()]
        told, sme = matrix["telling_samples"].sum(), matrix["certain_sme_samples"].sum()
        these = {"run_id": rows["run_id"].iloc[0], "state": sme2}
        if told:
            said.append(f"{MATRIX_SAMPLES.say(**these, sme=sme, told=told)}.")
        elif named := int((matrix["sme2_evidence"] == "name").sum()):
            said.append(claims.NAMES_TELL.say(**these, named=named, count=len(matrix)))
        else:
            said.append(claims.NO_SAMPLE_TELLS.say(**these))
    return " ".join(said)


def _outside_operators(usage: pd.DataFrame) -> list[list[object]]:
    outside = usage[usage["kind"] != "operator"]
    total = usage["samples"].sum()
    return [
        [f"({kind})", "", "", "", "", int(samples), f"{samples / total:.0%} of the run"]
        for kind, samples in outside.groupby("kind")["samples"].sum().items()
    ]


def _text(value: object) -> str:
    return "" if value is None or pd.isna(value) else str(value)
