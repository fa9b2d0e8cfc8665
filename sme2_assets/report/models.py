"""Tables about an exported model: what was delegated, and how close its outputs are."""

from __future__ import annotations

import pandas as pd

from sme2_assets.evidence.delegation import DelegationReport
from sme2_assets.report.tables import TextTable, of_sme2


def delegation_table(report: DelegationReport) -> TextTable:
    """What stayed outside delegates and why, then what is inside, by count."""
    return TextTable.of(
        ["operator", "where", "module", "source", "count", "reason"],
        [
            [
                row.operator,
                "XNNPACK" if row.delegated else "portable",
                row.module,
                row.source,
                row.count,
                row.reason,
            ]
            for row in report.rows
        ],
    )


def delegation_cost_table(rows: pd.DataFrame) -> TextTable:
    """Rows of the view `delegation_report` of one run: the same by time; no times when emulated."""
    return TextTable.of(
        ["operator", "module", "source", "count", "mean ms", "share", "reason"],
        [
            [
                "(all delegated)" if row["delegated"] else row["operator"],
                row["module"],
                row["source"],
                row["count"],
                None if pd.isna(row["mean_ns"]) else f"{row['mean_ns'] / 1e6:.3f}",
                None if pd.isna(row["share"]) else f"{row['share']:.1%}",
                row["reason"],
            ]
            for row in rows.to_dict("records")
        ],
    )


def numerics_table(rows: pd.DataFrame) -> TextTable:
    """Rows of the table `numerics`, with the SME2 state and the fidelity of their run."""
    table = TextTable.of(
        ["SME2", "output", "SQNR dB", "largest error", "cosine", "equal", "same top 1"],
        [
            [
                row["sme2"],
                row["output"],
                f"{row['sqnr_db']:.1f}",
                None if pd.isna(row["max_abs_error"]) else f"{row['max_abs_error']:.3g}",
                None if pd.isna(row["cosine"]) else f"{row['cosine']:.6f}",
                f"{row['equal_share']:.1%}",
                None if pd.isna(row["top1_agreement"]) else f"{row['top1_agreement']:.1%}",
            ]
            for row in rows.to_dict("records")
        ],
    )
    return of_sme2(table, rows, "SME2")


def arms_table(rows: pd.DataFrame) -> TextTable:
    """Rows of the table `arms_numerics`."""
    return TextTable.of(
        ["value", "module", "bound", "equal", "largest error", "of the bound", "agrees"],
        [
            [
                row["name"],
                row["module"],
                row["kind"],
                f"{row['equal_share']:.2%}",
                None if pd.isna(row["largest_error"]) else f"{row['largest_error']:.3g}",
                f"{row['of_bound']:.2g}",
                "yes" if pd.isna(row["fault"]) else "NO",
            ]
            for row in rows.to_dict("records")
        ],
    )
