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
import stat
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from sme2_assets.distribution import to_install
from sme2_assets.errors import (
    Refused,
    Sme2Error,
    TargetUnavailable,
)
from sme2_assets.targets.contained import printed_by, too_much_text
from sme2_assets.targets.remote.connection import Connection, Script
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
    # Otherwise the client writes further keys of a known machine into the user's file.
    "UpdateHostKeys": "no",
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
    "RemoteCommand": "none",
    "LogLevel": "ERROR",
}
#: The path of a socket has about 100 characters, and its name takes up to 70 of them.
_SHARED, _LONGEST = Path("/tmp"), 24
# What it says is looked for in English.
_PUSH = 'LC_ALL=C; export LC_ALL; cat > "$1"'


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
        command, pipe = self.command(Script(_PUSH, (remote,))), subprocess.PIPE
        with (
            local.open("rb") as content,
            subprocess.Popen(command, stdin=content, stdout=pipe, stderr=pipe) as process,
        ):
            try:
                printed = printed_by(process, time.monotonic() + timeout_s)
            finally:
                process.kill()
        if printed.excess == "time":
            raise self._too_slow(timeout_s)
        if printed.excess == "text":
            raise too_much_text(f"The login shell of {self.name}")
        if process.returncode != 0:
            said = printed.err.decode("utf-8", "replace")
            raise self._transfer_failure("could not be sent to", local.name, said)

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

    def spoiled_remedy(self) -> str:
        return (
            "A shell that prints something at every login spoils it: try "
            f"`{self.by_hand} true`, which must print nothing."
        )

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


def _sockets() -> Path:
    """Where shared connections have their sockets: a short path, as the system requires, that only we use."""
    runtime = Path(os.environ.get("XDG_RUNTIME_DIR") or ".")
    folder = _SHARED / f"sme2-ssh-{os.getuid()}"
    if runtime.is_absolute() and len(str(runtime)) <= _LONGEST and _is_ours(runtime):
        folder = runtime / "sme2-ssh"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        why = "" if _is_ours(folder) else "it is not this user's alone"
    except OSError as error:
        why = str(error.strerror)
    if why:
        raise Sme2Error(
            f"The connections to other machines cannot be kept in the folder {folder}: {why}.",
            "Remove it, or set XDG_RUNTIME_DIR to a folder of your own, with a short path and the mode 0700.",
        )
    return folder


def _is_ours(folder: Path) -> bool:
    """Whether it is a folder, and not a link to one, in which nobody else can write or look."""
    try:
        state = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(state.st_mode) and state.st_uid == os.getuid() and not state.st_mode & 0o077
