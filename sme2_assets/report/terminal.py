"""Results on a terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console
from rich.table import Table

from sme2_assets.analysis.insights.insight import device_text
from sme2_assets.analysis.passes import passes_fault
from sme2_assets.report import claims
from sme2_assets.report.kernels import sampled_text
from sme2_assets.report.tables import (
    TextTable,
    arm_text,
    category_table,
    comparison_table,
    confidence_text,
    device_cell,
    fidelity_note,
    latency_table,
    placebo_text,
    speedup_text,
    verdict_and_reason,
)
from sme2_assets.report.unit_use import missed_text, unit_counts, unit_sentence, unit_use
from sme2_assets.warehouse import Warehouse
from sme2_assets.warehouse.read import comparison_of_session, rows_of_view, run_of_id, runs_of_session


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
    show_comparison_rows(out, warehouse, rows, operators)
    if report is not None:
        out.print(f"report: {report}", markup=False, highlight=False, soft_wrap=True)
    out.print()


def show_comparison_rows(out: Console, warehouse: Warehouse, rows: pd.DataFrame, operators: bool) -> None:
    """One session's rows of `comparisons`, and where the operators of its arms ran."""
    model = dict(rows[rows["level"] == "model"].iloc[0])
    verdict, reason = verdict_and_reason(model)
    out.print(f"verdict: {verdict}", style="bold")
    out.print(reason, markup=False)
    if model["fidelity"] == "hardware":
        out.print(f"speedup (off / on): {speedup_text(model)} on {device_cell(model)}", highlight=False)
        if confidence := confidence_text(model):
            out.print(f"confidence: {confidence}", highlight=False)
        if placebo := placebo_text(model):
            out.print(f"placebo: {placebo}", highlight=False)
    if model["fidelity"] != "reference":
        for sentence in _unit_sentences(warehouse, model["off_run_id"], model["on_run_id"]):
            out.print(sentence, markup=False, highlight=False, soft_wrap=True)
    for level in ("category", "operator") if operators else ("category",):
        print_table(out, comparison_table(rows, level))


def _unit_sentences(warehouse: Warehouse, off_run_id: str, on_run_id: str) -> list[str]:
    """How much is on the SME unit in each arm, why not more, and what was sampled."""
    counts = unit_counts(warehouse, [off_run_id, on_run_id])
    runs = [run_of_id(warehouse, run_id) for run_id in (on_run_id, off_run_id)]
    said = [
        f"on the SME unit, {arm_text(run)}: {unit_sentence(run['run_id'], counts.get(run['run_id']))}"
        for run in runs
    ]
    said += [missed_text(use, claims.NOT_ON_UNIT) for use in unit_use(warehouse, [on_run_id]) if use.missed]
    facts = [rows_of_view(warehouse, "operator_facts", run_id) for run_id in (off_run_id, on_run_id)]
    return [*said, sampled_text(pd.concat(facts))]


def show_arm(out: Console, warehouse: Warehouse, run: dict[str, Any]) -> None:
    """A run that has nothing beside it: what its times are, and where they go."""
    alone = claims.BASELINE.say(session_id=run["session_id"], arm=arm_text(run))
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
