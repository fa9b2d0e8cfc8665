"""Traces that were made elsewhere become runs of the warehouse, marked as foreign.

An ETDump tells what ran and for how long. It does not tell the model, the device, the SME2 state or whether
anything else ran at the same time. Those are taken from the options, the public kit's `manifest.json` and the
names of files and folders, in this order, and nothing is made up: what none of them tells is NULL. A foreign
run is no arm of a session, so it is compared with nothing and enters no verdict.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from sme2_assets.analysis.timeline import execute_durations, timeline_rows
from sme2_assets.errors import Sme2Error, TraceError, printable
from sme2_assets.etdump import Events, read_etdump
from sme2_assets.models.spec import PRECISIONS
from sme2_assets.profiling.manifest import FILE_NAME as RUN_MANIFEST
from sme2_assets.profiling.manifest import LOG_FILE, TRACE_FILE
from sme2_assets.store import Store, safe_name, sha256_of_file, write_json
from sme2_assets.targets.keys import PLATFORMS
from sme2_assets.warehouse.ingest import registered_rows
from sme2_assets.warehouse.schema import INFERENCES, REGISTERED_KERNELS, RUNS, TIMELINE, Table
from sme2_assets.warehouse.store import Warehouse

EXPERIMENT = "foreign"
FOREIGN_FILE = "foreign.json"
FOREIGN_SCHEMA = 1
KIT_MANIFEST, KIT_METRICS = "manifest.json", "metrics.json"
# Kept beside the trace under these names, so that they are not taken for the run's own.
KEPT_AS = {KIT_MANIFEST: "kit_manifest.json", KIT_METRICS: "kit_metrics.json"}
UNKNOWN = "unknown"
# Platforms that the kit or we know. A name that is none of them says nothing.
KNOWN_PLATFORMS = tuple(dict.fromkeys((*PLATFORMS, "android")))
LARGEST_JSON_BYTES = 64 << 20
MOST_THREADS = 1024

_STATE = re.compile(r"(?<![A-Za-z0-9])sme2[_-]?(on|off)(?![A-Za-z0-9])", re.IGNORECASE)
_THREADS = re.compile(r"_t(\d{1,4})$")
_MODEL_STEM = re.compile(rf"(?P<model>.+?)(?:_xnnpack)?(?:[_-](?P<precision>{'|'.join(PRECISIONS)}))?")


@dataclass(frozen=True)
class Facts:
    """What is known of a trace beside its events. None: nobody told."""

    model: str | None = None
    precision: str | None = None
    platform: str | None = None
    sme2: str | None = None
    threads: int | None = None
    warmup: int | None = None

    @property
    def variant(self) -> str:
        if self.model is None:
            return UNKNOWN
        return self.model if self.precision is None else f"{self.model}-{self.precision}"

    @property
    def target(self) -> str:
        return f"{self.platform or UNKNOWN}-sme2_{self.sme2 or UNKNOWN}"

    @property
    def unknown(self) -> list[str]:
        return [
            name
            for name in ("model", "precision", "platform", "sme2", "threads")
            if getattr(self, name) is None
        ]


@dataclass(frozen=True)
class Taken:
    """A trace that is in the warehouse now."""

    source: str
    run_id: str
    facts: Facts
    inferences: int
    median_execute_ns: float
    registered_kernels: int
    replaced: bool


@dataclass(frozen=True)
class Problem:
    """A file or folder that was not taken, and why."""

    source: str
    what: str
    remedy: str | None = None


@dataclass
class Ingested:
    taken: list[Taken] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


@dataclass(frozen=True)
class _Found:
    """A trace that was found, and what was given to look into."""

    path: Path
    given: Path

    @property
    def source(self) -> str:
        """How people see it: below what they gave, and without characters that a terminal obeys."""
        inside = self.path.relative_to(self.given.parent) if self.given != self.path else Path(self.path.name)
        return printable(str(inside))


def said_by_options(
    model: str | None, platform: str | None, sme2: str | None, threads: int | None, warmup: int | None
) -> Facts:
    """What a person says of all traces; MODEL may end in a precision, as everywhere."""
    facts = Facts(platform=platform, sme2=sme2, threads=threads, warmup=warmup)
    if model is None:
        return facts
    name, separator, precision = safe_name(model).rpartition("-")
    if separator and precision in PRECISIONS:
        return replace(facts, model=name, precision=precision)
    return replace(facts, model=model)


def ingest_paths(
    store: Store, paths: Sequence[Path], said: Facts, log: Callable[[str], None] = lambda message: None
) -> Ingested:
    """Takes every whole trace at or below the paths into the warehouse; says why the others are not.

    A trace that was taken before is replaced: its name is the hash of its content.
    """
    warehouse = Warehouse(store.warehouse)
    done = Ingested()
    sources: dict[str, str] = {}
    for path in paths:
        found, problems = _traces_below(path)
        done.problems += problems
        for trace in found:
            log(trace.source)
            try:
                taken = _take(store, warehouse, trace, said, sources)
            except Sme2Error as error:
                done.problems.append(Problem(trace.source, error.what, error.remedy))
            else:
                sources[taken.run_id] = trace.source
                done.taken.append(taken)
    if done.taken:
        warehouse.publish()
    return done


def _traces_below(path: Path) -> tuple[list[_Found], list[Problem]]:
    given = path.absolute()
    if given.is_file():
        return [_Found(given, given)], []
    if not given.is_dir():
        return [], [Problem(printable(str(path)), "There is no such file or folder.", "Check the path.")]
    found: list[_Found] = []
    problems: list[Problem] = []
    for folder, subfolders, names in os.walk(given):
        subfolders.sort()
        here = Path(folder)
        if (here / RUN_MANIFEST).is_file() and _is_own_run(here):
            problems.append(
                Problem(
                    printable(str(here.name)),
                    "This is a run of `sme2 profile`, not one of another tool.",
                    "Its rows are in the warehouse of its data folder already; give a single .etdump file "
                    "of it to take that as foreign.",
                )
            )
            subfolders.clear()
            continue
        traces = sorted(name for name in names if name.endswith(".etdump"))
        found += [_Found(here / name, given) for name in traces]
        problems += _promised_but_missing(here, given)
        if not traces and not subfolders and _looks_like_an_experiment(here, names):
            problems.append(
                Problem(
                    printable(str(here.relative_to(given.parent))),
                    "The experiment has no .etdump file.",
                    "Look at its log: the runner failed, or was built without the event tracer.",
                )
            )
    if not found and not problems:
        problems.append(
            Problem(
                printable(str(path)), "No .etdump file is below this folder.", "Give the kit's run folder."
            )
        )
    return found, problems


def _is_own_run(folder: Path) -> bool:
    document = _json_of(folder / RUN_MANIFEST)
    return isinstance(document, dict) and "run_id" in document and "identity" in document


def _looks_like_an_experiment(folder: Path, names: Sequence[str]) -> bool:
    """A folder that names an SME2 state and holds a runner's log: the kit's, of a run that gave no trace."""
    logs = [name for name in names if name.endswith(".log") and not name.endswith("_xnntrace.log")]
    return bool(logs) and _STATE.search(folder.name) is not None


def _promised_but_missing(folder: Path, given: Path) -> Iterator[Problem]:
    """Traces that the kit's manifest names and that are not there; and a manifest that cannot be read."""
    path = folder / KIT_MANIFEST
    if not path.is_file():
        return
    document = _json_of(path)
    if document is None:
        yield Problem(
            printable(str(path.relative_to(given.parent))),
            "It is not a JSON document.",
            "The traces are read without it: say what their names do not, with the options.",
        )
        return
    for result in _kit_results(document):
        name = _promised_trace(result)
        if name is not None and not (folder / name).is_file():
            yield Problem(
                printable(str(path.relative_to(given.parent))),
                f"It names a trace that is not there: {printable(name)}.",
                "Copy it too, or measure again.",
            )


