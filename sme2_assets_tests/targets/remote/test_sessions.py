"""Sessions on a device, by each transport: what is sent, what comes back, and what faults leave behind."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from sme2_assets.errors import ConnectionLost, RunnerError, Sme2Error, TargetUnavailable
from sme2_assets.store import sha256_of_file
from sme2_assets.targets import Program
from sme2_assets.targets.remote import workspace as workspace_module
from sme2_assets.targets.remote.target import RemoteTarget
from sme2_assets.targets.remote.workspace import free_bytes
from sme2_assets_tests.servers import wait_for
from sme2_assets_tests.targets.remote.devices import RemoteDevice, gone, kill_holder, number_in

HOSTILE = ["it's \"", "$(touch owned)", "a\nb", "-rf", "Größe 模型; *"]


@pytest.fixture
def target(remote_device: RemoteDevice) -> RemoteTarget:
    return remote_device.target()


def _file(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def _leftovers(device: RemoteDevice) -> list[str]:
    """What sessions have left on the device."""
    return sorted(session.name for session in Path(device.root).glob("sessions/*"))


def test_hostile_names_come_back_as_they_are(
    target: RemoteTarget, remote_device: RemoteDevice, tmp_path: Path
) -> None:
    with target.workspace() as workspace:
        for number, name in enumerate(HOSTILE):
            there = workspace.put(_file(tmp_path / name, name.encode()))
            done = workspace.run(["cp", "--", there, workspace.path(name)], {}, 120)
            assert (done.returncode, done.stderr) == (0, "")
            workspace.get(name, tmp_path / "back" / str(number))
            assert (tmp_path / "back" / str(number)).read_bytes() == name.encode()
        for name in ("..", "../up", "/etc/passwd", "a/../../b", "", "."):
            with pytest.raises(Sme2Error, match="inside"):
                workspace.path(name)
    assert len(list((tmp_path / "back").iterdir())) == len(HOSTILE)
    assert not list(remote_device.folder.rglob("owned"))


def test_nothing_is_pushed_twice_and_what_is_damaged_is_pushed_again(
    target: RemoteTarget, remote_device: RemoteDevice, tmp_path: Path
) -> None:
    model = _file(tmp_path / "model.pte", os.urandom(200_000))
    with target.workspace() as first:
        there = first.put(model)
        assert first.put(model) == there
        assert first.bytes_pushed == 200_000
    # The same content under another name is the same file over there.
    with target.workspace() as second:
        assert second.put(_file(tmp_path / "other", model.read_bytes())) == there
        assert second.bytes_pushed == 0
    Path(there).write_bytes(b"not the model any more")
    with target.workspace() as third:
        assert third.put(model) == there
        assert third.bytes_pushed == 200_000
    assert sha256_of_file(Path(there)) == Path(there).name


def test_a_program_is_started_with_its_files_under_their_names(target: RemoteTarget, tmp_path: Path) -> None:
    folder = tmp_path / "program"
    (folder / "lib").mkdir(parents=True)
    _file(folder / "start", b'#!/bin/sh\ncat "$1/lib/greeting"; echo "$2"; pwd\n')
    _file(folder / "lib" / "greeting", b"hello ")
    program = Program(folder, ("start", "lib/greeting"), ("./start", "."))
    with target.workspace() as workspace:
        command = workspace.install(program)
        done = workspace.run([*command, "$HOME"], {}, 120)
        assert done.stdout == f"hello $HOME\n{workspace.path('x').removesuffix('/x')}\n"
        assert done.command == [*command, "$HOME"]
        pushed = workspace.bytes_pushed
        assert workspace.install(program) == command
        assert workspace.bytes_pushed == pushed


def test_a_crash_leaves_no_older_trace_to_be_taken_for_its_own(
    target: RemoteTarget, remote_device: RemoteDevice, tmp_path: Path
) -> None:
    write = ["sh", "-c", 'echo "$0" > "$1"; mkdir "$1.d"; echo deep > "$1.d/file"']
    with target.workspace() as workspace:
        workspace.run([*write, "old", workspace.path("trace")], {}, 120)
        workspace.get("trace.d", tmp_path / "folder")
        assert (tmp_path / "folder" / "file").read_text() == "deep\n"
    assert _leftovers(remote_device) == []
    # Someone's trace of the same name, in the folder where all sessions were once.
    stale = _file(Path(remote_device.root) / "trace", b"stale")
    with target.workspace() as workspace:
        crashed = workspace.run(["sh", "-c", "kill -ABRT $$"], {}, 120)
        assert crashed.returncode == -6
        with pytest.raises(RunnerError, match="trace"):
            workspace.get("trace", tmp_path / "trace")
    assert not (tmp_path / "trace").exists()
    stale.unlink()


def test_a_full_device_is_told_before_and_while_files_are_sent(
    target: RemoteTarget, remote_device: RemoteDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = _file(tmp_path / "model", os.urandom(3_000_000))
    for name in ("small", "few_files"):
        remote_device.device.script('chmod 755 "$1"', str(remote_device.folder / name))
    monkeypatch.setenv(target.handle.root_variable, str(remote_device.folder / "small"))
    with target.workspace() as workspace:
        with pytest.raises(TargetUnavailable, match=r"2 MB .* 3 MB") as full:
            workspace.put(model)
        monkeypatch.setattr(workspace_module, "SPARE_BYTES", -(2**30))
        with pytest.raises(TargetUnavailable, match="No space left on device"):
            workspace.put(model)
        assert workspace.bytes_pushed == 0
    assert "sme2 devices --clean" in str(full.value)
    # Room for bytes, none for another file.
    monkeypatch.setenv(target.handle.root_variable, str(remote_device.folder / "few_files"))
    with target.workspace() as workspace:
        workspace.run(["touch", workspace.path("one"), workspace.path("two")], {}, 120)
        with pytest.raises(TargetUnavailable, match="No space left on device"):
            workspace.put(model)


@pytest.mark.parametrize("fault", ["kill", "cut", "disconnect", "vanish"])
def test_a_session_goes_on_after_its_device_was_away(
    target: RemoteTarget, remote_device: RemoteDevice, tmp_path: Path, fault: str
) -> None:
    messages: list[str] = []
    model = _file(tmp_path / "model", os.urandom(1000))
    with target.workspace() as workspace:
        there = workspace.put(model)
        lost_name = workspace.name
        note = remote_device.note()
        running = 'echo half > "$0"; sleep 1000 & echo $! > "$1"; wait'
        striker = threading.Thread(target=lambda: (number_in(note), getattr(remote_device, fault)()))
        striker.start()
        with pytest.raises(ConnectionLost):
            workspace.run(["sh", "-c", running, workspace.path("trace"), str(note)], {}, 600)
        striker.join()
        if fault == "kill":
            with pytest.raises(ConnectionLost, match="did not come back within 0 s") as away:
                target.recover(0, messages.append)
            assert "sme2 devices" in str(away.value)
        remote_device.start()
        target.recover(300, messages.append)
    assert messages[-1] == f"{target.device} answers again"
    with target.workspace() as again:
        # What the lost session ran would disturb the next, or be taken for it.
        assert gone(number_in(note))
        assert lost_name not in _leftovers(remote_device)
        with pytest.raises(RunnerError, match="did not write"):
            again.get("trace", tmp_path / "trace")
        assert again.put(model) == there
        assert again.bytes_pushed == 0
    wait_for(lambda: not _leftovers(remote_device), 120, "nothing was left")


_A_SESSION = """
import sys
from pathlib import Path
from sme2_assets.targets.android.target import AndroidTarget
from sme2_assets.targets.ssh.target import SshTarget
platform, address = sys.argv[1:]
target = SshTarget(address) if platform == "linux" else AndroidTarget(Path(), address)
with target.workspace() as workspace:
    print(workspace.name, flush=True)
    workspace.run(["sleep", "1000"], {}, 2000)
