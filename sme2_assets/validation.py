"""Whether a run, a file or a folder can be relied on: step by step, with the cause and a remedy.

What belongs here: which kind of thing it is, what must hold for it, in which order it is looked at. What does
not: the checks themselves where they exist already (the warehouse's, the readers' of traces and results).
A step that only matters for reading a result, such as that a run was measured alone, is a note.
"""

from __future__ import annotations

import json
import math
import statistics
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from sme2_assets.analysis.comparison import why_not_a_pair, why_outputs_differ
from sme2_assets.analysis.timeline import execute_durations, timeline_rows
from sme2_assets.errors import Sme2Error, TraceError
from sme2_assets.etdump import Events, read_etdump
from sme2_assets.evidence.folder import TRACE_FILE, RunFolder
from sme2_assets.evidence.foreign import FOREIGN_FILE, ForeignStatement
from sme2_assets.evidence.manifest import MANIFEST_FILE, Manifest
from sme2_assets.exchange.export import LISTING_FILE
from sme2_assets.exchange.foreign import KIT_MANIFEST, KIT_METRICS, shown
from sme2_assets.exchange.perfetto import faults_of_trace
from sme2_assets.steps import FAILED, NOT_REACHED, NOTE, Step, taken
from sme2_assets.store import Store, sha256_of_file
from sme2_assets.warehouse import checks
from sme2_assets.warehouse.ingest import kernel_rows_of_run, rows_of_run
from sme2_assets.warehouse.read import run_of_id, runs_of_session
from sme2_assets.warehouse.store import Warehouse

# Sums of decimals in a CSV file against one another, in milliseconds: a thousandth of a nanosecond.
_CSV_TOLERANCE_MS = 1e-9
_PTE_IDENTIFIER, _PTE_HEADER = b"ET12", b"eh00"
_EXPERIMENT_SUFFIXES = (".yaml", ".yml", ".json")
_AGAIN = "Measure again with `sme2 profile`."


@dataclass
class Validation:
    """All steps of one thing, in order."""

    what: str
    kind: str
    steps: list[Step] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return bool(self.steps) and not any(step.status in (FAILED, NOT_REACHED) for step in self.steps)

    @contextmanager
    def step(self, name: str) -> Iterator[Step]:
        step = Step(name)
        self.steps.append(step)
        with taken(step):
            yield step

    def note(self, step: Step, problem: str, remedy: str | None = None) -> None:
        step.status, step.problem, step.remedy = NOTE, problem, remedy


def validate(what: str, store: Store) -> Validation:
    """Looks at a run by its id, or at a file or folder by its path. A path wins where both exist."""
    path = Path(what)
    if path.is_dir():
        return _validate_folder(path, store)
    if path.is_file():
        return _validate_file(path, store)
    if "/" not in what and store.runs.joinpath(what).is_dir():
        return _validate_folder(store.run_dir(what), store)
    run = _run_in_warehouse(what, store)
    if run is None:
        raise Sme2Error(
            f"There is no run, file or folder {shown(what)!r}.",
            "`sme2 sql 'SELECT run_id FROM runs'` lists the runs.",
        )
    made = Validation(what, "run")
    with made.step("evidence"):
        raise Sme2Error(
            f"The run is in the warehouse, but its evidence is gone: there is no {store.run_dir(what)}.",
            "Its numbers cannot be checked any more. " + _AGAIN,
        )
    return made


def _validate_folder(folder: Path, store: Store) -> Validation:
    if (folder / LISTING_FILE).is_file():
        return _validate_export(folder)
    if (folder / FOREIGN_FILE).is_file():
        return _validate_foreign_run(folder, store)
    if _is_own_manifest(folder / MANIFEST_FILE):
        return _validate_run(folder, store)
    if (folder / KIT_MANIFEST).is_file() or next(folder.rglob("*.etdump"), None) is not None:
        return _validate_kit_folder(folder)
    raise Sme2Error(
        f"{shown(str(folder))} is no folder that can be validated.",
        "Give a run folder, an exported folder, or a run folder of the public kit.",
    )


