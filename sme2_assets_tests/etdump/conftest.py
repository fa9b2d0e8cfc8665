from __future__ import annotations

import hashlib
import importlib.metadata
import platform
import subprocess
import sys
from pathlib import Path

import pytest
from filelock import FileLock

from sme2_assets.etdump import Events, read_etdump
from sme2_assets.store import CHECKOUT

INFERENCES = 5
PROGRAM = CHECKOUT / "sme2_assets_tests" / "made" / "real_trace.py"


@pytest.fixture(scope="session")
def small_trace() -> bytes:
    """A real trace of two inferences, small enough to be mutilated thousands of times."""
    return (Path(__file__).parent / "data" / "small.etdump").read_bytes()


@pytest.fixture(scope="session")
def real_trace(artifacts_dir: Path) -> Path:
    """A trace that this ExecuTorch writes here: several delegates, portable operators, several inferences."""
    version = importlib.metadata.version("executorch")
    decides = f"{PROGRAM.read_text()} {version} {platform.machine()} {INFERENCES}"
    folder = artifacts_dir / "test-traces"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{hashlib.sha256(decides.encode()).hexdigest()[:16]}.etdump"
    # Workers of one test run share the file.
    with FileLock(path.with_suffix(".lock")):
        if not path.exists():
            made = path.with_suffix(".part")
            command = [sys.executable, "-m", "sme2_assets_tests.made.real_trace", str(made)]
            run = subprocess.run(
                [*command, "--inferences", str(INFERENCES)],
                cwd=CHECKOUT,
                capture_output=True,
                text=True,
                check=False,
            )
            assert run.returncode == 0, run.stderr
            made.rename(path)
    return path


@pytest.fixture(scope="session")
def events(real_trace: Path) -> Events:
    return read_etdump(real_trace)
