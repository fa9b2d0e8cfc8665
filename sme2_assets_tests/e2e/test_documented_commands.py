"""The commands of README and docs, run as they are written, and what can be asked afterwards."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from sme2_assets.cli import main
from sme2_assets.store import CHECKOUT, Store
from sme2_assets.targets.host import host_platform
from sme2_assets.toolchain.qemu import Qemu
from sme2_assets_tests.e2e.conftest import make_data_folder
from sme2_assets_tests.skills import SKILLS, Skill, bash_commands, make_desk, printed_line, typed
from sme2_assets_tests.test_docs import documented_sme2_commands

PROFILE = ".venv/bin/sme2 profile toy_cnn-int8 --platform emulated --operators"
# Measures until the noise is small, which on a busy machine is until the budget is spent.
AA = ".venv/bin/sme2 profile toy_cnn-int8 --platform linux --aa --sme2 off"
assert {PROFILE, AA} <= set(documented_sme2_commands())
# Commands of playbooks that leave nothing for the next command, and are run by the test of another page.
RUN_BY_OTHERS = {".venv/bin/sme2 smoke": CHECKOUT / "docs" / "exchange.md"}
# Commands that only read, and that need no shell.
READS = re.compile(r"\.venv/bin/sme2 (config|doctor|explain|models|report|sql|targets|validate) [^*|$]*")

Sme2 = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, artifacts_dir: Path) -> Store:
    return make_data_folder(tmp_path_factory.mktemp("documented") / "data", artifacts_dir)


def settings(store: Store) -> dict[str, str]:
    return {"SME2_DATA": str(store.root), "DAGSTER_HOME": str(store.dagster_home), "COLUMNS": "200"}


def run(store: Store, command: list[str], code: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        command, cwd=CHECKOUT, env=os.environ | settings(store), capture_output=True, text=True
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done


def run_here(
    store: Store, words: list[str], code: int = 0, folder: Path = CHECKOUT
) -> subprocess.CompletedProcess[str]:
    """In this process, which has imported what each command would import anew."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        done = CliRunner().invoke(main, words, env=settings(store))
    assert done.exit_code == code, done.output
    return subprocess.CompletedProcess(words, done.exit_code, done.stdout, done.stderr)


@pytest.fixture(scope="module")
def sme2(store: Store) -> Sme2:
    """A documented command. What measures is a process of its own, as the one that a person starts."""

    def call(*words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        if words[0] in ("profile", "compare", "scale"):
            return run(store, [sys.executable, "-m", "sme2_assets.cli", *words], code)
        return run_here(store, list(words), code)

    return call


@pytest.fixture(scope="module")
def profiled(store: Store, emulator: Qemu) -> subprocess.CompletedProcess[str]:
    """A documented profile of an emulated pair, measured once."""
    return run_here(store, shlex.split(PROFILE)[1:])


@pytest.fixture(scope="module")
def baseline(sme2: Sme2) -> None:
    """A short run on this host's own CPU, for the commands that ask about hardware."""
    host = host_platform()
    assert host is not None
    short = ("--rounds", "2", "--runs", "2", "--warmup", "1")
    sme2("profile", "toy_cnn-int8", "--platform", host, "--sme2", "off", *short)


@pytest.mark.thorough
def test_make_demo_ends_with_the_table_and_the_report(store: Store, emulator: Qemu):
    # The environment that runs the tests stands for the one that `make setup` would make.
    ready = f"{sys.prefix}/.ready"
    done = run(store, ["make", "-o", ready, "demo", f"VENV={sys.prefix}", "DEMO=toy_cnn-int8"])
    told = [line.rstrip() for line in done.stdout.splitlines()]
    header = next(line for line in told if line.startswith("model  "))
    row = told[told.index(header) + 1]
    assert row.split()[:3] == ["toy_cnn", "int8", "emulated"]
    assert "7 of 8" in row
    assert "1 depthwise" in row
    assert (
        "Finding: All convolutions and matrix products of toy_cnn at int8 are on the SME unit, "
        "except its depthwise convolutions." in told
    )
    [link] = [line.removeprefix("report: ") for line in told if line.startswith("report: ")]
    assert Path(link.removeprefix("file://")).read_text().startswith("<!DOCTYPE html>")
    assert "Next: 'make dev'" in done.stdout
    assert "round 1 of 1" in done.stderr


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(command, marks=[pytest.mark.alone] if command == AA else [])
        for command in documented_sme2_commands()
        if command != PROFILE
    ],
)
@pytest.mark.thorough
@pytest.mark.usefixtures("profiled", "baseline")
def test_a_documented_command_works(sme2: Sme2, command: str):
    assert sme2(*shlex.split(command)[1:]).stdout.strip()