def _validate_file(path: Path, store: Store) -> Validation:
    if path.suffix == ".etdump":
        return _validate_trace(path)
    if path.suffix == ".pte":
        return _validate_program(path)
    if path.name in (MANIFEST_FILE, FOREIGN_FILE, LISTING_FILE, KIT_METRICS):
        return _validate_folder(path.parent, store)
    if path.suffix == ".json" and _looks_like_a_trace(path):
        made = Validation(str(path), "Perfetto trace")
        with made.step("trace") as step:
            step.detail = _check_perfetto(path)
        return made
    if path.suffix in _EXPERIMENT_SUFFIXES:
        return _validate_experiment(path, store)
    raise Sme2Error(
        f"{shown(str(path))} is no file that can be validated.",
        "Give an .etdump, a .pte, a manifest.json, a Perfetto trace or an experiment file.",
    )


# A run of our own.


def _validate_run(folder: Path, store: Store) -> Validation:
    made = Validation(folder.name, "run")
    manifest = None
    with made.step("manifest") as step:
        manifest = RunFolder.open(folder).manifest
        step.detail = (
            f"{manifest.identity.variant} on {manifest.identity.platform}, SME2 {manifest.identity.sme2}"
        )
    if manifest is None:
        return made
    with made.step("files") as step:
        step.detail = _check_hashes(folder, manifest.info.file_sha256)
    with made.step("processes") as step:
        failed = [process for process in manifest.info.processes if process.exit_code != 0]
        _require(not failed, f"{len(failed)} processes ended with an error.", _AGAIN)
        step.detail = f"{len(manifest.info.processes)} ended well"
    rows = None
    with made.step("traces") as step:
        rows = rows_of_run(folder)
        kernels = kernel_rows_of_run(folder)
        step.detail = (
            f"{len(rows.timeline):,} timeline rows, {int(kernels.samples['samples'].sum()):,} samples"
        )
    if rows is not None:
        with made.step("nanoseconds") as step:
            step.detail = _check_conservation(rows.timeline, rows.inferences)
        with made.step("metrics") as step:
            _check_run_metrics(made, step, manifest, rows.inferences)
    run = _run_in_warehouse(manifest.run_id, store)
    with made.step("warehouse") as step:
        if run is None:
            made.note(
                step, "The run is not in this warehouse.", "Materialise timeline and what follows for it."
            )
        elif rows is not None:
            _check_in_warehouse(made, step, Warehouse(store.warehouse), run, len(rows.timeline))
    if run is not None:
        _check_pair(made, Warehouse(store.warehouse), run)
    return made


def _check_run_metrics(made: Validation, step: Step, manifest: Manifest, inferences: pd.DataFrame) -> None:
    _require(bool((inferences["duration_ns"] > 0).all()), "An inference took no time.", _AGAIN)
    info = manifest.info
    _require(
        info.sqnr_db is None or info.sqnr_db >= info.sqnr_threshold_db,
        f"The outputs are wrong: {info.sqnr_db} dB against eager, {info.sqnr_threshold_db} dB needed.",
        "Look at the numerics of the run: another precision may be needed.",
    )
    timed = inferences[(inferences["pass"] == "latency") & ~inferences["is_warmup"]]
    rounds = timed.groupby("round")["duration_ns"].median()
    step.detail = f"{len(timed)} timed inferences in {len(rounds)} rounds"
    if manifest.context.fidelity != "emulated":
        step.detail += f", median {rounds.median() / 1e6:.4g} ms"
        if info.flags:
            made.note(
                step, "The machine was not quiet: " + "; ".join(info.flags), "Measure again when it is."
            )


def _check_in_warehouse(
    made: Validation, step: Step, warehouse: Warehouse, run: dict[str, Any], timeline_rows: int
) -> None:
    stored = warehouse.query("SELECT count(*) AS n FROM timeline WHERE run_id = ?", [run["run_id"]])[
        "n"
    ].iloc[0]
    _require(
        stored == timeline_rows,
        f"It has {stored} timeline rows of this run, the evidence gives {timeline_rows}.",
        "Materialise timeline for this partition again.",
    )
    hard: tuple[Callable[[Warehouse, dict[str, Any]], str | None], ...] = (
        checks.conservation_faults,
        checks.sme2_evidence_faults,
        checks.executed_kernel_faults,
    )
    for check in hard:
        fault = check(warehouse, run)
        _require(fault is None, f"{fault}.", "See docs/measuring.md and docs/kernels.md. " + _AGAIN)
    soft = [
        fault
        for check in (checks.noise_faults, checks.unknown_operators, checks.attribution_faults)
        if (fault := check(warehouse, run)) is not None
    ]
    step.detail = f"{stored} timeline rows, as in the evidence"
    if soft:
        made.note(step, "; ".join(soft))


