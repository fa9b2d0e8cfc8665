"""Traces that were made elsewhere become runs of the warehouse, marked as foreign.

An ETDump says what ran and for how long. It does not say which model, device or SME2 state, or whether
anything else ran at the same time. Those come from the options, the public kit's `manifest.json` and the
names of files and folders, in this order, and nothing is made up: what none of them says is NULL. A foreign
run is not an arm of a session, so it is compared with nothing and enters no verdict.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from sme2_assets.analysis.timeline import execute_durations, timeline_rows
from sme2_assets.errors import Sme2Error, TraceError
from sme2_assets.etdump import Events, read_etdump
from sme2_assets.exchange.find_traces import FoundTrace, RefusedTrace, traces_below
from sme2_assets.exchange.kit import KEPT_AS, beside, log_beside
from sme2_assets.exchange.trace_facts import Facts, facts_of
from sme2_assets.profiling.manifest import LOG_FILE, TRACE_FILE
from sme2_assets.store import Store, sha256_of_file, write_json
from sme2_assets.warehouse.ingest import registered_rows
from sme2_assets.warehouse.schema import INFERENCES, REGISTERED_KERNELS, RUNS, TIMELINE, Table
from sme2_assets.warehouse.store import Warehouse

EXPERIMENT = "foreign"
FOREIGN_FILE = "foreign.json"
FOREIGN_SCHEMA = 1


@dataclass(frozen=True)
class IngestedTrace:
    """A trace that is in the warehouse now."""

    source: str
    run_id: str
    facts: Facts
    inferences: int
    median_execute_ns: float
    registered_kernels: int
    replaced: bool


@dataclass
class Ingested:
    traces: list[IngestedTrace] = field(default_factory=list)
    refused: list[RefusedTrace] = field(default_factory=list)


def ingest_paths(
    store: Store, paths: Sequence[Path], said: Facts, log: Callable[[str], None] = lambda message: None
) -> Ingested:
    """Takes every whole trace at or below the paths into the warehouse; says why the others are not.

    A trace that was ingested before is replaced: its name is the hash of its content.
    """
    warehouse = Warehouse(store.warehouse)
    done = Ingested()
    sources: dict[str, str] = {}
    for path in paths:
        found, refused = traces_below(path)
        done.refused += refused
        for trace in found:
            log(trace.source)
            try:
                ingested = _ingest(store, warehouse, trace, said, sources)
            except Sme2Error as error:
                done.refused.append(RefusedTrace(trace.source, error.what, error.remedy))
            else:
                sources[ingested.run_id] = trace.source
                done.traces.append(ingested)
    if done.traces:
        warehouse.publish()
    return done


def _ingest(
    store: Store, warehouse: Warehouse, trace: FoundTrace, said: Facts, sources: dict[str, str]
) -> IngestedTrace:
    facts, kit = facts_of(trace.path, said)
    staging = _staged(store, trace)
    try:
        sha256 = sha256_of_file(staging / TRACE_FILE)
        run_id = f"{EXPERIMENT}-{sha256[:16]}"
        if run_id in sources:
            raise TraceError(
                f"It has the same content as {sources[run_id]}: one trace is not two runs.",
                "Look which of the two it is, and give that one.",
            )
        events = _events_of(staging / TRACE_FILE, facts.warmup or 0)
        folder = store.run_dir(run_id)
        replaced = _keep(staging, folder, sha256)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    write_json(folder / FOREIGN_FILE, _statement(run_id, trace, facts, kit, folder))
    return _write(warehouse, run_id, trace.source, facts, events, folder, replaced)


def _staged(store: Store, trace: FoundTrace) -> Path:
    """A copy of the trace and of what the kit wrote beside it: what is read is what is kept."""
    store.runs.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=".foreign.", dir=store.runs))
    try:
        shutil.copyfile(trace.path, staging / TRACE_FILE)
        if log := log_beside(trace.path):
            shutil.copyfile(log, staging / LOG_FILE)
        for name, kept_as in KEPT_AS.items():
            if (kit := beside(trace.path, name)) is not None:
                shutil.copyfile(kit, staging / kept_as)
    except OSError as error:
        shutil.rmtree(staging, ignore_errors=True)
        raise TraceError(
            f"It cannot be copied: {error.strerror or error}.",
            "Check that it is readable and the disk has space.",
        ) from error
    staging.chmod(0o755)
    return staging


def _keep(staging: Path, folder: Path, sha256: str) -> bool:
    """Makes the copy the run's folder. One that is there already stays as it is: evidence does not change."""
    if not folder.exists():
        staging.rename(folder)
        return False
    if not (folder / TRACE_FILE).is_file() or sha256_of_file(folder / TRACE_FILE) != sha256:
        raise TraceError(
            f"{folder} is named by the content of this trace and holds another one.",
            "Somebody changed it: remove that folder and ingest again.",
        )
    return True


