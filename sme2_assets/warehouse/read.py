"""The rows that assets, report and command line show."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from sme2_assets.analysis.comparison import ArmRounds
from sme2_assets.analysis.confidence import Conditions, conditions_of
from sme2_assets.errors import Sme2Error, WarehouseError
from sme2_assets.warehouse.store import Warehouse

# What distinguishes one history from another; the view `latest_runs` has the newest run of each, by state.
SERIES = ("variant", "platform", "device", "arch", "threads", "cpus", "power_mode", "method")
# Rows of these views belong to one run each.
RUN_VIEWS = (
    "latency_summary",
    "operator_summary",
    "category_summary",
    "operator_facts",
    "unit_use",
    "kernel_usage",
    "attribution_coverage",
    "operator_work",
)


def latest_runs(
    warehouse: Warehouse, variant: str | None = None, platform: str | None = None, sme2: str | None = None
) -> list[dict[str, Any]]:
    """Rows of the view `latest_runs`, the newest first: the one definition of what is newest."""
    return _records(
        warehouse.query(
            "SELECT * FROM latest_runs WHERE coalesce(variant = $variant, true) "
            "AND coalesce(platform = $platform, true) AND coalesce(sme2 = $sme2, true) "
            "ORDER BY coalesce(sequence, 0) DESC, started_at DESC, run_id DESC",
            {"variant": variant, "platform": platform, "sme2": sme2},
        )
    )


def latest_sessions(
    warehouse: Warehouse, variant: str | None = None, platform: str | None = None
) -> list[dict[str, Any]]:
    """The newest session of every series, the newest first, each as one of its runs.

    A series is a model on one device with one setting: other thread counts, CPUs and power modes are others.
    """
    newest: dict[tuple[Any, ...], dict[str, Any]] = {}
    for run in latest_runs(warehouse, variant, platform):
        newest.setdefault(tuple(run[name] for name in SERIES), run)
    return list(newest.values())


def latest_comparisons(warehouse: Warehouse) -> set[str]:
    """The newest sessions of arms that do not differ in SME2 but in another factor, by factor and series."""
    rows = warehouse.query(
        "SELECT arg_max(session_id, (coalesce(sequence, 0), started_at)) AS session_id FROM runs "
        f"WHERE experiment = 'arms' GROUP BY factor, sme2, {', '.join(SERIES)}"
    )
    return set(rows["session_id"])


def measured_sessions(
    warehouse: Warehouse, model: str, variants: Sequence[str], platform: str | None = None
) -> list[dict[str, Any]]:
    """The newest session of every series of a model's variants, each as one of its runs; at least one."""
    found = [run for variant in variants for run in latest_sessions(warehouse, variant, platform)]
    if not found:
        where = f" on {platform}" if platform else ""
        raise Sme2Error(
            f"There is no run of {model}{where} in the warehouse yet.", f"Run `sme2 profile {model}` first."
        )
    return found


def newest_pair(warehouse: Warehouse, run: Mapping[str, Any]) -> str | None:
    """The newest session of this run's series that measured both states; None if there is none."""
    same = " AND ".join(f"{name} IS NOT DISTINCT FROM ${name}" for name in SERIES)
    found = warehouse.query(
        "SELECT session_id FROM (SELECT * REPLACE (coalesce(method, 'forward') AS method) FROM runs) "
        f"WHERE experiment = 'sme2' AND paired AND {same} "
        "ORDER BY coalesce(sequence, 0) DESC, started_at DESC LIMIT 1",
        {name: run[name] for name in SERIES},
    )
    return None if found.empty else str(found["session_id"].iloc[0])


