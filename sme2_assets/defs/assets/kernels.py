"""Which kernels really ran: samples of the kernels pass, or counts of the work pass, become rows."""

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
    # `timeline` already adds the rows: this makes sure of them, and shows each with its operator.
    deps=["etdump_traces", "timeline"],
    partitions_def=run_partitions,
    backfill_policy=pair_per_run,
    group_name="measure",
    kinds={"parquet", "duckdb"},
    code_version="2",
)
def kernel_samples(context: dg.AssetExecutionContext, lab: Lab) -> dg.MaterializeResult:
    """Tables `kernel_samples` and `operator_work`: what ran, by operator, function and unit.

    On hardware program counters are sampled, under emulation instructions are counted.

    The kernels that XNNPACK's log registered are kept next to those seen executing; only a runner built with
    that log provides them. Shown with the run's rows in the view `kernel_usage`.
    """
    return take_in(context, lab, _metadata, again=False)


def _metadata(warehouse: Warehouse, run_id: str) -> dict[str, Any]:
    ran = warehouse.query(
        "SELECT kind, thread_kind, samples, instructions, weight FROM executed_functions WHERE run_id = ?",
        [run_id],
    )
    registered = warehouse.query("SELECT count(*) AS n FROM registered_kernels WHERE run_id = ?", [run_id])
    measure = "instructions" if ran["instructions"].sum() else "samples"
    outside = ran[ran["kind"] != "operator"]
    return {
        **kernel_metadata(warehouse, run_id),
        measure: int(ran["weight"].sum()),
        f"{measure} outside operators": int(outside["weight"].sum()),
        f"{measure} by what was executing": dg.MetadataValue.md(_kinds_table(ran, measure).markdown())
        if len(ran)
        else "Neither sampled nor counted: kernel_rounds was 0, or this platform can do neither.",
        "registered kernels": int(registered["n"].iloc[0]),
        "dagster/row_count": len(ran),
        "run_id": run_id,
    }


def _kinds_table(ran: pd.DataFrame, measure: str) -> TextTable:
    counts = ran.groupby(["kind", "thread_kind"])["weight"].sum().sort_values(ascending=False)
    return TextTable.of(
        ["executing", "thread", measure],
        [[kind, thread, f"{int(count):,}"] for (kind, thread), count in counts.items()],
    )
