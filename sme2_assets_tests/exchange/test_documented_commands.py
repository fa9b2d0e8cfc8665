"""docs/exchange.md, command by command, in its order: later ones work on what earlier ones made."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from sme2_assets.store import CHECKOUT
from sme2_assets_tests.e2e.conftest import make_data_folder
from sme2_assets_tests.exchange.measured_pair import LINUX, make_pair
from sme2_assets_tests.test_docs import bash_commands

PAGE = CHECKOUT / "docs" / "exchange.md"


@pytest.mark.thorough
def test_the_page_works_from_top_to_bottom(tmp_path: Path, artifacts_dir: Path):
    store = make_data_folder(tmp_path / "data", artifacts_dir)
    # Stands for the profile that the page begins with.
    make_pair(store, LINUX, rounds=1)
    runs = sorted(path.name for path in store.runs.iterdir())
    environment = {**os.environ, "SME2_DATA": str(store.root), "DAGSTER_HOME": str(store.dagster_home)}
    printed = {}
    for command in bash_commands(PAGE):
        program, *words = shlex.split(command)
        assert program == ".venv/bin/sme2", command
        done = subprocess.run(
            [sys.executable, "-m", "sme2_assets.cli", *words],
            cwd=tmp_path,
            env=environment | {"COLUMNS": "200"},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, command + done.stdout + done.stderr
        printed[words[0]] = done.stdout
    assert "Everything works" in printed["smoke"]
    assert sorted(path.name for path in store.runs.iterdir()) == runs, "smoke left runs in the data folder"
    assert not list(store.dagster_home.glob("**/*.db")), "smoke wrote into the instance of the data folder"
    assert (tmp_path / "perfetto_trace" / "toy_cnn_xnnpack_fp32.pftrace").is_file()
