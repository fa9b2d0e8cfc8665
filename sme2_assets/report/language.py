"""What was measured for a language model, in the terms of llama-bench: pp reads a prompt, tg adds a token.

Belongs here: the table with one row per phase, precision and state. It rests on the manifest of the export
(tokens, cache, size) and on the newest run of each state.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np
import pandas as pd

from sme2_assets.errors import Sme2Error
from sme2_assets.models.artifact import MANIFEST, PTE, ModelManifest, read_manifest
from sme2_assets.report.arms import on_unit_cells
from sme2_assets.report.tables import Record, TextTable
from sme2_assets.report.unit_use import unit_counts
from sme2_assets.store import Store
from sme2_assets.warehouse import Warehouse

HEADER = (
    *("variant", "test", "platform", "device", "threads", "SME2", "t/s", "ms"),
    *("on the SME unit", "MACs on the unit", "program MB", "cache kB"),
)
_RUNS = """
SELECT latest.platform, latest.device, latest.threads, latest.sme2, latest.fidelity, median_ns, run_id
FROM latest_runs AS latest JOIN latency_summary USING (run_id)
WHERE latest.variant = ? ORDER BY ALL
"""


@dataclass(frozen=True)
class Phase:
    """What one inference of a program of a language model does."""

    test: str
    tokens: int
    """Of all texts in the batch together."""
    cache_bytes: int
    program_bytes: int


def phase_of(manifest: ModelManifest) -> Phase | None:
    """The phase of a program that returns logits, and a cache or keeps it itself; None for any other."""
    if manifest.steps == 1:
        return _phase_with_cache(manifest)
    return None if manifest.state_bytes is None else _phase_with_state(manifest, manifest.state_bytes)


def _phase_with_state(manifest: ModelManifest, state_bytes: int) -> Phase | None:
    tokens, logits = manifest.inputs[0], manifest.outputs[0]
    is_text = tokens.dtype == "int64" and len(tokens.shape) == len(logits.shape) == 2
    if not is_text or len(manifest.inputs) > 1:
        return None
    batch, length = tokens.shape
    test = "tg1" if length == 1 else f"pp{length}"
    return Phase(test, batch * length, state_bytes, manifest.files[PTE].bytes)


def _phase_with_cache(manifest: ModelManifest) -> Phase | None:
    cache = manifest.outputs[1:]
    if len(cache) < 2 or len(cache) % 2 or len({tuple(tensor.shape) for tensor in cache}) != 1:
        return None
    batch, length = (*manifest.inputs[0].shape, 1, 1)[:2]
    takes_cache = len(manifest.inputs) > len(cache)
    if not takes_cache and len(manifest.inputs) != 1:
        return None
    held = sum(prod(tensor.shape) * np.dtype(tensor.dtype).itemsize for tensor in cache)
    test = f"tg{length}" if takes_cache else f"pp{length}"
    return Phase(test, batch * length, held, manifest.files[PTE].bytes)


def language_table(store: Store, warehouse: Warehouse, variants: list[str]) -> TextTable:
    """A row for each phase, precision and state that was measured."""
    measured = {variant: runs for variant in variants if len(runs := warehouse.query(_RUNS, [variant]))}
    if not measured:
        raise Sme2Error(
            "No language model of that name was measured.",
            f"Measure both phases first: sme2 profile {variants[0]}",
        )
    exports = {variant: current for variant in measured if (current := store.current("model", variant))}
    if not exports:
        first = next(iter(measured))
        raise Sme2Error(
            f"{first} was measured, but its export, which says how many tokens it reads, is not here.",
            f"Export and measure it here: sme2 profile {first}",
        )
    rows = []
    for variant, current in exports.items():
        phase = phase_of(read_manifest(store.artifacts / "models" / variant / current / MANIFEST))
        if phase is not None:
            runs = measured[variant]
            counts = unit_counts(warehouse, runs["run_id"].tolist())
            rows += [_cells(variant, phase, run, counts.get(run["run_id"])) for _, run in runs.iterrows()]
    if not rows:
        first = next(iter(exports))
        raise Sme2Error(
            f"{first} is not a language model: it has no inputs and outputs of tokens with a cache.",
            f"What was measured of it is in its report: sme2 report {first}",
        )
    return TextTable.of(HEADER, rows)


def _cells(variant: str, phase: Phase, run: pd.Series, counts: Record | None) -> list[object]:
    # Emulated times, and those of another architecture, say nothing about SME2.
    timed = run["fidelity"] not in ("emulated", "reference")
    return [
        variant,
        phase.test,
        run["platform"],
        run["device"],
        run["threads"],
        run["sme2"],
        f"{phase.tokens / run['median_ns'] * 1e9:,.1f}" if timed else None,
        f"{run['median_ns'] / 1e6:.3f}" if timed else None,
        *on_unit_cells(counts),
        f"{phase.program_bytes / 1e6:.2f}",
        f"{phase.cache_bytes / 1e3:.1f}",
    ]
