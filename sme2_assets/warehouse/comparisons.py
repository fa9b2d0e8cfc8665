"""Comparing what is in the warehouse, and storing the result in it."""

from __future__ import annotations

from typing import Any

import pandas as pd

from sme2_assets.analysis.comparison import compare, why_not_a_pair
from sme2_assets.analysis.statistics import noise_floor
from sme2_assets.errors import Sme2Error
from sme2_assets.warehouse.read import arm, latest_run, run_of_id, runs_of_session
from sme2_assets.warehouse.schema import COMPARISONS
from sme2_assets.warehouse.store import Warehouse


def compare_latest(warehouse: Warehouse, variant: str, platform: str) -> pd.DataFrame:
    """Compares the newest runs of both states and stores the rows; an unfit pair is refused."""
    off, on = (latest_run(warehouse, variant, platform, sme2) for sme2 in ("off", "on"))
    return _stored(warehouse, _compared(warehouse, off, on))


def compare_aa(warehouse: Warehouse, session_id: str) -> pd.DataFrame:
    """Compares the identical arms of an A/A session and stores the rows."""
    first, second = (dict(row) for _, row in runs_of_session(warehouse, session_id).iterrows())
    return _stored(warehouse, _compared(warehouse, first, second))


def compare_runs(warehouse: Warehouse, off_run_id: str, on_run_id: str) -> pd.DataFrame:
    """Compares two runs by their names, without storing anything; an unfit pair is refused."""
    return _compared(warehouse, run_of_id(warehouse, off_run_id), run_of_id(warehouse, on_run_id))


def device_noise_floor(warehouse: Warehouse, run: dict[str, Any]) -> float | None:
    """The ratio that identical arms reach on the run's device, set as it was; None with too few of them."""
    if run["fidelity"] == "emulated":
        return None
    return noise_floor(aa_sessions_like(warehouse, run)["speedup"].tolist())


def aa_sessions_like(warehouse: Warehouse, run: dict[str, Any]) -> pd.DataFrame:
    """The A/A sessions of the run's device, set as it was for the run; the newest first."""
    # Runs from before there was a choice of CPUs or power have nothing there.
    cpus, power_mode = ("" if pd.isna(run[name]) else run[name] for name in ("cpus", "power_mode"))
    return warehouse.query(
        "SELECT * FROM aa_sessions WHERE device = ? AND arch IS NOT DISTINCT FROM ? AND threads = ? "
        "AND cpus = ? AND power_mode = ? ORDER BY session_id DESC",
        [run["device"], run["arch"], int(run["threads"]), cpus, power_mode],
    )


def _compared(warehouse: Warehouse, off: dict[str, Any], on: dict[str, Any]) -> pd.DataFrame:
    if reason := why_not_a_pair(off, on):
        raise Sme2Error(
            f"{off['run_id']} and {on['run_id']} cannot be compared: {reason}.",
            "Measure both states of the platform in one session: `sme2 profile`, or in the UI "
            "materialise etdump_traces and what follows for both partitions together.",
        )
    # An A/A session is judged without the floor that such sessions make.
    floor = device_noise_floor(warehouse, off) if off["experiment"] == "sme2" else None
    return compare(arm(warehouse, off), arm(warehouse, on), floor)


def _stored(warehouse: Warehouse, rows: pd.DataFrame) -> pd.DataFrame:
    keys = {key.name: str(rows[key.name].iloc[0]) for key in COMPARISONS.keys}
    warehouse.write(COMPARISONS, rows.drop(columns=list(keys)), keys)
    return rows