def _promised_trace(result: dict[str, Any]) -> str | None:
    """The trace of a result, as a path below the manifest; None where the manifest names none there."""
    artifacts = result.get("artifacts")
    etdump = artifacts.get("etdump") if isinstance(artifacts, dict) else None
    name = etdump.get("relative_path") if isinstance(etdump, dict) else None
    if not isinstance(name, str) or Path(name).is_absolute() or ".." in Path(name).parts:
        return None
    return name


def _take(store: Store, warehouse: Warehouse, trace: _Found, said: Facts, sources: dict[str, str]) -> Taken:
    facts, kit = _facts_of(trace, said)
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


def _staged(store: Store, trace: _Found) -> Path:
    """A copy of the trace and of what the kit wrote beside it: what is read is what is kept."""
    store.runs.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=".foreign.", dir=store.runs))
    try:
        shutil.copyfile(trace.path, staging / TRACE_FILE)
        if log := _log_beside(trace.path):
            shutil.copyfile(log, staging / LOG_FILE)
        for name, kept_as in KEPT_AS.items():
            if (kit := _beside(trace.path, name)) is not None:
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


def _facts_of(trace: _Found, said: Facts) -> tuple[Facts, dict[str, Any] | None]:
    """What is known: by the options first, then by the kit's manifest, then by names."""
    kit = _kit_result(trace.path)
    named = _named(trace.path)
    if said.sme2 is None and named.sme2 == "?":
        raise TraceError(
            f"Its file name and its folder ({printable(trace.path.parent.name)}) name different SME2 states.",
            "Say which it is: --sme2 on or --sme2 off.",
        )
    told = [said, _told_by_kit(kit), named]
    model = next((facts for facts in told if facts.model is not None), Facts())
    found = {
        name: next((getattr(facts, name) for facts in told if getattr(facts, name) is not None), None)
        for name in ("platform", "sme2", "threads", "warmup")
    }
    # The precision belongs to the name of the model: that of another source may be of another model.
    return Facts(model=model.model, precision=model.precision, **found), kit


