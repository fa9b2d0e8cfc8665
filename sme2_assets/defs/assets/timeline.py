"""Traces become rows of the warehouse."""

from typing import Any

import dagster as dg

from sme2_assets.analysis.insights.insight import device_text
from sme2_assets.defs.assets.summaries import run_metadata
from sme2_assets.defs.assets.support import take_in
from sme2_assets.defs.partitions import pair_per_run, run_partitions
from sme2_assets.defs.resources import Lab
from sme2_assets.report.tables import TextTable
from sme2_assets.warehouse import Warehouse
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

    Reads the traces of the session that etdump_traces made, writes Parquet, and publishes the DuckDB file:
    both arms and their samples appear together. History is kept: a new run adds rows. Shown with the
    run's rows in the views `latency_summary`, `operator_summary` and `category_summary`.
    """
    return take_in(context, lab, _metadata, again=True)


def _metadata(warehouse: Warehouse, run_id: str) -> dict[str, Any]:
    run = run_of_id(warehouse, run_id)
    [counts] = warehouse.query(
        "SELECT (SELECT count(*) FROM timeline WHERE run_id = $run) AS rows, "
        "(SELECT sum(coalesce(duration_ns, emulated_ns)) FROM timeline WHERE run_id = $run) AS accounted_ns, "
        "count(*) AS inferences, count(coalesce(execute_ns, emulated_execute_ns)) "
        "FILTER (pass = 'etdump') AS traced, sum(coalesce(execute_ns, emulated_execute_ns)) "
        "FILTER (pass = 'etdump') AS traced_ns FROM inferences WHERE run_id = $run",
        {"run": run_id},
    ).to_dict("records")
    # The share of the traced time that is in a row. The check looks at each inference.
    share = counts["accounted_ns"] / max(counts["traced_ns"], 1)
    return {
        **run_metadata(warehouse, run_id),
        "accounted for": f"{share:.4%} of Method::execute in {counts['traced']} traced inferences",
        "dagster/row_count": int(counts["rows"]),
        "inferences": int(counts["inferences"]),
        "operators in the model's code": dg.MetadataValue.md(
            _attribution_table(warehouse, run_id).markdown()
        ),
        "run_id": run["run_id"],
        "fidelity": run["fidelity"],
        "device": device_text(run),
        "warehouse": dg.MetadataValue.path(str(warehouse.link)),
    }


def _attribution_table(warehouse: Warehouse, run_id: str) -> TextTable:
    """How many operators were found in the model's code, and how surely."""
    counts = warehouse.query(
        "SELECT attribution, count(*) AS n FROM operators WHERE run_id = ? GROUP BY ALL ORDER BY n DESC, 1",
        [run_id],
    )
    return TextTable.of(["attribution", "operators"], counts.to_numpy().tolist())
