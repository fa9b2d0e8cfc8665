"""Files of the public kit beside a trace: its manifest, its metrics, the runner's log."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

KIT_MANIFEST, KIT_METRICS = "manifest.json", "metrics.json"
# Kept beside the trace under these names, so that they are not mistaken for the run's own.
KEPT_AS = {KIT_MANIFEST: "kit_manifest.json", KIT_METRICS: "kit_metrics.json"}
LARGEST_JSON_BYTES = 64 << 20


def kit_result(trace: Path) -> dict[str, Any] | None:
    """What the kit's manifest says of a trace, with the model of the whole; None where it says nothing."""
    path = beside(trace, KIT_MANIFEST)
    document = json_of(path) if path is not None else None
    if path is None or not isinstance(document, dict):
        return None
    shared = {key: document.get(key) for key in ("model", "generated_at", "config", "executorch")}
    for result in kit_results(document):
        name = promised_trace(result)
        if name is not None and (path.parent / name) == trace:
            return {**shared, **result}
    return {**shared, "results": "none of them is of this trace"}


def kit_results(document: Any) -> list[dict[str, Any]]:
    results = document.get("results") if isinstance(document, dict) else None
    return [result for result in results if isinstance(result, dict)] if isinstance(results, list) else []


def promised_trace(result: dict[str, Any]) -> str | None:
    """The trace of a result, as a path below the manifest; None where the manifest names none there."""
    artifacts = result.get("artifacts")
    etdump = artifacts.get("etdump") if isinstance(artifacts, dict) else None
    name = etdump.get("relative_path") if isinstance(etdump, dict) else None
    if not isinstance(name, str) or Path(name).is_absolute() or ".." in Path(name).parts:
        return None
    return name


def beside(trace: Path, name: str) -> Path | None:
    """A file of the kit that tells of the trace: in its folder, or in the one above, that of the platform."""
    for folder in (trace.parent, trace.parent.parent):
        path = folder / name
        if path.is_file() and path.stat().st_size <= LARGEST_JSON_BYTES:
            return path
    return None


def log_beside(trace: Path) -> Path | None:
    for name in (f"{trace.stem}.log", f"{trace.stem}_latency.log"):
        path = trace.with_name(name)
        if path.is_file() and path.stat().st_size <= LARGEST_JSON_BYTES:
            return path
    return None


def json_of(path: Path) -> Any:
    """The document, None where it cannot be read as one."""
    try:
        if path.stat().st_size > LARGEST_JSON_BYTES:
            return None
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
