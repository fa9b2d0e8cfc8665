from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sme2_assets.etdump import Events, read_etdump

INFERENCES = 5


@pytest.fixture(scope="session")
def small_trace() -> bytes:
    """A real trace of two inferences, small enough to be mutilated thousands of times."""
    return (Path(__file__).parent / "data" / "small.etdump").read_bytes()


@pytest.fixture(scope="session")
def real_trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trace that ExecuTorch writes now: several delegates, portable operators, several inferences."""
    path = tmp_path_factory.mktemp("etdump") / "trace.etdump"
    command = [sys.executable, "-m", "sme2_assets_tests.etdump.real_trace", str(path)]
    run = subprocess.run(
        [*command, "--inferences", str(INFERENCES)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return path


@pytest.fixture(scope="session")
def events(real_trace: Path) -> Events:
    return read_etdump(real_trace)
