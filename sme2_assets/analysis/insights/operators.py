"""Operators of a run: found by their place, and given as rows."""

from __future__ import annotations

import pandas as pd

from sme2_assets.analysis.insights.insight import Row
from sme2_assets.analysis.insights.values import known_or, ms


def operator_rows(operators: pd.DataFrame) -> tuple[Row, ...]:
    columns = (
        *("delegate", "position", "name", "op_type", "category", "backend", "module", "source"),
        *("on_sme_unit", "sme2_evidence"),
    )
    return tuple(
        {
            **{column: known_or(row[column], None) for column in columns},
            "mean_ms": None if pd.isna(row["per_inference_ns"]) else ms(row["per_inference_ns"]),
            "share": known_or(row["share"], None),
            "instructions_share": known_or(row["instructions_share"], None),
            "rounds": int(row["rounds"]),
        }
        for row in operators.to_dict("records")
    )


def same_operator(rows: pd.DataFrame, operator: Row) -> Row | None:
    """The row of the same operator in other rows, by place: with another kernel the name often differs."""
    same = rows[
        (rows["backend"] == operator["backend"])
        & (rows["delegate"].fillna(-1) == known_or(operator["delegate"], -1))
        & (rows["position"] == operator["position"])
    ]
    return None if same.empty else same.iloc[0].to_dict()
