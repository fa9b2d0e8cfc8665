"""The transport over the system's OpenSSH client.

The client may use only keys: nothing ever waits for a password or a passphrase, and a host whose key is not
known is refused. Each of our processes makes one connection, shared by all its commands.
"""

from __future__ import annotations

import base64
import contextlib
import os
import re
import shlex
import shutil
import subprocess
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO, ClassVar

from sme2_assets.distribution import to_install
from sme2_assets.errors import ConnectionLost, RunnerError, Sme2Error, TargetUnavailable
from sme2_assets.targets.remote.connection import Connection, Refused
from sme2_assets.targets.remote.script import Script
from sme2_assets.targets.ssh.address import Address

ENVIRONMENT_VARIABLE = "SME2_SSH"
ROOT_VARIABLE = "SME2_SSH_ROOT"
#: How long a machine may take to answer at all, and how often to check that it is still there.
CONNECT_SECONDS = 20
_ALIVE_SECONDS, _ALIVE_TIMES = 10, 3
#: How long the shared connection outlives the last command.
_PERSIST_SECONDS = 15
# These override the user's configuration, which otherwise applies: names, keys, jump hosts.
_OPTIONS = {
    "BatchMode": "yes",
    "StrictHostKeyChecking": "yes",
    "PasswordAuthentication": "no",
    "KbdInteractiveAuthentication": "no",
    "ServerAliveInterval": str(_ALIVE_SECONDS),
    "ServerAliveCountMax": str(_ALIVE_TIMES),
    "ConnectionAttempts": "1",
    "ControlMaster": "auto",
    "ControlPersist": str(_PERSIST_SECONDS),
    "RequestTTY": "no",
    "ForwardAgent": "no",
    "ForwardX11": "no",
    "ClearAllForwardings": "yes",
    "PermitLocalCommand": "no",
    "LogLevel": "ERROR",
}
_PUSH = 'cat > "$1"'
_PULL = """[ -e "$1" ] || { echo "$1: No such file or directory" >&2; exit 1; }
cd "${1%/*}" && tar -cf - "./${1##*/}" """


def require_ssh() -> str:
    """The client to use: $SME2_SSH, an error if that is wrong; otherwise the one on PATH."""
    named = os.environ.get(ENVIRONMENT_VARIABLE)
    found = shutil.which(named or "ssh")
    if found is None:
        what = (
            f"{ENVIRONMENT_VARIABLE} is {named!r}, and there is no such program."
            if named
            else ("ssh, which talks to other machines, was not found.")
        )
        raise TargetUnavailable(what, _install_remedy())
    return found


def _install_remedy() -> str:
    return f"{to_install('ssh')}, or set {ENVIRONMENT_VARIABLE} to the path of one."


def _unpack(archive: tarfile.TarFile, folder: Path) -> None:
    """Only folders and regular files, and only below the folder, whatever the archive says.

    tarfile's own filters came with Python 3.11.4, and Debian 12 has 3.11.2.
    """
    for member in archive:
        content = archive.extractfile(member) if member.isreg() else None
        path = folder / member.name
        if not path.resolve().is_relative_to(folder.resolve()) or not (content or member.isdir()):
            raise tarfile.TarError(f"{member.name!r} is not a file or folder in it")
        if content is None:
            path.mkdir(parents=True, exist_ok=True)
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("xb") as target:
            shutil.copyfileobj(content, target)


