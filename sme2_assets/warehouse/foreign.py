"""A trace that was made elsewhere becomes rows. Facts that nobody stated are NULL.

A foreign run is not an arm of a session, so it is compared with nothing and enters no verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from sme2_assets.analysis.timeline import Timeline
from sme2_assets.errors import TraceError
from sme2_assets.etdump import read_etdump_in_parts
from sme2_assets.evidence.folder import ForeignFolder, identity_of
from sme2_assets.evidence.foreign import FOREIGN, Facts, ForeignStatement
from sme2_assets.warehouse.ingest import (
    DERIVATION,
    constant_column,
    in_parts,
    registered_rows,
    with_named_times,
)
from sme2_assets.warehouse.schema import INFERENCES, REGISTERED_KERNELS, RUNS, TIMELINE
from sme2_assets.warehouse.store import Rows, Warehouse


class ForeignReader:
    """Reads the folder of a foreign run; a trace without an inference that counts is an error.

    `annotation` is a log that somebody added to the run; if there is one, its registered kernels count.
    """

    def __init__(self, folder: ForeignFolder, annotation: Path) -> None:
        self._folder = folder
        self._trace = Timeline(self._facts.warmup or 0)
        self.inferences = pd.DataFrame()
        self.registered = registered_rows(annotation, folder.log)

    @property
    def _facts(self) -> Facts:
        return self._folder.statement.facts

    @property
    def run_id(self) -> str:
        return self._folder.run_id

    def rows(self) -> Iterator[Rows]:
        """The timeline, a part of a long trace at a time, and then all other rows."""
        facts, fidelity = self._facts, _fidelity(self._facts)
        keys = {"variant": facts.variant, "target": facts.target, "run_id": self.run_id}
        for timeline in in_parts(self._timeline()):
            yield TIMELINE, with_named_times(timeline, TIMELINE, fidelity), keys
        self.inferences = _inference_rows(self._trace.execute_ns, facts.warmup or 0)
        yield INFERENCES, with_named_times(self.inferences, INFERENCES, fidelity), keys
        yield REGISTERED_KERNELS, self.registered, keys
        timed = int((~self.inferences["is_warmup"]).sum())
        run = _run_row(self._folder.statement, timed, len(self._trace.signatures))
        yield RUNS, pd.DataFrame([{**run, "evidence_sha256": identity_of(self._folder.path)}]), keys

    def _timeline(self) -> Iterator[pd.DataFrame]:
        facts = self._facts
        same_values = {
            name: getattr(facts, name) for name in ("model", "precision", "platform", "sme2", "threads")
        }
        same_values |= {"fidelity": _fidelity(facts), "pass": "etdump", "round": 0, "emulated_ns": None}
        for _, rows in self._trace.of_parts(read_etdump_in_parts(self._folder.trace)):
            for column, value in same_values.items():
                rows[column] = constant_column(value, len(rows))
            yield rows
        self._require_timed_inference(len(self._trace.execute_ns), facts.warmup or 0)

    def _require_timed_inference(self, inferences: int, warmup: int) -> None:
        if inferences == 0:
            raise TraceError(
                "It contains no inference.", "Run the model at least once with the event tracer attached."
            )
        if warmup >= inferences:
            raise TraceError(
                f"It holds {inferences} inferences, so {warmup} of them cannot be warm-up.",
                "Give a smaller --warmup.",
            )


def write_foreign(
    warehouse: Warehouse, run: ForeignReader, before_commit: Callable[[], None] = lambda: None
) -> None:
    """Stores a foreign run, in place of what was said about the same trace before."""
    warehouse.write_together(run.rows(), [run.run_id], before_commit)


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
