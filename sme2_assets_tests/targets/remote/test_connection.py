"""The transports to a device, each with a real daemon on this machine: what arrives, what a loss is."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sme2_assets.errors import ConnectionLost, RunnerError, Sme2Error
from sme2_assets.targets.contained import LARGEST_FILE_BYTES
from sme2_assets.targets.remote.connection import Connection, Script, quoted, shell_program
from sme2_assets_tests.targets.remote.devices import RemoteDevice, gone, is_gone, number_in

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


def _sleeping(note: Path) -> Script:
    """A command that notes its process and then does not end."""
    return Script('echo $$ > "$1"; exec sleep 1000', (str(note),))


def test_words_arrive_as_they_were_sent(remote_device: RemoteDevice) -> None:
    device = remote_device.device
    assert _round_trip(device, NASTY) == NASTY
    assert not Path("/tmp/owned").exists()


@given(words=WORDS)
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_words_arrive_as_they_were_sent(remote_device: RemoteDevice, words: list[str]) -> None:
    assert _round_trip(remote_device.device, words) == words


def _round_trip(device: Connection, words: list[str]) -> list[str]:
    # An empty list would print one empty word.
    printed = device.script('for word in "$@"; do printf "%s\\0" "$word"; done', *words)
    return printed.split("\0")[:-1]


def test_a_nul_character_and_an_endless_command_are_refused(remote_device: RemoteDevice) -> None:
    with pytest.raises(Sme2Error, match="NUL"):
        quoted(["a\0b"])
    with pytest.raises(Sme2Error, match="too long"):
        remote_device.device.shell(["true", "x" * 100_000], timeout_s=120)


def test_exit_codes_signals_outputs_and_environment_come_back(remote_device: RemoteDevice) -> None:
    device = remote_device.device
    text = 'echo "to out $WORD"; echo "to err" >&2; exit 7'
    done = device.shell(Script(text), env={"WORD": "'$(id)'"}, timeout_s=120)
    assert (done.returncode, done.stdout, done.stderr) == (7, "to out '$(id)'\n", "to err\n")
    # As subprocess tells it here; 255 is also what adb gives for failures of its own.
    assert device.shell(Script("kill -SEGV $$"), timeout_s=120).returncode == -signal.SIGSEGV
    assert device.shell(Script("exit 255"), timeout_s=120).returncode == 255
    assert device.shell(["/no/such/program"], timeout_s=120).returncode == 127
    with pytest.raises(RunnerError, match=r"exit code 3\).*because"):
        device.script("echo because >&2; exit 3")


def test_a_command_that_outlives_its_time_is_killed_over_there(
    remote_device: RemoteDevice, timed_from: Callable[[Path], None]
) -> None:
    note = remote_device.note()
    timed_from(note)
    with pytest.raises(RunnerError, match="did not end within"):
        remote_device.device.shell(_sleeping(note), timeout_s=1)
    assert is_gone(number_in(note))


def test_a_command_that_never_stops_talking_is_killed_over_there(
    remote_device: RemoteDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    note = remote_device.note()
    monkeypatch.setattr("sme2_assets.targets.contained.MOST_BYTES", 1 << 20)
    talking = Script('echo $$ > "$1"; while :; do echo "still here, with much to say"; done', (str(note),))
    with pytest.raises(RunnerError, match="printed more than 1 MiB"):
        remote_device.device.shell(talking, timeout_s=600)
    assert is_gone(number_in(note))


def test_a_program_on_a_device_has_the_limits_that_one_here_has(remote_device: RemoteDevice) -> None:
    """The memory of the machine, 4 GiB per file, no core file; and it is the first to be killed."""
    shown = "ulimit -d; ulimit -f; ulimit -c; cat /proc/self/oom_score_adj"
    run = Script(shell_program("run"), ("/", "sh", "-c", shown))
    done = remote_device.device.shell(run, timeout_s=120)
    data, *others = done.stdout.split()
    [memory] = re.findall(r"^MemTotal: +(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    assert data == memory
    assert others == [str(LARGEST_FILE_BYTES // 512), "0", "1000"]
    assert (done.returncode, done.stderr) == (0, "")


def test_nothing_runs_on_when_the_waiting_process_is_killed(remote_device: RemoteDevice) -> None:
    program = (
        "import sys; from sme2_assets.targets.remote.connection import Script; "
        f"{remote_device.made_by}.shell("
        "Script('echo $$ > \"$1\"; exec sleep 1000', (sys.argv[1],)), timeout_s=600)"
    )
    note = remote_device.note()
    waiting = subprocess.Popen([sys.executable, "-c", program, str(note)])
    remote = number_in(note)
    waiting.kill()
    waiting.wait()
    assert gone(remote)


@pytest.mark.parametrize("fault", ["cut", "disconnect", "kill"])
def test_a_lost_connection_is_no_exit_code(
    remote_device: RemoteDevice, begun: threading.Event, fault: str
) -> None:
    note = remote_device.note()
    remote: list[int] = []

    def strike() -> None:
        remote.append(number_in(note))
        assert begun.wait(120)
        getattr(remote_device, fault)()

    striker = threading.Thread(target=strike)
    striker.start()
    with pytest.raises(ConnectionLost, match="in the middle of a command") as lost:
        remote_device.device.shell(_sleeping(note), timeout_s=600)
    striker.join()
    assert lost.value.remedy
    assert gone(remote[0])


def test_files_that_cannot_be_copied_say_why(remote_device: RemoteDevice, tmp_path: Path) -> None:
    with pytest.raises(RunnerError, match="No such file") as missing:
        remote_device.device.pull("/no/such/file", tmp_path)
    assert not isinstance(missing.value, ConnectionLost)
    assert list(tmp_path.iterdir()) == []
