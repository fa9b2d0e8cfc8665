"""Which kernels really ran: samples of the kernels pass become rows, and are shown by operator."""

import dagster as dg
import pandas as pd

from sme2_assets.assets.support import clear_failures, show_view
from sme2_assets.partitions import pair_per_run, parse_run_key, run_partitions
from sme2_assets.profiling.session import current_run_dir
from sme2_assets.report.kernels import kernel_table, unit_table
from sme2_assets.resources import Lab
from sme2_assets.store import sha256_of_text
from sme2_assets.warehouse.ingest import kernel_rows_of_run, write_kernels


@dg.asset(
    deps=["etdump_traces"],
    partitions_def=run_partitions,
    backfill_policy=pair_per_run,
    group_name="warehouse",
    kinds={"parquet", "duckdb"},
    code_version="1",
)
def kernel_samples(context: dg.AssetExecutionContext, lab: Lab) -> dg.MaterializeResult:
    """Tables `kernel_samples` and `registered_kernels`: program counters by operator, function and unit.

    What XNNPACK's log registered is kept beside what was seen executing; only a runner built with that
    log says anything there.
    """
    run_ids = []
    with clear_failures():
        runs = {}
        for key in context.partition_keys:
            variant, target = parse_run_key(key)
            runs[key] = kernel_rows_of_run(current_run_dir(lab.store, variant, target.platform, target.sme2))
        for key, rows in runs.items():
            write_kernels(lab.warehouse, rows)
            run_ids.append(rows.manifest.run_id)
            samples = rows.samples
            outside = samples[samples["kind"] != "operator"]
            context.add_asset_metadata(
                {
                    "run_id": rows.manifest.run_id,
                    "dagster/row_count": len(samples),
                    "samples": int(samples["samples"].sum()),
                    "samples outside operators": int(outside["samples"].sum()),
                    "registered kernels": len(rows.registered),
                },
                partition_key=key,
            )
        lab.warehouse.publish()
    return dg.MaterializeResult(data_version=dg.DataVersion(sha256_of_text(*run_ids)[:16]))


@dg.asset(
    deps=["kernel_samples", "operator_summary"],
    partitions_def=run_partitions,
    backfill_policy=pair_per_run,
    group_name="summaries",
    kinds={"duckdb"},
    code_version="1",
)
def kernel_usage(context: dg.AssetExecutionContext, lab: Lab) -> dg.MaterializeResult:
    """View `kernel_usage`: the functions and units that each operator was sampled in."""
    return show_view(context, lab, "kernel_usage", _kernel_metadata)


def _kernel_metadata(rows: pd.DataFrame) -> dict[str, dg.MetadataValue]:
    return {
        "kernels": dg.MetadataValue.md(kernel_table(rows).markdown()),
        "units": dg.MetadataValue.md(unit_table(rows).markdown()),
        "samples": dg.MetadataValue.int(int(rows["samples"].sum())),
    }
