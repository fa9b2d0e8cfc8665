"""The newest of what a test stored, by the view that defines it."""

from __future__ import annotations

from typing import Any

import pandas as pd

from sme2_assets.warehouse import Warehouse
from sme2_assets.warehouse.comparisons import compare_pair
from sme2_assets.warehouse.read import comparison_of_session, latest_runs, latest_sessions


def newest_run(warehouse: Warehouse, variant: str, platform: str, sme2: str) -> dict[str, Any]:
    return latest_runs(warehouse, variant, platform, sme2)[0]


def newest_session(warehouse: Warehouse, variant: str, platform: str) -> str:
    return latest_sessions(warehouse, variant, platform)[0]["session_id"]


def compare_newest(warehouse: Warehouse, variant: str, platform: str) -> pd.DataFrame:
    """Compares the newest runs of both states and stores the rows."""
    off, on = (newest_run(warehouse, variant, platform, sme2)["run_id"] for sme2 in ("off", "on"))
    return compare_pair(warehouse, off, on)


def newest_comparison(warehouse: Warehouse, variant: str, platform: str) -> pd.DataFrame:
    rows = warehouse.query(
        "SELECT DISTINCT session_id FROM sme2_comparison WHERE variant = ? AND platform = ? "
        "ORDER BY session_id DESC",
        [variant, platform],
    )
    return comparison_of_session(warehouse, rows["session_id"].iloc[0] if len(rows) else "none")
