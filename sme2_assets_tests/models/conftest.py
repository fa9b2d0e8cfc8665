"""Variants, each exported once when first asked for; the tests look at the results from all sides."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import sme2_assets.errors
from sme2_assets.models.artifact import ExportedModel
from sme2_assets.models.export import export_variant

REPOSITORY = Path(sme2_assets.errors.__file__).resolve().parents[1]


class _Exported(dict[str, ExportedModel]):
    """Exports a variant when it is asked for: a test pays only for those it looks at."""

    def __init__(self, artifacts: Path) -> None:
        super().__init__()
        self._artifacts = artifacts

    def __missing__(self, key: str) -> ExportedModel:
        self[key] = export_variant(key, self._artifacts, log=print)
        return self[key]


@pytest.fixture(scope="session")
def exported(artifacts_dir: Path) -> dict[str, ExportedModel]:
    return _Exported(artifacts_dir)


@pytest.fixture(scope="session")
def python() -> Callable[..., str]:
    """Runs Python code in a process of its own and gives what it printed."""

    def run(code: str, *arguments: object) -> str:
        search_path = os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")]))
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
