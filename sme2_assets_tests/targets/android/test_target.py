"""Which Android device is meant, and what it can give: real adb daemons on loopback."""

from __future__ import annotations

from pathlib import Path

import pytest

from sme2_assets.errors import RunnerError, TargetUnavailable
from sme2_assets.store import Store
from sme2_assets.targets import Program, open_target
from sme2_assets.targets import pool as pool_module
from sme2_assets.targets.android.device import device_id_of
from sme2_assets.targets.android.target import AndroidTarget, EmulatedAndroidTarget
from sme2_assets.targets.clusters import parse_features
from sme2_assets_tests.targets.android.adb_loopback import DevicePrograms, LoopbackDevice


@pytest.fixture
def target(loopback_device: LoopbackDevice) -> AndroidTarget:
    return loopback_device.target()


def test_a_device_or_program_of_another_architecture_is_refused(
    target: AndroidTarget, loopback_device: LoopbackDevice, tmp_path: Path
) -> None:
    assert target.availability("off").ok
    loopback_device.say_machine("armv8l")
    answer = target.availability("off")
    assert not answer.ok
    assert "not aarch64 but 'armv8l'" in answer.detail
    assert "64-bit" in (answer.remedy or "")
    header = b"\x7fELF\x02\x01\x01" + bytes(9) + (2).to_bytes(2, "little") + (62).to_bytes(2, "little")
    (tmp_path / "runner").write_bytes(header + bytes(64))
    with target.workspace() as workspace:
        with pytest.raises(RunnerError, match="not a program for aarch64"):
            workspace.install(Program(tmp_path, ("runner",), ("./runner",)))
        assert workspace.bytes_pushed == 0


def test_one_of_several_devices_must_be_named(
    loopback_device: LoopbackDevice,
    second_device: LoopbackDevice,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = Store(tmp_path)
    answer = open_target("android", store).availability("off")
    assert not answer.ok
    assert loopback_device.serial in answer.detail
    assert second_device.serial in answer.detail
    assert "--device" in (answer.remedy or "")
    named = open_target("android", store, second_device.serial)
    assert named.availability("off").ok
    assert named.device == device_id_of(second_device.serial)
    monkeypatch.setenv("ANDROID_SERIAL", loopback_device.serial)
    assert open_target("android", store).device == device_id_of(loopback_device.serial)


def test_any_takes_the_first_free_device_that_is_able(
    loopback_device: LoopbackDevice,
    second_device: LoopbackDevice,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pool_module, "_POOL_PAUSE_S", 0.1)
    store, ids = Store(tmp_path), {device_id_of(device.serial) for device in (loopback_device, second_device)}
    pool = open_target("android", store, "any")
    pool.require("off")
    messages: list[str] = []
    with pool.leased(store.leases, print) as first, pool.leased(store.leases, print) as second:
        assert {first.device, second.device} == ids
        monkeypatch.setattr(pool_module, "_POOL_PATIENCE_S", 0.3)
        with (
            pytest.raises(TargetUnavailable, match="in use"),
            pool.leased(store.leases, messages.append),
        ):
            pass
    assert "all suitable devices are in use" in messages[0]
    loopback_device.say_machine("armv8l")
    with pool.leased(store.leases, print) as able:
        assert able.device == device_id_of(second_device.serial)
        with pytest.raises(TargetUnavailable, match="in use"), pool.leased(store.leases, print):
            pass
    second_device.say_machine("armv8l")
    with pytest.raises(TargetUnavailable, match="armv8l"):
        pool.require("off")


def test_a_device_without_sme2_emulates_it_when_asked(
    emulating_device: LoopbackDevice,
    device_programs: DevicePrograms,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target = open_target("android", Store(tmp_path), emulating_device.serial)
    assert isinstance(target, EmulatedAndroidTarget)
    assert target.fidelity == "emulated"
    assert target.availability("on").ok
    with target.workspace() as workspace:
        shell = workspace.put(device_programs.shell)
        done = workspace.run([shell, "-c", 'print -r -- "$(</proc/cpuinfo)"'], {}, 600)
    assert "sme2" in parse_features(done.stdout)
    monkeypatch.delenv("SME2_ANDROID_EMULATE")
    assert open_target("android", Store(tmp_path), emulating_device.serial).fidelity == "hardware"


def test_sme2_is_there_when_every_cpu_has_it() -> None:
    with_it, without = "Features\t: fp sve2 sme sme2 smei16i32\n", "Features\t: fp sme\n"
    assert "sme2" in parse_features(f"processor: 0\n{with_it}processor: 1\n{with_it}")
    assert "sme2" not in parse_features(with_it + without)
    assert "sme2" not in parse_features("")
