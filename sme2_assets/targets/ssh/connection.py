"""The transport over the system's OpenSSH client.

The client may use only keys: nothing ever waits for a password or a passphrase, and a host whose key is not
known is refused. Each of our processes makes one connection, shared by all its commands.
"""

from __future__ import annotations

import atexit
import base64
import contextlib
import functools
import os
import re
import shlex
import shutil
import stat
import subprocess
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO, ClassVar

from sme2_assets.distribution import to_install
from sme2_assets.errors import (
    ConnectionLost,
    Refused,
    RunnerError,
    Sme2Error,
    TargetUnavailable,
    disk_failure,
)
from sme2_assets.targets.remote.connection import Connection
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
# Options that the client has had since this version. An older one does not start if it is given them, and
# cannot find them in a configuration either.
_NEWER = (8, 7)
_NEWER_OPTIONS = {"SessionType": "default", "StdinNull": "no", "ForkAfterAuthentication": "no"}
#: More than the client writes at once: if less was left, it could not write.
_ROOM_BYTES = 1 << 18
#: The path of a socket has about 100 characters, and its name takes up to 70 of them.
_SHARED, _LONGEST = Path("/tmp"), 24
# What they say is looked for in English.
_PUSH = 'LC_ALL=C; export LC_ALL; cat > "$1"'
_PULL = """LC_ALL=C; export LC_ALL
[ -e "$1" ] || { echo "$1: No such file or directory" >&2; exit 1; }
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


@functools.cache
def _version(client: str) -> tuple[int, int]:
    """The version of a client; (0, 0) if it does not say."""
    try:
        done = subprocess.run(
            [client, "-V"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=CONNECT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0, 0
    found = re.search(rb"OpenSSH_(\d+)\.(\d+)", done.stderr + done.stdout)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _install_remedy() -> str:
    return f"{to_install('ssh')}, or set {ENVIRONMENT_VARIABLE} to the path of one."


class _Odd(tarfile.TarError):
    """Something in an archive that is no result, although the archive is whole."""


def _unpack(archive: tarfile.TarFile, folder: Path) -> None:
    """Only folders and regular files, and only below the folder, whatever the archive says.

    tarfile's own filters came with Python 3.11.4, and Debian 12 has 3.11.2.
    """
    for member in archive:
        path = _path_of(member, folder)
        if member.isdir():
            path.mkdir(parents=True, exist_ok=True)
            continue
        content = archive.extractfile(member)
        assert content is not None, "it is a regular file"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("xb") as target:
            shutil.copyfileobj(content, target)


def _path_of(member: tarfile.TarInfo, folder: Path) -> Path:
    """Where a file or folder of an archive goes; an error for anything else, and for any other place."""
    if not (member.isreg() or member.isdir()):
        raise _Odd(f"{member.name!r} is {'a link' if member.issym() or member.islnk() else 'a special file'}")
    if member.issparse():
        # `tar` was not asked for that; a few bytes of it could fill the disk.
        raise _Odd(f"{member.name!r} is sparse")
    path = folder / member.name
    if "\0" in member.name or not path.resolve().is_relative_to(folder.resolve()):
        raise _Odd(f"{member.name!r} cannot be the name of something in this folder")
    return path


def _require_room(archive: IO[bytes]) -> None:
    """An OSError if nothing more can be written behind the archive: then the fault is on this side."""
    archive.seek(0, os.SEEK_END)
    archive.write(bytes(_ROOM_BYTES))
    archive.flush()


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
            try:
                if status != 0:
                    _require_room(archive)
                    raise self._transfer_failure("could not be fetched from", remote, said)
                self._unpacked(archive, Path(staging), remote).rename(local)
            except OSError as error:
                raise self._not_written(remote, error) from error

    def _unpacked(self, archive: IO[bytes], staging: Path, remote: str) -> Path:
        """What was fetched, unpacked; an OSError is a fault of this computer's disk."""
        archive.seek(0)
        try:
            # No other mode: a small archive that was compressed could fill the disk.
            with tarfile.open(fileobj=archive, mode="r:") as members:
                _unpack(members, staging)
            unpacked = staging / remote.rpartition("/")[2]
            unpacked.lstat()
        except _Odd as error:
            raise RunnerError(
                f"Not everything that {self.name} sent for {remote!r} is a file or folder: {error}.",
                "Results never contain that: look at what the runner, or another program there, has written.",
            ) from error
        except (tarfile.TarError, EOFError, ValueError, OSError) as error:
            if isinstance(error, OSError) and disk_failure(str(error)):
                raise
            # The client does not always say that it could not write everything.
            _require_room(archive)
            raise RunnerError(
                f"What {self.name} sent for {remote!r} cannot be unpacked: {error}",
                "A shell that prints something at every login spoils it: try "
                f"`{self.by_hand} true`, which must print nothing.",
            ) from error
        return unpacked

    def _not_written(self, remote: str, error: OSError) -> Sme2Error:
        known = disk_failure(str(error))
        return Sme2Error(
            f"What {self.name} sent for {remote!r} could not be written on this computer: {error.strerror}.",
            known.remedy if known else "Check the disk that the data folder is on.",
        )

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
        client = require_ssh()
        options = {
            **_OPTIONS,
            **(_NEWER_OPTIONS if _version(client) >= _NEWER else {}),
            "ConnectTimeout": str(CONNECT_SECONDS),
            "ControlPath": f"{_sockets()}/{os.getpid()}-%C",
        }
        pairs = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
        *port, host = self.address.words
        return [client, *pairs, *words, *port, "--", host]

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
    runtime = Path(os.environ.get("XDG_RUNTIME_DIR") or ".")
    places = [_SHARED / f"sme2-ssh-{os.getuid()}"]
    if runtime.is_absolute() and len(str(runtime)) <= _LONGEST and _is_ours(runtime):
        places.insert(0, runtime / "sme2-ssh")
    for folder in places:
        # Something else may have the name, or nothing can be written there.
        with contextlib.suppress(OSError):
            folder.mkdir(mode=0o700, exist_ok=True)
        if _is_ours(folder):
            return folder
    return _own_folder(os.getpid())


def _is_ours(folder: Path) -> bool:
    """Whether it is a folder, and not a link to one, in which nobody else can write or look."""
    try:
        state = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(state.st_mode) and state.st_uid == os.getuid() and not state.st_mode & 0o077


@functools.cache
def _own_folder(process: int) -> Path:
    """A folder for this process alone, where others have taken the name that all our processes share."""
    try:
        folder = tempfile.mkdtemp(prefix="sme2-", dir=_SHARED)
    except OSError as error:
        raise Sme2Error(
            f"No folder for the connections to other machines can be made in {_SHARED}: {error.strerror}.",
            f"Make {_SHARED} writable, or set XDG_RUNTIME_DIR to a folder of your own, with a short path and "
            "the mode 0700.",
        ) from error
    atexit.register(_forget, folder, process)
    return Path(folder)


def _forget(folder: str, process: int) -> None:
    # A forked child has our list of things to do at its end.
    if process == os.getpid():
        shutil.rmtree(folder, ignore_errors=True)
