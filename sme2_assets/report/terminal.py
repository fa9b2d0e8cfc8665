"""Results on a terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from sme2_assets.analysis.insights.insight import device_text
from sme2_assets.analysis.passes import passes_fault
from sme2_assets.report.answer import session_answer
from sme2_assets.report.document import Answer
from sme2_assets.report.explain import explain
from sme2_assets.report.kernels import evidence_text
from sme2_assets.report.operators import operators_in_short
from sme2_assets.report.tables import (
    TextTable,
    categories_of_pair,
    category_table,
    confidence_text,
    latency_table,
    placebo_text,
)
from sme2_assets.warehouse import Warehouse
from sme2_assets.warehouse.read import comparison_of_session, rows_of_view


def show_session(
    out: Console, warehouse: Warehouse, session_id: str, report: Path | None, operators: bool
) -> None:
    """The answer of a session, then where its time or its kernels went, then what the answer rests on."""
    rows = comparison_of_session(warehouse, session_id)
    if rows.empty:
        show_arm(out, warehouse, session_id)
    else:
        show_comparison_rows(out, warehouse, rows, operators)
    if report is not None:
        print_link(out, "report", report)
    out.print()


def show_comparison_rows(out: Console, warehouse: Warehouse, rows: pd.DataFrame, operators: bool) -> None:
    """One session's rows of `comparisons`, the answer first."""
    model = dict(rows[rows["level"] == "model"].iloc[0])
    explanation = explain(warehouse, model["session_id"])
    show_answer(
        out, f"{model['variant']} on {model['platform']}", session_answer(warehouse, explanation, rows)
    )
    categories = pd.concat([arm.category_summary for arm in explanation.arms])
    print_table(out, categories_of_pair(rows, categories))
    if operators:
        print_table(out, operators_in_short(explanation, rows))
    rests_on: list[tuple[str, str | None]] = [("device", device_text(explanation.subject.run))]
    if model["fidelity"] == "hardware":
        rests_on += [("confidence", confidence_text(model)), ("placebo", placebo_text(model))]
    if model["fidelity"] != "reference":
        facts = [rows_of_view(warehouse, "operator_facts", arm.run["run_id"]) for arm in explanation.arms]
        rests_on.append(("evidence", evidence_text(pd.concat(facts))))
    for label, text in rests_on:
        if text:
            print_text(out, Text(f"{label}: {text}", "dim"))


def show_arm(out: Console, warehouse: Warehouse, session_id: str) -> None:
    """A run without another to compare it with: what its times are, and where they go."""
    explanation = explain(warehouse, session_id)
    run = explanation.subject.run
    show_answer(out, f"{run['variant']} on {run['platform']}", session_answer(warehouse, explanation))
    print_text(out, Text(f"device: {device_text(run)}", "dim"))
    if passes_fault(run):
        return
    views = (("latency_summary", latency_table), ("category_summary", category_table))
    for view, table in views[0 if explanation.subject.timed else 1 :]:
        print_table(out, table(rows_of_view(warehouse, view, run["run_id"])))


def show_answer(out: Console, title: str, answer: Answer, actions: bool = True) -> None:
    """The answer and what to do, which come before everything else."""
    style = {"good": "bold green", "bad": "bold red"}.get(answer.tone, "bold")
    print_text(out, Text.assemble((f"{title}: ", "bold"), (answer.word, style)))
    print_text(out, Text(answer.sentence))
    if answer.why:
        print_text(out, Text(answer.why, "dim"))
    out.print()
    if not actions or not answer.actions:
        return
    for number, action in enumerate(answer.actions, start=1):
        gain = f"  [{action.gain}]" if action.gain else ""
        print_text(out, Text.assemble(f"{number}. {action.what}", (gain, "green")))
        print_text(out, Text(action.next), 3)
    out.print()


def print_text(out: Console, text: Text, indent: int = 0) -> None:
    """A paragraph, wrapped to the terminal; a pipe or a file has no width, so there it stays one line."""
    if out.is_terminal:
        out.print(Padding(text, (0, 0, 0, indent), expand=False))
    else:
        out.print(Text(" " * indent).append_text(text), soft_wrap=True)


def print_link(out: Console, what: str, path: Path) -> None:
    """Never wrapped: a link that is cut leads nowhere."""
    out.print(Text(f"{what}: {path.absolute().as_uri()}"), soft_wrap=True)


def show_rows(out: Console, rows: pd.DataFrame) -> None:
    """Rows of any query."""
    table = Table()
    for column in rows.columns:
        table.add_column(Text(str(column)))
    for values in rows.itertuples(index=False):
        table.add_row(*[Text(_cell(value)) for value in values])
    out.print(table)
    out.print(f"{len(rows)} rows", style="dim")


def print_table(out: Console, table: TextTable) -> None:
    """A table that is ready to be read."""
    rendered = Table(box=None, pad_edge=False)
    for name in table.header:
        # Long text is folded, not cut: half a path or id is useless.
        rendered.add_column(Text(name), overflow="fold")
    for row in table.rows:
        # Names from models have brackets, which are no markup.
        rendered.add_row(*map(Text, row))
    out.print(rendered)
    out.print()


def _cell(value: Any) -> str:
    if isinstance(value, (list, tuple)) or type(value).__name__ == "ndarray":
        return ", ".join(map(str, value))
    return "" if value is None or pd.isna(value) else str(value)
