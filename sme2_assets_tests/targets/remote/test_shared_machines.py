"""A machine that others use too, or that is set up unlike most: who holds it, what is trusted there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sme2_assets.errors import ConnectionLost, RunnerError, TargetUnavailable
from sme2_assets.targets import Program
from sme2_assets.targets.remote.connection import Script
from sme2_assets.targets.remote.facts import _mirrored
from sme2_assets.targets.remote.workspace import RemoteWorkspace
from sme2_assets_tests.targets.remote.devices import RemoteDevice, gone, is_gone, kill_holder, number_in
from sme2_assets_tests.targets.ssh.sshd_loopback import UID, SshMachine

SOMEBODY_ELSE = 61999


@pytest.fixture
def login_shell(ssh_machine: SshMachine) -> Iterator[Callable[[str], None]]:
    """Gives the machine's user another login shell, for one test."""
    users, program = ssh_machine.folder / "passwd", ssh_machine.folder / "login_shell"
    before = users.read_text()

    def use(text: str) -> None:
        program.write_text(text)
        program.chmod(0o755)
        users.write_text(before.replace(":/bin/sh", f":{program}"))
        ssh_machine.disconnect()

    yield use
    users.write_text(before)
    ssh_machine.disconnect()


@pytest.fixture
def command(ssh_machine: SshMachine) -> Iterator[Callable[[str, str], None]]:
    """Puts a program before those of the machine, for one test."""
    before: dict[Path, str | None] = {}

    def put(name: str, text: str) -> None:
        program = ssh_machine.folder / "bin" / name
        before[program] = program.read_text() if program.exists() else None
        program.write_text(f"#!/bin/sh\n{text}\n")
        program.chmod(0o755)

    yield put
    for program, text in before.items():
        if text is None:
            program.unlink()
        else:
            program.write_text(text)


def _dead_session(machine: RemoteDevice) -> RemoteWorkspace:
    """A session whose holder was killed, with all it has left."""
    with machine.target().workspace() as workspace:
        kept = Path(workspace.folder)
        kill_holder(machine)
        assert workspace.held.ended(within_s=120)
    assert kept.is_dir()
    return workspace


@pytest.mark.parametrize("times", [1, pytest.param(3, marks=pytest.mark.thorough)])
def test_two_computers_never_hold_one_machine_at_once(
    ssh_machine: SshMachine, command: Callable[[str, str], None], times: int
) -> None:
    # For some of them these take long: whoever has looked is late to act.
    for name in ("mkdir", "rm"):
        command(name, f'sleep "$(($$ % 2))"\nexec /bin/{name} "$@"')
    holding: list[str] = []
    most: list[int] = []
    problems: list[BaseException] = []

    def take() -> None:
        try:
            with ssh_machine.target().workspace() as workspace:
                holding.append(workspace.name)
                most.append(len(holding))
                time.sleep(1.5)
                most.append(len(holding))
                holding.remove(workspace.name)
        except BaseException as problem:
            problems.append(problem)

    for _ in range(times):
        _dead_session(ssh_machine)
        contenders = [threading.Thread(target=take) for _ in range(3)]
        for contender in contenders:
            contender.start()
        for contender in contenders:
            contender.join()
    assert problems == []
    assert most == [1] * 6 * times


def test_only_processes_of_the_session_are_ended_with_it(ssh_machine: SshMachine) -> None:
    dead = _dead_session(ssh_machine)
    words = {
        "its file": (f"--out={dead.folder}/files/trace", True),
        "its folder": (dead.folder, True),
        "longer name": (f"{dead.folder}0", False),
        "in a text": (f"see {dead.name} there", False),
    }
    started = {
        what: subprocess.Popen(
            ["sh", "-c", "sleep 600; :", "sh", word], user=UID, group=UID, start_new_session=True
        )
        for what, (word, _) in words.items()
    }
    try:
        with ssh_machine.target().workspace():
            ended = {what: process.poll() is not None for what, process in started.items()}
    finally:
        for process in started.values():
            process.kill()
            process.wait()
    assert ended == {what: ends for what, (_, ends) in words.items()}


