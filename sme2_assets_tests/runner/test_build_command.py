"""`sme2 build-runner` without a checkout: the runner of the installed ExecuTorch."""

from __future__ import annotations

import json
import platform
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from sme2_assets.cli import main
from sme2_assets.runner.build import RunnerBinary
from sme2_assets.targets.host import host_platform


def build(data: Path, *words: str) -> Result:
    return CliRunner().invoke(main, ["--data", str(data), "build-runner", *words])


@pytest.fixture
def data(tmp_path: Path, artifacts_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    # The command sets it, and must not leave it behind.
    monkeypatch.setenv("SME2_DATA", str(tmp_path))
    (tmp_path / "artifacts").symlink_to(artifacts_dir)
    return tmp_path


def test_it_is_the_runner_that_a_measurement_would_use(data: Path, runner_binary: RunnerBinary):
    host = str(host_platform())
    done = build(data, "--platform", host, "--json")
    assert done.exit_code == 0, done.output
    [(name, built)] = json.loads(done.stdout).items()
    assert name == host
    assert built["cached"]
    assert built["sha256"] == runner_binary.sha256
    assert f"{host}: " in build(data).stdout, "without a platform, every one that works here"


@pytest.mark.parametrize(
    "words", [("--trace",), ("--dry-run",), ("--ndk", "ndk"), ("--source", "executorch")]
)
def test_options_that_do_not_go_together_are_refused(data: Path, words: tuple[str, ...]):
    done = build(data, *words)
    assert done.exit_code == 2
    assert " needs --" in done.output


def test_a_platform_of_another_machine_is_refused_with_a_remedy(data: Path):
    done = build(data, "--platform", "linux" if platform.system() == "Darwin" else "mac")
    assert done.exit_code == 1
    assert "What to do:" in done.output
