"""A device behind each transport in turn: the same tests for all; and what becomes of its processes."""

from __future__ import annotations

import io
import os
import re
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from sme2_assets.targets.contained import Printed
from sme2_assets.targets.remote import connection as connection_module
from sme2_assets.targets.remote.connection import Connection, Script
from sme2_assets_tests.targets.android.adb_loopback import LoopbackDevice
from sme2_assets_tests.targets.ssh.sshd_loopback import SshMachine

RemoteDevice = LoopbackDevice | SshMachine


@pytest.fixture(params=["loopback_device", "ssh_machine"], ids=["adb", "ssh"])
def remote_device(request: pytest.FixtureRequest) -> RemoteDevice:
    device: RemoteDevice = request.getfixturevalue(request.param)
    return device


def is_gone(process: int) -> bool:
    """Of a process of the device; the loopback device's processes are processes of this machine."""
    # The words of a dead process are gone even where nobody has asked for its exit code yet.
    try:
        return not Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return True


def gone(process: int, within_s: float = 120) -> bool:
    """Whether a process of the device ends."""
    deadline_s = time.monotonic() + within_s
    while not is_gone(process):
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.02)
    return True


def kill_holder(machine: RemoteDevice) -> None:
    """Kills the shell that holds the machine."""
    machine.device.script('read -r name process < "$1" && kill -9 $process', f"{machine.root}/lock")


def number_in(file: Path, within_s: float = 120) -> int:
    deadline_s = time.monotonic() + within_s
    while not (file.is_file() and (text := file.read_text()).endswith("\n")):
        assert time.monotonic() < deadline_s, f"{file} was not written"
        time.sleep(0.02)
    return int(text)


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set when the report that a command began has come back to this host, however long that took."""
    event, start = threading.Event(), Connection._start

    def overheard(self: Connection, script: Script, stderr: int) -> subprocess.Popen[bytes]:
        process = start(self, script, stderr)
        told, (reading, writing) = process.stderr, os.pipe()
        process.stderr = os.fdopen(reading, "rb")

        def pass_on() -> None:
            assert isinstance(told, io.BufferedReader)
            said = b""
            with told, os.fdopen(writing, "wb", buffering=0) as sink, suppress(BrokenPipeError):
                while part := told.read1():
                    sink.write(part)
                    said += part
                    if re.search(rb" begin \d+\n", said):
                        event.set()

        threading.Thread(target=pass_on, daemon=True).start()
        return process

    monkeypatch.setattr(Connection, "_start", overheard)
    return event


@pytest.fixture
def timed_from(begun: threading.Event, monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """The time of a command begins when it has noted its process: a login may take longer."""
    communicate = connection_module._communicate

    def given(note: Path) -> None:
        def once_it_runs(process: subprocess.Popen[bytes], timeout_s: float) -> tuple[int, Printed]:
            number_in(note)
            assert begun.wait(120)
            return communicate(process, timeout_s)

        monkeypatch.setattr(connection_module, "_communicate", once_it_runs)

    return given
