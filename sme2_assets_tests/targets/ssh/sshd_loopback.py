"""A real OpenSSH daemon on this machine, as the Linux machine that tests talk to.

Debian's sshd, extracted from its package and run by a user who has no rights: nothing is installed. It lives
in mounts of its own, with a user, a machine id and a /proc/cpuinfo of its own where a test plants one, and
with file systems that are small. It listens on loopback alone, behind a relay.
"""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from sme2_assets.errors import Sme2Error
from sme2_assets.targets.ssh.address import Address
from sme2_assets.targets.ssh.connection import SshConnection
from sme2_assets.targets.ssh.target import SshTarget
from sme2_assets.toolchain.debian import fetch_packages
from sme2_assets_tests.reach import skip_out_of_reach, skip_where_ci_would_fail
from sme2_assets_tests.servers import for_every_user
from sme2_assets_tests.targets.loopback import Relayed, free_port

USER, UID = "pi", 61234

# Run in the daemon's process before it becomes the daemon: dies with the test, and has mounts of its own.
_BECOME_DAEMON = """
import ctypes, os, signal, sys
libc = ctypes.CDLL(None, use_errno=True)
def checked(result, what):
    if result != 0:
        sys.exit(what + ": " + os.strerror(ctypes.get_errno()))
folder, uid, libraries = sys.argv[1], int(sys.argv[2]), sys.argv[3]
checked(libc.unshare(0x00020000), "unshare")
libc.mount(b"none", b"/", None, 0x4000 | 0x40000, None)
for name, options in (("small", "size=2m"), ("few_files", "size=200m,nr_inodes=9")):
    path = os.path.join(folder, name)
    os.makedirs(path, exist_ok=True)
    checked(libc.mount(b"tmpfs", path.encode(), b"tmpfs", 0, f"{options},uid={uid}".encode()), "mount")
for theirs in ("/etc/passwd", "/etc/machine-id", "/proc/cpuinfo"):
    ours = os.path.join(folder, os.path.basename(theirs))
    if os.path.exists(ours) and os.path.exists(theirs):
        checked(libc.mount(ours.encode(), theirs.encode(), None, 0x1000, None), "mount")
os.setgroups([])
os.setgid(uid)
os.setuid(uid)
libc.prctl(1, signal.SIGKILL)
os.chdir(folder)
os.execve(sys.argv[4], sys.argv[4:], {"PATH": "/usr/bin:/bin", "LD_LIBRARY_PATH": libraries})
"""


class SshMachine(Relayed):
    """One daemon in its folder, the relay to it, and a client that trusts it."""

    def __init__(self, packages: Path, folder: Path) -> None:
        super().__init__(folder)
        self.packages = packages
        folder.chmod(0o755)
        self.home = folder / "home"
        self.home.mkdir()
        os.chown(self.home, UID, UID)
        self.root = str(self.home / ".cache" / "sme2")
        self.url = f"ssh://{USER}@127.0.0.1:{self.port}"
        self._fake_uname(platform.machine())
        (folder / "passwd").write_text(
            f"root:x:0:0::/root:/bin/sh\n{USER}:x:{UID}:{UID}::{self.home}:/bin/sh\n"
        )
        self.say_identity(None)
        self.key = self.new_key("key")
        (folder / "authorized_keys").write_text(self.key.with_suffix(".pub").read_text())
        self.new_host_key()
        self.trust()
        (folder / "ssh_config").write_text(
            f"IdentityFile {self.key}\nIdentitiesOnly yes\nIdentityAgent none\n"
            f"UserKnownHostsFile {folder}/known_hosts\nGlobalKnownHostsFile /dev/null\n"
        )
        # Further lines of the daemon's configuration, for when it starts.
        self.daemon_options = ""
        self.client = folder / "ssh"
        self.client.write_text(f'#!/bin/sh\nexec ssh -F {folder}/ssh_config "$@"\n')
        self.client.chmod(0o755)
        self._daemon_port = free_port()

    @property
    def device(self) -> SshConnection:
        return SshConnection(Address("127.0.0.1", USER, self.port))

    @property
    def serial(self) -> str:
        return self.url

    @property
    def made_by(self) -> str:
        """Python that gives the connection in another process."""
        module = "__import__('sme2_assets.targets.ssh.target', fromlist=['*'])"
        return f"{module}.SshTarget({self.url!r}).handle"

    def target(self) -> SshTarget:
        return SshTarget(self.url)

    def say_identity(self, text: str | None) -> None:
        """What tells this machine from others: the id of its installation."""
        name = text or self.folder.name
        (self.folder / "machine-id").write_text(f"{name.encode().hex():0<32}"[-32:] + "\n")

    def plant_cpu(self, text: str | None) -> None:
        """What the machine says of its CPUs; it has to be started again for that."""
        self.kill()
        (self.folder / "cpuinfo").unlink(missing_ok=True)
        if text is not None:
            (self.folder / "cpuinfo").write_text(text)
        self.start()

    def new_key(self, name: str) -> Path:
        path = self.folder / name
        path.unlink(missing_ok=True)
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path], check=True)
        return path

    def new_host_key(self) -> None:
        os.chown(self.new_key("host_key"), UID, UID)

    def trust(self) -> None:
        """The client knows the host key of now."""
        key = (self.folder / "host_key.pub").read_text()
        (self.folder / "known_hosts").write_text(f"[127.0.0.1]:{self.port} {key}")

    def start(self) -> None:
        """Starts the daemon, when it does not run, and waits until it takes connections."""
        if self._daemon is not None and self._daemon.poll() is None:
            return
        paths = {
            option: self.packages / f"usr/lib/openssh/sshd-{option.lower()}" for option in ("Session", "Auth")
        }
        (self.folder / "sshd_config").write_text(
            f"ListenAddress 127.0.0.1:{self._daemon_port}\nHostKey {self.folder}/host_key\nPidFile none\n"
            f"AuthorizedKeysFile {self.folder}/authorized_keys\nStrictModes no\nUsePAM no\n"
            f"PasswordAuthentication yes\nSetEnv PATH={self.folder}/bin:/usr/bin:/bin\n"
            + "".join(f"Sshd{name}Path {path}\n" for name, path in paths.items() if path.exists())
            # Else whoever is not let in a few times has to wait, and all clients have one address. The option
            # came with the separate program for sessions.
            + ("PerSourcePenalties no\n" if paths["Session"].exists() else "")
            + self.daemon_options
        )
        libraries = ":".join(map(str, self.packages.glob("usr/lib/*-linux-gnu")))
        self._run_daemon(
            "sshd",
            [
                *(
                    sys.executable,
                    "-I",
                    "-S",
                    "-c",
                    _BECOME_DAEMON,
                    str(self.folder),
                    str(UID),
                    libraries,
                ),
                *(
                    str(self.packages / "usr/sbin/sshd"),
                    "-D",
                    "-e",
                    "-f",
                    str(self.folder / "sshd_config"),
                ),
            ],
        )

    def connect(self) -> None:
        """Nothing: each process makes its own connection."""

    def disconnect(self) -> None:
        """The client ends the connection that all commands share."""
        self.device.disconnect()

    def kill(self) -> None:
        """The machine dies, with everything that runs on it left to itself. Its address is refused then."""
        self._unlisten()
        if self._daemon is not None and self._daemon.poll() is None:
            self._daemon.send_signal(signal.SIGSTOP)
            # Each connection has a group of the daemon's processes, each command one of its own.
            of_connections = Path(f"/proc/{self._daemon.pid}/task/{self._daemon.pid}/children").read_text()
            for process in of_connections.split():
                os.killpg(int(process), signal.SIGKILL)
            self._daemon.kill()
            self._daemon.wait()

    def close(self) -> None:
        self.kill()
        self.cut()

    def _to_daemon(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self._daemon_port))