def _named(path: Path) -> Facts:
    """What names tell: `out_<model>/runs/<platform>/<experiment>/<model>_<experiment>_t<threads>.etdump`."""
    stem, experiment = path.stem, path.parent.name
    threads = _THREADS.search(stem)
    plain = stem[: threads.start()] if threads else stem
    states = {match[1].lower() for match in (_STATE.search(plain), _STATE.search(experiment)) if match}
    return Facts(
        **asdict(_model_of(_model_in_name(plain, experiment), path)),
        platform=_platform_of(path, plain, experiment),
        sme2=("?" if len(states) > 1 else states.pop()) if states else None,
        threads=int(threads[1]) if threads and 1 <= int(threads[1]) <= MOST_THREADS else None,
    )


@dataclass(frozen=True)
class _Model:
    model: str | None
    precision: str | None


def _model_of(stem: str | None, path: Path | None = None) -> _Model:
    """Model and precision of the stem of a .pte; else the model of the folder `out_<model>`."""
    match = _MODEL_STEM.fullmatch(stem) if stem else None
    if match and _is_name(match["model"]):
        return _Model(match["model"], match["precision"])
    above = list(path.parents) if path is not None else []
    for folder in above:
        if folder.name.startswith("out_") and folder / "runs" in above:
            name = folder.name.removeprefix("out_")
            return _Model(name if _is_name(name) else None, None)
    return _Model(None, None)


def _model_in_name(plain: str, experiment: str) -> str | None:
    """The part of a file name before its experiment; None where the name has no such form."""
    before, separator, after = plain.partition(f"_{experiment}")
    if separator and not after:
        return before
    state = _STATE.search(plain)
    if state is None:
        return None
    words = plain[: state.start()].rstrip("_-").split("_")
    if words[-1] in KNOWN_PLATFORMS:
        words.pop()
    return "_".join(words) or None


def _platform_of(path: Path, plain: str, experiment: str) -> str | None:
    for folder in path.parents:
        if folder.parent.name == "runs" and folder.name in KNOWN_PLATFORMS:
            return folder.name
    # Of an experiment's name only: any other file or folder may be called mac.
    words = [
        word for name in (plain, experiment) if _STATE.search(name) for word in re.split(r"[_.\-]", name)
    ]
    named = {word for word in words if word in KNOWN_PLATFORMS}
    return named.pop() if len(named) == 1 else None


def _told_by_kit(result: dict[str, Any] | None) -> Facts:
    if result is None:
        return Facts()
    threads, model = result.get("threads"), result.get("model")
    named = _model_of(Path(model.replace("\\", "/")).stem if isinstance(model, str) else None)
    known = isinstance(threads, int) and not isinstance(threads, bool) and 1 <= threads <= MOST_THREADS
    # Its warm-up is no matter of the trace: the kit warms up in a process of its own.
    return Facts(model=named.model, precision=named.precision, threads=threads if known else None)


def _kit_result(trace: Path) -> dict[str, Any] | None:
    """What the kit's manifest says of a trace, with the model of the whole; None where it says nothing."""
    path = _beside(trace, KIT_MANIFEST)
    document = _json_of(path) if path is not None else None
    if path is None or not isinstance(document, dict):
        return None
    shared = {key: document.get(key) for key in ("model", "generated_at", "config", "executorch")}
    for result in _kit_results(document):
        name = _promised_trace(result)
        if name is not None and (path.parent / name) == trace:
            return {**shared, **result}
    return {**shared, "results": "none of them is of this trace"}


def _kit_results(document: Any) -> list[dict[str, Any]]:
    results = document.get("results") if isinstance(document, dict) else None
    return [result for result in results if isinstance(result, dict)] if isinstance(results, list) else []


def _beside(trace: Path, name: str) -> Path | None:
    """A file of the kit that tells of the trace: in its folder, or in the one above, that of the platform."""
    for folder in (trace.parent, trace.parent.parent):
        path = folder / name
        if path.is_file() and path.stat().st_size <= LARGEST_JSON_BYTES:
            return path
    return None


def _log_beside(trace: Path) -> Path | None:
    for name in (f"{trace.stem}.log", f"{trace.stem}_latency.log"):
        path = trace.with_name(name)
        if path.is_file() and path.stat().st_size <= LARGEST_JSON_BYTES:
            return path
    return None


def _json_of(path: Path) -> Any:
    """The document, None where it cannot be read as one."""
    try:
        if path.stat().st_size > LARGEST_JSON_BYTES:
            return None
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None


def _is_name(text: str) -> bool:
    try:
        safe_name(text)
    except Sme2Error:
        return False
    return len(text) <= 100


def _statement(
    run_id: str, trace: _Found, facts: Facts, kit: dict[str, Any] | None, folder: Path
) -> dict[str, Any]:
    """What is said of the evidence. Unlike the evidence it may be said anew."""
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
) -> Taken:
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
    return Taken(
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
