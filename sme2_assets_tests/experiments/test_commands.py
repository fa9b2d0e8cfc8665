"""`sme2 config` as a person uses it: with options, on a terminal, and with mistakes."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from sme2_assets.cli import main
from sme2_assets.experiments.load import load
from sme2_assets.experiments.write import templates
from sme2_assets.targets.host import host_platform, is_arm64


@pytest.fixture(autouse=True)
def _own_data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SME2_DATA", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)


def sme2(*words: str, code: int = 0) -> Result:
    done = CliRunner().invoke(main, words, catch_exceptions=False)
    assert done.exit_code == code, done.output
    return done


def test_a_new_file_has_what_the_options_said_and_passes_the_check(tmp_path: Path):
    host = host_platform() or "emulated"
    sme2(
        *("config", "new", "n.yaml", "--model", "toy_cnn", "--model", "mobilenet_v3_small-int8"),
        *("--precision", "fp32", "--platform", host, "--sme2", "off", "--threads", "1", "--threads", "2"),
        *("--rounds", "2", "--budget", "9", "--iterations", "3", "--warmup", "0", "--output", "out"),
    )
    experiment = load(tmp_path / "n.yaml").experiment
    assert experiment.model_dump(exclude_none=True, exclude={"report"}) == {
        "models": ["toy_cnn", "mobilenet_v3_small-int8"],
        "precisions": ["fp32"],
        "platforms": [{"name": host}],
        "sme2": "off",
        "threads": [1, 2],
        "rounds": 2,
        "budget_s": 9.0,
        "iterations": 3,
        "warmup": 0,
        "output": "out",
    }
    text = (tmp_path / "n.yaml").read_text()
    assert text.count("\n#") >= 9, "every key has a comment"
    assert "Everything is there" in sme2("config", "check", "n.yaml").stdout
    made = json.loads(sme2("config", "check", "n.yaml", "--json").stdout)
    assert made["ok"]
    assert {step["status"] for step in made["steps"]} == {"passed"}


def test_a_file_that_is_there_is_replaced_only_by_force(tmp_path: Path):
    (tmp_path / "n.yaml").write_text("precious")
    done = sme2("config", "new", "n.yaml", "--model", "toy_cnn", code=1)
    assert "already exists" in done.stderr
    assert (tmp_path / "n.yaml").read_text() == "precious"
    sme2("config", "new", "n.yaml", "--model", "toy_cnn", "--force")
    assert load(tmp_path / "n.yaml").experiment.models == ["toy_cnn"]


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--model", "toy_cn"], "did you mean 'toy_cnn'"),
        ([], "Give --model"),
        (["--model", "toy_cnn", "--platform", "mac", "--power", "boost"], "Leave power out"),
        (["--model", "toy_cnn", "--template", "quick"], "used unchanged"),
        (["--template", "quik"], "did you mean 'quick'"),
    ],
)
def test_answers_that_make_no_experiment_write_nothing(tmp_path: Path, words: list[str], complaint: str):
    assert complaint in sme2("config", "new", "n.yaml", *words, code=1).stderr
    assert not (tmp_path / "n.yaml").exists()


@pytest.mark.parametrize("name", sorted(templates()))
def test_a_template_becomes_a_file_that_is_checked(tmp_path: Path, name: str):
    sme2("config", "new", f"{name}.yaml", "--template", name)
    assert sme2("config", "templates", name).stdout == (tmp_path / f"{name}.yaml").read_text()
    done = CliRunner().invoke(main, ["config", "check", f"{name}.yaml", "--json"], catch_exceptions=False)
    made = json.loads(done.stdout)
    assert done.exit_code == int(not made["ok"])
    failed = {step["name"].split(" (line")[0]: step for step in made["steps"] if step["status"] == "failed"}
    if platforms := failed.pop("platforms", None):
        # All that says something about SME2 is the emulator, then, and this folder does not have it.
        assert not is_arm64()
        assert "emulated was left out: no QEMU" in platforms["problem"]
        assert "`sme2 emulator`" in platforms["remedy"]
    # A device may not be connected; everything else a template asks for is there.
    assert all("android" in step for step in failed), failed
    assert name == "android" or not failed


def test_a_file_of_the_kit_can_be_kept_as_one_of_ours(tmp_path: Path):
    arm = {"runner_path": "x/android-arm64-v9a/executor_runner", "cpu_affinity": "0x80"}
    kit = {"model": "a/toy_cnn_xnnpack_int8.pte", "experiments": [{"name": "android_sme2_on", **arm}]}
    (tmp_path / "kit.json").write_text(json.dumps(kit))
    sme2("config", "new", "ours.yaml", "--from", "kit.json")
    assert load(tmp_path / "ours.yaml").experiment == load(tmp_path / "kit.json").experiment


def test_a_bad_file_is_refused_by_every_command_before_any_work(tmp_path: Path):
    (tmp_path / "bad.yaml").write_text("models: toy_cnn\nround: 3\n")
    for words in (["run", "bad.yaml"], ["run", "bad.yaml", "--dry-run"], ["config", "check", "bad.yaml"]):
        error = sme2(*words, code=1).stderr
        assert "round, line 2: there is no such key (did you mean 'rounds'?)" in error
        assert "What to do" in error
    assert not (tmp_path / "data").exists()


def test_on_a_terminal_it_asks_and_asks_again_after_a_mistake(tmp_path: Path):
    """A real terminal: answers are typed one by one, the second and the last with a mistake at first."""
    answers = ["toy_cnn", "fp64", "fp32, int8", "emulated", "off", "none", "1, 2"]
    own, child = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "sme2_assets.cli", "config", "new", "asked.yaml"],
        cwd=tmp_path,
        stdin=child,
        stdout=child,
        stderr=child,
        env={**os.environ, "TERM": "dumb"},
    )
    os.close(child)
    seen = ""
    until = time.monotonic() + 600
    while time.monotonic() < until:
        if select.select([own], [], [], 0.2)[0]:
            try:
                seen += os.read(own, 65536).decode()
            except OSError:
                break
            if seen.rstrip(" ").endswith(":") and answers:
                os.write(own, (answers.pop(0) + "\n").encode())
                seen += "\n"
        elif process.poll() is not None:
            break
    assert process.wait(timeout=300) == 0, seen
    os.close(own)
    experiment = load(tmp_path / "asked.yaml").experiment
    assert (experiment.precisions, experiment.sme2, experiment.threads) == (["fp32", "int8"], "off", [1, 2])
    assert [platform.name for platform in experiment.platforms or ()] == ["emulated"]
    assert "choose from fp32, fp16, int8, all" in seen
    assert "Give whole numbers from 1 up" in seen
