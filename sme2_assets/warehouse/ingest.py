"""A finished run folder becomes rows: runs, inferences, timeline, operators, kernel samples, work."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from pandas.api.extensions import ExtensionArray
from pandas.api.types import union_categoricals

from sme2_assets.analysis.attribution import KEYS, align
from sme2_assets.analysis.passes import PassesVerdict, reconcile
from sme2_assets.analysis.paths import Paths
from sme2_assets.analysis.registered import RegisteredKernel, registered_kernels, require_registered
from sme2_assets.analysis.samples import kernel_sample_rows
from sme2_assets.analysis.timeline import BACKENDS, OTHER_DELEGATE, Timeline, execute_durations
from sme2_assets.errors import EvidenceError
from sme2_assets.etdump import Events
from sme2_assets.evidence.arms import ArmsNumerics
from sme2_assets.evidence.folder import RunFolder, RunProcess, identity_of
from sme2_assets.evidence.manifest import Manifest, Moment, Process
from sme2_assets.evidence.operators import ProgramOperators
from sme2_assets.evidence.result import RunnerResult
from sme2_assets.evidence.roofs import Roof
from sme2_assets.store import Store, safe_name, write_text_atomically
from sme2_assets.targets.keys import TargetKey
from sme2_assets.warehouse.schema import (
    ARMS_NUMERICS,
    DELEGATION,
    EMULATED_NS,
    ENVIRONMENT,
    INFERENCES,
    KERNEL_SAMPLES,
    NUMERICS,
    OPERATOR_WORK,
    OPERATORS,
    REGISTERED_KERNELS,
    RUNS,
    TIMELINE,
    Table,
)
from sme2_assets.warehouse.store import Rows, Warehouse
from sme2_assets.work.counts import operator_work_rows

# The version of the code that makes rows from evidence. Any change in what a row says, such as another
# category for an operator, is a new version; `sme2 warehouse rebuild` then applies it to history.
DERIVATION = 12
ANNOTATION = "xnnpack.log"
# Every run is stored in these and in the timeline, even if it has no rows there.
RUN_TABLES = (
    *(RUNS, INFERENCES, OPERATORS, DELEGATION, NUMERICS, ARMS_NUMERICS, ENVIRONMENT),
    *(KERNEL_SAMPLES, OPERATOR_WORK, REGISTERED_KERNELS),
)
# A run with more rows of timeline has them in several files, so that they are never all in memory.
PART_ROWS = 400_000
# What columns of times are called in emulated runs.
EMULATED_TIMES = {"duration_ns": "emulated_ns", "execute_ns": "emulated_execute_ns"}


@dataclass(frozen=True)
class RunRows:
    """One run's rows, before they are written."""

    manifest: Manifest
    runs: pd.DataFrame
    inferences: pd.DataFrame
    timeline: pd.DataFrame
    operators: pd.DataFrame
    delegation: pd.DataFrame
    numerics: pd.DataFrame
    arms_numerics: pd.DataFrame
    environment: pd.DataFrame
    kernel_samples: pd.DataFrame
    operator_work: pd.DataFrame
    registered_kernels: pd.DataFrame

    def parts(self) -> Iterator[Rows]:
        """The rows of each table, as they are stored."""
        return _parts_of(self.manifest, [self.timeline], lambda: vars(self))


def keys_of(manifest: Manifest) -> dict[str, str]:
    """Where a run's rows are stored."""
    identity = manifest.identity
    return {
        "variant": identity.variant,
        "target": str(TargetKey(identity.platform, identity.sme2)),
        "run_id": manifest.run_id,
    }


def rows_of_run(run_dir: Path) -> RunRows:
    """All rows of a run folder at once."""
    reader = RunReader(run_dir)
    timeline = _stacked(list(reader.timeline()))
    return RunRows(reader.manifest, timeline=timeline, **reader.other_rows())


