"""The commands of README and docs, run as they are written."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from sme2_assets.store import CHECKOUT, Store
from sme2_assets.targets.qemu import Qemu
from sme2_assets_tests.e2e.conftest import make_data_folder
from sme2_assets_tests.test_docs import documented_sme2_commands


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, artifacts_dir: Path) -> Store:
    return make_data_folder(tmp_path_factory.mktemp("documented") / "data", artifacts_dir)


def run(store: Store, command: list[str]) -> str:
    environment = {**os.environ, "SME2_DATA": str(store.root), "DAGSTER_HOME": str(store.dagster_home)}
    done = subprocess.run(command, cwd=CHECKOUT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_make_demo_profiles_and_compares(store: Store, emulator: Qemu):
    # The environment that runs the tests stands for the one that `make setup` would make.
    ready = f"{sys.prefix}/.ready"
    printed = run(store, ["make", "-o", ready, "demo", f"VENV={sys.prefix}", "DEMO=toy_cnn-int8"])
    assert "toy_cnn-int8 on emulated" in printed
    assert "operators with an SME2 kernel" in printed
    assert "Next: 'make dev'" in printed


@pytest.mark.slow
@pytest.mark.parametrize("command", documented_sme2_commands())
def test_a_documented_command_works(store: Store, emulator: Qemu, command: str):
    words = shlex.split(command)
    assert run(store, [sys.executable, "-m", "sme2_assets.cli", *words[1:]]).strip()
