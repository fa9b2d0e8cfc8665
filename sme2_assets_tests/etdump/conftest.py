from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sme2_assets.etdump import Events, read_etdump
from sme2_assets.runner.build import RunnerBinary
from sme2_assets_tests.runner.conftest import Program, Runner, programs

__all__ = ["programs"]

INFERENCES = 5


@pytest.fixture(scope="session")
def small_trace() -> bytes:
    """A real trace of two inferences, small enough to be mutilated thousands of times."""
    return (Path(__file__).parent / "data" / "small.etdump").read_bytes()


@pytest.fixture(scope="session")
def real_trace(
    runner_binary: RunnerBinary,
    programs: Callable[[str], Program],
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """A trace that the runner writes here: several delegates, portable operators, several inferences."""
    program = programs("delegates")
    runner = Runner(runner_binary.path, tmp_path_factory.mktemp("trace"))
    run = runner.run(program.pte, program.inputs, kind="etdump", iterations=INFERENCES)
    assert run.returncode == 0, run.stderr
    return runner.folder / "trace.etdump"


@pytest.fixture(scope="session")
def events(real_trace: Path) -> Events:
    return read_etdump(real_trace)
