"""Whether a folder for or from other tools can be relied on: an export, or a run folder of the public kit."""

from __future__ import annotations

import math
import statistics
from pathlib import Path
from typing import Any

import pandas as pd

from sme2_assets.diagnostics.evidence_checks import check_hashes, require, strict_json, trace_steps
from sme2_assets.diagnostics.files import check_perfetto
from sme2_assets.diagnostics.steps import Checkup
from sme2_assets.errors import printable
from sme2_assets.exchange.export import LISTING_FILE
from sme2_assets.exchange.kit import KIT_MANIFEST, KIT_METRICS

# Sums of decimals in a CSV file against one another, in milliseconds: a thousandth of a nanosecond.
_CSV_TOLERANCE_MS = 1e-9


def validate_export(folder: Path) -> Checkup:
    made = Checkup(str(folder), "exported folder")
    listing: dict[str, Any] = {}
    with made.step("listing") as step:
        listing = strict_json(folder / LISTING_FILE)
        hashes = listing.get("file_sha256")
        require(isinstance(hashes, dict) and bool(hashes), f"{LISTING_FILE} lists nothing.", "Export again.")
        step.detail = f"{', '.join(listing.get('runs', []))}"
    with made.step("files") as step:
        step.detail = check_hashes(folder, listing.get("file_sha256") or {}, "Export again.")
    for path in sorted(folder.rglob("*_exec_all_runs_timeline.csv")):
        with made.step("timeline") as step:
            step.detail = _check_timeline_csv(path)
    if (folder / KIT_METRICS).is_file():
        with made.step("metrics") as step:
            step.detail = _check_metrics(strict_json(folder / KIT_METRICS))
    for path in sorted(folder.glob("*.perfetto.json")):
        with made.step("trace") as step:
            step.detail = check_perfetto(path)
    return made


def validate_kit_folder(folder: Path) -> Checkup:
    made = Checkup(str(folder), "run folder of the public kit")
    traces = sorted(folder.rglob("*.etdump"))
    with made.step("traces found") as step:
        require(bool(traces), "No .etdump file is below this folder.", "Run the kit's pipeline again.")
        step.detail = f"{len(traces)}"
    if (folder / KIT_MANIFEST).is_file():
        with made.step("manifest") as step:
            step.detail = _check_kit_manifest(folder)
    if (folder / KIT_METRICS).is_file():
        with made.step("metrics") as step:
            step.detail = _check_metrics(strict_json(folder / KIT_METRICS))
    for path in traces:
        before = len(made.steps)
        trace_steps(made, path)
        for step in made.steps[before:]:
            step.name = f"{printable(path.stem)}: {step.name}"
    with made.step("comparison") as step:
        step.note(
            "Arms that were not interleaved support no verdict.",
            "`sme2 ingest` takes them as foreign runs; `sme2 profile` measures a pair.",
        )
    return made


def _check_kit_manifest(folder: Path) -> str:
    document = strict_json(folder / KIT_MANIFEST)
    results = document.get("results")
    require(
        isinstance(results, list) and bool(results), "It has no results.", "Run the kit's pipeline again."
    )
    missing = []
    for result in results if isinstance(results, list) else []:
        artifacts = result.get("artifacts", {}) if isinstance(result, dict) else {}
        for reference in artifacts.values() if isinstance(artifacts, dict) else ():
            name = reference.get("relative_path") if isinstance(reference, dict) else None
            if isinstance(name, str) and not (folder / name).is_file():
                missing.append(name)
    require(
        not missing,
        f"It names files that are not there: {', '.join(printable(name) for name in missing[:5])}.",
        "Copy the whole folder, or run the kit's pipeline again.",
    )
    return f"{len(results or [])} results"


def _check_metrics(document: dict[str, Any]) -> str:
    """Latencies are positive numbers, and their median is what the file says."""
    results = document.get("results")
    require(isinstance(results, list) and bool(results), "It has no results.", "Export or measure again.")
    timed = 0
    for result in results if isinstance(results, list) else []:
        values = result.get("metrics") if isinstance(result, dict) else None
        require(isinstance(values, dict), "A result has no metrics.", "Export or measure again.")
        latencies = values.get("latency_ms") if isinstance(values, dict) else None
        if not latencies:
            continue
        sane = isinstance(latencies, list) and all(
            isinstance(value, int | float) and math.isfinite(value) and value > 0 for value in latencies
        )
        require(sane, "A latency is not a time.", "Export or measure again.")
        told = values.get("median_ms") if isinstance(values, dict) else None
        found = statistics.median(latencies)
        require(
            isinstance(told, int | float) and math.isclose(told, found, rel_tol=1e-6),
            f"It says a median of {told} ms; that of its latencies is {found:.6g} ms.",
            "Somebody changed it: export or measure again.",
        )
        timed += 1
    return f"{timed} of {len(results or [])} results with latencies"


def _check_timeline_csv(path: Path) -> str:
    rows = pd.read_csv(path)
    whole = rows[rows["kind"] == "inference"].groupby("run_index")["duration_ms"].sum()
    parts = rows[rows["kind"] != "inference"].groupby("run_index")["duration_ms"].sum()
    require(
        len(whole) > 0 and whole.index.equals(parts.index), f"{path.name} lacks inferences.", "Export again."
    )
    off = (whole - parts).abs().max()
    require(
        off <= _CSV_TOLERANCE_MS * len(rows),
        f"{path.name}: rows do not add up, by {off} ms.",
        "Export again.",
    )
    return f"{path.parent.name}: {len(whole)} inferences, every nanosecond in one row"
