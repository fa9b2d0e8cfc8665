"""Traces made elsewhere become runs of the warehouse, marked as foreign.

An ETDump says what ran and for how long. It does not say which model, device or SME2 state, or whether
anything else ran at the same time. Those facts come from the options, the public kit's `manifest.json` and
the names of files and folders, in this order, and nothing is made up: a fact that none of them gives is NULL.
A foreign run is not an arm of a session, so it is compared with nothing and enters no verdict.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from sme2_assets.errors import EvidenceError, Sme2Error, TraceError, first_line, printable
from sme2_assets.evidence.folder import LOG_FILE, TRACE_FILE, ForeignFolder
from sme2_assets.evidence.foreign import FOREIGN, FOREIGN_FILE, Facts, ForeignStatement
from sme2_assets.exchange.find_traces import FoundTrace, RefusedTrace, traces_below
from sme2_assets.exchange.kit import KEPT_AS, KIT_MANIFEST, beside, log_beside
from sme2_assets.exchange.regular import LARGEST_TEXT_BYTES, LARGEST_TRACE_BYTES, copy_file
from sme2_assets.exchange.trace_facts import facts_of
from sme2_assets.store import Store, fsync_all, sha256_of_file, write_text_atomically
from sme2_assets.warehouse.foreign import ForeignReader, write_foreign
from sme2_assets.warehouse.ingest import annotation
from sme2_assets.warehouse.store import Warehouse


@dataclass(frozen=True)
class IngestedTrace:
    """A trace that is now in the warehouse."""

    source: str
    run_id: str
    facts: Facts
    inferences: int
    # None if emulated: such a time means nothing.
    median_execute_ns: float | None
    registered_kernels: int
    replaced: bool


@dataclass
class Ingested:
    traces: list[IngestedTrace] = field(default_factory=list)
    refused: list[RefusedTrace] = field(default_factory=list)


def ingest_paths(
    store: Store, paths: Sequence[Path], said: Facts, log: Callable[[str], None] = lambda message: None
) -> Ingested:
    """Adds every complete trace at or below the paths to the warehouse; says why the others were refused.

    A trace that was ingested before is replaced: its name is the hash of its content.
    """
    warehouse = Warehouse(store.warehouse)
    done = Ingested()
    sources: dict[str, str] = {}
    try:
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
    finally:
        # Whatever stops the others: the rows of these are made.
        if done.traces:
            warehouse.publish()
    return done


def _ingest(
    store: Store, warehouse: Warehouse, trace: FoundTrace, said: Facts, sources: dict[str, str]
) -> IngestedTrace:
    facts, kit = facts_of(trace.path, said)
    staging = _staged(store, trace)
    try:
        hashes = _hashes(staging)
        run_id = f"{FOREIGN}-{hashes[TRACE_FILE][:16]}"
        if run_id in sources:
            raise TraceError(
                f"It has the same content as {sources[run_id]}: one trace is not two runs.",
                "Find out which of the two it is, and give that one.",
            )
        folder = store.run_dir(run_id)
        replaced = folder.exists()
        if replaced:
            # An existing folder stays as it is: evidence does not change. Only what is said about it does.
            _require_same(folder, hashes[TRACE_FILE])
            _take_over(folder, staging)
            hashes = _hashes(folder)
        statement = ForeignStatement(
            run_id=run_id,
            source=trace.source,
            ingested_at=datetime.now(UTC).isoformat(timespec="seconds"),
            facts=facts,
            kit=kit,
            file_sha256=hashes,
        )
        write_text_atomically(staging / FOREIGN_FILE, _text_of(statement))
        run = ForeignReader(ForeignFolder(staging, statement), annotation(store, run_id))
        try:
            # Kept once its rows were made: it is complete, possible, and has an inference that counts.
            write_foreign(warehouse, run, lambda: _keep(staging, folder))
        except TraceError as error:
            # The copy's name means nothing to the person who gave the file.
            what = error.what.replace(f"ETDump {staging / TRACE_FILE}", "It")
            raise TraceError(what, error.remedy) from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    timed = run.inferences[~run.inferences["is_warmup"]]
    median_ns = None if facts.platform == "emulated" else float(timed["execute_ns"].median())
    return IngestedTrace(trace.source, run_id, facts, len(timed), median_ns, len(run.registered), replaced)


def _staged(store: Store, trace: FoundTrace) -> Path:
    """A copy of the trace and of the kit's files next to it: what is read is what is kept."""
    store.runs.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=".foreign.", dir=store.runs))
    try:
        copy_file(trace.path, staging / TRACE_FILE, LARGEST_TRACE_BYTES)
        extras = {LOG_FILE: log_beside(trace.path)}
        extras |= {kept_as: beside(trace.path, name) for name, kept_as in KEPT_AS.items()}
        for kept_as, path in extras.items():
            if path is not None:
                try:
                    copy_file(path, staging / kept_as, LARGEST_TEXT_BYTES)
                except TraceError as error:
                    what = f"{printable(path.name)} next to it cannot be copied. {error.what}"
                    raise TraceError(what, error.remedy) from error
    except BaseException as error:
        shutil.rmtree(staging, ignore_errors=True)
        if not isinstance(error, OSError):
            raise
        raise TraceError(
            f"It cannot be copied: {error.strerror or error}.",
            "Check that it is readable and the disk has space.",
        ) from error
    staging.chmod(0o755)
    return staging


def _text_of(statement: ForeignStatement) -> str:
    """The statement as it is kept, if it can be read again: the kit's part of it may be anything."""
    try:
        text = statement.to_json()
        ForeignStatement.parse(text, FOREIGN_FILE)
    except (ValueError, EvidenceError) as error:
        raise TraceError(
            f"{KIT_MANIFEST} next to it has values that cannot be kept: {first_line(error)}",
            f"Correct {KIT_MANIFEST}, or move the trace away from it and say what it is with the options.",
        ) from error
    return text


def _hashes(folder: Path) -> dict[str, str]:
    return {path.name: sha256_of_file(path) for path in sorted(folder.iterdir()) if path.name != FOREIGN_FILE}


def _require_same(folder: Path, sha256: str) -> None:
    if not (folder / TRACE_FILE).is_file() or sha256_of_file(folder / TRACE_FILE) != sha256:
        raise TraceError(
            f"{folder} is named after the content of this trace but contains another one.",
            "Somebody changed it: remove that folder and ingest again.",
        )


def _take_over(folder: Path, staging: Path) -> None:
    """What lies next to the trace, as it was kept before."""
    for path in (*staging.iterdir(), *folder.iterdir()):
        if path.name not in (TRACE_FILE, FOREIGN_FILE):
            path.unlink() if path.parent == staging else shutil.copyfile(path, staging / path.name)


def _keep(staging: Path, folder: Path) -> None:
    """Makes the copy the run's folder; in a folder that is there, only the statement changes."""
    fsync_all(staging)
    if folder.exists():
        (staging / FOREIGN_FILE).replace(folder / FOREIGN_FILE)
    else:
        staging.rename(folder)
