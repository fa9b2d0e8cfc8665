"""Compares what is in the warehouse, and stores the result there."""

from __future__ import annotations

from typing import Any

import pandas as pd

from sme2_assets.analysis.comparison import compare, why_not_a_pair
from sme2_assets.analysis.statistics import noise_floor
from sme2_assets.errors import Sme2Error
from sme2_assets.warehouse.read import arm, run_of_id, runs_of_session
from sme2_assets.warehouse.schema import COMPARISONS
from sme2_assets.warehouse.store import Warehouse


def compare_session(warehouse: Warehouse, session_id: str) -> pd.DataFrame:
    """Compares each arm of a session with its first one, and stores the rows."""
    return _stored(warehouse, compare_arms(warehouse, session_id))


def compare_arms(warehouse: Warehouse, session_id: str) -> pd.DataFrame:
    """Each arm of a session against its first one; an error if there is only one."""
    first, *others = runs_of_session(warehouse, session_id)
    if not others:
        raise Sme2Error(
            f"The session {session_id} has one arm, {first['run_id']}: there is nothing to compare.",
            "Measure both states together: `sme2 profile`.",
        )
    return pd.concat([_compared(warehouse, first, other) for other in others])


def compare_pair(warehouse: Warehouse, a_run_id: str, b_run_id: str) -> pd.DataFrame:
    """Compares two runs and stores the rows; an unfit pair is refused."""
    return _stored(warehouse, compare_runs(warehouse, a_run_id, b_run_id))


def _stored(warehouse: Warehouse, rows: pd.DataFrame) -> pd.DataFrame:
    keys = {key.name: str(rows[key.name].iloc[0]) for key in COMPARISONS.keys}
    warehouse.write(COMPARISONS, rows.drop(columns=list(keys)), keys)
    return rows


def compare_runs(warehouse: Warehouse, a_run_id: str, b_run_id: str) -> pd.DataFrame:
    """Compares two runs by their ids, without storing anything; an unfit pair is refused."""
    return _compared(warehouse, run_of_id(warehouse, a_run_id), run_of_id(warehouse, b_run_id))


def device_noise_floor(
    warehouse: Warehouse, run: dict[str, Any], *, until_then: bool = False
) -> float | None:
    """The ratio that identical arms reach on the run's device and settings; None with too few sessions.

    Based on the A/A sessions before that of the run, or on all of them.
    """
    if run["fidelity"] == "emulated":
        return None
    sessions = aa_sessions_like(warehouse, run)
    own = (0 if pd.isna(run["sequence"]) else int(run["sequence"]), run["session_id"])
    order = zip(sessions["sequence"], sessions["session_id"], sessions["speedup"], strict=True)
    return noise_floor([speedup for *each, speedup in order if not until_then or tuple(each) < own])


def aa_sessions_like(warehouse: Warehouse, run: dict[str, Any]) -> pd.DataFrame:
    """The A/A sessions on the run's device and settings, newest first."""
    # Runs from before CPUs and power mode could be chosen have no value there.
    cpus, power_mode = ("" if pd.isna(run[name]) else run[name] for name in ("cpus", "power_mode"))
    return warehouse.query(
        "SELECT * FROM aa_sessions WHERE device = ? AND arch IS NOT DISTINCT FROM ? AND threads = ? "
        "AND cpus = ? AND power_mode = ? ORDER BY sequence DESC, session_id DESC",
        [run["device"], run["arch"], int(run["threads"]), cpus, power_mode],
    )


def _compared(warehouse: Warehouse, a: dict[str, Any], b: dict[str, Any]) -> pd.DataFrame:
    if reason := why_not_a_pair(a, b):
        raise Sme2Error(
            f"{a['run_id']} and {b['run_id']} cannot be compared: {reason}.",
            f"Swap them: `sme2 compare {b['run_id']} {a['run_id']}`."
            if why_not_a_pair(b, a) is None
            else "Measure both states of the platform in one session: `sme2 profile`, or in the UI "
            "materialise etdump_traces and what follows for both partitions together. `sme2 compare` "
            "measures arms that differ in one other thing.",
        )
    # An A/A session is judged without the floor that such sessions make; any other by those before it, so
    # that comparing it again gives the same verdict.
    floor = None
    if a["experiment"] != "aa":
        # Arms that are set differently have a floor each: the higher one holds for both.
        floors = [device_noise_floor(warehouse, run, until_then=True) for run in (a, b)]
        floor = max((each for each in floors if each is not None), default=None)
    return compare(arm(warehouse, a), arm(warehouse, b), floor)
