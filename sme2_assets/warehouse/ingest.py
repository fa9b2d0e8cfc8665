"""A finished run folder becomes rows of `runs`, `inferences` and `timeline`."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from pandas.api.types import union_categoricals

from sme2_assets.analysis.timeline import execute_durations, timeline_rows
from sme2_assets.errors import TraceError
from sme2_assets.etdump import read_etdump
from sme2_assets.profiling.manifest import Manifest, Moment, Process
from sme2_assets.runner.result import RunnerResult, read_result
from sme2_assets.store import sha256_of_file
from sme2_assets.targets.keys import TargetKey
from sme2_assets.warehouse.schema import ENVIRONMENT, INFERENCES, RUNS, TIMELINE
from sme2_assets.warehouse.store import Warehouse


@dataclass(frozen=True)
class RunRows:
    """One run's rows, before they are written."""

    manifest: Manifest
    runs: pd.DataFrame
    inferences: pd.DataFrame
    timeline: pd.DataFrame
    environment: pd.DataFrame

    @property
    def keys(self) -> dict[str, str]:
        identity = self.manifest.identity
        return {
            "variant": identity.variant,
            "target": str(TargetKey(identity.platform, identity.sme2)),
            "run_id": self.manifest.run_id,
        }


def rows_of_run(run_dir: Path) -> RunRows:
    """Reads a run folder. A file that is not the one that was measured is an error, not a row."""
    manifest = Manifest.read(run_dir)
    if any("--slowdown-percent" in process.command for process in manifest.info.processes):
        raise TraceError(
            f"{run_dir} was slowed down on purpose, to test the measurement.",
            "Such a run does not belong in the warehouse.",
        )
    _verify_files(run_dir, manifest)
    inferences, timelines, results = [], [], []
    for process in manifest.info.processes:
        directory = run_dir / process.directory
        result = read_result(directory / "result.json")
        execute_ns = None
        if process.pass_kind == "etdump":
            events = read_etdump(directory / "trace.etdump")
            execute_ns = execute_durations(events)
            if len(execute_ns) != len(result.warmup_ns) + len(result.iteration_ns):
                raise TraceError(
                    f"{directory / 'trace.etdump'} holds {len(execute_ns)} inferences, the runner made "
                    f"{len(result.warmup_ns) + len(result.iteration_ns)}.",
                    "The trace is incomplete: measure again, with fewer iterations if it happens again.",
                )
            timelines.append(_of_process(timeline_rows(events, len(result.warmup_ns)), process))
        inferences.append(_of_process(_inference_rows(result, execute_ns), process))
        results.append(result)
    timeline = _stacked(timelines)
    identity = manifest.identity
    for column in ("model", "precision", "platform", "sme2", "threads"):
        timeline[column] = _constant(getattr(identity, column), len(timeline))
    timeline["fidelity"] = _constant(manifest.context.fidelity, len(timeline))
    return RunRows(
        manifest,
        pd.DataFrame([_run_row(manifest, results)]),
        pd.concat(inferences, ignore_index=True),
        timeline,
        pd.DataFrame([_environment_row(moment) for moment in manifest.info.environment]),
    )


def write_run(warehouse: Warehouse, rows: RunRows) -> None:
    """Stores a run. The `runs` row comes last: before it, no query sees the run's other rows as a run."""
    warehouse.write(TIMELINE, rows.timeline, rows.keys)
    warehouse.write(INFERENCES, rows.inferences, rows.keys)
    warehouse.write(ENVIRONMENT, rows.environment, rows.keys)
    warehouse.write(RUNS, rows.runs, rows.keys)


def _verify_files(run_dir: Path, manifest: Manifest) -> None:
    for process in manifest.info.processes:
        for name in ("result.json", "trace.etdump") if process.pass_kind == "etdump" else ("result.json",):
            if f"{process.directory}/{name}" not in manifest.info.file_sha256:
                raise TraceError(
                    f"The manifest of run {manifest.run_id} does not vouch for {process.directory}/{name}.",
                    "Materialise etdump_traces for this partition again.",
                )
    for name, expected in manifest.info.file_sha256.items():
        path = run_dir / name
        if not path.is_file() or sha256_of_file(path) != expected:
            raise TraceError(
                f"{path} is not the file that run {manifest.run_id} wrote: "
                + ("its content changed." if path.is_file() else "it is missing."),
                "Materialise etdump_traces for this partition again.",
            )


