"""The report of a model on a platform, in Markdown with its pictures beside it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pandas as pd

from sme2_assets.explain import Explanation, explain
from sme2_assets.report.insights import insights_markdown
from sme2_assets.report.kernels import executed_text, kernel_table, unit_table
from sme2_assets.report.models import delegation_cost_table, numerics_table
from sme2_assets.report.module_plots import module_picture, roofline_picture
from sme2_assets.report.plots import category_picture
from sme2_assets.report.tables import (
    EMULATED_NOTE,
    TextTable,
    category_table,
    comparison_table,
    latency_table,
    missed_text,
    operator_table,
    speedup_text,
)
from sme2_assets.warehouse import Warehouse
from sme2_assets.warehouse.read import comparison, latest_run, newest_run, rows_of_view, runs_of_session

CATEGORIES, MODULES, ROOFLINE = "categories.png", "modules.png", "roofline.png"


@dataclass(frozen=True)
class Report:
    """A report: text, and the pictures it refers to by their file names."""

    text: str
    pictures: dict[str, bytes]


def latest_report(warehouse: Warehouse, variant: str, platform: str) -> Report | None:
    """The newest of a model on a platform: the comparison, or the one arm that was measured later alone."""
    newest = newest_run(warehouse, variant, platform)
    if newest is None:
        return None
    rows = comparison(warehouse, variant, platform)
    if not rows.empty and rows["session_id"].iloc[0] == newest["session_id"]:
        return comparison_report(warehouse, variant, platform)
    return baseline_report(warehouse, variant, platform, newest["sme2"])


def comparison_report(warehouse: Warehouse, variant: str, platform: str) -> Report:
    """SME2 on against off, verdict first."""
    rows = comparison(warehouse, variant, platform)
    model = dict(rows[rows["level"] == "model"].iloc[0])
    runs = runs_of_session(warehouse, model["session_id"])
    runs = runs[runs["run_id"].isin([model["off_run_id"], model["on_run_id"]])]
    categories = _both(warehouse, "category_summary", model)
    parts = [
        f"# {variant} on {platform}: SME2 on against off",
        f"**Verdict: {model['verdict']}.** {model['reason']}",
        *([f"Speedup (off / on): {speedup_text(model)}."] if model["fidelity"] == "hardware" else []),
        f"Operators with an SME2 kernel by name: {model['sme2_operators_on']} of {model['operators']} "
        f"with SME2 on, {model['sme2_operators_off']} with it off.",
        f"CONV and GEMM without one: {missed_text(rows) or 'none'}.",
        executed_text(pd.concat([_facts(warehouse, model[f"{sme2}_run_id"]) for sme2 in ("off", "on")])),
        f"![Operators by category]({CATEGORIES})",
        *_latency(_both(warehouse, "latency_summary", model)),
        "## Categories",
        comparison_table(rows, "category").markdown(),
        "## Operators",
        "Paired by delegate and position: a different kernel often has a different name.",
        comparison_table(rows, "operator").markdown(),
        *_kernels(warehouse, model["on_run_id"]),
        *_delegation(warehouse, model["on_run_id"]),
        *_numerics(warehouse, [model["off_run_id"], model["on_run_id"]]),
        "## What this rests on",
        _provenance(runs).markdown(),
    ]
    title = f"{variant} on {platform}: the category shift"
    explanation = explain(warehouse, variant, platform, model["session_id"])
    return _report(parts, explanation, category_picture(categories, title))


def baseline_report(warehouse: Warehouse, variant: str, platform: str, sme2: str) -> Report:
    """One arm alone: where the time goes, and no comparison."""
    run = latest_run(warehouse, variant, platform, sme2)
    categories = rows_of_view(warehouse, "category_summary", run["run_id"])
    parts = [
        f"# {variant} on {platform}: SME2 {sme2} alone",
        "This arm was measured alone, so there is nothing to compare it with.",
        executed_text(_facts(warehouse, run["run_id"])),
        f"![Operators by category]({CATEGORIES})",
        *_latency(rows_of_view(warehouse, "latency_summary", run["run_id"])),
        "## Categories",
        category_table(categories).markdown(),
        "## Operators",
        operator_table(rows_of_view(warehouse, "operator_summary", run["run_id"])).markdown(),
        *_kernels(warehouse, run["run_id"]),
        *_delegation(warehouse, run["run_id"]),
        *_numerics(warehouse, [run["run_id"]]),
        "## What this rests on",
        _provenance(pd.DataFrame([run])).markdown(),
    ]
    title = f"{variant} on {platform}, SME2 {sme2}"
    explanation = explain(warehouse, variant, platform, run["session_id"])
    return _report(parts, explanation, category_picture(categories, title))


def _report(parts: list[str], explanation: Explanation, categories: bytes) -> Report:
    """The parts with what they mean after the latency, and the pictures of it."""
    title = f"{explanation.variant} on {explanation.platform}"
    pictures = {CATEGORIES: categories, MODULES: module_picture(explanation.modules, f"{title}: modules")}
    section = [insights_markdown(explanation), f"![Modules]({MODULES})"]
    roofline = roofline_picture(
        pd.concat([arm.bottlenecks for arm in explanation.arms]), f"{title}: achieved rates"
    )
    if roofline is not None:
        pictures[ROOFLINE] = roofline
        section.append(f"![Achieved rate of each operator]({ROOFLINE})")
    parts[parts.index("## Categories") : parts.index("## Categories")] = section
    return Report(_joined(parts, explanation.fidelity), pictures)


def _facts(warehouse: Warehouse, run_id: str) -> pd.DataFrame:
    return rows_of_view(warehouse, "operator_facts", run_id)


def _kernels(warehouse: Warehouse, run_id: str) -> list[str]:
    """The section on what was sampled; none when nothing was."""
    usage = rows_of_view(warehouse, "kernel_usage", run_id)
    if usage.empty:
        return []
    sme2 = usage["sme2"].iloc[0]
    return [
        f"## Kernels with SME2 {sme2}",
        unit_table(usage).markdown(),
        kernel_table(usage).markdown(),
    ]


def _delegation(warehouse: Warehouse, run_id: str) -> list[str]:
    rows = warehouse.query(
        "SELECT * FROM delegation_report WHERE run_id = ? ORDER BY delegated, share DESC, count DESC",
        [run_id],
    )
    return [] if rows.empty else ["## Delegation", delegation_cost_table(rows).markdown()]


def _numerics(warehouse: Warehouse, run_ids: list[str]) -> list[str]:
    """How near the outputs are to the eager model's; a sentence where there is no such model."""
    rows = warehouse.query(
        "SELECT sme2, numerics.* FROM numerics JOIN runs USING (run_id) "
        "WHERE list_contains(?, run_id) ORDER BY sme2, output",
        [run_ids],
    )
    if rows.empty:
        return ["## Numerics", "There is no eager model to compare the outputs with."]
    return ["## Numerics", numerics_table(rows).markdown()]


