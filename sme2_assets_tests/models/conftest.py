from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from sme2_assets.store import CHECKOUT


@pytest.fixture(scope="session")
def python() -> Callable[..., str]:
    """Runs Python code in a process of its own and gives what it printed."""

    def run(code: str, *arguments: object) -> str:
        search_path = os.pathsep.join(filter(None, [str(CHECKOUT), os.environ.get("PYTHONPATH")]))
        process = subprocess.run(
            [sys.executable, "-c", code, *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=900,
            env={**os.environ, "PYTHONPATH": search_path},
        )
        assert process.returncode == 0, process.stderr
        return process.stdout

    return run
