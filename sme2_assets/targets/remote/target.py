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

from sme2_assets.errors import ConnectionLost, Sme2Error, TargetUnavailable
from sme2_assets.targets.base import MachineFacts, Target
from sme2_assets.targets.environment.snapshot import Snapshot
from sme2_assets.targets.lease import lease
from sme2_assets.targets.remote.connection import Connection, Refused
from sme2_assets.targets.remote.facts import device_cpus, device_facts, device_snapshot
from sme2_assets.targets.remote.script import Script, shell_program
from sme2_assets.targets.remote.workspace import SETUP_SECONDS, RemoteWorkspace, free_bytes

Log = Callable[[str], None]

_BUSY_PATIENCE_S = 600.0
_RECOVER_PAUSE_S = 1.0
_HOLD = shell_program("sessions", "hold")
_END_SESSION = shell_program("sessions", "end_session")
_IDENTITY = shell_program("identity")
_SPACE = shell_program("space")
_CLEAN = shell_program("sessions", "clean")


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
        # Sessions that may still be held on the device because the connection was lost.
        self._sessions: list[str] = []

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
    def leased(self, leases: Path, log: Log) -> Iterator[Target]:
        with lease(leases, self.device, log=log):
            self.begin(leases, log)
            yield self

    def begin(self, leases: Path, log: Log) -> None:
        """What the holder of the lease does first."""
        self._log = log
        self._sessions.clear()
        self._identity = self._who()

    @contextmanager
    def workspace(self) -> Iterator[RemoteWorkspace]:
        device, root = self.handle, self.root
        name = f"{_host_name()}-{os.getpid()}-{secrets.token_hex(6)}"
        waiting: list[str] = []

        def told(line: str) -> None:
            if line.startswith("held by ") and not waiting:
                waiting.append(line)
                self._log(
                    f"{self.device} is used by another computer or data folder ({line}); waiting for it"
                )

        self._sessions.append(name)
        holder = device.hold(
            Script(_HOLD, (root, name)), ready="ready", patience_s=_BUSY_PATIENCE_S, on_line=told
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
        """Waits until the device answers, requesting new connections; ends what is left of our sessions."""
        deadline_s = time.monotonic() + patience_s
        reason = ""
        while True:
            try:
                problem = self._reconnected()
                who = None if problem else self._who()
                if not problem and self._identity in (None, who):
                    self._end_sessions()
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

    def _who(self) -> str:
        """An identifier of the device."""
        return self.handle.script(_IDENTITY)

    def _end_sessions(self) -> None:
        """Also if the device has not noticed yet that the connection is gone, as after losing Wi-Fi."""
        for name in list(self._sessions):
            half = len(name) // 2
            self.handle.script(_END_SESSION, self.root, name[:half], name[half:])
            self._sessions.remove(name)

    def space(self) -> tuple[int | None, int]:
        """Bytes free where our folder is or would be, and bytes that it takes up."""
        answer = self.handle.script(_SPACE, self.root, timeout_s=SETUP_SECONDS)
        df, _, kib = answer.rpartition("stored ")
        return free_bytes(df), int(kib.strip() or 0) * 1024

    def clean(self) -> int:
        """Removes everything of ours from the device; returns the bytes that were freed."""
        answer = self.handle.script(_CLEAN, self.root, timeout_s=SETUP_SECONDS).strip()
        if answer.startswith("held by"):
            raise TargetUnavailable(
                f"{self.address} is measuring ({answer}).", "Wait for the session to end, or stop it."
            )
        return int(answer or 0) * 1024


def _host_name() -> str:
    """A part of a session's name, for people who wonder who is using the device."""
    return re.sub(r"[^A-Za-z0-9]+", "-", socket.gethostname()).strip("-")[:24] or "host"