@dataclass(frozen=True)
class SshConnection(Connection):
    """A machine behind the OpenSSH client."""

    root_variable: ClassVar[str] = ROOT_VARIABLE
    address: Address

    @property
    def name(self) -> str:  # type: ignore[override]
        return str(self.address)

    @property
    def by_hand(self) -> str:
        """The command for connecting by hand."""
        return shlex.join(["ssh", *self.address.words])

    def command(self, script: Script) -> list[str]:
        # The login shell on the machine may not understand POSIX quotes. Every shell reads these words the
        # same way.
        text = base64.b64encode(script.remote_command().encode()).decode()
        return [*self._client(), f"""exec sh -c 'eval "$(echo {text} | base64 -d)"'"""]

    def push(self, local: Path, remote: str, *, timeout_s: float = 1800) -> None:
        with local.open("rb") as content:
            status, said = self._transfer(Script(_PUSH, (remote,)), timeout_s, stdin=content)
        if status != 0:
            raise self._transfer_failure("could not be sent to", local.name, said)

    def pull(self, remote: str, local: Path, *, timeout_s: float = 1800) -> None:
        with (
            tempfile.TemporaryFile(dir=local.parent) as archive,
            tempfile.TemporaryDirectory(prefix=".unpack-", dir=local.parent) as staging,
        ):
            status, said = self._transfer(Script(_PULL, (remote,)), timeout_s, stdout=archive)
            if status != 0:
                raise self._transfer_failure("could not be fetched from", remote, said)
            archive.seek(0)
            try:
                with tarfile.open(fileobj=archive) as members:
                    _unpack(members, Path(staging))
                (Path(staging) / remote.rpartition("/")[2]).rename(local)
            except (tarfile.TarError, OSError, EOFError) as error:
                raise RunnerError(
                    f"What {self.name} sent for {remote!r} cannot be unpacked: {error}",
                    "A shell that prints something at every login spoils it: try "
                    f"`{self.by_hand} true`, which must print nothing.",
                ) from error

    def disconnect(self) -> None:
        """Ends the shared connection: the next command makes a new one."""
        # A client that hangs with the connection is killed; the next command then fails by itself if it must.
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(
                [*self._client("-O", "exit")],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=CONNECT_SECONDS,
                check=False,
            )

    def refusal(self, said: str) -> Refused | None:
        key = f"`ssh-keygen -R {shlex.quote(self.address.known_as)}`"
        if "IDENTIFICATION HAS CHANGED" in said:
            return Refused(
                f"{self.name} has a different host key from the one that is trusted here.",
                f"If the machine was reinstalled, forget the old key with {key} and connect once by hand "
                f"(`{self.by_hand}`) to check and accept the new one. If not, it may be an impostor.",
            )
        if "Host key verification failed" in said or "host key is known" in said:
            return Refused(
                f"The host key of {self.name} is not known here, so it might be any machine.",
                f"Connect once by hand, `{self.by_hand}`, compare the fingerprint and accept it.",
            )
        if re.search(r"Permission denied \(|Too many authentication failures", said):
            return Refused(
                f"{self.name} accepts no key of this user.",
                f"Copy a key there with `{shlex.join(['ssh-copy-id', *self.address.words])}`; one with a "
                "passphrase has to be in the agent (`ssh-add`). Passwords are never asked for.",
            )
        if found := re.search(r"(Bad (?:owner|configuration).*|\S{0,200}: terminating, \d+ bad.*)", said):
            return Refused(f"ssh does not read its configuration: {found[1]}", "Fix the file that it names.")
        return None

    def install_remedy(self) -> str:
        return _install_remedy()

    def lost_remedy(self) -> str:
        return (
            f"Check that the machine is on and can be reached: `{self.by_hand} true` must end at once, "
            "without asking anything."
        )

    def _client(self, *words: str) -> list[str]:
        options = {
            **_OPTIONS,
            "ConnectTimeout": str(CONNECT_SECONDS),
            "ControlPath": f"{_sockets()}/{os.getpid()}-%C",
        }
        pairs = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
        *port, host = self.address.words
        return [require_ssh(), *pairs, *words, *port, "--", host]

    def _transfer(
        self,
        script: Script,
        timeout_s: float,
        *,
        stdin: IO[bytes] | int = subprocess.DEVNULL,
        stdout: IO[bytes] | int = subprocess.DEVNULL,
    ) -> tuple[int, str]:
        """Exit code and messages of a program that reads or writes a file. 255 is the client's own code."""
        try:
            done = subprocess.run(
                self.command(script),
                stdin=stdin,
                stdout=stdout,
                stderr=subprocess.PIPE,
                timeout=timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired as expired:
            raise ConnectionLost(
                f"A file could not be copied to or from {self.name} within {timeout_s:.0f} s.",
                self.lost_remedy(),
            ) from expired
        return done.returncode, done.stderr.decode("utf-8", "replace")


def _sockets() -> Path:
    """Where shared connections have their sockets: a short path, as the system requires, that only we use."""
    folder = Path("/tmp") / f"sme2-ssh-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    state = folder.lstat()
    if state.st_uid != os.getuid() or state.st_mode & 0o077 or folder.is_symlink():
        raise Sme2Error(f"{folder} belongs to somebody else or is open to others.", "Remove it.")
    return folder
