"""Results on a terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console
from rich.table import Table

from sme2_assets.analysis.insights.insight import device_text
from sme2_assets.analysis.passes import passes_fault
from sme2_assets.report.kernels import executed_text
from sme2_assets.report.tables import (
    TextTable,
    arm_text,
    category_table,
    comparison_table,
    device_cell,
    fidelity_note,
    latency_table,
    missed_text,
    speedup_text,
)
from sme2_assets.warehouse import Warehouse
from sme2_assets.warehouse.read import comparison_of_session, rows_of_view, runs_of_session


def show_session(
    out: Console, warehouse: Warehouse, session_id: str, report: Path | None, operators: bool
) -> None:
    """SME2 on against off, verdict first; or, of one arm alone, where its time goes."""
    runs = runs_of_session(warehouse, session_id)
    out.print(f"== {runs[0]['variant']} on {runs[0]['platform']} ==", style="bold", highlight=False)
    if len(runs) == 1:
        show_arm(out, warehouse, runs[0])
        return
    rows = comparison_of_session(warehouse, session_id)
    facts = [rows_of_view(warehouse, "operator_facts", run["run_id"]) for run in runs]
    show_comparison_rows(out, rows, operators, sampled=executed_text(pd.concat(facts)))
    if report is not None:
        out.print(f"report: {report}", markup=False, highlight=False, soft_wrap=True)
    out.print()


def show_comparison_rows(
    out: Console, rows: pd.DataFrame, operators: bool, sampled: str | None = None
) -> None:
    """One session's rows of `comparisons`, and in a sentence what was sampled."""
    model = dict(rows[rows["level"] == "model"].iloc[0])
    out.print(f"verdict: {model['verdict']}", style="bold")
    out.print(model["reason"], markup=False)
    if model["fidelity"] == "hardware":
        out.print(f"speedup (off / on): {speedup_text(model)} on {device_cell(model)}", highlight=False)
    out.print(
        f"operators with an SME2 kernel: {model['sme2_operators_on']} of {model['operators']} with SME2 on, "
        f"{model['sme2_operators_off']} with it off"
    )
    if sampled:
        out.print(sampled, markup=False, highlight=False, soft_wrap=True)
    if missed := missed_text(rows):
        out.print(f"CONV and GEMM without one: {missed}", markup=False, highlight=False, soft_wrap=True)
    for level in ("category", "operator") if operators else ("category",):
        print_table(out, comparison_table(rows, level))


def show_arm(out: Console, warehouse: Warehouse, run: dict[str, Any]) -> None:
    """A run that has nothing beside it: what its times are, and where they go."""
    alone = f"{arm_text(run)} alone: a baseline, with nothing to compare it with."
    out.print(fidelity_note(run) or alone, style="bold")
    out.print(f"on {device_text(run)}", highlight=False, markup=False)
    if fault := passes_fault(run):
        out.print(fault, markup=False, highlight=False, soft_wrap=True)
        return
    for view, table in (("latency_summary", latency_table), ("category_summary", category_table)):
        print_table(out, table(rows_of_view(warehouse, view, run["run_id"])))


def show_rows(out: Console, rows: pd.DataFrame) -> None:
    """Rows of any query."""
    table = Table(*[str(column) for column in rows.columns])
    for values in rows.itertuples(index=False):
        table.add_row(*[_cell(value) for value in values])
    out.print(table)
    out.print(f"{len(rows)} rows", style="dim")


def print_table(out: Console, table: TextTable) -> None:
    """A table that is ready to be read."""
    rendered = Table(*table.header, box=None, pad_edge=False)
    for row in table.rows:
        rendered.add_row(*row)
    out.print(rendered)
    out.print()


def _cell(value: Any) -> str:
    if isinstance(value, (list, tuple)) or type(value).__name__ == "ndarray":
        return ", ".join(map(str, value))
    return "" if value is None or pd.isna(value) else str(value)
