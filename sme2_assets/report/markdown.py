"""The report of a model on a platform, in Markdown with one picture beside it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pandas as pd

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

PICTURE_NAME = "categories.png"


@dataclass(frozen=True)
class Report:
    """A report: text, and the picture it refers to as PICTURE_NAME."""

    text: str
    picture: bytes


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
        f"![Operators by category]({PICTURE_NAME})",
        *_latency(_both(warehouse, "latency_summary", model)),
        "## Categories",
        comparison_table(rows, "category").markdown(),
        "## Operators",
        "Paired by delegate and position: a different kernel often has a different name.",
        comparison_table(rows, "operator").markdown(),
        "## What this rests on",
        _provenance(runs).markdown(),
    ]
    title = f"{variant} on {platform}: the category shift"
    return Report(_joined(parts, model["fidelity"]), category_picture(categories, title))


def baseline_report(warehouse: Warehouse, variant: str, platform: str, sme2: str) -> Report:
    """One arm alone: where the time goes, and no comparison."""
    run = latest_run(warehouse, variant, platform, sme2)
    categories = rows_of_view(warehouse, "category_summary", run["run_id"])
    parts = [
        f"# {variant} on {platform}: SME2 {sme2} alone",
        "This arm was measured alone, so there is nothing to compare it with.",
        f"![Operators by category]({PICTURE_NAME})",
        *_latency(rows_of_view(warehouse, "latency_summary", run["run_id"])),
        "## Categories",
        category_table(categories).markdown(),
        "## Operators",
        operator_table(rows_of_view(warehouse, "operator_summary", run["run_id"])).markdown(),
        "## What this rests on",
        _provenance(pd.DataFrame([run])).markdown(),
    ]
    title = f"{variant} on {platform}, SME2 {sme2}"
    return Report(_joined(parts, run["fidelity"]), category_picture(categories, title))


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
