"""What every place that can run a command looks like.

A `Target` says whether it is there and what machine it is. Its `workspace` is a folder on that
machine: put files in, run a command, get files out. A new kind of target implements these two.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from sme2_assets.errors import TargetUnavailable

Fidelity = Literal["hardware", "emulated"]


@dataclass(frozen=True)
class Availability:
    """Whether a target can give an SME2 state; if not, what is missing and what to do."""

    ok: bool
    detail: str
    remedy: str | None = None


@dataclass(frozen=True)
class MachineFacts:
    """The machine that executes, as far as it can be told without privileges."""

    os: str
    kernel: str
    arch: str
    cpu: str
    cores: int
    memory_bytes: int | None
    emulator: str | None = None


@dataclass(frozen=True)
class Completed:
    """A command that ended: how, and what it said."""

    command: list[str]
    returncode: int
    stdout: str
    stderr: str
    seconds: float


class Workspace(ABC):
    """A fresh folder on the target: nothing in it is older than the workspace."""

    @abstractmethod
    def put(self, local: Path) -> str:
        """Makes a local file readable for commands on the target; gives its path there."""

    @abstractmethod
    def path(self, name: str) -> str:
        """Where a command on the target may write `name`."""

    @abstractmethod
    def run(self, command: Sequence[str], env: Mapping[str, str], timeout_s: float) -> Completed:
        """Runs a command there. A command that outlives the time-out is killed: RunnerError."""

    @abstractmethod
    def get(self, name: str, local: Path) -> None:
        """Brings a file or folder that a command wrote to `path(name)` to `local`."""


class Target(ABC):
    """A platform on which runners run."""

    platform: str
    fidelity: Fidelity
    # Targets that share a device never measure at the same time.
    device: str
    # What a process needs in its environment for its program counters to be sampled faithfully.
    sampling_environment: ClassVar[Mapping[str, str]] = {}

    @abstractmethod
    def availability(self, sme2: str) -> Availability: ...

    @abstractmethod
    def facts(self) -> MachineFacts: ...

    @abstractmethod
    def workspace(self) -> AbstractContextManager[Workspace]: ...

    def require(self, sme2: str) -> None:
        """Raises TargetUnavailable when this machine cannot give the state."""
        availability = self.availability(sme2)
        if not availability.ok:
            raise TargetUnavailable(
                f"{self.platform}-sme2_{sme2} is not available here: {availability.detail}",
                availability.remedy,
            )