def test_a_profile_prints_the_comparison_and_no_emulated_time(profiled: subprocess.CompletedProcess[str]):
    assert "toy_cnn-int8 on emulated: kernel evidence" in profiled.stdout
    assert "not comparable" not in profiled.stdout
    assert "PQS8" in profiled.stdout
    assert "round 1 of 1" in profiled.stderr
    assert " ms" not in profiled.stdout, "an emulated time is shown"


def test_everything_reads_from_the_profile_afterwards(sme2: Sme2, profiled: subprocess.CompletedProcess[str]):
    query = "SELECT sme2_operators_on AS n FROM sme2_comparison WHERE level = 'model'"
    assert json.loads(sme2("sql", query, "--json").stdout)[0]["n"] > 0
    newest = (
        "SELECT run_id FROM latest_runs WHERE variant = 'toy_cnn-int8' AND platform = 'emulated' ORDER BY arm"
    )
    runs = [row["run_id"] for row in json.loads(sme2("sql", newest, "--json").stdout)]
    assert json.loads(sme2("compare", *runs, "--json").stdout)[0]["level"] == "model"
    assert "arms on and off" in sme2("compare", *reversed(runs), code=1).stderr
    without_hardware = sme2("history", "toy_cnn-int8", "--platform", "mac", code=1).stderr
    assert "has times or counted work" in " ".join(without_hardware.split())


def test_report_and_explanation_rank_what_was_found(sme2: Sme2, profiled: subprocess.CompletedProcess[str]):
    [explained] = json.loads(sme2("explain", "toy_cnn-int8", "--platform", "emulated", "--json").stdout)
    insights = explained["insights"]
    assert "missed_sme2" in [insight["kind"] for insight in insights]
    assert all(insight["win_ns"] is None for insight in insights), "an emulated time is shown"
    told = sme2("report", "toy_cnn-int8", "--platform", "emulated").stdout
    printed = sme2("explain", "toy_cnn-int8", "--platform", "emulated", "--all").stdout
    [link] = re.findall(r"report: file://(\S+)", told)
    assert explained["answer"] in told
    report = Path(link).with_name("report.md").read_text()
    assert "SME2 on against off" in report
    for insight in insights:
        assert insight["title"] in report
        assert insight["title"] in printed


@pytest.fixture(scope="module")
def desk(store: Store, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Like a checkout of somebody who uses the playbooks, with the data folder of the other commands."""
    return make_desk(tmp_path_factory.mktemp("playbooks") / "checkout", store.root)


@pytest.mark.thorough
@pytest.mark.parametrize("skill", SKILLS, ids=lambda skill: skill.name)
def test_a_playbook_works_as_it_is_written_and_prints_what_it_says(
    desk: Path, store: Store, skill: Skill, profiled: subprocess.CompletedProcess[str]
):
    printed = ""
    for command in skill.commands:
        if command == PROFILE:
            printed += profiled.stdout + profiled.stderr
        elif READS.fullmatch(command + " "):
            done = run_here(store, shlex.split(command)[1:], folder=desk)
            printed += done.stdout + done.stderr
        elif command not in RUN_BY_OTHERS:
            done = typed(desk, command)
            assert done.returncode == 0, command + "\n" + done.stdout
            printed += done.stdout
    for line in skill.expected_lines:
        assert printed_line(line, printed), line + "\n\nis not in\n\n" + printed


def test_what_playbooks_leave_to_other_tests_is_run_there():
    for command, page in RUN_BY_OTHERS.items():
        assert command in bash_commands(page)
