"""A run as tables for other tools: timeline, operator statistics, categories, kernels.

Where the public kit has such a table its columns come first, under its names and with its units; ours follow.
Unlike in the kit, no nanosecond is counted twice (calls are not added to what ran inside them), shares are of
Method::execute, warm-up is left out, and kernels are those that were sampled or counted while they ran, not
those that a log registered.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import duckdb
import pandas as pd

from sme2_assets.analysis.unit import ON, UNKNOWN
from sme2_assets.warehouse.read import rows_of_view
from sme2_assets.warehouse.store import Warehouse

EXECUTE = "Method::execute"
# ExecuTorch's name of the backend that the warehouse calls xnnpack.
BACKEND_NAMES = {"xnnpack": "XnnpackBackend"}
# What tells operators of the same kind apart.
_NUMBER = r" #\d+$"
KIT_TIMELINE_COLUMNS = (
    *("model_id", "name", "type", "delegate_backend", "start_us", "end_us", "duration_ms", "pct_total"),
    *("node_id", "run_index", "block"),
)
KIT_STATS_COLUMNS = (
    *("model_id", "name", "type", "delegate_backend", "count", "total_ms", "avg_ms", "pct_total"),
)
KIT_KERNEL_COLUMNS = (
    *("model_id", "kernel_name", "category", "count", "dtype", "xnn_op", "variant", "ukernel_shape"),
    *("arch_chain", "has_sme", "has_sme2"),
)


# Every timed inference: one row for all of it (Method::execute), then rows that add up to it. Inferences are
# numbered across all rounds, as the kit numbers its runs. A node has the same number in each of them: the
# inference, operators in order, then overhead.
_TIMELINE = """
WITH timed AS (
    SELECT
        round, iteration, execute_ns, emulated_execute_ns,
        (row_number() OVER (ORDER BY round, iteration) - 1)::INTEGER AS run_index
    FROM inferences
    WHERE run_id = $run_id AND pass = 'etdump' AND NOT is_warmup
),
events AS (
    SELECT
        round, iteration, kind, backend, delegate, position, name, op_type, data_type, category, start_ns,
        duration_ns, emulated_ns
    FROM timeline
    WHERE run_id = $run_id AND NOT is_warmup
    UNION ALL BY NAME
    SELECT
        round, iteration, 'inference' AS kind, 'framework' AS backend, $execute AS name,
        0::BIGINT AS start_ns, execute_ns AS duration_ns, emulated_execute_ns AS emulated_ns
    FROM timed
),
nodes AS (
    SELECT
        kind, backend, delegate, position,
        row_number() OVER (
            ORDER BY
                list_position(['inference', 'operator', 'delegate_overhead', 'framework_overhead'], kind),
                min(start_ns), delegate, position
        ) - 1 AS node_id
    FROM events
    GROUP BY kind, backend, delegate, position
),
operators AS (FROM operator_facts WHERE run_id = $run_id)
SELECT
    $model_id AS model_id,
    events.name,
    regexp_replace(events.name, $number, '') AS type,
    coalesce(map($ours, $theirs)[events.backend], events.backend) AS delegate_backend,
    start_ns / 1000 AS start_us,
    start_us + duration_ns / 1000 AS end_us,
    duration_ns / 1e6 AS duration_ms,
    100 * duration_ns / execute_ns AS pct_total,
    node_id,
    run_index,
    'Execute' AS block,
    events.round, events.iteration, events.kind, events.delegate, events.position,
    events.op_type, events.data_type, events.category, operators.on_sme_unit, operators.sme2_evidence,
    events.duration_ns, events.emulated_ns, $fidelity AS fidelity
FROM events
JOIN timed ON timed.round = events.round AND timed.iteration = events.iteration
JOIN nodes
    ON nodes.kind = events.kind AND nodes.backend = events.backend
    AND nodes.delegate IS NOT DISTINCT FROM events.delegate
    AND nodes.position IS NOT DISTINCT FROM events.position
LEFT JOIN operators
    ON events.kind = 'operator' AND operators.backend = events.backend
    AND operators.delegate IS NOT DISTINCT FROM events.delegate AND operators.position = events.position
