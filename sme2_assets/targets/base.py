"""The interface of every place that can run a command.

A `Target` says whether it is available and what machine it is. Its `workspace` is a folder on that machine:
put files in, run a command, get files out. A new kind of target implements these two; for what it does not
override (clusters, power, state of the machine), this host is used.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from sme2_assets.errors import ConnectionLost, Sme2Error, TargetUnavailable
from sme2_assets.evidence.device import AARCH64, Fidelity
from sme2_assets.targets.clusters import Cluster
from sme2_assets.targets.environment.snapshot import Snapshot, take_snapshot
from sme2_assets.targets.lease import lease
from sme2_assets.toolchain import Availability

if TYPE_CHECKING:
    from sme2_assets.evidence.result import PassKind


@dataclass(frozen=True)
class MachineFacts:
    """The machine that executes, as far as it can be read without privileges; the rest is None or empty.

    `cpu` names its cores, `soc` the chip around them. `serial_sha256` distinguishes devices without revealing
    serial numbers. `sme_vector_bits` is what a process gets; the runner also reports it for itself.
    """

    os: str
    kernel: str
    arch: str
    cpu: str
    cores: int
    memory_bytes: int | None
    emulator: str | None = None
    model: str | None = None
    soc: str | None = None
    build: str | None = None
    serial_sha256: str | None = None
    features: tuple[str, ...] = ()
    clusters: tuple[Cluster, ...] = ()
    sme_vector_bits: int | None = None
    # level_percent, temperature_c, plugged (ac, usb, wireless, dock, no); see environment.sensors
    battery: dict[str, Any] | None = None

    def as_json(self) -> dict[str, Any]:
        """As it would be after writing and reading: lists instead of tuples."""
        plain: dict[str, Any] = json.loads(json.dumps(asdict(self), allow_nan=False))
        return plain


@dataclass(frozen=True)
class Completed:
    """A command that ended: its exit code and output."""

    command: list[str]
    returncode: int
    stdout: str
    stderr: str
    seconds: float


@dataclass(frozen=True)
class Program:
    """A program with every file it needs, and how it is started.

    In `start`, `.` and a leading `./` refer to the folder of the files, wherever that will be.
    """

    folder: Path
    files: tuple[str, ...]
    start: tuple[str, ...]

    def command_in(self, folder: str) -> list[str]:
        """How to start it when its files are in `folder`."""
        return [
            folder if part == "." else f"{folder}/{part[2:]}" if part.startswith("./") else part
            for part in self.start
        ]


class Workspace(ABC):
    """A fresh folder on the target: nothing in it is older than the workspace."""

    @abstractmethod
    def install(self, program: Program) -> list[str]:
        """Puts a program on the target so that it can be started; returns the beginning of its command."""

    @abstractmethod
    def put(self, local: Path) -> str:
        """Makes a local file readable for commands on the target; returns its path there."""

    @abstractmethod
    def path(self, name: str) -> str:
        """Where a command on the target may write `name`."""

    @abstractmethod
    def run(self, command: Sequence[str], env: Mapping[str, str], timeout_s: float) -> Completed:
        """Runs a command there. A command that outlives the time-out is killed: RunnerError."""

    def run_logged(
        self, command: Sequence[str], env: Mapping[str, str], timeout_s: float, log: int
    ) -> Completed:
        """The same on a target that counts work: a log of what is executed goes to that descriptor."""
        raise NotImplementedError(f"{type(self).__name__} logs nothing")

    @abstractmethod
    def get(self, name: str, local: Path) -> None:
        """Moves a file or folder that a command wrote to `path(name)` to `local`."""


class Target(ABC):
    """A platform on which runners run."""

    platform: str
    fidelity: Fidelity
    # The identity of the machine: runs of two devices never form one series.
    device: str
    # Whether a runner must bring its own loader and libraries, and for which instruction set.
    bundled: bool = False
    bundle_arch: str = AARCH64
    # The pass that shows which kernels run: `kernels` samples, `work` counts every instruction; None where
    # neither is possible.
    kernel_pass: ClassVar[PassKind | None] = "kernels"
    # Whether the arms of a session may run side by side: only where no time is read from them.
    arms_at_once: ClassVar[bool] = False

    @property
    def occupied(self) -> str:
        """The device that is busy while a session runs: targets that share it never time at once."""
        return self.device

    @abstractmethod
    def availability(self, sme2: str) -> Availability: ...

    @abstractmethod
    def facts(self) -> MachineFacts: ...

    @abstractmethod
    def workspace(self) -> AbstractContextManager[Workspace]: ...

    @contextmanager
    def leased(self, leases: Path, log: Callable[[str], None], what: str = "") -> Iterator[Target]:
        """Holds the device for one session, of `what`; yields the target to measure on."""
        with lease(leases, self.occupied, log=log, what=what):
            yield self

    def recover(self, patience_s: float, log: Callable[[str], None]) -> None:
        """Waits for a device that went away, so that a session can go on; ConnectionLost if it stays away."""
        raise ConnectionLost(f"{self.device} went away.", "Connect it again, and measure again.")

    def snapshot(self, sample_s: float = 0.2) -> Snapshot:
        """The state of the machine that executes."""
        return take_snapshot(sample_s)

    def cpus(self, choice: str) -> tuple[int, ...]:
        """The CPUs that a cluster name, list or mask refers to."""
        raise Sme2Error(
            f"CPUs cannot be chosen on {self.platform}.",
            "Leave `cpus` empty, or measure on linux or android.",
        )

    @contextmanager
    def power(self, mode: str, leases: Path, log: Callable[[str], None]) -> Iterator[dict[str, Any]]:
        """Puts the device into a power mode for a session and back; yields what was set and verified.

        The previous settings stay in a file next to the leases until they are restored, so nothing is lost if
        this process dies.
        """
        if mode:
            raise Sme2Error(
                f"{self.platform} has no power modes.",
                "Leave `power` empty: they are settings of Android devices.",
            )
        yield {}

    def require(self, sme2: str) -> None:
        """Raises TargetUnavailable if this machine does not offer the state."""
        availability = self.availability(sme2)
        if not availability.ok:
            raise TargetUnavailable(
                f"{self.platform}-sme2_{sme2} is not available here: {availability.detail}",
                availability.remedy,
            )