class RunReader:
    """Reads a run folder. A file that is not the one that was measured is an error, not a row.

    `annotation` is a log that somebody added to the run; if there is one, its registered kernels count.
    """

    def __init__(self, run_dir: Path, annotation: Path | None = None) -> None:
        self._folder = _trusted(run_dir)
        self._annotation = annotation
        self._program = self._folder.operators()
        self._inferences: list[pd.DataFrame] = []
        self._operators: list[pd.DataFrame] = []
        self._sampled: list[pd.DataFrame] = []
        self._counted: list[pd.DataFrame] = []
        self._results: list[RunnerResult] = []
        self._paths: list[tuple[str, ...]] = []

    @property
    def manifest(self) -> Manifest:
        return self._folder.manifest

    def parts(self) -> Iterator[Rows]:
        """The rows of each table, as they are stored, and made only as they are asked for."""
        return _parts_of(self.manifest, self.timeline(), self.other_rows)

    def timeline(self) -> Iterator[pd.DataFrame]:
        """The rows of `timeline`, a part of a long trace at a time. To be read to the end, once."""
        identity = self.manifest.identity
        same = ("model", "precision", "platform", "sme2", "threads")
        same_values = {name: getattr(identity, name) for name in same}
        same_values |= {"fidelity": self.manifest.context.fidelity, "emulated_ns": None}
        for rows in in_parts(self._rows_of_processes()):
            for column, value in same_values.items():
                rows[column] = constant_column(value, len(rows))
            self._operators.append(_distinct_operators(rows))
            yield rows

    def _rows_of_processes(self) -> Iterator[pd.DataFrame]:
        for process in self._folder.processes():
            result, facts = process.result, process.facts
            execute_ns = None
            if facts.pass_kind == "etdump":
                timeline = Timeline(result.traced_warmup)
                for events, rows in timeline.of_parts(process.parts_of_trace()):
                    yield _of_process(_with_backends(rows, self._program, events), facts)
                execute_ns = timeline.execute_ns
                self._paths.append(timeline.signatures)
            elif process.is_traced:
                # The trace only shows what was sampled or counted: its times are disturbed.
                events = process.events
                execute_ns = execute_durations(events)
                self._paths.append(Paths.of(events).signatures)
                if facts.pass_kind == "work":
                    found, of_all = self._counted, _work_rows(process, self._program)
                else:
                    found = self._sampled
                    of_all = kernel_sample_rows(process.samples, events, result.traced_warmup)
                found.append(_with_backends(of_all, self._program, events).assign(round=facts.round))
            self._inferences.append(_of_process(_inference_rows(result, execute_ns), facts))
            self._results.append(result)

    def other_rows(self) -> dict[str, pd.DataFrame]:
        """The rows of all other tables, once the timeline was read."""
        folder, manifest, arms = self._folder, self.manifest, self._folder.arms()
        paths = _taken_paths(folder.path, self._paths)
        run = _run_row(manifest, self._results, paths, arms, folder.roof())
        return {
            "runs": pd.DataFrame([run | {"evidence_sha256": identity_of(folder.path)}]),
            "inferences": pd.concat(self._inferences, ignore_index=True),
            "operators": _operator_rows(self._program, self._operators, paths),
            "delegation": _delegation_rows(folder),
            "numerics": _frame(NUMERICS, manifest.info.agreements),
            "arms_numerics": _frame(
                ARMS_NUMERICS, [value.as_json() for value in arms.values] if arms else []
            ),
            "environment": _frame(ENVIRONMENT, _environment_rows(manifest.info.environment)),
            "kernel_samples": pd.concat(self._sampled, ignore_index=True)
            if self._sampled
            else _frame(KERNEL_SAMPLES, []),
            "operator_work": pd.concat(self._counted, ignore_index=True)
            if self._counted
            else _frame(OPERATOR_WORK, []),
            "registered_kernels": registered_rows(
                self._annotation, "".join(process.log for process in folder.processes())
            ),
        }


