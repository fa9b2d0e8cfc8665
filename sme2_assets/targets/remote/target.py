"""A remote device as a target: its sessions, and how it comes back. Subclasses have what differs by kind."""

from __future__ import annotations

import os
import re
import secrets
import socket
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

from sme2_assets.errors import ConnectionLost, Refused, Sme2Error, TargetUnavailable
from sme2_assets.targets.base import MachineFacts, Target
from sme2_assets.targets.environment.snapshot import Snapshot
from sme2_assets.targets.lease import lease
from sme2_assets.targets.reading import integer, printable_name
from sme2_assets.targets.remote.connection import Connection, Script, shell_program
from sme2_assets.targets.remote.facts import ask, device_cpus, device_facts, device_snapshot
from sme2_assets.targets.remote.workspace import SETUP_SECONDS, RemoteWorkspace, free_bytes

Log = Callable[[str], None]

_BUSY_PATIENCE_S = 600.0
_RECOVER_PAUSE_S = 1.0
_HOLD = shell_program("processes", "lock", "hold")
_RELEASE = shell_program("lock", "release")
_IDENTITY = shell_program("sections", "identity")
_SPACE = shell_program("sections", "space")
_HOLDER = shell_program("sections", "lock", "holder")
_CLEAN = shell_program("sections", "lock", "clean")
_UNLOCKABLE = "unlockable "


class RemoteTarget(Target):
    """One device behind a transport; `address` is the name people use for it."""

    bundled = True
    #: Where to look at the state of its connection.
    look: ClassVar[str]
    address: str

    def __init__(self) -> None:
        self._log: Log = lambda message: None
        # Which device answered when the lease began: a network address can become another device's.
        self._identity: str | None = None
        # The last session, which the device may still hold because it has not noticed a lost connection.
        self._session: str | None = None

    @property
    @abstractmethod
    def handle(self) -> Connection:
        """The connection, whatever its state."""

    @property
    @abstractmethod
    def root(self) -> str:
        """The folder on the device that holds everything."""

    @abstractmethod
    def _reconnected(self) -> str:
        """Empty if the device answers; otherwise its state, after a new connection was requested."""

    def facts(self) -> MachineFacts:
        return device_facts(self.handle)

    def snapshot(self, sample_s: float = 0.2) -> Snapshot:
        return device_snapshot(self.handle, sample_s)

    def cpus(self, choice: str) -> tuple[int, ...]:
        return device_cpus(self.handle, choice)

    @contextmanager
    def leased(self, leases: Path, log: Log, what: str = "") -> Iterator[Target]:
        with lease(leases, self.device, log=log, what=what):
            self.begin(leases, log)
            yield self

    def begin(self, leases: Path, log: Log) -> None:
        """What the holder of the lease does first."""
        self._log = log
        self._session = None
        self._identity = self._who()

    @contextmanager
    def workspace(self) -> Iterator[RemoteWorkspace]:
        device, root = self.handle, self.root
        name = f"{_host_name()}-{os.getpid()}-{secrets.token_hex(6)}"
        waiting: list[str] = []

        def told(line: str) -> None:
            if line.startswith(_UNLOCKABLE):
                raise self._without_lock(line)
            if line.startswith("held by ") and not waiting:
                waiting.append(line)
                self._log(
                    f"{self.device} is used by another computer or data folder ({line}); waiting for it"
                )

        self._session = name
        holder = device.hold(
            Script(_HOLD, (name, root)), ready=f"{name} ready", patience_s=_BUSY_PATIENCE_S, on_line=told
        )
        try:
            workspace = RemoteWorkspace(device, holder, self.device, root, name, self.bundle_arch, self._log)
            self._prepare(workspace)
            yield workspace
            self._log(f"{self.device}: {workspace.bytes_pushed / 1e6:.1f} MB pushed in this session")
        finally:
            # Never hides the error that ended the session: anything left is removed when the next one begins.
            holder.close()

    def _prepare(self, workspace: RemoteWorkspace) -> None:
        """Puts on the device what is needed besides a program."""

    def recover(self, patience_s: float, log: Log) -> None:
        """Waits until the device answers, requesting new connections; ends what is left of our session."""
        deadline_s = time.monotonic() + patience_s
        reason = ""
        while True:
            try:
                problem = self._reconnected()
                who = None if problem else self._who()
                if not problem and self._identity in (None, who):
                    self._release()
            except Refused:
                raise
            except Sme2Error as error:
                problem, who = str(error), None
            if not problem and self._identity in (None, who):
                log(f"{self.device} answers again")
                return
            if not problem:
                raise TargetUnavailable(
                    f"A different device now answers at {self.address}, not the one the session began with.",
                    f"{self.look}, connect the right one, and measure again.",
                )
            if problem != reason:
                log(f"{self.device}: {problem}")
                reason = problem
            if time.monotonic() > deadline_s:
                raise ConnectionLost(
                    f"{self.address} did not come back within {patience_s:.0f} s ({problem}).",
                    "Connect the device again (`sme2 devices` shows its state), then measure again.",
                )
            time.sleep(_RECOVER_PAUSE_S)

    def holder(self) -> str | None:
        """The session that holds the device now, of whatever computer; None if it is free."""
        name = self._asked(_HOLDER).get("holder", "").strip()
        return printable_name(name) if name else None

    def _who(self) -> str:
        """An identifier of the device."""
        return repr(sorted(ask(self.handle, _IDENTITY).items()))

    def _release(self) -> None:
        """Also if the device has not noticed yet that the connection is gone, as after losing Wi-Fi."""
        if self._session is not None:
            ask(self.handle, _RELEASE, self.root, self._session)
            self._session = None

    def space(self) -> tuple[int | None, int]:
        """Bytes free where our folder is or would be, and bytes that it takes up."""
        answer = ask(self.handle, _SPACE, self.root, timeout_s=SETUP_SECONDS)
        return free_bytes(answer.get("df", "")), _kib(answer.get("stored", ""))

    def clean(self) -> int:
        """Removes everything of ours from the device; returns the bytes that were freed."""
        answer = self._asked(_CLEAN)
        if held := answer.get("held", "").strip():
            raise TargetUnavailable(
                f"{self.address} is measuring (held by {printable_name(held)}).",
                "Wait for the session to end, or stop it.",
            )
        return _kib(answer.get("freed", ""))

    def _asked(self, program: str) -> dict[str, str]:
        """The answer of a program that takes the lock."""
        answer = ask(self.handle, program, self.root, timeout_s=SETUP_SECONDS)
        if line := next((name for name in answer if name.startswith(_UNLOCKABLE)), None):
            raise self._without_lock(line)
        return answer

    def _without_lock(self, line: str) -> TargetUnavailable:
        why = printable_name(line.removeprefix(_UNLOCKABLE), 200)
        return TargetUnavailable(
            f"{self.root} on {self.address} cannot be locked, which keeps sessions apart ({why}).",
            "Install `flock` there (it is in util-linux; Android has it since version 7), or name a folder "
            f"on another disk by {self.handle.root_variable}.",
        )


def _kib(text: str) -> int:
    """Bytes, from a number of kibibytes; 0 if it is no number."""
    return (integer(text.strip()) or 0) * 1024


def _host_name() -> str:
    """A part of a session's name, for people who wonder who is using the device."""
    return re.sub(r"[^A-Za-z0-9]+", "-", socket.gethostname()).strip("-")[:24] or "host"
