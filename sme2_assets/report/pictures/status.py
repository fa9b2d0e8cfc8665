"""Where an operator runs, as pictures colour it: on the SME unit, missed, not delegated, unknown."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sme2_assets.analysis.unit import ON, UNKNOWN
from sme2_assets.report.pictures.chart import Spec
from sme2_assets.report.pictures.style import letters_on

ON_UNIT, SOME, MISSED = "on the SME unit", "some of it on the SME unit", "CONV or GEMM not on it"
OPEN, OUTSIDE, MATRIX = "unknown", "not delegated", "CONV or GEMM"
OTHER, NO_OPERATOR = "no CONV or GEMM", "overhead"
COLOURS = {
    ON_UNIT: "#0072B2",
    SOME: "#56B4E9",
    MATRIX: "#0072B2",
    MISSED: "#E69F00",
    OUTSIDE: "#D55E00",
    OPEN: "#CC79A7",
    OTHER: "#009E73",
    NO_OPERATOR: "#999999",
}


def status_of(operator: dict[Any, Any]) -> str:
    """The status of a row of `bottlenecks`. With SME2 off, and for a reference, it ignores the unit."""
    if operator["backend"] == "portable":
        return OUTSIDE
    if operator["category"] not in ("CONV", "GEMM"):
        return OTHER
    if operator["sme2"] != "on" or operator["fidelity"] == "reference":
        return MATRIX
    return {ON: ON_UNIT, UNKNOWN: OPEN}.get(operator["on_sme_unit"], MISSED)


def together(kinds: Iterable[str]) -> str:
    """One status for several operators: that of their convolutions and matrix products."""
    there = set(kinds)
    if ON_UNIT in there:
        return SOME if there & {MISSED, OPEN} else ON_UNIT
    return next((kind for kind in (OPEN, MISSED, MATRIX, OTHER, OUTSIDE) if kind in there), NO_OPERATOR)


STATUS_LEGEND: Spec = {
    "fill": "colour",
    "columns": {"signal": "narrow ? 1 : 4"},
    "symbolStrokeColor": "transparent",
}


def status_scales(used: Spec) -> list[Spec]:
    """The colours of boxes, and of the letters on them."""
    letters = [letters_on(colour) for colour in used["range"]]
    return [
        {"name": "colour", "type": "ordinal", **used},
        {"name": "letters", "type": "ordinal", "domain": used["domain"], "range": letters},
    ]
