"""Which targets there are, and what is said of those that are not."""

from __future__ import annotations

from pathlib import Path

import pytest

from sme2_assets.errors import RunnerError, Sme2Error, TargetUnavailable
from sme2_assets.store import Store
from sme2_assets.targets import PLATFORMS, TARGETS, TargetKey, open_target
from sme2_assets.targets.host import host_facts, host_platform
from sme2_assets.targets.local import NativeTarget


def test_the_states_of_a_platform_are_adjacent_and_off_comes_first():
    names = [str(target) for target in TARGETS]
    for platform in PLATFORMS:
        assert names.index(f"{platform}-sme2_on") == names.index(f"{platform}-sme2_off") + 1


@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_a_key_is_read_back_as_it_was_written(target: TargetKey):
    assert TargetKey.parse(str(target)) == target


@pytest.mark.parametrize("text", ["", "linux", "linux-sme2_maybe", "phone-sme2_on", "linux-sme2_on-sme2_off"])
def test_what_is_no_target_is_refused_with_the_list(text: str):
    with pytest.raises(Sme2Error, match="not a target") as caught:
        TargetKey.parse(text)
    assert "emulated-sme2_on" in str(caught.value.remedy)


@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_every_target_says_what_it_is_or_what_to_do(target: TargetKey, tmp_path: Path):
    availability = open_target(target.platform, Store(tmp_path)).availability(target.sme2)
    assert availability.detail
    assert availability.ok or availability.remedy


def test_a_platform_of_another_operating_system_is_refused():
    other = "mac" if host_platform() == "linux" else "linux"
    with pytest.raises(TargetUnavailable, match="not available here"):
        NativeTarget(other).require("off")


def test_an_emulator_that_is_not_there_names_the_command_that_gets_it(tmp_path: Path, monkeypatch):
    monkeypatch.delenv("SME2_QEMU", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    availability = open_target("emulated", Store(tmp_path)).availability("on")
    assert not availability.ok
    assert availability.remedy


def test_a_command_runs_in_a_fresh_workspace_and_its_files_are_brought_back(tmp_path: Path):
    target = NativeTarget(host_platform() or "linux")
    with target.workspace() as workspace:
        done = workspace.run(
            ["sh", "-c", 'printf "$WORD" > "$1"; echo said >&2; exit 4', "sh", workspace.path("out.txt")],
            {"WORD": "it's $(here)"},
            timeout_s=20,
        )
        workspace.get("out.txt", tmp_path / "deep" / "out.txt")
        with pytest.raises(RunnerError, match="did not write"):
            workspace.get("never.txt", tmp_path / "never.txt")
    assert (done.returncode, done.stderr) == (4, "said\n")
    assert (tmp_path / "deep" / "out.txt").read_text() == "it's $(here)"


def test_host_facts_are_real():
    facts = host_facts()
    assert facts.cores >= 1
    assert facts.memory_bytes
    assert facts.cpu