def _check_pair(made: Validation, warehouse: Warehouse, run: dict[str, Any]) -> None:
    """Whether the arms agree, and what their comparison says, or why there is none."""
    with made.step("arms") as step:
        if not run["paired"]:
            made.note(step, "The run was measured alone: it is compared with nothing.")
            return
        session = runs_of_session(warehouse, run["session_id"])
        if len(session) != 2:
            made.note(step, "The other arm of the session is not in this warehouse.", _AGAIN)
            return
        off, on = session
        fault = why_not_a_pair(off, on) or why_outputs_differ(off, on)
        _require(fault is None, f"{fault}", "Measure both states in one session: `sme2 profile`.")
        step.detail = f"{off['run_id']} and {on['run_id']} differ in SME2 alone and compute the same"
    with made.step("comparison") as step:
        rows = warehouse.query(
            "SELECT verdict, reason, speedup FROM comparisons WHERE session_id = ? AND variant = ? "
            "AND platform = ? AND level = 'model'",
            [run["session_id"], run["variant"], run["platform"]],
        )
        if rows.empty:
            made.note(step, "The pair was not compared yet.", "Materialise sme2_comparison for it.")
        elif rows["verdict"].iloc[0] in ("not comparable", "insufficient data"):
            made.note(step, f"{rows['verdict'].iloc[0]}: {rows['reason'].iloc[0]}")
        else:
            step.detail = f"{rows['verdict'].iloc[0]}: {rows['reason'].iloc[0]}"


# A run that was brought.


def _validate_foreign_run(folder: Path, store: Store) -> Validation:
    made = Validation(folder.name, "foreign run")
    statement = None
    with made.step("manifest") as step:
        statement = ForeignStatement.read(folder / FOREIGN_FILE)
        step.detail = f"from {statement.source}"
    with made.step("files") as step:
        step.detail = _check_hashes(folder, statement.file_sha256 if statement else {})
    _trace_steps(made, folder / TRACE_FILE)
    run = _run_in_warehouse(folder.name, store)
    with made.step("warehouse") as step:
        if run is None:
            made.note(step, "The run is not in this warehouse.", "Ingest the trace again.")
        else:
            warehouse = Warehouse(store.warehouse)
            fault = checks.conservation_faults(warehouse, run)
            _require(fault is None, f"{fault}.", "Ingest the trace again.")
            step.detail = f"{run['variant']} as {run['target']}"
    with made.step("comparison") as step:
        made.note(step, "A foreign run has no other arm and unknown provenance: it supports no verdict.")
    return made


# Files.


def _validate_trace(path: Path) -> Validation:
    made = Validation(str(path), "ETDump")
    _trace_steps(made, path)
    return made


def _trace_steps(made: Validation, path: Path) -> None:
    events: Events | None = None
    with made.step("trace") as step:
        events = read_etdump(path)
        inferences = len(execute_durations(events))
        _require(inferences > 0, "It holds no inference.", "Run the model with the event tracer attached.")
        step.detail = f"{inferences} inferences, {len(events):,} events"
    if events is None or made.steps[-1].status == FAILED:
        return
    timeline = timeline_rows(events, 0)
    with made.step("nanoseconds") as step:
        execute_ns = execute_durations(events)
        inferences = pd.DataFrame({"iteration": range(len(execute_ns)), "execute_ns": execute_ns})
        step.detail = _check_conservation(
            timeline.assign(round=0), inferences.assign(round=0, duration_ns=None, **{"pass": "etdump"})
        )
    with made.step("operators") as step:
        operators = timeline[timeline["kind"] == "operator"]
        unknown = sorted(set(operators.loc[~operators["known"], "name"]))
        step.detail = f"{len(operators) // max(len(execute_ns), 1)} an inference"
        if unknown:
            made.note(step, f"Counted as Other, because their names are unknown: {', '.join(unknown[:10])}")


def _validate_program(path: Path) -> Validation:
    made = Validation(str(path), "ExecuTorch program")
    with made.step("format") as step:
        size = path.stat().st_size
        with path.open("rb") as file:
            head = file.read(64)
            content = head + file.read()
        _require(
            head[4:8] == _PTE_IDENTIFIER,
            "It is not an ExecuTorch program: the identifier ET12 is not in it.",
            "Give the .pte file that the export wrote.",
        )
        step.detail = f"{size:,} bytes"
        if head[8:12] == _PTE_HEADER:
            length, program, segments = struct.unpack_from("<IQQ", head, 12)
            data = struct.unpack_from("<Q", head, 32)[0] if length >= 32 else 0
            _require(
                program <= size and segments + data <= size,
                f"It is cut off: {size:,} of {max(program, segments + data):,} bytes are there.",
                "Copy or export it again.",
            )
    if made.ok:
        with made.step("delegates") as step:
            if b"XnnpackBackend" in content:
                step.detail = "it has parts for XNNPACK"
            else:
                made.note(
                    step,
                    "Nothing in it is for XNNPACK, which alone has SME2 kernels.",
                    "Export it with the XNNPACK partitioner.",
                )
    return made


