"""Every variant, exported once; the tests look at the results from all sides."""

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
from sme2_assets.models.registry import variants

REPOSITORY = Path(sme2_assets.errors.__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def exported(artifacts_dir: Path) -> dict[str, ExportedModel]:
    return {variant.key: export_variant(variant.key, artifacts_dir, log=print) for variant in variants()}


@pytest.fixture(scope="session")
def python() -> Callable[..., str]:
    """Runs Python code in a process of its own and gives what it printed."""

    def run(code: str, *arguments: object) -> str:
        search_path = os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")]))
        process = subprocess.run(
            [sys.executable, "-c", code, *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=300,
            env={**os.environ, "PYTHONPATH": search_path},
        )
        assert process.returncode == 0, process.stderr
        return process.stdout

    return run
