"""A real runner and real programs for it, made once and kept in pytest's cache (or $SME2_TEST_ARTIFACTS)."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from filelock import FileLock

from sme2_assets.evidence.result import RunnerResult
from sme2_assets.runner.build import RunnerBinary
from sme2_assets.store import CHECKOUT
from sme2_assets_tests.made import real_trace

# What decides which programs there are.
SCRIPTS = [Path(__file__).with_name("programs.py"), Path(real_trace.__file__)]


@dataclass(frozen=True)
class Program:
    pte: Path
    inputs: list[Path]
    expected: list[np.ndarray]


@pytest.fixture(scope="session")
def programs(artifacts_dir: Path) -> Callable[[str], Program]:
    """Looks up one of the programs of `programs.py` by name."""
    version = importlib.metadata.version("executorch")
    decides = b"".join(script.read_bytes() for script in SCRIPTS) + version.encode()
    key = hashlib.sha256(decides).hexdigest()[:16]
    folder = artifacts_dir / "test-programs" / key
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Workers of one test run share the folder.
    with FileLock(folder.parent / f"{key}.lock"):
        if not folder.exists():
            work = Path(tempfile.mkdtemp(dir=folder.parent))
            module = "sme2_assets_tests.runner.programs"
            subprocess.run(
                [sys.executable, "-W", "ignore", "-m", module, str(work)], cwd=CHECKOUT, check=True
            )
            work.rename(folder)

    def program(name: str) -> Program:
        return Program(
            pte=folder / f"{name}.pte",
            inputs=sorted(folder.glob(f"{name}.input_*.npy")),
            expected=[np.load(path) for path in sorted(folder.glob(f"{name}.expected_*.npy"))],
        )

    return program


@dataclass(frozen=True)
class Run:
    """One finished run of the runner, with the folder it wrote to."""

    returncode: int
    stdout: str
    stderr: str
    folder: Path

    @property
    def error(self) -> str:
        """The runner's own last word, without ExecuTorch's log lines."""
        return "\n".join(line for line in self.stderr.splitlines() if line.startswith("sme2_runner: error: "))

    @property
    def result_file(self) -> Path:
        return self.folder / "result.json"

    @property
    def result(self) -> RunnerResult:
        assert self.returncode == 0, self.stderr
        return RunnerResult.read(self.result_file)

    def output(self, index: int) -> np.ndarray:
        return np.load(self.folder / "outputs" / f"output_{index}.npy")


@dataclass(frozen=True)
class Runner:
    binary: Path
    folder: Path

    def call(self, *flags: str | Path, **environment: str) -> Run:
        done = subprocess.run(
            [str(self.binary), *map(str, flags)],
            capture_output=True,
            text=True,
            # ExecuTorch quotes a broken file's bytes in its log.
            errors="replace",
            timeout=600,
            env={**os.environ, **environment},
        )
        return Run(done.returncode, done.stdout, done.stderr, self.folder)

    def flags(
        self,
        pte: Path,
        inputs: Sequence[Path],
        *,
        kind: str = "latency",
        warmup: object = 1,
        iterations: object = 2,
        threads: object = 1,
        warmup_ms: object = None,
        timed_ms: object = None,
        iterations_cap: object = None,
        slowdown_percent: object = None,
        sample_period_us: object = None,
        sample_capacity: object = None,
    ) -> list[str | Path]:
        return [
            *(() if warmup_ms is None else ("--warmup-ms", str(warmup_ms))),
            *(() if timed_ms is None else ("--timed-ms", str(timed_ms))),
            *(() if iterations_cap is None else ("--iterations-cap", str(iterations_cap))),
            *(() if slowdown_percent is None else ("--slowdown-percent", str(slowdown_percent))),
            *(() if sample_period_us is None else ("--sample-period-us", str(sample_period_us))),
            *(() if sample_capacity is None else ("--sample-capacity", str(sample_capacity))),
            *("--model", pte, *(word for path in inputs for word in ("--input", path)), "--pass", kind),
            *("--warmup", str(warmup), "--iterations", str(iterations), "--threads", str(threads)),
            *("--result", self.folder / "result.json", "--outputs", self.folder / "outputs"),
            *(("--samples", self.folder / "recording.json") if kind == "kernels" else ()),
            *(("--etdump", self.folder / "trace.etdump") if kind in ("etdump", "kernels") else ()),
        ]

    def run(self, pte: Path, inputs: Sequence[Path], sme2: str = "on", **options: object) -> Run:
        return self.call(*self.flags(pte, inputs, **options), SME2_RUNNER_SME2=sme2)  # type: ignore[arg-type]


@pytest.fixture
def runner(runner_binary: RunnerBinary, tmp_path: Path) -> Runner:
    return Runner(runner_binary.path, tmp_path)


@pytest.fixture
def native_copy(tmp_path: Path) -> Path:
    """The runner's sources in a folder that a test may change."""
    from sme2_assets.runner.build import NATIVE_DIR

    return Path(shutil.copytree(NATIVE_DIR, tmp_path / "native"))
