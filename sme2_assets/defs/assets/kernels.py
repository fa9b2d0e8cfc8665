"""Which kernels really ran: samples of the kernels pass become rows."""

from typing import Any

import dagster as dg
import pandas as pd

from sme2_assets.defs.assets.summaries import kernel_metadata
from sme2_assets.defs.assets.support import take_in
from sme2_assets.defs.partitions import pair_per_run, run_partitions
from sme2_assets.defs.resources import Lab
from sme2_assets.report.tables import TextTable
from sme2_assets.warehouse import Warehouse


@dg.asset(
    # `timeline` already adds the samples: this makes sure of them, and shows each with its operator.
    deps=["etdump_traces", "timeline"],
    partitions_def=run_partitions,
    backfill_policy=pair_per_run,
    group_name="measure",
    kinds={"parquet", "duckdb"},
    code_version="2",
)
def kernel_samples(context: dg.AssetExecutionContext, lab: Lab) -> dg.MaterializeResult:
    """Tables `kernel_samples` and `registered_kernels`: program counters by operator, function and unit.

    The kernels that XNNPACK's log registered are kept next to those seen executing; only a runner built with
    that log provides them. Shown with the run's rows in the view `kernel_usage`.
    """
    return take_in(context, lab, _metadata, again=False)


def _metadata(warehouse: Warehouse, run_id: str) -> dict[str, Any]:
    samples = warehouse.query(
        "SELECT kind, thread_kind, samples FROM kernel_samples WHERE run_id = ?", [run_id]
    )
    registered = warehouse.query("SELECT count(*) AS n FROM registered_kernels WHERE run_id = ?", [run_id])
    total = int(samples["samples"].sum())
    outside = samples[samples["kind"] != "operator"]
    return {
        **kernel_metadata(warehouse, run_id),
        "samples": total,
        "samples outside operators": int(outside["samples"].sum()),
        "samples by what was executing": dg.MetadataValue.md(_kinds_table(samples).markdown())
        if total
        else "No kernels pass: kernel_rounds was 0, or this platform cannot be sampled.",
        "registered kernels": int(registered["n"].iloc[0]),
        "dagster/row_count": len(samples),
        "run_id": run_id,
    }


def _kinds_table(samples: pd.DataFrame) -> TextTable:
    counts = samples.groupby(["kind", "thread_kind"])["samples"].sum().sort_values(ascending=False)
    return TextTable.of(
        ["executing", "thread", "samples"],
        [[kind, thread, int(count)] for (kind, thread), count in counts.items()],
    )