def _both(warehouse: Warehouse, view: str, model: dict[str, Any]) -> pd.DataFrame:
    return pd.concat([rows_of_view(warehouse, view, model[f"{sme2}_run_id"]) for sme2 in ("off", "on")])


def _latency(summaries: pd.DataFrame) -> list[str]:
    """The section on latency; none for emulated runs, whose times are not shown."""
    if (summaries["fidelity"] == "emulated").any():
        return []
    return ["## Latency", latency_table(summaries).markdown()]


def _joined(parts: list[str], fidelity: str) -> str:
    if fidelity == "emulated":
        parts.insert(1, f"> {EMULATED_NOTE}")
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _provenance(runs: pd.DataFrame) -> TextTable:
    columns = {
        "run_id": "run",
        "session_id": "session",
        "started_at": "started",
        "cpu": "CPU",
        "os": "operating system",
        "emulator": "emulator",
        "sme_vector_bits": "SME vector bits",
        "threads": "threads",
        "rounds": "rounds",
        "iterations": "inferences per process",
        "load_before": "machine load before",
        "executorch_version": "ExecuTorch",
        "compiler": "compiler",
        "runner_sha256": "runner hash",
        "pte_sha256": "model file hash",
        "output_sha256": "output hash",
        "sqnr_db": "outputs against eager, dB",
        "sqnr_threshold_db": "needed, dB",
    }
    records = runs.sort_values("sme2").to_dict("records")
    return TextTable.of(
        ["", *(f"SME2 {record['sme2']}" for record in records)],
        [[label, *(_short(record[column]) for record in records)] for column, label in columns.items()],
    )


def _short(value: Any) -> Any:
    """Hashes by their first 16 digits, numbers with one decimal."""
    if isinstance(value, str) and len(value) == 64:
        return value[:16]
    return round(value, 1) if isinstance(value, float) and pd.notna(value) else value
