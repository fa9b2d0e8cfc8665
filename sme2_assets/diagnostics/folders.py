"""Whether a folder for or from other tools can be relied on: an export, or a run folder of the public kit."""

from __future__ import annotations

import math
import statistics
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
from pydantic import BaseModel, Field, ValidationError

from sme2_assets.diagnostics.evidence_checks import check_hashes, require, strict_json, trace_steps
from sme2_assets.diagnostics.files import check_perfetto
from sme2_assets.diagnostics.steps import Checkup
from sme2_assets.errors import TraceError, printable
from sme2_assets.exchange.export import LISTING_FILE
from sme2_assets.exchange.kit import KIT_MANIFEST, KIT_METRICS, kit_results, promised_files
from sme2_assets.exchange.outputs import EXPORT, SUMMARY_FILE
from sme2_assets.exchange.perfetto import SUFFIX

# For comparing sums of decimals in a CSV file, in milliseconds: a thousandth of a nanosecond.
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
            step.detail = _check_metrics(folder / KIT_METRICS)
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        with made.step("trace") as step:
            step.detail = check_perfetto(path)
    return made


def validate_output(folder: Path) -> Checkup:
    """The output folder of an experiment: every session's export, and what is said about all of them."""
    made = Checkup(str(folder), "output of an experiment")
    exports: list[Path] = []
    with made.step("sessions") as step:
        sessions = strict_json(folder / SUMMARY_FILE).get("sessions") or []
        missing = [it for it in sessions if not it.get("ok") or it.get("output_error")]
        require(bool(sessions), f"{SUMMARY_FILE} lists no sessions.", "Run the experiment again.")
        exports = sorted(listing.parent for listing in folder.glob(f"*/{EXPORT}/{LISTING_FILE}"))
        step.detail = f"{len(sessions) - len(missing)} of {len(sessions)} were measured and exported"
        require(not missing, f"{step.detail}.", f"{SUMMARY_FILE} says why. Run the experiment again.")
        require(len(exports) >= len(sessions), "An export is missing.", "Run the experiment again.")
    _kit_steps(made, folder)
    for export in exports:
        for step in validate_export(export).steps:
            step.name = f"{printable(export.parent.name)}: {step.name}"
            made.steps.append(step)
    return made


def _kit_steps(made: Checkup, folder: Path) -> None:
    if (folder / KIT_MANIFEST).is_file():
        with made.step("manifest") as step:
            step.detail = _check_kit_manifest(folder)
    if (folder / KIT_METRICS).is_file():
        with made.step("metrics") as step:
            step.detail = _check_metrics(folder / KIT_METRICS)


def validate_kit_folder(folder: Path) -> Checkup:
    made = Checkup(str(folder), "run folder of the public kit")
    traces = sorted(folder.rglob("*.etdump"))
    with made.step("traces found") as step:
        require(bool(traces), "No .etdump file is below this folder.", "Run the kit's pipeline again.")
        step.detail = f"{len(traces)}"
    _kit_steps(made, folder)
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
    results = kit_results(strict_json(folder / KIT_MANIFEST))
    require(bool(results), "It has no results.", "Run the kit's pipeline again.")
    names = [name for result in results for name in promised_files(result).values()]
    missing = [name for name in names if not (folder / name).is_file()]
    require(
        not missing,
        f"It names files that are not there: {', '.join(printable(name) for name in missing[:5])}.",
        "Copy the whole folder, or run the kit's pipeline again.",
    )
    return f"{len(results)} results"


class _Metrics(BaseModel, strict=True):
    latency_ms: list[Annotated[float, Field(gt=0, allow_inf_nan=False)]] | None = None
    median_ms: float | None = None


class _Result(BaseModel):
    metrics: _Metrics


class _MetricsFile(BaseModel):
    results: Annotated[list[_Result], Field(min_length=1)]


def _check_metrics(path: Path) -> str:
    """Latencies must be positive, and their median what the file says."""
    try:
        results = _MetricsFile.model_validate(strict_json(path)).results
    except ValidationError as error:
        fault = error.errors()[0]
        place = ".".join(map(str, fault["loc"]))
        raise TraceError(f"{place}: {fault['msg']}.", "Export or measure again.") from None
    timed = [result.metrics for result in results if result.metrics.latency_ms]
    for metrics in timed:
        found = statistics.median(metrics.latency_ms or [])
        require(
            metrics.median_ms is not None and math.isclose(metrics.median_ms, found, rel_tol=1e-6),
            f"It gives a median of {metrics.median_ms} ms; that of its latencies is {found:.6g} ms.",
            "Somebody changed it: export or measure again.",
        )
    return f"{len(timed)} of {len(results)} results with latencies"


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
