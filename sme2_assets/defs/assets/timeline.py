"""Traces become rows of the warehouse."""

from typing import Any

import dagster as dg

from sme2_assets.analysis.insights.insight import device_text
from sme2_assets.defs.assets.summaries import run_metadata
from sme2_assets.defs.assets.support import store_runs
from sme2_assets.defs.partitions import pair_per_run, run_partitions
from sme2_assets.defs.resources import Lab
from sme2_assets.report.tables import TextTable
from sme2_assets.warehouse import Warehouse
from sme2_assets.warehouse.ingest import RunRows, rows_of_run, write_run
from sme2_assets.warehouse.read import run_of_id


@dg.asset(
    deps=["etdump_traces"],
    partitions_def=run_partitions,
    backfill_policy=pair_per_run,
    group_name="measure",
    kinds={"parquet", "duckdb"},
    code_version="2",
)
def timeline(context: dg.AssetExecutionContext, lab: Lab) -> dg.MaterializeResult:
    """Tables `runs`, `inferences`, `timeline`, `operators`: every nanosecond of an inference in one row.

    Reads the traces of the run that etdump_traces made, writes Parquet, and publishes the DuckDB file.
    History is kept: a new run adds rows. Shown with what the views `latency_summary`, `operator_summary` and
    `category_summary` have of the run.
    """
    return store_runs(context, lab, rows_of_run, write_run, _metadata)


def _metadata(warehouse: Warehouse, rows: RunRows) -> dict[str, Any]:
    run = run_of_id(warehouse, rows.manifest.run_id)
    return {
        **run_metadata(warehouse, run["run_id"]),
        "accounted for": _accounted_text(rows),
        "dagster/row_count": len(rows.timeline),
        "inferences": len(rows.inferences),
        "operators in the model's code": dg.MetadataValue.md(_attribution_table(rows).markdown()),
        "run_id": run["run_id"],
        "fidelity": run["fidelity"],
        "device": device_text(run),
        "warehouse": dg.MetadataValue.path(str(warehouse.link)),
    }


def _accounted_text(rows: RunRows) -> str:
    """Of the time that the tracer saw, what is in a row. The check says it of each inference."""
    traced = rows.inferences[(rows.inferences["pass"] == "etdump") & rows.inferences["execute_ns"].notna()]
    of_execute = rows.timeline["duration_ns"].sum() / max(int(traced["execute_ns"].sum()), 1)
    return f"{of_execute:.4%} of Method::execute in {len(traced)} traced inferences"


def _attribution_table(rows: RunRows) -> TextTable:
    """How many operators were found in the model's code, and how surely."""
    counts = rows.operators["attribution"].value_counts()
    return TextTable.of(["attribution", "operators"], [[how, count] for how, count in counts.items()])
