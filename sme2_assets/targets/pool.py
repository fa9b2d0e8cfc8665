"""A device that is chosen when a session begins: the first free one of several that is suitable."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from sme2_assets.errors import Sme2Error, TargetUnavailable
from sme2_assets.evidence.device import AARCH64, Fidelity, native_fidelity
from sme2_assets.targets.android.target import emulating
from sme2_assets.targets.base import Availability, MachineFacts, Target, Workspace
from sme2_assets.targets.environment.snapshot import Snapshot
from sme2_assets.targets.lease import lease
from sme2_assets.targets.remote.target import Log, RemoteTarget

ANY = "any"
_POOL_PAUSE_S = 2.0
_POOL_PATIENCE_S = 1800.0


class DevicePool(Target):
    """Several devices of a platform, of which a session takes one."""

    bundled = True

    def __init__(self, platform: str, candidates: Callable[[], Sequence[RemoteTarget]]) -> None:
        self.platform = platform
        self.device = f"{platform}-{ANY}"
        self._candidates = candidates
        # The SME2 states that the next session needs.
        self._states: set[str] = set()

    def candidates(self) -> list[RemoteTarget]:
        return list(self._candidates())

    @cached_property
    def bundle_arch(self) -> str:  # type: ignore[override]
        """The instruction set that the session's runner is for: AArch64 if one of the devices has it."""
        if self.platform == "android":
            return AARCH64
        archs = [target.bundle_arch for target in self._able_ones()]
        return AARCH64 if AARCH64 in archs else archs[0]

    @cached_property
    def fidelity(self) -> Fidelity:  # type: ignore[override]
        if self.platform == "android":
            return "emulated" if emulating() else "hardware"
        return native_fidelity(self.bundle_arch)

    def availability(self, sme2: str) -> Availability:
        try:
            answers = [target.availability(sme2) for target in self.candidates()]
        except Sme2Error as error:
            return Availability(False, error.what, error.remedy)
        able = [answer for answer in answers if answer.ok]
        if able:
            return Availability(True, ", ".join(answer.detail for answer in able))
        return replace(answers[0], detail=" ".join(answer.detail for answer in answers))

    def require(self, sme2: str) -> None:
        super().require(sme2)
        self._states.add(sme2)

    @contextmanager
    def leased(self, leases: Path, log: Log) -> Iterator[Target]:
        with ExitStack() as held:
            target = self._first_free(held, leases, log)
            log(f"measuring on {target.address} ({target.device})")
            target.begin(leases, log)
            yield target

    def _first_free(self, held: ExitStack, leases: Path, log: Log) -> RemoteTarget:
        """Takes the lease of the first suitable device that nobody uses, waiting while all are in use."""
        deadline_s = time.monotonic() + _POOL_PATIENCE_S
        waiting = False
        while True:
            # One runner was built, for one instruction set.
            able = [target for target in self._able_ones() if target.bundle_arch == self.bundle_arch]
            for target in able:
                try:
                    held.enter_context(lease(leases, target.device, log=lambda message: None, patience_s=0))
                except TargetUnavailable:
                    continue
                return target
            if not waiting:
                names = ", ".join(target.address for target in able)
                log(f"all suitable devices are in use: {names}; waiting")
                waiting = True
            if time.monotonic() > deadline_s:
                raise TargetUnavailable(
                    f"All suitable {self.platform} devices were still in use after {_POOL_PATIENCE_S:.0f} s.",
                    "Wait for the other sessions to end, or connect more devices.",
                )
            time.sleep(_POOL_PAUSE_S)

    def _able_ones(self) -> list[RemoteTarget]:
        candidates = self.candidates()
        # SME2 off can be measured wherever anything can.
        states = sorted(self._states) or ["off"]
        able = [t for t in candidates if all(t.availability(state).ok for state in states)]
        if not able:
            for state in states:
                super().require(state)
            raise TargetUnavailable(
                "No single device offers " + " and ".join(f"SME2 {state}" for state in states) + ".",
                "Connect a device with SME2.",
            )
        return able

    def facts(self) -> MachineFacts:
        return self._able_ones()[0].facts()

    def snapshot(self, sample_s: float = 0.2) -> Snapshot:
        return self._able_ones()[0].snapshot(sample_s)

    def cpus(self, choice: str) -> tuple[int, ...]:
        return self._able_ones()[0].cpus(choice)

    @contextmanager
    def workspace(self) -> Iterator[Workspace]:
        with self._able_ones()[0].workspace() as workspace:
            yield workspace
