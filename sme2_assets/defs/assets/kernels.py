"""Which kernels really ran: samples of the kernels pass become rows."""

from typing import Any

import dagster as dg
import pandas as pd

from sme2_assets.defs.assets.summaries import kernel_metadata
from sme2_assets.defs.assets.support import store_runs
from sme2_assets.defs.partitions import pair_per_run, run_partitions
from sme2_assets.defs.resources import Lab
from sme2_assets.report.tables import TextTable
from sme2_assets.warehouse import Warehouse
from sme2_assets.warehouse.ingest import KernelRows, kernel_rows_of_run, write_kernels


@dg.asset(
    # The rows of the run, too: a sample is shown beside its operator.
    deps=["etdump_traces", "timeline"],
    partitions_def=run_partitions,
    backfill_policy=pair_per_run,
    group_name="measure",
    kinds={"parquet", "duckdb"},
    code_version="2",
)
def kernel_samples(context: dg.AssetExecutionContext, lab: Lab) -> dg.MaterializeResult:
    """Tables `kernel_samples` and `registered_kernels`: program counters by operator, function and unit.

    What XNNPACK's log registered is kept beside what was seen executing; only a runner built with that
    log says anything there. Shown with what the view `kernel_usage` has of the run.
    """
    return store_runs(context, lab, kernel_rows_of_run, write_kernels, _metadata)


def _metadata(warehouse: Warehouse, rows: KernelRows) -> dict[str, Any]:
    samples = rows.samples
    total = int(samples["samples"].sum())
    outside = samples[samples["kind"] != "operator"]
    return {
        **kernel_metadata(warehouse, rows.manifest.run_id),
        "samples": total,
        "samples outside operators": int(outside["samples"].sum()),
        "samples by what was executing": dg.MetadataValue.md(_kinds_table(samples).markdown())
        if total
        else "No kernels pass: kernel_rounds was 0, or this platform cannot be sampled.",
        "registered kernels": len(rows.registered),
        "dagster/row_count": len(samples),
        "run_id": rows.manifest.run_id,
    }


def _kinds_table(samples: pd.DataFrame) -> TextTable:
    counts = samples.groupby(["kind", "thread_kind"])["samples"].sum().sort_values(ascending=False)
    return TextTable.of(
        ["executing", "thread", "samples"],
        [[kind, thread, int(count)] for (kind, thread), count in counts.items()],
    )
