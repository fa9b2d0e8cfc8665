"""`sme2 devices` and the doctor: what is connected, what it is, what it can measure, what to do."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from sme2_assets.cli import main
from sme2_assets.diagnostics.doctor import examine
from sme2_assets.store import Store
from sme2_assets.targets.android.adb import STATE_REMEDIES
from sme2_assets.targets.android.device import device_id_of
from sme2_assets.targets.android.target import AndroidTarget
from sme2_assets.targets.lease import lease
from sme2_assets_tests.targets.android.adb_loopback import AdbBridge, LoopbackDevice
from sme2_assets_tests.targets.android.test_adb import LISTING, server_that_lists
from sme2_assets_tests.targets.ssh.sshd_loopback import SshMachine


def _sme2(data: Path, line: str) -> Result:
    return CliRunner().invoke(main, ["--data", str(data), *shlex.split(line)], catch_exceptions=False)


def test_a_device_tells_what_it_is_and_what_it_can_measure(
    loopback_device: LoopbackDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SME2_DATA", str(tmp_path))
    store = Store(tmp_path)
    with lease(store.leases, device_id_of(loopback_device.serial), log=print):
        [report] = json.loads(_sme2(tmp_path, "devices --json").stdout)
    assert (report["address"], report["state"], report["in_use"]) == (loopback_device.serial, "device", True)
    assert report["facts"]["arch"] == "aarch64"
    assert report["facts"]["cores"] >= 1
    assert report["free_bytes"] > 2**20
    assert [report["measures"][sme2]["ok"] for sme2 in ("off", "on")] == [True, False]
    assert "SME2_ANDROID_EMULATE" in report["measures"]["on"]["remedy"]
    text = _sme2(tmp_path, f"devices --device {loopback_device.serial}").stdout
    rows = {line.split()[0]: line.split()[1:] for line in text.splitlines() if line.strip()}
    assert rows["android-sme2_off"] == ["yes"]
    assert rows["android-sme2_on"][0] == "no:"


def test_what_sme2_put_onto_a_device_can_be_removed(
    loopback_device: LoopbackDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SME2_DATA", str(tmp_path))
    (tmp_path / "model").write_bytes(b"x" * 1_000_000)
    with AndroidTarget(tmp_path, loopback_device.serial).workspace() as workspace:
        workspace.put(tmp_path / "model")
    assert "MB removed" in _sme2(tmp_path, "devices --clean").stderr
    assert [path.name for path in Path(loopback_device.root).iterdir()] == ["lock"]
    assert "nothing to restore" in _sme2(tmp_path, "devices --restore").stderr
    assert "knows no device 'NOPE'" in _sme2(tmp_path, "devices --device NOPE").stderr


def test_a_device_in_a_bad_state_is_listed_with_its_remedy(
    adb_bridge: AdbBridge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SME2_DATA", str(tmp_path))
    monkeypatch.setenv("SME2_ADB", str(adb_bridge.adb.path))
    bad = "".join(line + "\n" for line in LISTING.splitlines() if " device " not in line)
    with server_that_lists(bad) as address:
        monkeypatch.setenv("ADB_SERVER_SOCKET", address)
        reports = {report["state"]: report for report in json.loads(_sme2(tmp_path, "devices --json").stdout)}
        text = _sme2(tmp_path, "devices").stdout
        [found] = [step for step in examine(Store(tmp_path)).steps if step.name == "Android devices"]
    for state in ("offline", "unauthorized", "no permissions", "bootloader"):
        assert reports[state]["remedy"] == STATE_REMEDIES[state]
        assert reports[state]["facts"] is None
        assert state in text
        assert state in str(found.problem)
    assert found.status == "note"
    assert STATE_REMEDIES["unauthorized"] in (found.remedy or "")


def test_a_machine_over_ssh_is_shown_like_any_device(
    ssh_machine: SshMachine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SME2_DATA", str(tmp_path))
    monkeypatch.setenv("SME2_ADB", str(tmp_path / "adb"))
    line = f"devices --device {ssh_machine.url}"
    [report] = json.loads(_sme2(tmp_path, f"{line} --json").stdout)
    assert (report["platform"], report["state"], report["transport"]) == ("linux", "reachable", "ssh")
    assert report["device"] == ssh_machine.target().device
    assert report["measures"]["off"]["ok"]
    assert "linux-sme2_off" in _sme2(tmp_path, line).stdout
    (tmp_path / "model").write_bytes(b"x" * 1_000_000)
    with ssh_machine.target().workspace() as workspace:
        workspace.put(tmp_path / "model")
    assert "MB removed" in _sme2(tmp_path, f"{line} --clean").stderr
    ssh_machine.kill()
    ssh_machine.cut()
    [report] = json.loads(_sme2(tmp_path, f"{line} --json").stdout)
    assert (report["state"], report["facts"]) == ("unreachable", None)
    assert "ssh -p" in report["remedy"]


def test_health_that_cannot_be_read_is_not_called_good(
    ssh_machine: SshMachine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SME2_DATA", str(tmp_path))
    line = f"devices --device {ssh_machine.url}"
    assert "could not be read" not in _sme2(tmp_path, line).stdout
    cat = ssh_machine.folder / "bin" / "cat"
    cat.write_text('#!/bin/sh\ncase "$1" in /proc/*) exit 1;; esac\nexec /bin/cat "$@"\n')
    cat.chmod(0o755)
    try:
        text = " ".join(_sme2(tmp_path, line).stdout.split())
    finally:
        cat.unlink()
    assert "unknown: what other processes use could not be read from /proc" in text
    assert "nothing in the way" not in text


def test_without_adb_the_doctor_and_the_command_say_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SME2_DATA", str(tmp_path))
    monkeypatch.setenv("SME2_ADB", str(tmp_path / "adb"))
    done = _sme2(tmp_path, "devices")
    assert done.exit_code == 1
    assert "SME2_ADB" in done.stderr
    [found] = [step for step in examine(Store(tmp_path)).steps if step.name == "adb"]
    assert (found.status, bool(found.remedy)) == ("note", True)
