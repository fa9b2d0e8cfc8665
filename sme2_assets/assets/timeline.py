"""Traces become rows of the warehouse."""

import dagster as dg

from sme2_assets.assets.support import clear_failures, read_all_runs
from sme2_assets.partitions import pair_per_run, run_partitions
from sme2_assets.resources import Lab
from sme2_assets.store import sha256_of_text
from sme2_assets.warehouse.ingest import RunRows, rows_of_run, write_run


@dg.asset(
    deps=["etdump_traces"],
    partitions_def=run_partitions,
    backfill_policy=pair_per_run,
    group_name="warehouse",
    kinds={"parquet", "duckdb"},
    code_version="1",
)
def timeline(context: dg.AssetExecutionContext, lab: Lab) -> dg.MaterializeResult:
    """Tables `runs`, `inferences`, `timeline`, `operators`: every nanosecond of an inference in one row.

    Reads the traces of the newest run of the partition, writes Parquet, and publishes the DuckDB file.
    History is kept: a new run adds rows.
    """
    run_ids = []
    with clear_failures():
        for key, rows in read_all_runs(context, lab, rows_of_run).items():
            write_run(lab.warehouse, rows)
            run_ids.append(rows.manifest.run_id)
            context.add_asset_metadata(
                {
                    "run_id": rows.manifest.run_id,
                    "dagster/row_count": len(rows.timeline),
                    "inferences": len(rows.inferences),
                    "unknown operators": int((~rows.timeline["known"]).sum()),
                    **_attribution(rows),
                },
                partition_key=key,
            )
        snapshot = lab.warehouse.publish()
    return dg.MaterializeResult(
        metadata={
            "warehouse": dg.MetadataValue.path(str(lab.warehouse.link)),
            "snapshot": snapshot.name,
        },
        data_version=dg.DataVersion(sha256_of_text(*run_ids)[:16]),
    )


def _attribution(rows: RunRows) -> dict[str, int]:
    """How many operators were found in the model's code, and how."""
    return {f"operators: {how}": count for how, count in rows.operators["attribution"].value_counts().items()}