@contextlib.contextmanager
def _machines(artifacts_dir: Path) -> Iterator[list[SshMachine]]:
    packages = artifacts_dir / "tools" / "sshd"
    fetch_packages(["openssh-server"], packages, with_dependencies=True, log=print)
    folder = Path(tempfile.mkdtemp(prefix="sme2-sshd-"))
    folder.chmod(0o755)
    machines: list[SshMachine] = []
    try:
        packages = for_every_user(packages, folder)
        for name in ("one", "two"):
            machines.append(SshMachine(packages, folder / name))
            machines[-1].start()
        yield machines
    finally:
        for machine in machines:
            machine.close()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def ssh_machines(artifacts_dir: Path) -> Iterator[list[SshMachine]]:
    """Two machines, which have keys of their own and know nothing of each other."""
    if platform.system() != "Linux" or os.geteuid() != 0:
        pytest.skip("the machine is this one: Linux, and root puts the daemon into mounts of its own")
    ask = "import ctypes, sys; sys.exit(ctypes.CDLL(None).unshare(0x00020000) != 0)"
    if subprocess.run([sys.executable, "-I", "-S", "-c", ask], check=False).returncode != 0:
        skip_where_ci_would_fail("no mounts of its own for sshd: root's rights are limited here")
    if shutil.which("ssh") is None or shutil.which("ssh-keygen") is None:
        skip_where_ci_would_fail("OpenSSH's client is not installed")
    with contextlib.ExitStack() as running:
        try:
            machines = running.enter_context(_machines(artifacts_dir))
        except Sme2Error as error:
            skip_out_of_reach(error)
        yield machines


@pytest.fixture
def ssh_machine(ssh_machines: list[SshMachine], monkeypatch: pytest.MonkeyPatch) -> Iterator[SshMachine]:
    """A Linux machine, running and whole, that the client trusts."""
    first = ssh_machines[0]
    monkeypatch.setenv("SME2_SSH", str(first.client))
    for variable in ("SME2_SSH_ROOT", "SME2_INVENTORY"):
        monkeypatch.delenv(variable, raising=False)
    for machine in ssh_machines:
        machine.say_machine(None)
        machine.start()
    yield first
    for machine in ssh_machines:
        machine.disconnect()


@pytest.fixture
def second_machine(ssh_machines: list[SshMachine], ssh_machine: SshMachine) -> SshMachine:
    """Another machine beside the first, which the same client trusts with the same key."""
    second = ssh_machines[1]
    (second.folder / "authorized_keys").write_text(ssh_machine.key.with_suffix(".pub").read_text())
    known = ssh_machine.folder / "known_hosts"
    if f":{second.port} " not in known.read_text():
        known.write_text(known.read_text() + (second.folder / "known_hosts").read_text())
    return second
