"""The adb client against a real daemon: words, exit codes, deaths and lost connections."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sme2_assets.errors import ConnectionLost, TargetUnavailable
from sme2_assets.store import Store
from sme2_assets.targets import open_target
from sme2_assets.targets.android.adb import STATE_REMEDIES, find_adb, parse_devices, require_adb
from sme2_assets.targets.android.device import choose_device
from sme2_assets_tests.targets.android.adb_loopback import AdbBridge, LoopbackDevice


def test_a_device_that_is_not_there_is_told_before_anything_runs(loopback_device: LoopbackDevice) -> None:
    loopback_device.disconnect()
    with pytest.raises(ConnectionLost, match="begun") as lost:
        loopback_device.device.shell(["true"], timeout_s=120)
    assert f"adb connect {loopback_device.serial}" in str(lost.value)
    with pytest.raises(ConnectionLost, match="sent"):
        loopback_device.device.push(Path(__file__), "/tmp/never")


LISTING = """\
R5CT1234567            device usb:1-1 product:panther model:Pixel_7 device:panther transport_id:1
192.168.1.20:5555      offline transport_id:2
HT7A1A01               unauthorized usb:1-2 transport_id:3
0123456789ABCDEF       no permissions (user in plugdev group; udev rules wrong?); see [http://x.y] usb:1-3
adb-39-aB._adb-tls-connect._tcp device product:a model:b device:c transport_id:9
emulator-5554          bootloader transport_id:4
ABC                    brandnewstate usb:1-4 transport_id:5
"""


@contextmanager
def server_that_lists(listing: str) -> Iterator[str]:
    """An adb server that knows nothing but its version and a listing; gives its address."""

    def serve(listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            with client:
                request = client.recv(int(client.recv(4), 16)).decode()
                answer = "0029" if request == "host:version" else listing
                client.sendall(f"OKAY{len(answer):04x}{answer}".encode())

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, args=(listener,), daemon=True).start()
        yield f"tcp:127.0.0.1:{listener.getsockname()[1]}"


def test_every_state_of_a_device_is_told_apart_and_has_a_remedy(
    adb_bridge: AdbBridge, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SME2_ADB", str(adb_bridge.adb.path))
    monkeypatch.delenv("ANDROID_SERIAL", raising=False)
    with server_that_lists(LISTING) as address:
        monkeypatch.setenv("ADB_SERVER_SOCKET", address)
        adb = require_adb()
        listed = {device.serial: device for device in adb.devices()}
        assert [device.state for device in listed.values()] == [
            *("device", "offline", "unauthorized", "no permissions", "device", "bootloader", "brandnewstate")
        ]
        assert [device.transport for device in listed.values()] == [
            *("usb", "tcp", "usb", "usb", "tcp", "emulator", "usb")
        ]
        assert listed["R5CT1234567"].model == "Pixel_7"
        assert listed["ABC"].remedy
        for serial, state in (("192.168.1.20:5555", "offline"), ("HT7A1A01", "unauthorized")):
            with pytest.raises(TargetUnavailable, match=state) as refused:
                choose_device(adb, serial)
            assert refused.value.remedy == STATE_REMEDIES[state]
        with pytest.raises(TargetUnavailable, match=r"Several .*Pixel_7.*HT7A1A01 \[unauthorized\]"):
            choose_device(adb, None)
        with pytest.raises(TargetUnavailable, match="'NOPE'"):
            choose_device(adb, "NOPE")
    with server_that_lists("") as address:
        monkeypatch.setenv("ADB_SERVER_SOCKET", address)
        assert (
            "No Android device is connected"
            in open_target("android", Store(tmp_path), "any").availability("off").detail
        )
    with server_that_lists(LISTING.splitlines()[2] + "\n") as address:
        monkeypatch.setenv("ADB_SERVER_SOCKET", address)
        answer = open_target("android", Store(tmp_path), "any").availability("off")
        assert "unauthorized" in answer.detail
        assert "accept" in (answer.remedy or "")


def test_chatter_of_a_starting_server_is_no_device() -> None:
    text = "* daemon not running; starting now\n* daemon started successfully\nList of devices attached\n\n"
    assert parse_devices(text) == []


def test_an_adb_that_is_named_and_not_there_is_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SME2_ADB", str(tmp_path / "adb"))
    with pytest.raises(TargetUnavailable, match="SME2_ADB"):
        find_adb()
    monkeypatch.delenv("SME2_ADB")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(TargetUnavailable, match="was not found") as missing:
        require_adb()
    assert "apt install adb" in str(missing.value)