ORDER BY run_index, node_id
"""


def timeline(
    connection: duckdb.DuckDBPyConnection, run: dict[str, Any], model_id: str
) -> duckdb.DuckDBPyRelation:
    """Not a frame, as the others are: a timeline may have millions of rows."""
    return connection.sql(
        _TIMELINE,
        params={
            "run_id": run["run_id"],
            "model_id": model_id,
            "fidelity": None if pd.isna(run["fidelity"]) else run["fidelity"],
            "execute": EXECUTE,
            "ours": list(BACKEND_NAMES),
            "theirs": list(BACKEND_NAMES.values()),
            "number": _NUMBER,
        },
    )


def operator_stats_table(warehouse: Warehouse, run: dict[str, Any], model_id: str) -> pd.DataFrame:
    """Operators grouped by type, as in the kit; calls and overhead are not operators."""
    facts = rows_of_view(warehouse, "operator_facts", run["run_id"])
    facts["type"] = facts["name"].map(_without_number)
    grouped = facts.groupby(["type", "backend"], sort=False, observed=True)
    made = grouped.agg(
        count=("mean_ns", "size"),
        total_ns=("per_inference_ns", _sum),
        avg_ns=("mean_ns", "mean"),
        share=("share", _sum),
        category=("category", "first"),
        sme2_operators=("on_sme_unit", lambda units: int((units == ON).sum())),
        sme2_unknown_operators=("on_sme_unit", lambda units: int((units == UNKNOWN).sum())),
    ).reset_index()
    table = pd.DataFrame(
        {
            "model_id": model_id,
            "name": made["type"],
            "type": made["type"],
            "delegate_backend": _backend_names(made["backend"]),
            "count": made["count"],
            "total_ms": made["total_ns"] / 1e6,
            "avg_ms": made["avg_ns"] / 1e6,
            "pct_total": 100 * made["share"],
            "category": made["category"],
            "sme2_operators": made["sme2_operators"],
            "sme2_unknown_operators": made["sme2_unknown_operators"],
            "fidelity": run["fidelity"],
        }
    )
    return table.sort_values("total_ms", ascending=False, ignore_index=True)


def operators_table(warehouse: Warehouse, run: dict[str, Any], model_id: str) -> pd.DataFrame:
    """Every operator with all that is known about it, as in the view operator_facts."""
    return rows_of_view(warehouse, "operator_facts", run["run_id"]).assign(model_id=model_id)


def category_table(warehouse: Warehouse, run: dict[str, Any], model_id: str) -> pd.DataFrame:
    """Every category, as in the view category_summary."""
    rows = rows_of_view(warehouse, "category_summary", run["run_id"])
    columns = [
        "category",
        "operators",
        "sme2_operators",
        "sme2_unknown_operators",
        "unknown_operators",
        "rounds",
    ]
    table = rows[columns].assign(
        model_id=model_id,
        median_ms=rows["median_ns"] / 1e6,
        mean_ms=rows["mean_ns"] / 1e6,
        pct_total=100 * rows["share"],
        fidelity=run["fidelity"],
    )
    return table[["model_id", *columns, "median_ms", "mean_ms", "pct_total", "fidelity"]]


def kernel_table(warehouse: Warehouse, run: dict[str, Any], model_id: str) -> pd.DataFrame:
    """Functions that ran (`count`: samples, or instructions counted), then kernels that a log registered."""
    ran = _kernels_that_ran(warehouse, run["run_id"])
    registered = warehouse.query(
        "SELECT kernel, operator, kernel_family, data_types, isa FROM registered_kernels "
        "WHERE run_id = ? ORDER BY operator, kernel",
        [run["run_id"]],
    )
    registered["evidence"] = "registered"
    rows = pd.concat([ran, registered.astype(object)], ignore_index=True)
    is_sme2 = rows["isa"].eq("sme2") & ~rows["role"].isin(["query", "other"])
    return pd.DataFrame(
        {
            "model_id": model_id,
            "kernel_name": rows["kernel"],
            "category": rows["operator"].combine_first(rows["kernel_family"]),
            "count": rows["weight"],
            "dtype": rows["data_types"],
            "xnn_op": rows["kernel_family"],
            # The part of a name that the kit puts here has no separate meaning in KleidiAI's names.
            "variant": None,
            "ukernel_shape": rows["tile"],
            "arch_chain": rows["isa"],
            "has_sme": (rows["isa"].eq("sme") & ~rows["role"].isin(["query", "other"]) | is_sme2).astype(int),
            "has_sme2": is_sme2.astype(int),
            "evidence": rows["evidence"],
            "role": rows["role"],
            "library": rows["library"],
            "sme_samples": rows["sme_samples"],
            "pct_samples": rows["pct_samples"],
            "operators": rows["operators"],
        }
    )


def kernel_usage_table(warehouse: Warehouse, run: dict[str, Any], model_id: str) -> pd.DataFrame:
    """Every function of every operator, as in the view kernel_usage."""
    return rows_of_view(warehouse, "kernel_usage", run["run_id"]).assign(model_id=model_id)


def work_table(warehouse: Warehouse, run: dict[str, Any], model_id: str) -> pd.DataFrame:
    """What was counted of every operator, function and class of instructions; empty where nothing was."""
    return rows_of_view(warehouse, "operator_work", run["run_id"]).assign(model_id=model_id)


TableMaker = Callable[[Warehouse, dict[str, Any], str], pd.DataFrame]
# What follows the prefix in file names. The first one and `kernels` are the kit's.
TABLES: dict[str, TableMaker] = {
    "exec_ops_stats": operator_stats_table,
    "kernels": kernel_table,
    "operators": operators_table,
    "categories": category_table,
    "kernel_usage": kernel_usage_table,
    "work": work_table,
}


def _kernels_that_ran(warehouse: Warehouse, run_id: str) -> pd.DataFrame:
    rows = warehouse.query(
        "SELECT kernel, any_value(library) AS library, any_value(kernel_family) AS kernel_family, "
        "any_value(role) AS role, any_value(data_types) AS data_types, any_value(tile) AS tile, "
        "any_value(isa) AS isa, coalesce(sum(instructions), sum(samples))::BIGINT AS weight, "
        "sum(sme_samples)::BIGINT AS sme_samples, "
        "if(sum(instructions) IS NULL, 'sampled', 'counted') AS evidence, "
        "100 * sum(share_of_run) AS pct_samples, "
        "count(DISTINCT (backend, delegate, position)) FILTER (kind = 'operator')::INTEGER AS operators "
        "FROM kernel_usage WHERE run_id = ? GROUP BY kernel ORDER BY weight DESC, kernel",
        [run_id],
    )
    return rows.assign(operator=None).astype(object)


def _sum(values: pd.Series) -> float:
    """The sum; unknown rather than zero if no value is known."""
    return float(values.sum(min_count=1))


def _backend_names(backends: pd.Series) -> pd.Series:
    return backends.astype(object).map(lambda name: BACKEND_NAMES.get(name, name))


def _without_number(name: str) -> str:
    return re.sub(_NUMBER, "", name)
