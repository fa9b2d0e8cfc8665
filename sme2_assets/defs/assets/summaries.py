"""What an asset's page shows about a run: rows of the warehouse's views as tables, pictures and numbers.

No asset makes the views: they are there as soon as their rows are.
"""

import dagster as dg
import pandas as pd

from sme2_assets.analysis.passes import passes_fault
from sme2_assets.defs.assets.support import plotted
from sme2_assets.report.document import Answer
from sme2_assets.report.glance import category_glance
from sme2_assets.report.kernels import kernel_table, unit_table
from sme2_assets.report.markdown import actions_markdown
from sme2_assets.report.tables import TextTable, category_table, fidelity_note, latency_table, operator_table
from sme2_assets.warehouse import Warehouse
from sme2_assets.warehouse.read import rows_of_view

Metadata = dict[str, dg.MetadataValue]
SLOWEST_SHOWN = 5


def answer_metadata(answer: Answer) -> Metadata:
    """What a page begins with: the answer, and what to do."""
    shown = {"answer": answer.sentence, "kind": answer.word, "why": answer.why}
    metadata: Metadata = {name: dg.MetadataValue.text(text) for name, text in shown.items() if text}
    if answer.actions:
        metadata["what to do"] = dg.MetadataValue.md(actions_markdown(answer.actions))
    return metadata


def kernel_metadata(warehouse: Warehouse, run_id: str) -> Metadata:
    """How much of a run is on the SME unit; the functions and units that each operator ran in."""
    rows = rows_of_view(warehouse, "kernel_usage", run_id)
    names = {
        "on_unit": "on the SME unit",
        "by_name_alone": "on it by name alone",
        "off_unit": "off it",
        "unknown": "unknown",
    }
    return {
        f"CONV and GEMM {text}": dg.MetadataValue.int(int(use[name]))
        for use in rows_of_view(warehouse, "unit_use", run_id).to_dict("records")
        for name, text in names.items()
    } | ({} if rows.empty else _kernel_metadata(rows))


def _table(table: TextTable, rows: pd.DataFrame) -> dg.MetadataValue:
    note = "" if rows.empty else fidelity_note(rows.iloc[0].to_dict())
    return dg.MetadataValue.md(table.markdown() + (f"\n*{note}*\n" if note else ""))


def _is_emulated(rows: pd.DataFrame) -> bool:
    return bool((rows["fidelity"] == "emulated").any())


def _speaks_of_sme2(rows: pd.DataFrame) -> bool:
    return not (rows["fidelity"] == "reference").any()


def latency_metadata(warehouse: Warehouse, run_id: str) -> Metadata:
    """A table, and the same as numbers, so that the UI plots them over the runs; nothing under emulation."""
    rows = rows_of_view(warehouse, "latency_summary", run_id)
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


def operator_metadata(warehouse: Warehouse, run_id: str) -> Metadata:
    """All operators, and where times count the slowest. Where they run is shown with the kernels."""
    rows = rows_of_view(warehouse, "operator_summary", run_id).assign(on_sme_unit=None)
    metadata: Metadata = {}
    if not _is_emulated(rows):
        slowest = rows.sort_values("median_ns", ascending=False).head(SLOWEST_SHOWN)
        metadata["slowest operators"] = _table(operator_table(slowest).without("SME unit"), rows)
    return metadata | {
        "operators": _table(operator_table(rows).without("SME unit"), rows),
        "unknown operators": dg.MetadataValue.int(int((~rows["known"]).sum())),
    }


def category_metadata(warehouse: Warehouse, run_id: str) -> Metadata:
    """Bars that show without a click; the full picture, with both arms, is with the comparison."""
    rows = rows_of_view(warehouse, "category_summary", run_id)
    metadata: Metadata = {
        "at a glance": dg.MetadataValue.md(category_glance(rows)),
        "categories": _table(category_table(rows).without("on the SME unit"), rows),
    }
    if _is_emulated(rows):
        return metadata
    return metadata | {
        f"{row['category']} ms": plotted(row["mean_ns"] / 1e6) for row in rows.to_dict("records")
    }


def _kernel_metadata(rows: pd.DataFrame) -> Metadata:
    metadata: Metadata = {}
    if _speaks_of_sme2(rows):
        if rows["instructions"].isna().all():
            metadata["samples on SME"] = dg.MetadataValue.int(int(rows["sme_samples"].sum()))
        metadata["units"] = dg.MetadataValue.md(unit_table(rows).markdown())
    return metadata | {"kernels": dg.MetadataValue.md(kernel_table(rows).markdown())}