"""


def test_a_session_whose_process_is_killed_frees_the_device(
    target: RemoteTarget, remote_device: RemoteDevice
) -> None:
    words = [sys.executable, "-c", _A_SESSION, target.platform, remote_device.serial]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as session:
        assert session.stdout is not None
        name = session.stdout.readline().strip()
        assert target.holder() == name
        session.kill()
    with target.workspace() as workspace:
        assert target.holder() == workspace.name
        assert _leftovers(remote_device) == [workspace.name]


def test_nothing_counts_that_ran_after_the_session_was_lost(
    target: RemoteTarget, remote_device: RemoteDevice, tmp_path: Path
) -> None:
    """A transport may connect again by itself, and another computer may have taken the device meanwhile."""
    with target.workspace() as workspace:
        assert workspace.run(["true"], {}, 120).returncode == 0
        kill_holder(remote_device)
        assert workspace.held.ended(within_s=120)
        with pytest.raises(ConnectionLost, match=r"session .* was lost"):
            workspace.run(["true"], {}, 120)
        with pytest.raises(ConnectionLost):
            workspace.put(_file(tmp_path / "model", b"1"))
        target.recover(300, print)


def test_another_device_at_the_same_address_is_not_taken_for_the_lost_one(
    target: RemoteTarget, remote_device: RemoteDevice, tmp_path: Path
) -> None:
    remote_device.say_identity("first")
    with target.leased(tmp_path / "leases", print):
        remote_device.cut()
        target.recover(300, print)
        remote_device.say_identity("second")
        remote_device.cut()
        with pytest.raises(TargetUnavailable, match="different device"):
            target.recover(300, print)
    remote_device.say_identity(None)


def test_a_session_of_another_computer_is_waited_for(
    target: RemoteTarget, remote_device: RemoteDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = remote_device.target()
    messages: list[str] = []
    timers: list[threading.Timer] = []

    class OutOfPatience(threading.Timer):
        """Runs out when the device has said who holds it, however long the login took."""

        def start(self) -> None:
            timers.append(self)

    def told(message: str) -> None:
        messages.append(message)
        for timer in timers:
            timer.function()

    with other.workspace() as workspace, target.leased(tmp_path / "leases", told):
        with monkeypatch.context() as patch:
            patch.setattr(threading, "Timer", OutOfPatience)
            with pytest.raises(TargetUnavailable, match="still not free"), target.workspace():
                pass
        assert workspace.name in messages[0]
        with pytest.raises(TargetUnavailable, match="is measuring"):
            target.clean()
    with target.workspace() as workspace:
        workspace.put(_file(tmp_path / "x", b"x" * 100_000))
    assert target.clean() >= 100_000
    assert [path.name for path in Path(remote_device.root).iterdir()] == ["lock"]


def test_what_a_restarted_device_kept_of_a_dead_session_is_removed(
    target: RemoteTarget, remote_device: RemoteDevice
) -> None:
    left = 'mkdir -p "$1/sessions/$2/files" && echo "$2 1" > "$1/lock" && echo old > "$1/sessions/$2/files/x"'
    remote_device.device.script(left, remote_device.root, "lab-1-00000000dead")
    assert target.holder() is None
    with target.workspace() as workspace:
        assert _leftovers(remote_device) == [workspace.name]
    assert _leftovers(remote_device) == []


def test_free_space_is_read_from_the_last_line_of_df() -> None:
    text = "Filesystem 1024-blocks Used Available Capacity Mounted on\n/dev/dm-9 100 40 60 40% /data/user/0\n"
    assert free_bytes(text) == 60 * 1024
    assert free_bytes("df: not found") is None


@pytest.mark.parametrize("root", ["relative/folder", "/", "/data/../etc"])
def test_a_root_folder_must_be_a_plain_absolute_path(
    target: RemoteTarget, monkeypatch: pytest.MonkeyPatch, root: str
) -> None:
    monkeypatch.setenv(target.handle.root_variable, root)
    with pytest.raises(Sme2Error, match=target.handle.root_variable), target.workspace():
        pass
