"""What the page of an asset shows of a run: rows of the warehouse's views as tables, pictures and numbers.

The views are made by nobody: they are there as soon as their rows are.
"""

import dagster as dg
import pandas as pd

from sme2_assets.analysis.passes import passes_fault
from sme2_assets.defs.assets.support import plotted
from sme2_assets.report.glance import category_glance
from sme2_assets.report.kernels import kernel_table, unit_table
from sme2_assets.report.tables import TextTable, category_table, fidelity_note, latency_table, operator_table
from sme2_assets.warehouse import Warehouse
from sme2_assets.warehouse.read import rows_of_view

Metadata = dict[str, dg.MetadataValue]
SLOWEST_SHOWN = 5


def run_metadata(warehouse: Warehouse, run_id: str) -> Metadata:
    """Latency, operators and categories of a run."""
    return {
        **_category_metadata(rows_of_view(warehouse, "category_summary", run_id)),
        **_latency_metadata(rows_of_view(warehouse, "latency_summary", run_id)),
        **_operator_metadata(rows_of_view(warehouse, "operator_summary", run_id)),
    }


def kernel_metadata(warehouse: Warehouse, run_id: str) -> Metadata:
    """The functions and units that each operator of a run was sampled in; nothing where none was."""
    rows = rows_of_view(warehouse, "kernel_usage", run_id)
    return {} if rows.empty else _kernel_metadata(rows)


def _table(table: TextTable, rows: pd.DataFrame) -> dg.MetadataValue:
    note = "" if rows.empty else fidelity_note(rows.iloc[0].to_dict())
    return dg.MetadataValue.md(table.markdown() + (f"\n*{note}*\n" if note else ""))


def _is_emulated(rows: pd.DataFrame) -> bool:
    return bool((rows["fidelity"] == "emulated").any())


def _speaks_of_sme2(rows: pd.DataFrame) -> bool:
    return not (rows["fidelity"] == "reference").any()


def _latency_metadata(rows: pd.DataFrame) -> Metadata:
    """A table, and the same as numbers, so that the UI plots them over the runs; nothing when emulated."""
    if _is_emulated(rows):
        return {}
    metadata: Metadata = {"latency": _table(latency_table(rows), rows)}
    run = rows.iloc[0]
    if fault := passes_fault(run):
        metadata["no headline"] = dg.MetadataValue.text(fault)
    numbers = {
        "median ms": run["median_ns"] / 1e6,
        "95 % ms": run["p95_ns"] / 1e6,
        "spread between rounds %": 100 * run["round_cv"],
        "cost of the tracer %": 100 * run["tracer_overhead"],
        "load ms": run["load_ns"] / 1e6,
        "peak memory MB": run["peak_memory_bytes"] / 1e6,
    }
    return metadata | {name: plotted(value) for name, value in numbers.items() if pd.notna(value)}


def _operator_metadata(rows: pd.DataFrame) -> Metadata:
    metadata: Metadata = {}
    if not _is_emulated(rows):
        slowest = rows.sort_values("median_ns", ascending=False).head(SLOWEST_SHOWN)
        metadata["slowest operators"] = _table(operator_table(slowest), rows)
    if _speaks_of_sme2(rows):
        metadata["SME2 operators"] = dg.MetadataValue.int(int((rows["sme2_evidence"] == "name").sum()))
    return metadata | {
        "operators": _table(operator_table(rows), rows),
        "unknown operators": dg.MetadataValue.int(int((~rows["known"]).sum())),
    }


def _category_metadata(rows: pd.DataFrame) -> Metadata:
    """Bars that are seen without a click; the picture proper is that of the comparison, with both arms."""
    metadata: Metadata = {
        "at a glance": dg.MetadataValue.md(category_glance(rows)),
        "categories": _table(category_table(rows), rows),
    }
    if _is_emulated(rows):
        return metadata
    return metadata | {
        f"{row['category']} ms": plotted(row["mean_ns"] / 1e6) for row in rows.to_dict("records")
    }


def _kernel_metadata(rows: pd.DataFrame) -> Metadata:
    metadata: Metadata = {"samples": dg.MetadataValue.int(int(rows["samples"].sum()))}
    if _speaks_of_sme2(rows):
        metadata["samples on SME"] = dg.MetadataValue.int(int(rows["sme_samples"].sum()))
        metadata["units"] = dg.MetadataValue.md(unit_table(rows).markdown())
    return metadata | {"kernels": dg.MetadataValue.md(kernel_table(rows).markdown())}