def _events_of(path: Path, warmup: int) -> Events:
    try:
        events = read_etdump(path)
        inferences = len(execute_durations(events))
        if inferences == 0:
            raise TraceError(
                "It holds no inference.", "Run the model at least once with the event tracer attached."
            )
        if warmup >= inferences:
            raise TraceError(
                f"It holds {inferences} inferences, so {warmup} of them cannot be warm-up.",
                "Give a smaller --warmup.",
            )
    except TraceError as error:
        # The copy's name means nothing to the person who gave the file.
        raise TraceError(error.what.replace(f"ETDump {path}", "It"), error.remedy) from error
    return events


def _statement(
    run_id: str, trace: FoundTrace, facts: Facts, kit: dict[str, Any] | None, folder: Path
) -> dict[str, Any]:
    """What is said of the evidence. Unlike the evidence it may be said again."""
    return {
        "schema": FOREIGN_SCHEMA,
        "run_id": run_id,
        "source": trace.source,
        "ingested_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "facts": asdict(facts),
        "kit": kit,
        "file_sha256": {
            path.name: sha256_of_file(path) for path in sorted(folder.iterdir()) if path.name != FOREIGN_FILE
        },
    }


def _write(
    warehouse: Warehouse, run_id: str, source: str, facts: Facts, events: Events, folder: Path, replaced: bool
) -> IngestedTrace:
    warmup = facts.warmup or 0
    execute_ns = execute_durations(events)
    timeline = timeline_rows(events, warmup).assign(**{"pass": "etdump", "round": 0})
    for column in ("model", "precision", "platform", "sme2", "threads"):
        timeline[column] = getattr(facts, column)
    timeline["fidelity"] = _fidelity(facts)
    log = folder / LOG_FILE
    registered = registered_rows(log.read_text(errors="replace") if log.is_file() else "")
    keys = {"variant": facts.variant, "target": facts.target, "run_id": run_id}
    rows: list[tuple[Table, pd.DataFrame]] = [
        (TIMELINE, timeline),
        (INFERENCES, _inference_rows(execute_ns, warmup)),
        (REGISTERED_KERNELS, registered),
        # Last: before it, no query sees the others as rows of a run.
        (RUNS, pd.DataFrame([_run_row(run_id, source, facts, len(execute_ns) - warmup)])),
    ]
    for table, frame in rows:
        warehouse.write(table, frame, keys)
        warehouse.drop_other_copies(table, keys)
    return IngestedTrace(
        source,
        run_id,
        facts,
        len(execute_ns) - warmup,
        float(np.median(execute_ns[warmup:])),
        len(registered),
        replaced,
    )


def _fidelity(facts: Facts) -> str | None:
    """Hardware is a claim that nobody made; only the emulator is known by its name."""
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
            "execute_ns": execute_ns,
        }
    )


def _run_row(run_id: str, source: str, facts: Facts, iterations: int) -> dict[str, Any]:
    known = {
        # A session of its own: no other run was measured with it.
        "session_id": run_id,
        "experiment": EXPERIMENT,
        "source": source,
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
        "samples": 0,
        "samples_dropped": 0,
    }
    return {column.name: known.get(column.name) for column in RUNS.columns}
