"""Which targets there are, and what is said of those that are not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sme2_assets.errors import RunnerError, Sme2Error, TargetUnavailable
from sme2_assets.evidence.device import architecture, device_name, native_fidelity
from sme2_assets.store import Store, safe_name
from sme2_assets.targets import TARGETS, TargetKey, open_target
from sme2_assets.targets.host import host_device, host_facts, host_platform
from sme2_assets.targets.local import NativeTarget
from sme2_assets.targets.shapes import emulated_cpu, emulated_cpus


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
            timeout_s=120,
        )
        workspace.get("out.txt", tmp_path / "deep" / "out.txt")
        with pytest.raises(RunnerError, match="did not write"):
            workspace.get("never.txt", tmp_path / "never.txt")
    assert (done.returncode, done.stderr) == (4, "said\n")
    assert (tmp_path / "deep" / "out.txt").read_text() == "it's $(here)"


@pytest.mark.parametrize(
    ("machine", "name", "fidelity"),
    [
        ("aarch64", "aarch64", "hardware"),
        ("arm64", "aarch64", "hardware"),
        ("x86_64", "x86_64", "reference"),
        ("AMD64", "x86_64", "reference"),
        ("riscv64", "riscv64", "reference"),
    ],
)
def test_native_times_speak_of_sme2_on_one_instruction_set_alone(machine: str, name: str, fidelity: str):
    assert architecture(machine) == name
    assert native_fidelity(name) == fidelity


@pytest.mark.parametrize(
    ("cpu", "name"),
    [
        ("Neoverse-N1", "neoverse-n1-"),
        ("Intel(R) Xeon(R) Platinum 8370C CPU @ 2.80GHz", "intel-xeon-platinum-8370c-"),
        ("AMD EPYC 7763 64-Core Processor", "amd-epyc-7763-64-core-"),
        ("Apple M4 Pro", "apple-m4-pro-"),
        ("2x Cortex-X4 + 3x Cortex-A720 + 4x Cortex-A520", "2x-cortex-x4-3x-cortex-a720-"),
        ("", ""),
    ],
)
def test_a_host_is_called_by_its_cpu_and_by_digits_that_no_other_has(cpu: str, name: str):
    here, there = device_name(cpu, "installation"), device_name(cpu, "another")
    assert re.fullmatch(rf"{re.escape(name)}[0-9a-f]{{6}}", here)
    assert here != there
    assert here == device_name(cpu, "installation") == safe_name(here)
    assert "installation" not in here


@pytest.mark.parametrize(
    ("device", "options"),
    [
        ("emulated:m4", {"max,sve=off,sme512=on"}),
        ("emulated:c1:256", {"max,sve128=on,sme256=on"}),
        ("emulated:max:2048", {"max,sme2048=on"}),
        ("emulated:all:128", {"max,sve=off,sme128=on", "max,sve128=on,sme128=on", "max,sme128=on"}),
    ],
)
def test_an_address_says_which_cpu_is_emulated(device: str, options: set[str]):
    cpus = emulated_cpus(device)
    assert {cpu.option for cpu in cpus} == options
    assert [emulated_cpu(str(cpu)) for cpu in cpus] == cpus


@pytest.mark.parametrize(
    ("device", "hint"),
    [
        ("emulated", "did you mean 'emulated:m"),
        ("emulated:", "did you mean 'emulated:m"),
        ("emulated:m3", "did you mean 'emulated:m4'"),
        ("emulated:maxx:512", "did you mean 'emulated:max'"),
        ("emulated:m4:", "128, 256, 512, 1024, 2048"),
        ("emulated:m4:384", "128, 256, 512, 1024, 2048"),
        ("emulated:m4:0512", "128, 256, 512, 1024, 2048"),
        ("emulated:all", "Choose one"),
        ("pi5", "emulated:max"),
    ],
)
def test_a_cpu_that_nothing_would_be_measured_on_is_refused(tmp_path: Path, device: str, hint: str):
    with pytest.raises(Sme2Error, match=f"'{device}'") as caught:
        open_target("emulated", Store(tmp_path), device)
    assert hint in str(caught.value)


def test_an_emulated_cpu_is_the_same_device_on_every_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    store = Store(tmp_path)
    names = {open_target("emulated", store, device).device for device in (None, "emulated:max:512")}
    monkeypatch.setenv("SME2_DEVICE", "rack-7")
    names |= {open_target("emulated", store).device}
    assert len(names) == 1
    others = {open_target("emulated", store, f"emulated:{it}").device for it in ("m4", "c1", "max:256")}
    assert len(others - names) == 3
    native, emulated = (open_target(name, store) for name in ("linux", "emulated"))
    assert native.device == native.occupied == emulated.occupied == "rack-7"


def test_a_host_keeps_the_name_that_it_is_given(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SME2_DEVICE", "rack 7/../8")
    with pytest.raises(Sme2Error, match="cannot be used as a name"):
        host_device()


def test_host_facts_are_real():
    facts = host_facts()
    assert facts.cores >= 1
    assert facts.memory_bytes
    assert facts.cpu
