"""A trace that was made elsewhere becomes rows. Facts that nobody stated are NULL.

A foreign run is not an arm of a session, so it is compared with nothing and enters no verdict.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from sme2_assets.analysis.paths import Paths
from sme2_assets.analysis.timeline import execute_durations, timeline_rows
from sme2_assets.etdump import read_etdump
from sme2_assets.evidence.folder import ForeignFolder, identity_of
from sme2_assets.evidence.foreign import FOREIGN, Facts, ForeignStatement
from sme2_assets.warehouse.ingest import DERIVATION, registered_rows, with_named_times
from sme2_assets.warehouse.schema import INFERENCES, REGISTERED_KERNELS, RUNS, TIMELINE
from sme2_assets.warehouse.store import Warehouse


@dataclass(frozen=True)
class ForeignRows:
    """The rows of one foreign run, before they are written."""

    statement: ForeignStatement
    runs: pd.DataFrame
    inferences: pd.DataFrame
    timeline: pd.DataFrame
    registered: pd.DataFrame


def rows_of_foreign(folder: ForeignFolder) -> ForeignRows:
    statement = folder.statement
    facts = statement.facts
    warmup = facts.warmup or 0
    events = read_etdump(folder.trace)
    execute_ns = execute_durations(events)
    paths = len(Paths.of(events).signatures)
    timeline = timeline_rows(events, warmup).assign(**{"pass": "etdump", "round": 0})
    for column in ("model", "precision", "platform", "sme2", "threads"):
        timeline[column] = getattr(facts, column)
    timeline["fidelity"] = _fidelity(facts)
    timeline["emulated_ns"] = None
    row = _run_row(statement, len(execute_ns) - warmup, paths)
    return ForeignRows(
        statement,
        pd.DataFrame([{**row, "evidence_sha256": identity_of(folder.path)}]),
        _inference_rows(execute_ns, warmup),
        timeline,
        registered_rows(folder.log),
    )


def write_foreign(warehouse: Warehouse, rows: ForeignRows) -> None:
    """Stores a foreign run, in place of what was said about the same trace before."""
    facts = rows.statement.facts
    fidelity = _fidelity(facts)
    keys = {"variant": facts.variant, "target": facts.target, "run_id": rows.statement.run_id}
    warehouse.write_together(
        [
            (TIMELINE, with_named_times(rows.timeline, TIMELINE, fidelity), keys),
            (INFERENCES, with_named_times(rows.inferences, INFERENCES, fidelity), keys),
            (REGISTERED_KERNELS, rows.registered, keys),
            (RUNS, rows.runs, keys),
        ],
        [rows.statement.run_id],
    )


def _fidelity(facts: Facts) -> str | None:
    """Never hardware, which nobody has claimed; only the emulator is known by its name."""
    return "emulated" if facts.platform == "emulated" else None


def _inference_rows(execute_ns: np.ndarray, warmup: int) -> pd.DataFrame:
    iteration = np.arange(len(execute_ns))
    return pd.DataFrame(
        {
            "pass": "etdump",
            "round": 0,
            "iteration": iteration,
            "is_warmup": iteration < warmup,
            # The runner's own clock is not in a trace.
            "duration_ns": None,
            "cycles": None,
            "execute_ns": execute_ns,
            "emulated_ns": None,
            "emulated_execute_ns": None,
        }
    )


def _run_row(statement: ForeignStatement, iterations: int, paths: int) -> dict[str, Any]:
    facts = statement.facts
    known = {
        # A session of its own: no other run was measured with it.
        "session_id": statement.run_id,
        "experiment": FOREIGN,
        "source": statement.source,
        "arm": facts.sme2,
        "paired": False,
        "model": facts.model,
        "precision": facts.precision,
        "platform": facts.platform,
        "sme2": facts.sme2,
        "threads": facts.threads,
        "fidelity": _fidelity(facts),
        "rounds": 1,
        "warmup": facts.warmup,
        "iterations": iterations,
        "paths": paths,
        "samples": 0,
        "samples_dropped": 0,
        "derivation": DERIVATION,
    }
    return {column.name: known.get(column.name) for column in RUNS.columns}