def rows_of_view(warehouse: Warehouse, view: str, run_id: str) -> pd.DataFrame:
    """A run's rows of a summary view, in the order people read them."""
    order = {
        "operator_summary": "delegate NULLS LAST, position",
        "operator_facts": "delegate NULLS LAST, position",
        "category_summary": "mean_ns DESC NULLS LAST, category",
        "kernel_usage": "delegate NULLS LAST, position, samples DESC",
        "operator_work": "kind DESC, delegate NULLS LAST, position, instructions DESC",
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
        for view in ("latency_rounds", "category_rounds")
    }
    operators = warehouse.query(
        "SELECT rounds.* EXCLUDE (run_id), on_sme_unit, certain_sme_samples "
        "FROM operator_rounds AS rounds LEFT JOIN operator_facts AS facts "
        "ON facts.run_id = rounds.run_id AND facts.backend = rounds.backend "
        "AND facts.delegate IS NOT DISTINCT FROM rounds.delegate AND facts.position = rounds.position "
        "WHERE rounds.run_id = ?",
        [run["run_id"]],
    )
    return ArmRounds(run, **frames, operator_rounds=operators, conditions=conditions(warehouse, run))


def conditions(warehouse: Warehouse, run: dict[Any, Any]) -> Conditions:
    """The conditions that a run was measured under."""
    latency, headroom = (
        warehouse.query(f"SELECT * FROM {view} WHERE run_id = ?", [run["run_id"]]).to_dict("records")
        for view in ("latency_summary", "headroom")
    )
    return conditions_of(run, *(rows[0] if rows else {} for rows in (latency, headroom)))


def comparison_of_session(warehouse: Warehouse, session_id: str) -> pd.DataFrame:
    """The comparison of one session, whole model first; empty when it was not compared."""
    return warehouse.query(
        "SELECT * FROM comparisons WHERE session_id = ? "
        "ORDER BY level = 'model' DESC, level = 'category' DESC, delegate NULLS LAST, position, a_ns DESC",
        [session_id],
    )


def work_of_session(warehouse: Warehouse, session_id: str) -> pd.DataFrame:
    """What the arms of a session executed, side by side, whole model first; empty where it is not counted."""
    return warehouse.query(
        "SELECT * FROM work_comparison WHERE session_id = ? "
        "ORDER BY list_position(['model', 'category', 'module', 'operator'], level), "
        "delegate NULLS LAST, position, a_instructions DESC NULLS LAST, module",
        [session_id],
    )


def with_off_and_on(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows of `comparisons` or `work_comparison` of an SME2 pair, with the names of the view
    `sme2_comparison`: off and on for a and b."""
    states = {"a": "off", "b": "on"}
    return rows.drop(columns=["factor", "a_value", "b_value"]).rename(
        columns=lambda name: re.sub("^[ab](?=_)|(?<=_)[ab]$", lambda arm: states[arm[0]], name)
    )


def runs_of_session(warehouse: Warehouse, session_id: str) -> list[dict[str, Any]]:
    """The runs of a session, the first arm first; an error if there are none."""
    rows = warehouse.query("SELECT * FROM runs WHERE session_id = ? ORDER BY arm", [session_id])
    if rows.empty:
        raise WarehouseError(
            f"There is no session {session_id!r} in the warehouse.",
            "`sme2 sql 'SELECT DISTINCT session_id FROM runs'` lists the sessions.",
        )
    # "off" comes before "on", and "a" before "b".
    return _records(rows)


def _records(rows: pd.DataFrame) -> list[dict[str, Any]]:
    return [{str(name): value for name, value in row.items()} for row in rows.to_dict("records")]


def runs_in_tables(warehouse: Warehouse) -> set[str]:
    """The ids of all runs that are published."""
    return set(warehouse.query("SELECT run_id FROM runs")["run_id"])


def evidence_in_tables(warehouse: Warehouse) -> dict[str, str]:
    """The hash of the evidence that each run's rows were made from, where they say it."""
    rows = warehouse.query("SELECT run_id, evidence_sha256 FROM runs WHERE evidence_sha256 IS NOT NULL")
    return dict(zip(rows["run_id"], rows["evidence_sha256"], strict=True))


def run_of_id(warehouse: Warehouse, run_id: str) -> dict[str, Any]:
    rows = warehouse.query("SELECT * FROM runs WHERE run_id = ?", [run_id])
    if rows.empty:
        raise WarehouseError(
            f"There is no run {run_id!r} in the warehouse.",
            "`sme2 sql 'SELECT run_id FROM runs ORDER BY sequence'` lists the runs.",
        )
    return dict(rows.iloc[0])