def _inference_rows(result: RunnerResult, execute_ns: np.ndarray | None) -> pd.DataFrame:
    durations = [*result.warmup_ns, *result.iteration_ns]
    return pd.DataFrame(
        {
            "iteration": np.arange(len(durations)),
            "is_warmup": np.arange(len(durations)) < len(result.warmup_ns),
            "duration_ns": np.array(durations, dtype=np.int64),
            "execute_ns": pd.array(
                execute_ns if execute_ns is not None else [None] * len(durations), dtype="Int64"
            ),
        }
    )


def _of_process(rows: pd.DataFrame, process: Process) -> pd.DataFrame:
    rows["pass"] = _constant(process.pass_kind, len(rows))
    rows["round"] = process.round
    return rows


def _stacked(frames: list[pd.DataFrame]) -> pd.DataFrame:
    """The frames below one another, text still as categories: where levels differ pandas would drop them."""
    first = frames[0]
    columns = {
        name: union_categoricals([frame[name] for frame in frames])
        if isinstance(first[name].dtype, pd.CategoricalDtype)
        else pd.concat([frame[name] for frame in frames], ignore_index=True)
        for name in first.columns
    }
    return pd.DataFrame(columns, copy=False)


def _constant(value: Any, length: int) -> Any:
    """A column of one value; text as a category, which costs a byte a row and not a pointer."""
    return (
        pd.Categorical.from_codes(np.zeros(length, dtype=np.int8), [value])
        if isinstance(value, str)
        else value
    )


def _environment_row(moment: Moment) -> dict[str, Any]:
    snapshot = moment.snapshot
    frequencies = snapshot["cpu_frequency_khz"]
    return {
        "round": moment.round,
        "moment": moment.moment,
        "at": pd.Timestamp(snapshot["at"]),
        "load_1m": snapshot["load_1m"],
        "cpu_mhz": statistics.fmean(frequencies) / 1000 if frequencies else None,
        "governor": snapshot["governor"],
        "temperature_c": snapshot["temperature_c"],
        "heavy_processes": [f"{name}: {share:.2f}" for name, share in snapshot["heavy_processes"]],
        "flags": moment.flags,
    }


def _run_row(manifest: Manifest, results: list[RunnerResult]) -> dict[str, Any]:
    identity, context, info = manifest.identity, manifest.context, manifest.info
    latency = [result for result in results if result.pass_kind == "latency"]
    return {
        "session_id": manifest.session_id,
        "experiment": manifest.experiment,
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
        "iterations": info.plan["iterations"],
        "seed": info.seed,
        "pte_sha256": identity.pte_sha256,
        "runner_sha256": identity.runner_sha256,
        "output_sha256": info.output_sha256,
        "sqnr_db": info.sqnr_db,
        "sqnr_threshold_db": info.sqnr_threshold_db,
        "arms_sqnr_db": info.arms_sqnr_db,
        "executorch_version": info.versions.get("executorch"),
        "compiler": info.versions.get("compiler"),
        "device": context.device,
        "cpu": context.machine["cpu"],
        "cores": context.machine["cores"],
        "os": context.machine["os"],
        "emulator": context.machine["emulator"],
        "cpu_features_seen": context.cpu["features_seen"],
        "cpu_features_masked": context.cpu["features_masked"],
        "sme_vector_bits": context.cpu["sme_vector_bits"],
        "steady": info.steady,
        "flags": info.flags,
        "load_before": context.load_before,
        "load_after": context.load_after,
        "load_ns": int(statistics.median(result.load_ns for result in latency)),
        "peak_memory_bytes": max(result.peak_memory_bytes for result in latency),
    }
