"""The runner's C++ under the compiler's sanitizers: its unit tests, whole runs, and files that mean harm."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from filelock import FileLock

from sme2_assets.runner.build import NATIVE_DIR, find_toolchain

from .conftest import Runner
from .mutants import try_mutants

TESTS_DIR = Path(__file__).with_name("native")
# Looking for leaks takes seconds at the end of every process: tests that are about them ask for it.
QUIET = {"ASAN_OPTIONS": "detect_leaks=0"}


@dataclass(frozen=True)
class Sanitized:
    unit_tests: Path
    runner: Path


@pytest.fixture(scope="session")
def sanitized(artifacts_dir: Path) -> Sanitized:
    """The runner and its unit tests with checks of memory and undefined behaviour: one build for all."""
    tools = find_toolchain()
    digest = hashlib.sha256(f"{tools.compiler_id} {tools.sdk.record_sha256}".encode())
    for folder in (NATIVE_DIR, TESTS_DIR):
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            digest.update(f"{path.relative_to(folder)}\n".encode() + path.read_bytes())
    build = artifacts_dir / "sanitized" / digest.hexdigest()[:16]
    build.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{build}.lock"):
        if not (build / "built").exists():
            _require_sanitizers(tools.compiler, build.parent)
            configure = [
                *(str(tools.cmake), "-G", "Ninja", "-S", str(TESTS_DIR), "-B", str(build)),
                f"-DCMAKE_MAKE_PROGRAM={tools.ninja}",
                f"-DCMAKE_PREFIX_PATH={tools.sdk.folder}",
                # Unknown to CMake, so it adds neither optimisation, which takes longest, nor NDEBUG.
                "-DCMAKE_BUILD_TYPE=Sanitized",
                f"-DSME2_NATIVE_DIR={NATIVE_DIR}",
            ]
            for command in (configure, [str(tools.cmake), "--build", str(build)]):
                environment = {**os.environ, "CXX": shlex.join(tools.compiler)}
                done = subprocess.run(command, capture_output=True, text=True, env=environment)
                assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
            (build / "built").touch()
    return Sanitized(build / "unit_tests", build / "runner" / "sme2_runner")


def _require_sanitizers(compiler: Sequence[str], folder: Path) -> None:
    """Some systems have the sanitizers' libraries in packages that come with no compiler."""
    probe = folder / "probe"
    done = subprocess.run(
        [*compiler, "-fsanitize=address,undefined", "-x", "c++", "-", "-o", str(probe)],
        input="int main() {}",
        capture_output=True,
        text=True,
    )
    probe.unlink(missing_ok=True)
    if done.returncode != 0:
        pytest.skip(f"this compiler has no sanitizers: {done.stderr[-300:]}")


@pytest.fixture
def checked(sanitized: Sanitized, tmp_path: Path) -> Runner:
    return Runner(sanitized.runner, tmp_path)


def reports(text: str) -> list[str]:
    return [line for line in text.splitlines() if re.search(r"Sanitizer:|runtime error:", line)]


def test_every_unit_test_passes_and_leaks_nothing(sanitized):
    done = subprocess.run([str(sanitized.unit_tests)], capture_output=True, text=True, errors="replace")
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(re.findall(r"^ok ", done.stdout, re.MULTILINE)) > 20
    assert reports(done.stderr) == []


@pytest.mark.parametrize("kind", ["latency", "etdump", "kernels"])
@pytest.mark.parametrize("name", ["two_inputs", "portable", "channels_last", "int8"])
def test_a_whole_run_has_nothing_to_report(checked, programs, kind, name):
    program = programs(name)
    run = checked.call(*checked.flags(program.pte, program.inputs, kind=kind, threads=2), **QUIET)
    assert run.returncode == 0, run.stderr
    assert reports(run.stderr) == []
    for index, expected in enumerate(program.expected):
        np.testing.assert_allclose(run.output(index), expected, rtol=0.05, atol=0.05)


def test_a_whole_run_leaks_nothing(checked, programs):
    program = programs("two_inputs")
    run = checked.call(*checked.flags(program.pte, program.inputs, kind="kernels"), SME2_RUNNER_SME2="off")
    assert run.returncode == 0, run.stderr
    assert reports(run.stderr) == []


def assert_only_a_failure(run, codes: set[int]) -> None:
    """The run ended as documented. A crash may be ExecuTorch's own, which checks less than we do."""
    assert "runtime error:" not in run.stderr, run.stderr[-3000:]
    if reports(run.stderr):
        assert re.search(r"^\s+#0 .*sme2_runner", run.stderr, re.MULTILINE) is None, run.stderr[-3000:]
    else:
        assert run.returncode in codes, run.stderr[-3000:]


@pytest.mark.parametrize("keep", [0, 1, 8, 64, 0.1, 0.5, 0.9, 0.99, 0.9999])
def test_a_truncated_model_is_no_way_into_memory(checked, programs, tmp_path, keep):
    program = programs("two_inputs")
    whole = program.pte.read_bytes()
    (tmp_path / "broken.pte").write_bytes(whole[: keep if isinstance(keep, int) else int(keep * len(whole))])
    run = checked.call(*checked.flags(tmp_path / "broken.pte", program.inputs), **QUIET)
    assert_only_a_failure(run, {3})


def test_mutants_of_models_are_no_way_into_memory(sanitized, programs):
    """A crash inside ExecuTorch is its own and ends that process alone; none may be in the runner's code."""
    counts, ours = try_mutants(sanitized.runner, programs("two_inputs").pte.parent, 60, seed=1)
    assert not ours, "\n".join(ours)
    assert counts["refused with a sentence"] > 20
    assert counts["runs"] > 5


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((0,), np.float32),
        np.zeros((1, 3, 16, 17), np.float32),
        np.zeros((1, 3, 16, 15), np.float32),
        np.zeros((3, 16, 16), np.float32),
        np.zeros((1, 3, 16, 16), np.float64),
        np.zeros((1, 3, 16, 0), np.float32),
        np.zeros((), np.int64),
    ],
    ids=lambda array: f"{array.dtype}{list(array.shape)}",
)
def test_an_input_that_does_not_fit_is_no_way_into_memory(checked, programs, tmp_path, array):
    program = programs("two_inputs")
    np.save(tmp_path / "odd.npy", array)
    run = checked.call(*checked.flags(program.pte, [tmp_path / "odd.npy", program.inputs[1]]), **QUIET)
    assert run.returncode == 4, run.stderr
    assert reports(run.stderr) == []


@pytest.mark.parametrize(
    "flags",
    [
        [],
        [""],
        ["-"],
        ["--"],
        ["--model"],
        ["--model="],
        ["--cpus", "0-"],
        ["--threads", "4294967296"],
        ["--slowdown-percent", "9" * 400],
        ["--model", "x" * 100_000],
        [os.fsdecode(b"--\xff\xfe")],
    ],
    ids=lambda flags: " ".join(flags)[:20] or "none",
)
def test_odd_flags_are_no_way_into_memory(checked, flags):
    run = checked.call(*flags, **QUIET)
    assert run.returncode == 2, run.stderr
    assert reports(run.stderr) == []