def _validate_experiment(path: Path, store: Store) -> Validation:
    """What `sme2 config check` looks at, as steps."""
    # Only when such a file is given: models and devices are behind it.
    from sme2_assets.defs.resources import Lab
    from sme2_assets.experiments.check import checks_of
    from sme2_assets.experiments.load import load
    from sme2_assets.experiments.plan import planned

    made = Validation(str(path), "experiment file")
    found = []
    with made.step("content"):
        lab = Lab(data_root=str(store.root))
        loaded = load(path)
        found = checks_of(loaded, planned(loaded, lab), lab)
    for check in found:
        with made.step(check.name) as step:
            step.detail = check.detail if check.ok else ""
            _require(check.ok, check.detail, check.remedy)
    return made


# Folders for and from other tools.


def _validate_export(folder: Path) -> Validation:
    made = Validation(str(folder), "exported folder")
    listing: dict[str, Any] = {}
    with made.step("listing") as step:
        listing = _strict_json(folder / LISTING_FILE)
        hashes = listing.get("file_sha256")
        _require(isinstance(hashes, dict) and bool(hashes), f"{LISTING_FILE} lists nothing.", "Export again.")
        step.detail = f"{', '.join(listing.get('runs', []))}"
    with made.step("files") as step:
        step.detail = _check_hashes(folder, listing.get("file_sha256") or {}, "Export again.")
    for path in sorted(folder.rglob("*_exec_all_runs_timeline.csv")):
        with made.step("timeline") as step:
            step.detail = _check_timeline_csv(path)
    if (folder / KIT_METRICS).is_file():
        with made.step("metrics") as step:
            step.detail = _check_metrics(_strict_json(folder / KIT_METRICS))
    for path in sorted(folder.glob("*.perfetto.json")):
        with made.step("trace") as step:
            step.detail = _check_perfetto(path)
    return made


def _validate_kit_folder(folder: Path) -> Validation:
    made = Validation(str(folder), "run folder of the public kit")
    traces = sorted(folder.rglob("*.etdump"))
    with made.step("traces found") as step:
        _require(bool(traces), "No .etdump file is below this folder.", "Run the kit's pipeline again.")
        step.detail = f"{len(traces)}"
    if (folder / KIT_MANIFEST).is_file():
        with made.step("manifest") as step:
            step.detail = _check_kit_manifest(folder)
    if (folder / KIT_METRICS).is_file():
        with made.step("metrics") as step:
            step.detail = _check_metrics(_strict_json(folder / KIT_METRICS))
    for path in traces:
        before = len(made.steps)
        _trace_steps(made, path)
        for step in made.steps[before:]:
            step.name = f"{shown(path.stem)}: {step.name}"
    with made.step("comparison") as step:
        made.note(
            step,
            "Arms that were not interleaved support no verdict.",
            "`sme2 ingest` takes them as foreign runs; `sme2 profile` measures a pair.",
        )
    return made


def _check_kit_manifest(folder: Path) -> str:
    document = _strict_json(folder / KIT_MANIFEST)
    results = document.get("results")
    _require(
        isinstance(results, list) and bool(results), "It has no results.", "Run the kit's pipeline again."
    )
    missing = []
    for result in results if isinstance(results, list) else []:
        artifacts = result.get("artifacts", {}) if isinstance(result, dict) else {}
        for reference in artifacts.values() if isinstance(artifacts, dict) else ():
            name = reference.get("relative_path") if isinstance(reference, dict) else None
            if isinstance(name, str) and not (folder / name).is_file():
                missing.append(name)
    _require(
        not missing,
        f"It names files that are not there: {', '.join(shown(name) for name in missing[:5])}.",
        "Copy the whole folder, or run the kit's pipeline again.",
    )
    return f"{len(results or [])} results"


