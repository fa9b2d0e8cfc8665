"""The OpenSSH client as we call it: what the user's configuration cannot change, where its sockets are."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sme2_assets.errors import Sme2Error
from sme2_assets.targets.ssh import connection as connection_module
from sme2_assets_tests.servers import wait_for
from sme2_assets_tests.targets.ssh.sshd_loopback import UID, SshMachine


@pytest.fixture
def configure(ssh_machine: SshMachine) -> Iterator[Callable[[str], None]]:
    """Adds lines to the user's configuration of the client."""
    path = ssh_machine.folder / "ssh_config"
    before = path.read_text()

    def write(lines: str) -> None:
        ssh_machine.disconnect()
        path.write_text(before + lines)

    yield write
    write("")


@pytest.fixture
def two_keys(ssh_machine: SshMachine) -> Iterator[SshMachine]:
    """A machine that has another key beside the one that is trusted."""
    second = ssh_machine.folder / "second_host_key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ecdsa", "-N", "", "-f", second], check=True)
    os.chown(second, UID, UID)
    ssh_machine.kill()
    ssh_machine.daemon_options = f"HostKey {second}\n"
    ssh_machine.start()
    yield ssh_machine
    ssh_machine.kill()
    ssh_machine.daemon_options = ""
    ssh_machine.start()
    for path in (second, second.with_suffix(".pub")):
        path.unlink()


def test_no_key_is_added_to_those_that_are_known(two_keys: SshMachine, configure: Callable[[str], None]):
    configure("UpdateHostKeys yes\n")
    known = two_keys.folder / "known_hosts"
    before = known.read_text()
    # The same client adds it when we do not stop it, so there was something to add.
    by_hand = [two_keys.client, "-p", str(two_keys.port), "pi@127.0.0.1", "cat"]
    assert two_keys.device.script("echo hello") == "hello\n"
    time.sleep(1)
    two_keys.disconnect()
    assert known.read_text() == before
    with subprocess.Popen(by_hand, stdin=subprocess.PIPE) as client:
        more = len(before.splitlines()) + 1
        wait_for(lambda: len(known.read_text().splitlines()) >= more, 120, "the client added a key")
        client.communicate()
    known.write_text(before)


def test_no_setting_of_the_user_keeps_a_command_from_running(
    ssh_machine: SshMachine, configure: Callable[[str], None]
):
    configure("RemoteCommand tmux new -A\n")
    with ssh_machine.target().workspace() as workspace:
        assert workspace.run(["echo", "hello"], {}, 120).stdout == "hello\n"


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that all users share, in which others may have taken a name."""
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr(connection_module, "_SHARED", tmp_path)
    return tmp_path


def _of_another(path: Path) -> None:
    path.mkdir(mode=0o700)
    os.chown(path, UID, UID)


def _linked(path: Path) -> None:
    (path.parent / "elsewhere").mkdir(mode=0o700)
    path.symlink_to(path.parent / "elsewhere")


@pytest.mark.parametrize(
    "taken",
    [
        Path.touch,
        lambda path: path.symlink_to("/nowhere"),
        _linked,
        lambda path: (path.mkdir(), path.chmod(0o777)),
        pytest.param(_of_another, marks=pytest.mark.skipif(os.geteuid() != 0, reason="not root")),
    ],
    ids=["file", "dangling link", "link", "open to all", "of another user"],
)
def test_where_the_name_of_the_sockets_is_taken_it_is_said(shared: Path, taken: Callable[[Path], object]):
    usual = connection_module._sockets()
    assert (usual.parent, usual.stat().st_mode & 0o777) == (shared, 0o700)
    usual.rmdir()
    taken(usual)
    with pytest.raises(Sme2Error, match=re.escape(str(usual))) as caught:
        connection_module._sockets()
    assert "XDG_RUNTIME_DIR" in str(caught.value.remedy)


def test_sockets_are_in_the_folder_that_the_system_made_for_this_user(
    shared: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(connection_module, "_LONGEST", 300)
    runtime = shared / "run"
    runtime.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    assert connection_module._sockets() == runtime / "sme2-ssh"
    runtime.chmod(0o755)
    assert connection_module._sockets().parent == shared, "others can look into that one"
    monkeypatch.setattr(connection_module, "_LONGEST", 3)
    runtime.chmod(0o700)
    assert connection_module._sockets().parent == shared, "a socket's path must be short"


def test_where_no_folder_can_be_made_it_is_said(shared: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(connection_module, "_SHARED", shared / "nothing")
    with pytest.raises(Sme2Error, match="folder") as caught:
        connection_module._sockets()
    assert "XDG_RUNTIME_DIR" in str(caught.value.remedy)
