"""Whichever call fails: nothing finished is lost, nothing half is seen, and the next attempt works."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sme2_assets_tests.faults.scenarios import KINDS, SCENARIOS

# Each takes a few of its calls in `make test`; the others are alike.
OFTEN = [
    ("publish", "broken"),
    ("publish", "full"),
    ("save", "killed"),
    ("rebuild", "killed"),
    ("give", "full"),
]


@pytest.fixture(scope="session")
def calls(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library that makes calls fail."""
    if sys.platform != "linux":
        pytest.skip("the dynamic linker of Linux puts it before the C library")
    library = tmp_path_factory.mktemp("faults") / "calls.so"
    source = Path(__file__).with_name("calls.c")
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"], check=True)
    return library


def assert_nothing_is_lost(calls: Path, folder: Path, scenario: str, kind: str, some: int) -> None:
    module = "sme2_assets_tests.faults.scenarios"
    words = [sys.executable, "-m", module, str(folder), scenario, kind, str(some)]
    environment = {**os.environ, "LD_PRELOAD": str(calls)}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    *problems, counted = done.stdout.splitlines()
    assert not problems, done.stdout
    assert int(counted.split()[0]) > 10


@pytest.mark.parametrize(("scenario", "kind"), OFTEN)
def test_some_calls_may_fail(calls: Path, tmp_path: Path, scenario: str, kind: str):
    assert_nothing_is_lost(calls, tmp_path, scenario, kind, some=3)


@pytest.mark.thorough
@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_call_may_fail(calls: Path, tmp_path: Path, scenario: str, kind: str):
    assert_nothing_is_lost(calls, tmp_path, scenario, kind, some=0)
