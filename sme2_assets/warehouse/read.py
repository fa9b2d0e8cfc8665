"""The rows that assets, report and command line show."""

from __future__ import annotations

from typing import Any

import pandas as pd

from sme2_assets.analysis.comparison import ArmRounds
from sme2_assets.errors import WarehouseError
from sme2_assets.warehouse.store import Warehouse

# Rows of these views belong to one run each.
RUN_VIEWS = (
    "latency_summary",
    "operator_summary",
    "category_summary",
    "operator_facts",
    "kernel_usage",
    "attribution_coverage",
)


def latest_run(warehouse: Warehouse, variant: str, platform: str, sme2: str) -> dict[str, Any]:
    """The newest run of a partition, whatever its thread count."""
    rows = warehouse.query(
        "SELECT * FROM runs WHERE variant = ? AND platform = ? AND sme2 = ? AND experiment = 'sme2' "
        "ORDER BY started_at DESC, run_id DESC LIMIT 1",
        [variant, platform, sme2],
    )
    if rows.empty:
        raise WarehouseError(
            f"The warehouse has no run of {variant} on {platform} with SME2 {sme2}.",
            "Materialise timeline for this partition, or run `sme2 profile`.",
        )
    return dict(rows.iloc[0])


def newest_run(warehouse: Warehouse, variant: str, platform: str) -> dict[str, Any] | None:
    """The newest run of a model on a platform, in whichever state; None when there is none."""
    rows = warehouse.query(
        "SELECT * FROM runs WHERE variant = ? AND platform = ? AND experiment = 'sme2' "
        "ORDER BY started_at DESC, sme2 LIMIT 1",
        [variant, platform],
    )
    return None if rows.empty else dict(rows.iloc[0])


def rows_of_view(warehouse: Warehouse, view: str, run_id: str) -> pd.DataFrame:
    """A run's rows of a summary view, in the order people read them."""
    order = {
        "operator_summary": "delegate NULLS LAST, position",
        "operator_facts": "delegate NULLS LAST, position",
        "category_summary": "mean_ns DESC",
        "kernel_usage": "delegate NULLS LAST, position, samples DESC",
    }
    if view not in RUN_VIEWS:
        raise ValueError(view)
    return warehouse.query(
        f"SELECT * FROM {view} WHERE run_id = ? ORDER BY {order.get(view, 'run_id')}", [run_id]
    )


def arm(warehouse: Warehouse, run: dict[str, Any]) -> ArmRounds:
    """One arm's rows for a comparison."""
    frames = {
        view: warehouse.query(f"SELECT * EXCLUDE (run_id) FROM {view} WHERE run_id = ?", [run["run_id"]])
        for view in ("latency_rounds", "category_rounds", "operator_rounds")
    }
    return ArmRounds(run, **frames)


def comparison(warehouse: Warehouse, variant: str, platform: str) -> pd.DataFrame:
    """The newest comparison of a model on a platform; empty when there is none."""
    return warehouse.query(
        "SELECT * FROM comparisons WHERE variant = ? AND platform = ? AND experiment = 'sme2' "
        "QUALIFY session_id = max(session_id) OVER () "
        "ORDER BY level = 'model' DESC, level = 'category' DESC, delegate NULLS LAST, position, off_ns DESC",
        [variant, platform],
    )


def comparison_of_session(warehouse: Warehouse, session_id: str) -> pd.DataFrame:
    """The comparison of one session, in the order of `comparison`."""
    return warehouse.query(
        "SELECT * FROM comparisons WHERE session_id = ? "
        "ORDER BY level = 'model' DESC, level = 'category' DESC, delegate NULLS LAST, position, off_ns DESC",
        [session_id],
    )


def runs_of_session(warehouse: Warehouse, session_id: str) -> pd.DataFrame:
    return warehouse.query("SELECT * FROM runs WHERE session_id = ? ORDER BY arm", [session_id])


def run_of_id(warehouse: Warehouse, run_id: str) -> dict[str, Any]:
    rows = warehouse.query("SELECT * FROM runs WHERE run_id = ?", [run_id])
    if rows.empty:
        raise WarehouseError(
            f"There is no run {run_id!r} in the warehouse.",
            "`sme2 sql 'SELECT run_id FROM runs ORDER BY started_at'` lists the runs.",
        )
    return dict(rows.iloc[0])
