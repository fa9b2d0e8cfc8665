"""Comparing what is in the warehouse, and storing the result in it."""

from __future__ import annotations

import pandas as pd

from sme2_assets.analysis.comparison import compare, why_not_a_pair
from sme2_assets.errors import Sme2Error
from sme2_assets.warehouse.read import arm, latest_run
from sme2_assets.warehouse.schema import COMPARISONS
from sme2_assets.warehouse.store import Warehouse


def compare_latest(warehouse: Warehouse, variant: str, platform: str) -> pd.DataFrame:
    """Compares the newest runs of both states and stores the rows; an unfit pair is refused."""
    off, on = (latest_run(warehouse, variant, platform, sme2) for sme2 in ("off", "on"))
    if reason := why_not_a_pair(off, on):
        raise Sme2Error(
            f"{variant} on {platform} cannot be compared: {reason}.",
            "Materialise etdump_traces and what follows for both states of the platform in one run.",
        )
    rows = compare(arm(warehouse, off), arm(warehouse, on))
    keys = {"variant": variant, "platform": platform, "session_id": off["session_id"]}
    warehouse.write(COMPARISONS, rows.drop(columns=list(keys)), keys)
    return rows