def _check_metrics(document: dict[str, Any]) -> str:
    """Latencies are positive numbers, and their median is what the file says."""
    results = document.get("results")
    _require(isinstance(results, list) and bool(results), "It has no results.", "Export or measure again.")
    timed = 0
    for result in results if isinstance(results, list) else []:
        values = result.get("metrics") if isinstance(result, dict) else None
        _require(isinstance(values, dict), "A result has no metrics.", "Export or measure again.")
        latencies = values.get("latency_ms") if isinstance(values, dict) else None
        if not latencies:
            continue
        sane = isinstance(latencies, list) and all(
            isinstance(value, int | float) and math.isfinite(value) and value > 0 for value in latencies
        )
        _require(sane, "A latency is not a time.", "Export or measure again.")
        told = values.get("median_ms") if isinstance(values, dict) else None
        found = statistics.median(latencies)
        _require(
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
    _require(
        len(whole) > 0 and whole.index.equals(parts.index), f"{path.name} lacks inferences.", "Export again."
    )
    off = (whole - parts).abs().max()
    _require(
        off <= _CSV_TOLERANCE_MS * len(rows),
        f"{path.name}: rows do not add up, by {off} ms.",
        "Export again.",
    )
    return f"{path.parent.name}: {len(whole)} inferences, every nanosecond in one row"


def _check_perfetto(path: Path) -> str:
    document = _strict_json(path)
    faults = faults_of_trace(document)
    _require(not faults, f"{len(faults)} faults, the first: {faults[0] if faults else ''}", "Export again.")
    return f"{len(document['traceEvents']):,} events, all slices inside one another"


# What all of them use.


def _require(holds: bool, what: str, remedy: str | None = None) -> None:
    if not holds:
        raise TraceError(what, remedy)


def _check_hashes(folder: Path, expected: dict[str, Any], remedy: str = _AGAIN) -> str:
    _require(bool(expected), "Nothing vouches for any file.", remedy)
    missing = [name for name in expected if not (folder / name).is_file()]
    _require(not missing, f"Missing: {', '.join(shown(name) for name in missing[:5])}.", remedy)
    changed = [name for name, sha256 in expected.items() if sha256_of_file(folder / name) != sha256]
    _require(
        not changed,
        f"Not the files that were written: {', '.join(shown(name) for name in changed[:5])}.",
        remedy,
    )
    return f"{len(expected)} files, all as they were written"


def _check_conservation(timeline: pd.DataFrame, inferences: pd.DataFrame) -> str:
    """Timeline rows of every traced inference add up to its Method::execute, to the nanosecond."""
    traced = inferences[inferences["pass"] == "etdump"].set_index(["round", "iteration"])
    summed = timeline.groupby(["round", "iteration"])["duration_ns"].sum()
    joined = traced.join(summed.rename("total_ns"), how="outer")
    wrong = joined[joined["total_ns"].ne(joined["execute_ns"]) | joined["total_ns"].isna()]
    _require(wrong.empty, f"{len(wrong)} inferences do not add up.", "This is a defect: please report it.")
    known = joined["duration_ns"].notna()
    late = joined[known & (joined["execute_ns"] > joined["duration_ns"].where(known, joined["execute_ns"]))]
    _require(late.empty, f"{len(late)} inferences took longer inside than outside.", _AGAIN)
    return f"{len(joined)} inferences, every nanosecond in exactly one row"


def _run_in_warehouse(run_id: str, store: Store) -> dict[str, Any] | None:
    if not store.warehouse.is_dir():
        return None
    try:
        return run_of_id(Warehouse(store.warehouse), run_id)
    except Sme2Error:
        return None


def _is_own_manifest(path: Path) -> bool:
    if not path.is_file():
        return False
    try:
        document = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError):
        # Broken: most likely ours, where the folder has nothing else that tells.
        return next(path.parent.glob("round_*"), None) is not None
    return isinstance(document, dict) and "run_id" in document and "identity" in document


def _looks_like_a_trace(path: Path) -> bool:
    with path.open("rb") as file:
        return b'"traceEvents"' in file.read(65536)


def _strict_json(path: Path) -> dict[str, Any]:
    def refuse(name: str) -> Any:
        raise ValueError(f"{name} is not a JSON number")

    try:
        document = json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse)
    except (OSError, ValueError, RecursionError) as error:
        raise TraceError(
            f"{path.name} is not a JSON document: {error}.", "Export or measure again."
        ) from error
    _require(isinstance(document, dict), f"{path.name} is not a JSON object.", "Export or measure again.")
    return dict(document)
