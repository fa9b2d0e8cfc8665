"""Latencies and pairs as the kit writes them, `_e2e_latency`, `_comparison`, `_robust_comparison`, and the
operators of a pair side by side.

The kit's ratio is that of two medians; ours is next to it, over paired rounds, with interval and verdict.
Where the times of a pair do not compare, neither is given.
"""

from __future__ import annotations

from typing import Any

import pandas as pd

from sme2_assets.exchange.summaries import ExportedArm

# What the kit's examples call the arms.
OFF, ON = "SME2-Off", "SME2-On"
_OURS = ("speedup", "speedup_low", "speedup_high", "n", "verdict", "reason")
# How many operators there are and run on the SME unit, which is all that an emulated pair can say.
_COUNTS = (
    "operators",
    "matrix_operators",
    "sme2_operators_off",
    "sme2_operators_on",
    "sme2_operators_unknown",
)
_OPERATOR = ("backend", "delegate", "position", "on_position", "op_type", "off_name", "on_name", "category")


def e2e_latency(arm: ExportedArm, statistics: dict[str, Any]) -> pd.DataFrame:
    """One row: the timed inferences of a run."""
    latencies = statistics["latencies_ms"]
    row = {
        "model_name": arm.model_stem,
        "num_runs": statistics["count"],
        "total_ms": sum(latencies),
        "avg_ms": statistics["mean_ms"],
        "min_ms": statistics["min_ms"],
        "max_ms": statistics["max_ms"],
        "median_of_rounds_ms": statistics["median_of_rounds_ms"],
        "rounds": statistics["rounds"],
        "pass": statistics["pass"],
        "fidelity": arm.run["fidelity"],
    }
    return pd.DataFrame([row])


def category_comparison(comparison: pd.DataFrame, shares: dict[str, dict[str, float]]) -> pd.DataFrame:
    """A row per category; `shares` has each arm's percentages by category."""
    rows = comparison[comparison["level"] == "category"].sort_values("category")
    return pd.DataFrame(
        {
            "category": rows["category"],
            f"{OFF}_ms": rows["off_ns"] / 1e6,
            f"{ON}_ms": rows["on_ns"] / 1e6,
            "speedup": rows["speedup"],
            f"{OFF}_pct": rows["category"].map(shares[OFF]),
            f"{ON}_pct": rows["category"].map(shares[ON]),
            **{name: rows[name] for name in _OURS if name not in ("speedup", "reason")},
            **{name: rows[name] for name in _COUNTS},
        }
    )


def operator_comparison(comparison: pd.DataFrame) -> pd.DataFrame:
    """A row per pair of operators, in the order in which they run."""
    rows = comparison[comparison["level"] == "operator"].sort_values(["backend", "delegate", "position"])
    return pd.DataFrame(
        {
            **{name: rows[name] for name in _OPERATOR},
            f"{OFF}_ms": rows["off_ns"] / 1e6,
            f"{ON}_ms": rows["on_ns"] / 1e6,
            **{name: rows[name] for name in (*_OURS, *_COUNTS[2:])},
        }
    )


def robust_comparison(
    off: dict[str, Any], on: dict[str, Any], comparison: pd.DataFrame
) -> dict[str, Any] | None:
    """The statistics of both arms side by side; None for a pair that has not been compared yet."""
    whole = comparison[comparison["level"] == "model"]
    if whole.empty:
        return None
    ours = {
        name: None if pd.isna(value) else value.item() if hasattr(value, "item") else value
        for name, value in whole.iloc[0][list(_OURS)].items()
    }
    compare = ours["speedup"] is not None
    ratios = {
        name: first / second if compare and second else None
        for name, first, second in (
            ("median_based", off["robust_stats"]["median_ms"], on["robust_stats"]["median_ms"]),
            ("trimmed_mean_based", off["trimmed_mean_5_ms"], on["trimmed_mean_5_ms"]),
        )
    }
    scatter = [each["robust_stats"]["cv_percent"] for each in (off, on)]
    return {
        **{
            name: {
                "name": called,
                "median_ms": each["robust_stats"]["median_ms"],
                "trimmed_mean_ms": each["trimmed_mean_5_ms"],
                "cv_percent": each["robust_stats"]["cv_percent"],
                "count": each["count"],
            }
            for name, called, each in (("config1", OFF, off), ("config2", ON, on))
        },
        "speedup": {**ratios, "description": ours["reason"]},
        "variability": {"config1_cv": scatter[0], "config2_cv": scatter[1]},
        "paired": ours,
    }
