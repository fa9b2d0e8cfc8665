"""The public kit's files next to a trace: its manifest, its metrics, the runner's log."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from sme2_assets.errors import TraceError
from sme2_assets.exchange.regular import LARGEST_TEXT_BYTES, opened

KIT_MANIFEST, KIT_METRICS = "manifest.json", "metrics.json"
# Kept next to the trace under these names, so that they are not mistaken for the run's own.
KEPT_AS = {KIT_MANIFEST: "kit_manifest.json", KIT_METRICS: "kit_metrics.json"}


def kit_result(trace: Path) -> dict[str, Any] | None:
    """What the kit's manifest says about a trace, with its shared facts; None without a readable manifest."""
    path = beside(trace, KIT_MANIFEST)
    document = json_of(path) if path is not None else None
    if path is None or not isinstance(document, dict):
        return None
    shared = {key: document.get(key) for key in ("model", "generated_at", "config", "executorch")}
    for result in kit_results(document):
        name = promised_files(result).get("etdump")
        if name is not None and (path.parent / name) == trace:
            return {**shared, **result}
    return {**shared, "results": "none of them is of this trace"}


def kit_results(document: Any) -> list[dict[str, Any]]:
    results = document.get("results") if isinstance(document, dict) else None
    return [result for result in results if isinstance(result, dict)] if isinstance(results, list) else []


def promised_files(result: dict[str, Any]) -> dict[str, str]:
    """The files of a result by kind, as paths below the manifest; paths that leave its folder are ignored."""
    artifacts = result.get("artifacts")
    references = artifacts.items() if isinstance(artifacts, dict) else ()
    names = {kind: it.get("relative_path") for kind, it in references if isinstance(it, dict)}
    return {
        kind: name
        for kind, name in names.items()
        if isinstance(name, str) and not Path(name).is_absolute() and ".." not in Path(name).parts
    }


def beside(trace: Path, name: str) -> Path | None:
    """One of the kit's files about the trace: in its folder, or in the platform's folder above it."""
    for folder in (trace.parent, trace.parent.parent):
        path = folder / name
        if os.path.lexists(path):
            return path
    return None


def log_beside(trace: Path) -> Path | None:
    for name in (f"{trace.stem}.log", f"{trace.stem}_latency.log"):
        path = trace.with_name(name)
        if os.path.lexists(path):
            return path
    return None


def json_of(path: Path) -> Any:
    """The document; None if it cannot be read as one."""
    try:
        with opened(path, LARGEST_TEXT_BYTES) as handle:
            return json.loads(handle.read().decode("utf-8"))
    except (OSError, TraceError, ValueError, RecursionError):
        return None