def test_a_time_limit_for_idle_logins_ends_no_session(
    ssh_machine: SshMachine, login_shell: Callable[[str], None]
) -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("only bash's `read` obeys TMOUT")
    login_shell(f'#!/bin/sh\nexport TMOUT=1\nexec {bash} "$@"\n')
    sh = ssh_machine.folder / "bin" / "sh"
    sh.symlink_to(bash)
    try:
        with ssh_machine.target().workspace() as workspace:
            assert workspace.run(["sleep", "2.5"], {}, 120).returncode == 0
            time.sleep(1.5)
            assert workspace.run(["true"], {}, 120).returncode == 0
    finally:
        sh.unlink()


def test_another_machine_is_noticed_where_installations_have_no_id(
    ssh_machine: SshMachine, command: Callable[[str, str], None], tmp_path: Path
) -> None:
    (ssh_machine.folder / "machine-id").write_text("\n")
    target = ssh_machine.target()
    try:
        with target.leased(tmp_path / "leases", print):
            target.recover(300, print)
            command("uname", '[ "$1" = -n ] && echo otherhost && exit\nexec /bin/uname "$@"')
            with pytest.raises(TargetUnavailable, match="different device"):
                target.recover(300, print)
    finally:
        ssh_machine.say_identity(None)


@pytest.mark.parametrize(
    "greeting",
    [
        'echo "Welcome! It is $(date +%s.%N)"',
        'printf "title without a line break $(date +%s.%N)"',
        'printf "warning $(date +%s.%N)" >&2',
        "echo ready; echo stored 7; echo held by nobody; echo 12",
    ],
)
def test_what_a_login_shell_prints_is_no_answer(
    ssh_machine: SshMachine, login_shell: Callable[[str], None], tmp_path: Path, greeting: str
) -> None:
    login_shell(f'#!/bin/sh\n{greeting}\nexec /bin/sh "$@"\n')
    target = ssh_machine.target()
    model = tmp_path / "model"
    model.write_bytes(os.urandom(300_000))
    with target.leased(tmp_path / "leases", print):
        with target.workspace() as workspace:
            there = workspace.put(model)
            assert Path(there).read_bytes() == model.read_bytes()
            assert workspace.run(["echo", "own"], {}, 120).stdout == "own\n"
            assert target.holder() == workspace.name
            with pytest.raises(TargetUnavailable, match=f"held by {workspace.name}"):
                target.clean()
        ssh_machine.cut()
        target.recover(300, print)
        assert target.space()[1] >= 300_000
        assert target.clean() >= 300_000
        assert target.space()[1] < 300_000


def test_nothing_runs_on_where_the_login_shell_waits_for_us(
    ssh_machine: SshMachine, login_shell: Callable[[str], None]
) -> None:
    """Such a shell leads the process group in our place."""
    login_shell('#!/bin/sh\n/bin/sh "$@"\n')
    running = "Script('echo $$ > \"$1\"; exec sleep 1000', (sys.argv[1],))"
    program = (
        "import sys; from sme2_assets.targets.remote.connection import Script; "
        f"{ssh_machine.made_by}.shell({running}, timeout_s=600)"
    )
    note = ssh_machine.note()
    waiting = subprocess.Popen([sys.executable, "-c", program, str(note)])
    remote = number_in(note)
    waiting.kill()
    waiting.wait()
    assert gone(remote)


def test_a_command_out_of_time_is_killed_where_the_login_shell_waits_for_us(
    ssh_machine: SshMachine, login_shell: Callable[[str], None], timed_from: Callable[[Path], None]
) -> None:
    login_shell('#!/bin/sh\n/bin/sh "$@"\n')
    note = ssh_machine.note()
    timed_from(note)
    # Whoever ignores the end of the watcher is killed by its group.
    with pytest.raises(RunnerError, match="did not end within"):
        ssh_machine.device.shell(Script('echo $$ > "$1"; exec sleep 1000', (str(note),)), timeout_s=1)
    assert is_gone(number_in(note))