def in_parts(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    """Frames stacked until they have as many rows as one file should have."""
    waiting: list[pd.DataFrame] = []
    for frame in frames:
        waiting.append(frame)
        if sum(map(len, waiting)) >= PART_ROWS:
            yield _stacked(waiting)
            waiting = []
    if waiting:
        yield _stacked(waiting)


def registered_rows(annotation: Path | None, log_text: str) -> pd.DataFrame:
    """Each kernel that the log added to a run registers, once; without one, those of the run's own log, which
    has none if the runner was built without XNNPACK's logging."""
    if annotation is not None and annotation.is_file():
        return registered_rows_of_log(annotation)
    return _registered_frame(registered_kernels(log_text))


def registered_rows_of_log(path: Path) -> pd.DataFrame:
    """The kernels of a log that must have some."""
    return _registered_frame(require_registered(path.read_text(errors="replace"), str(path)))


def _registered_frame(kernels: Iterable[RegisteredKernel]) -> pd.DataFrame:
    rows = [
        {
            "operator": found.operator,
            "kernel": found.kernel,
            "kernel_family": found.name.family,
            "data_types": "_".join(found.name.data_types),
            "isa": found.name.isa,
        }
        for found in kernels
    ]
    return _frame(REGISTERED_KERNELS, rows)


def write_runs(
    warehouse: Warehouse, *runs: RunReader | RunRows, before_commit: Callable[[], None] = lambda: None
) -> None:
    """Stores the runs of a session: all their rows appear in the tables at once, or none if one cannot be
    read."""
    parts = (part for run in runs for part in run.parts())
    warehouse.write_together(parts, [run.manifest.run_id for run in runs], before_commit)


def _parts_of(
    manifest: Manifest, timeline: Iterable[pd.DataFrame], others: Callable[[], Mapping[str, pd.DataFrame]]
) -> Iterator[Rows]:
    keys, fidelity = keys_of(manifest), manifest.context.fidelity
    for rows in timeline:
        yield TIMELINE, with_named_times(rows, TIMELINE, fidelity), keys
    found = others()
    for table in RUN_TABLES:
        yield table, with_named_times(found[table.name], table, fidelity), keys


def with_named_times(rows: pd.DataFrame, table: Table, fidelity: str | None) -> pd.DataFrame:
    """The rows as they are stored: emulated times have columns of their own, so that no sum, median or share
    of times can include one."""
    if fidelity != "emulated" or EMULATED_NS not in table.columns:
        return rows
    return rows.rename(columns={**EMULATED_TIMES, **{to: of for of, to in EMULATED_TIMES.items()}})


def annotation(store: Store, run_id: str) -> Path:
    """Where a log that somebody added to a run is kept: outside the evidence, which does not change."""
    return store.root / "annotations" / safe_name(run_id) / ANNOTATION


def annotate(store: Store, run_id: str, log_file: Path) -> None:
    """Keeps a log with a run; its registered kernels replace those of the run's own logs."""
    write_text_atomically(annotation(store, run_id), log_file.read_text(errors="replace"))


def _trusted(run_dir: Path) -> RunFolder:
    folder = RunFolder.verified(run_dir)
    if folder.is_slowed:
        raise EvidenceError(
            f"{run_dir} was slowed down on purpose, to test the measurement.",
            "Such a run does not belong in the warehouse.",
        )
    return folder


def _work_rows(process: RunProcess, program: ProgramOperators | None) -> pd.DataFrame:
    vector_bits = process.result.cpu.sme_vector_bits
    # Without SME nothing depends on its length.
    return operator_work_rows(process.work, process.events, program, vector_bits or 128)


def _with_backends(rows: pd.DataFrame, program: ProgramOperators | None, events: Events) -> pd.DataFrame:
    """The rows, with the backend of a delegate by its name, if the program has it. Rows that XNNPACK wrote
    are its own."""
    delegates = program.delegates if program else []
    names = {number: each.backend for number, each in enumerate(delegates)}
    others = [number for number, name in names.items() if name != "XnnpackBackend"]
    nameless = rows["backend"] == BACKENDS[OTHER_DELEGATE]
    # If the calls are not those that the program lists, as with control flow, nobody knows which is which.
    if not (others or nameless.any()) or events.delegate_call.max() + 1 != len(delegates):
        return rows
    named = (rows["kind"] == "operator") & (nameless | rows["delegate"].isin(others))
    backends = rows["delegate"].map(names).where(named)
    return rows.assign(backend=backends.fillna(rows["backend"].astype(object)).astype("category"))


def _distinct_operators(timeline: pd.DataFrame) -> pd.DataFrame:
    """Each operator once, with what tells where it comes from."""
    operators = np.flatnonzero(timeline["kind"] == "operator")
    backend, delegate, position = (timeline[key].take(operators) for key in KEYS)
    # A place as one number, which is compared in less time than three columns.
    place = delegate.to_numpy(np.int64, na_value=-1) + 1
    for column in (position.to_numpy(np.int64), backend.cat.codes.to_numpy(np.int64)):
        place = place * (column.max(initial=0) + 1) + column
    return timeline[[*KEYS, "name"]].take(operators[~pd.Series(place).duplicated().to_numpy()])


def _operator_rows(
    program: ProgramOperators | None, of_parts: list[pd.DataFrame], paths: int
) -> pd.DataFrame:
    """What each operator is; no rows if the run does not say.

    Then either the model came without its operators, or nobody knows which of them a sequence took.
    """
    if program is None or paths != 1:
        return _frame(OPERATORS, [])
    distinct = _stacked(of_parts).drop_duplicates([*KEYS])
    return align(program, distinct)[[column.name for column in OPERATORS.columns]]


def _delegation_rows(folder: RunFolder) -> pd.DataFrame:
    """Which operators were delegated; no rows if the run does not say."""
    report = folder.delegation()
    return _frame(DELEGATION, [row.as_json() for row in report.rows] if report else [])


def _frame(table: Table, rows: list[dict[str, Any]]) -> pd.DataFrame:
    """Rows with the columns of a table, even if there are none."""
    return pd.DataFrame(rows, columns=[column.name for column in table.columns])


def _inference_rows(result: RunnerResult, execute_ns: np.ndarray | None) -> pd.DataFrame:
    untraced = result.traced_warmup - result.warmup_iterations
    warmup = np.arange(untraced, result.traced_warmup, result.warmup_stride)
    iteration = np.concatenate([warmup, result.traced_warmup + np.arange(result.iterations)])
    return pd.DataFrame(
        {
            "iteration": iteration,
            "is_warmup": iteration < result.traced_warmup,
            "duration_ns": np.array([*result.warmup_ns, *result.iteration_ns], dtype=np.int64),
            "cycles": _of_last(result.iteration_cycles, len(iteration)),
            "execute_ns": _of_last(execute_ns, len(iteration)),
            "emulated_ns": constant_column(None, len(iteration)),
            "emulated_execute_ns": constant_column(None, len(iteration)),
        }
    )


def _of_last(values: Sequence[int | None] | np.ndarray | None, length: int) -> ExtensionArray:
    """A column of the values of the last rows; the ones before have none."""
    found = pd.Series(pd.array([] if values is None else values, dtype="Int64"))
    return found.reindex(range(len(found) - length, len(found))).array


def _of_process(rows: pd.DataFrame, process: Process) -> pd.DataFrame:
    rows["pass"] = constant_column(process.pass_kind, len(rows))
    rows["round"] = process.round
    return rows


def _stacked(frames: list[pd.DataFrame]) -> pd.DataFrame:
    """The frames stacked, text still as categories: pandas would drop these where their levels differ."""
    first = frames[0]
    if len(frames) == 1:
        return first
    columns = {
        name: union_categoricals([frame[name] for frame in frames])
        if isinstance(first[name].dtype, pd.CategoricalDtype)
        else pd.concat([frame[name] for frame in frames], ignore_index=True)
        for name in first.columns
    }
    return pd.DataFrame(columns, copy=False)


def constant_column(value: Any, length: int) -> Any:
    """A column of one value; text as a category, which costs a byte per row instead of a pointer."""
    if value is None:
        return pd.arrays.IntegerArray(np.zeros(length, dtype=np.int8), np.ones(length, dtype=bool))
    return (
        pd.Categorical.from_codes(np.zeros(length, dtype=np.int8), [value])
        if isinstance(value, str)
        else value
    )


def _environment_rows(moments: list[Moment]) -> list[dict[str, Any]]:
    before = {moment.round: moment for moment in moments if moment.moment == "before"}
    return [_environment_row(moment, before.get(moment.round, moment)) for moment in moments]


def _environment_row(moment: Moment, before: Moment) -> dict[str, Any]:
    snapshot = moment.snapshot
    stolen_s = [
        each.snapshot.get("counters", {}).get("stolen_s") for each in (before, moment) if moment is not before
    ]
    frequencies = snapshot["cpu_frequency_khz"]
    return {
        "round": moment.round,
        "moment": moment.moment,
        "at": pd.Timestamp(snapshot["at"]),
        "load_1m": snapshot["load_1m"],
        "cpu_mhz": statistics.fmean(frequencies) / 1000 if frequencies else None,
        "governor": snapshot["governor"],
        "temperature_c": snapshot["temperature_c"],
        "other_cores": snapshot.get("other_cores"),
        "heavy_processes": [f"{name}: {share:.2f}" for name, share in snapshot["heavy_processes"]],
        "stolen_s": max(stolen_s[1] - stolen_s[0], 0.0) if stolen_s and None not in stolen_s else None,
        "flags": moment.flags,
    }


def _passes(manifest: Manifest, results: list[RunnerResult]) -> dict[str, Any]:
    """What the passes say together; nothing for emulated times."""
    medians: dict[str, dict[int, float]] = {}
    if manifest.context.fidelity != "emulated":
        for process, result in zip(manifest.info.processes, results, strict=True):
            median_ns = statistics.median(result.iteration_ns)
            medians.setdefault(result.pass_kind, {})[process.round] = median_ns
    verdict = reconcile(medians) if medians else PassesVerdict(None, None)
    return {
        f"passes_{name}" if name in ("agree", "reason") else name: value
        for name, value in vars(verdict).items()
    }


def _taken_paths(run_dir: Path, of_processes: list[tuple[str, ...]]) -> int:
    """How many operator sequences the inferences of a run took.

    Some processes may take fewer of them, but the first ones must be the same in all: operators are numbered
    on from one sequence to the next.
    """
    longest = max(of_processes, key=len, default=())
    if any(paths != longest[: len(paths)] for paths in of_processes):
        raise EvidenceError(
            f"The processes of {run_dir} took different operator sequences through the same program.",
            "Its control flow depends on more than its inputs: profile each way as a program of its own.",
        )
    return len(longest)


def _run_row(
    manifest: Manifest,
    results: list[RunnerResult],
    paths: int,
    arms: ArmsNumerics | None,
    roof: Roof | None,
) -> dict[str, Any]:
    identity, context, info = manifest.identity, manifest.context, manifest.info
    latency = [result for result in results if result.pass_kind == "latency"]
    return {
        "session_id": manifest.session_id,
        "sequence": manifest.sequence,
        "experiment": manifest.experiment,
        "factor": manifest.factor,
        "source": None,
        "arm": manifest.arm,
        "paired": manifest.paired,
        "model": identity.model,
        "precision": identity.precision,
        "platform": identity.platform,
        "sme2": identity.sme2,
        "threads": identity.threads,
        "fidelity": context.fidelity,
        "started_at": pd.Timestamp(info.started_at),
        "finished_at": pd.Timestamp(info.finished_at),
        "rounds": len({process.round for process in info.processes}),
        "warmup": info.plan["warmup"],
        "warmup_s": info.plan.get("warmup_s"),
        "iterations": info.plan["iterations"],
        "timed_s": info.plan.get("timed_s"),
        "paths": paths,
        "seed": info.seed,
        "pte_sha256": identity.pte_sha256,
        "runner_sha256": identity.runner_sha256,
        "runner_pair": identity.runner_pair or identity.runner_sha256,
        "cpus": identity.cpus,
        "power_mode": identity.power_mode,
        "method": identity.method,
        "output_sha256": info.output_sha256,
        "sqnr_db": info.sqnr_db,
        "sqnr_threshold_db": info.sqnr_threshold_db,
        "eager_fault": info.eager_fault,
        "arms_sqnr_db": info.arms_sqnr_db,
        "arms_values": len(arms.values) if arms else None,
        "arms_of_bound": max((value.of_bound for value in arms.values), default=0.0) if arms else None,
        "arms_fault": arms.fault if arms else None,
        "executorch_version": info.versions.get("executorch"),
        "compiler": info.versions.get("compiler"),
        "device": context.device,
        "arch": context.arch,
        "device_model": context.machine.get("model"),
        "soc": context.machine.get("soc"),
        "kernel": context.machine["kernel"],
        "memory_bytes": context.machine["memory_bytes"],
        "cpu": context.machine["cpu"],
        "cores": context.machine["cores"],
        "os": context.machine["os"],
        "emulator": context.machine["emulator"],
        "cpu_features_seen": context.cpu["features_seen"],
        "cpu_features_masked": context.cpu["features_masked"],
        "sme_vector_bits": context.cpu["sme_vector_bits"],
        "roof_fp32_gflops": roof.fp32_gflops if roof else None,
        "roof_read_gb_s": roof.read_gb_s if roof else None,
        "steady": info.steady,
        **_passes(manifest, results),
        "flags": info.flags or ([] if info.watched else None),
        "load_before": context.load_before,
        "load_after": context.load_after,
        "load_ns": None
        if context.fidelity == "emulated"
        else int(statistics.median(result.load_ns for result in latency)),
        "peak_memory_bytes": max(result.peak_memory_bytes for result in latency),
        "samples": sum(result.samples.count for result in results if result.samples),
        "samples_dropped": sum(result.samples.dropped for result in results if result.samples),
        "derivation": DERIVATION,
    }
