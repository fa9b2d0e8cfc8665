"""The adb client against a real daemon: words, exit codes, deaths and lost connections."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sme2_assets.errors import ConnectionLost, RunnerError, Sme2Error, TargetUnavailable
from sme2_assets.targets.android.adb import STATE_REMEDIES, find_adb, parse_devices, require_adb
from sme2_assets.targets.android.choice import choose_device
from sme2_assets.targets.android.device import Device
from sme2_assets.targets.android.pool import AndroidPool
from sme2_assets.targets.android.script import Script, quoted
from sme2_assets_tests.targets.android.adb_loopback import AdbBridge, LoopbackDevice

NASTY = [
    "",
    "'",
    '"',
    "$(touch /tmp/owned)",
    "`id`",
    "a\nb",
    "-rf",
    "..",
    "../../etc/passwd",
    "* ? [a]",
    "a;b & c | d > e",
    "\\",
    "\\n$HOME\\",
    "~root",
    "!history",
    "x=y",
    "Größe 模型 😀",
    "\t\r\v",
    "# no comment",
    "{a,b}",
    "%s%n",
    "-n",
    "\x7f\x01",
]
# Everything that a command line can hold.
WORDS = st.lists(
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12), max_size=40
)


def gone(process: int, within_s: float = 10) -> bool:
    """Whether a process of the device ends; the loopback device's processes are processes of this machine."""
    deadline_s = time.monotonic() + within_s
    while time.monotonic() < deadline_s:
        # The words of a dead process are gone even where nobody has asked for its exit code yet.
        try:
            if not Path(f"/proc/{process}/cmdline").read_bytes():
                return True
        except OSError:
            return True
        time.sleep(0.02)
    return False


def number_in(file: Path, within_s: float = 10) -> int:
    deadline_s = time.monotonic() + within_s
    while time.monotonic() < deadline_s:
        if file.is_file() and (text := file.read_text()).endswith("\n"):
            return int(text)
        time.sleep(0.02)
    raise AssertionError(f"{file} was not written")


def _sleeping(note: Path) -> Script:
    """A command that notes its process and then does not end."""
    return Script('echo $$ > "$1"; exec sleep 1000', (str(note),))


def test_words_arrive_as_they_were_sent(loopback_device: LoopbackDevice) -> None:
    device = loopback_device.device
    assert _round_trip(device, NASTY) == NASTY
    assert not Path("/tmp/owned").exists()


@given(words=WORDS)
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_words_arrive_as_they_were_sent(loopback_device: LoopbackDevice, words: list[str]) -> None:
    assert _round_trip(loopback_device.device, words) == words


def _round_trip(device: Device, words: list[str]) -> list[str]:
    # An empty list would print one empty word.
    printed = device.script('for word in "$@"; do printf "%s\\0" "$word"; done', *words)
    return printed.split("\0")[:-1]


def test_a_nul_character_and_an_endless_command_are_refused(loopback_device: LoopbackDevice) -> None:
    with pytest.raises(Sme2Error, match="NUL"):
        quoted(["a\0b"])
    with pytest.raises(Sme2Error, match="too long"):
        loopback_device.device.shell(["true", "x" * 100_000], timeout_s=5)


def test_exit_codes_signals_outputs_and_environment_come_back(loopback_device: LoopbackDevice) -> None:
    device = loopback_device.device
    text = 'echo "to out $WORD"; echo "to err" >&2; exit 7'
    done = device.shell(Script(text), env={"WORD": "'$(id)'"}, timeout_s=10)
    assert (done.returncode, done.stdout, done.stderr) == (7, "to out '$(id)'\n", "to err\n")
    # As subprocess tells it here; 255 is also what adb gives for failures of its own.
    assert device.shell(Script("kill -SEGV $$"), timeout_s=10).returncode == -signal.SIGSEGV
    assert device.shell(Script("exit 255"), timeout_s=10).returncode == 255
    assert device.shell(["/no/such/program"], timeout_s=10).returncode == 127
    with pytest.raises(RunnerError, match=r"exit code 3\).*because"):
        device.script("echo because >&2; exit 3")


def test_a_command_that_outlives_its_time_is_killed_over_there(
    loopback_device: LoopbackDevice, tmp_path: Path
) -> None:
    with pytest.raises(RunnerError, match="did not end within"):
        loopback_device.device.shell(_sleeping(tmp_path / "pid"), timeout_s=1)
    assert gone(number_in(tmp_path / "pid"), within_s=0.1)


def test_nothing_runs_on_when_the_waiting_process_is_killed(
    loopback_device: LoopbackDevice, tmp_path: Path
) -> None:
    program = (
        "import sys; from sme2_assets.targets.android.adb import require_adb; "
        "from sme2_assets.targets.android.device import Device; "
        "from sme2_assets.targets.android.script import Script; "
        "Device(require_adb(), sys.argv[1]).shell("
        "Script('echo $$ > \"$1\"; exec sleep 1000', (sys.argv[2],)), timeout_s=99)"
    )
    note = tmp_path / "pid"
    waiting = subprocess.Popen([sys.executable, "-c", program, loopback_device.serial, str(note)])
    remote = number_in(note)
    waiting.kill()
    waiting.wait()
    assert gone(remote)


@pytest.mark.parametrize("fault", ["cut", "disconnect", "kill"])
def test_a_lost_connection_is_no_exit_code(
    loopback_device: LoopbackDevice, tmp_path: Path, fault: str
) -> None:
    note = tmp_path / "pid"
    remote: list[int] = []

    def strike() -> None:
        remote.append(number_in(note))
        # That it began is on its way to this host by then, and is to arrive.
        time.sleep(0.5)
        getattr(loopback_device, fault)()

    striker = threading.Thread(target=strike)
    striker.start()
    with pytest.raises(ConnectionLost, match="in the middle of a command") as lost:
        loopback_device.device.shell(_sleeping(note), timeout_s=30)
    striker.join()
    assert lost.value.remedy
    assert gone(remote[0])


def test_a_device_that_is_not_there_is_told_before_anything_runs(loopback_device: LoopbackDevice) -> None:
    loopback_device.disconnect()
    with pytest.raises(ConnectionLost, match="before the device said that the command had begun") as lost:
        loopback_device.device.shell(["true"], timeout_s=10)
    assert f"adb connect {loopback_device.serial}" in str(lost.value)
    with pytest.raises(ConnectionLost, match="could not be sent"):
        loopback_device.device.push(Path(__file__), "/tmp/never")


def test_files_that_cannot_be_copied_say_why(loopback_device: LoopbackDevice, tmp_path: Path) -> None:
    with pytest.raises(RunnerError, match="No such file") as missing:
        loopback_device.device.pull("/no/such/file", tmp_path / "never")
    assert not isinstance(missing.value, ConnectionLost)
    assert not (tmp_path / "never").exists()


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
        with pytest.raises(TargetUnavailable, match="knows no device 'NOPE'"):
            choose_device(adb, "NOPE")
    with server_that_lists("") as address:
        monkeypatch.setenv("ADB_SERVER_SOCKET", address)
        assert (
            "No Android device is connected"
            in AndroidPool(tmp_path, any_device=True).availability("off").detail
        )
    with server_that_lists(LISTING.splitlines()[2] + "\n") as address:
        monkeypatch.setenv("ADB_SERVER_SOCKET", address)
        answer = AndroidPool(tmp_path, any_device=True).availability("off")
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