def test_a_full_disk_is_no_lost_connection(ssh_machine: SshMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    small = ssh_machine.folder / "small"
    monkeypatch.setenv("SME2_SSH_ROOT", str(small / "sme2"))
    ssh_machine.device.script('dd if=/dev/zero of="$1/fill" bs=1k 2>/dev/null; exit 0', str(small))
    try:
        with pytest.raises(TargetUnavailable, match="folder") as caught:
            ssh_machine.target().workspace().__enter__()
    finally:
        ssh_machine.device.script('rm -rf "$1/fill" "$1/sme2"', str(small))
    assert not isinstance(caught.value, ConnectionLost)
    assert "Free space on the device" in str(caught.value.remedy)


def test_messages_are_read_in_english_wherever_the_machine_is(
    ssh_machine: SshMachine, command: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    german = 'echo "mkdir: Datei oder Verzeichnis nicht gefunden" >&2; exit 1'
    command("mkdir", f'[ "$LC_ALL" = C ] && exec /bin/mkdir "$@"\n{german}')
    monkeypatch.setenv("SME2_SSH_ROOT", "/proc/nothing/sme2")
    with pytest.raises(TargetUnavailable, match="folder"):
        ssh_machine.target().workspace().__enter__()
    assert ssh_machine.device.script('echo "$LC_ALL"') == "C\n"


def test_a_machine_that_cannot_keep_sessions_apart_is_not_used(
    ssh_machine: SshMachine, login_shell: Callable[[str], None]
) -> None:
    few = ssh_machine.folder / "few"
    few.mkdir()
    for name in ("base64", "env", "grep", "mkdir", "rm", "sh", "uname"):
        (few / name).symlink_to(shutil.which(name) or "")
    login_shell(f'#!/bin/sh\nexport PATH={few}\nexec /bin/sh "$@"\n')
    target = ssh_machine.target()
    for act in (target.clean, target.holder, lambda: target.workspace().__enter__()):
        with pytest.raises(TargetUnavailable, match=r"cannot be locked.*flock") as caught:
            act()
        assert "util-linux" in str(caught.value.remedy)


def test_who_holds_a_machine_is_told(remote_device: RemoteDevice) -> None:
    target = remote_device.target()
    assert target.holder() is None
    with remote_device.target().workspace() as workspace:
        assert target.holder() == workspace.name
    assert target.holder() is None
    _dead_session(remote_device)
    assert target.holder() is None
    target.clean()
    assert target.holder() is None


@pytest.mark.parametrize("noise", ["cat /dev/zero", "yes"])
def test_a_machine_that_never_stops_talking_is_given_up(ssh_machine: SshMachine, noise: str) -> None:
    with pytest.raises(TargetUnavailable, match="without end"):
        ssh_machine.device.hold(Script(noise), ready="mark ready", patience_s=600, on_line=print)


def test_files_that_no_system_can_have_are_not_believed() -> None:
    name = "a" * 300
    lies = f"/sys/a/online:1\n/sys/a/online/b/type:2\n/sys/{name}/type:1\n/sys/b/type/type:1\n/sys/b/type:2\n"
    with _mirrored(lies + "/sys/c/online:3\n") as root:
        assert (root / "sys/a/online").read_text() == "1"
        assert (root / "sys/c/online").read_text() == "3"


def test_a_program_that_lost_its_right_to_run_gets_it_back(
    remote_device: RemoteDevice, tmp_path: Path
) -> None:
    (tmp_path / "start").write_text(f"#!/bin/sh\necho {os.urandom(4).hex()}\n")
    program = Program(tmp_path, ("start",), ("./start",))
    for _ in range(2):
        with remote_device.target().workspace() as workspace:
            done = workspace.run(workspace.install(program), {}, 120)
            assert (done.returncode, done.stderr) == (0, "")
            stored = workspace.put(tmp_path / "start")
        Path(stored).chmod(0o644)
