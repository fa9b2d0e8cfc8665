"""Runs a runner under the emulator and counts what it executes, while it does."""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from sme2_assets.errors import BuildError, RunnerError
from sme2_assets.runner.build import find_compiler
from sme2_assets.store import one_at_a_time
from sme2_assets.targets.base import Completed

COUNTER_DIR = Path(__file__).with_name("counter")


def build_counter(artifacts: Path, *, log: Callable[[str], None], options: Sequence[str] = ("-O2",)) -> Path:
    """The program that counts, built for this machine unless it is there."""
    sources = sorted(COUNTER_DIR.iterdir())
    compiler = [*find_compiler(), "-std=c++17", "-Wall", "-Wextra", *options]
    made_from = "\0".join([*compiler, *(source.read_text(encoding="utf-8") for source in sources)])
    folder = artifacts / "counters" / hashlib.sha256(made_from.encode()).hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "counter"
    with one_at_a_time(folder / ".lock", "counter of instructions: waiting for another build of it", log):
        if program.exists():
            return program
        with tempfile.TemporaryDirectory(dir=folder) as staging:
            built = Path(staging) / program.name
            inputs = [str(source) for source in sources if source.suffix == ".cpp"]
            done = subprocess.run(
                [*compiler, *inputs, "-o", str(built)], capture_output=True, text=True, check=False
            )
            if done.returncode != 0:
                raise BuildError(
                    f"The counter of instructions could not be compiled: {done.stderr[-2000:]}",
                    "Set CXX to a compiler for C++17.",
                )
            built.rename(program)
    return program


def run_counted(run: Callable[[int], Completed], *, counter: Path, modules: Path, counts: Path) -> Completed:
    """What `run` returns: it runs a command whose emulator logs to a descriptor, and that log is counted.

    RunnerError if the command succeeds and cannot be counted.
    """
    reading, writing = os.pipe()
    try:
        counting = subprocess.Popen(
            [str(counter), str(modules), str(counts)], stdin=reading, stderr=subprocess.PIPE, text=True
        )
    except OSError as error:
        os.close(writing)
        raise RunnerError(f"{counter} could not be started: {error}", "Run `sme2 doctor`.") from error
    finally:
        os.close(reading)
    with counting:
        try:
            completed = run(writing)
        finally:
            # Its end of the pipe is the last, so the counter comes to the end of the log.
            os.close(writing)
            _, said = counting.communicate()
    # An emulator that cannot write its log any more ends, too: the counter knows why.
    if counting.returncode != 0 and (completed.returncode == 0 or "not a" in said):
        raise RunnerError(
            f"What the runner executed could not be counted: {said.strip()}", "Report this as a defect."
        )
    return completed
