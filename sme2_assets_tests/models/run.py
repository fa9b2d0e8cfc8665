"""Runs an exported model in the native runner, as a session does."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sme2_assets.etdump import read_etdump
from sme2_assets.models.artifact import ExportedModel
from sme2_assets.runner.build import RunnerBinary


def outputs_of(model: ExportedModel, runner: RunnerBinary, folder: Path) -> list[npt.NDArray]:
    """What the runner gives for the inputs of the export."""
    _run(model, runner, folder, "--pass", "latency")
    count = len(list((folder / "outputs").glob("output_*.npy")))
    return [np.load(folder / "outputs" / f"output_{index}.npy") for index in range(count)]


def operator_names(model: ExportedModel, runner: RunnerBinary, folder: Path) -> set[str]:
    """The names of everything that ran, as the trace tells them."""
    trace = folder / "trace.etdump"
    _run(model, runner, folder, "--pass", "etdump", "--etdump", str(trace))
    return set(read_etdump(trace).names)


def run(
    model: ExportedModel, runner: RunnerBinary, folder: Path, *arguments: str
) -> subprocess.CompletedProcess[str]:
    """One inference; what became of it is the caller's to judge."""
    command = [str(runner.path), *model.runner_flags(str)]
    command += ["--warmup", "1", "--iterations", "1", "--threads", "1", *arguments]
    command += ["--result", str(folder / "result.json"), "--outputs", str(folder / "outputs")]
    return subprocess.run(command, capture_output=True, text=True, timeout=600)


def _run(model: ExportedModel, runner: RunnerBinary, folder: Path, *arguments: str) -> None:
    done = run(model, runner, folder, *arguments)
    assert done.returncode == 0, done.stderr
