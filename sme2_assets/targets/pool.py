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
from sme2_assets.targets.base import MachineFacts, Target, Workspace
from sme2_assets.targets.environment.snapshot import Snapshot
from sme2_assets.targets.lease import lease
from sme2_assets.targets.remote.target import Log, RemoteTarget
from sme2_assets.toolchain import Availability

ANY = "any"
_POOL_PAUSE_S = 2.0
# Whoever measures on a device is disturbed by questions.
_LOOK_PAUSE_S = 60.0
_ASK_PAUSE_S = 15.0
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
    def leased(self, leases: Path, log: Log, what: str = "") -> Iterator[Target]:
        with ExitStack() as held:
            target = self._first_free(held, leases, log, what)
            log(f"measuring on {target.address} ({target.device})")
            target.begin(leases, log)
            yield target

    def _first_free(self, held: ExitStack, leases: Path, log: Log, what: str) -> RemoteTarget:
        """Takes the lease of the first suitable device that nobody uses, waiting while all are in use."""
        deadline_s = time.monotonic() + _POOL_PATIENCE_S
        able: list[RemoteTarget] = []
        # When to look for devices again, and when to ask one again that somebody else was using.
        look_s, ask_s = 0.0, dict[str, float]()
        waiting = False
        while True:
            if time.monotonic() >= look_s:
                # One runner was built, for one instruction set.
                able = [target for target in self._able_ones(able) if target.bundle_arch == self.bundle_arch]
                look_s = time.monotonic() + _LOOK_PAUSE_S
            for target in able:
                if time.monotonic() < ask_s.get(target.address, 0.0):
                    continue
                with ExitStack() as taken:
                    if not _leased(taken, leases, target, what):
                        continue
                    try:
                        holder = target.holder()
                    except Sme2Error:
                        # It went away while we waited, or cannot be used: looked at again with the others.
                        able = [other for other in able if other is not target]
                        if not able:
                            raise
                        continue
                    if holder is None:
                        held.push(taken.pop_all())
                        return target
                    ask_s[target.address] = time.monotonic() + _ASK_PAUSE_S
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

    def _able_ones(self, known: Sequence[RemoteTarget] = ()) -> list[RemoteTarget]:
        """The devices that offer what is needed. Those already known to be able are not asked again."""
        able_before = {target.address: target for target in known}
        # SME2 off can be measured wherever anything can.
        states = sorted(self._states) or ["off"]
        able = [
            able_before.get(target.address, target)
            for target in self.candidates()
            if target.address in able_before or all(target.availability(state).ok for state in states)
        ]
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


def _leased(taken: ExitStack, leases: Path, target: RemoteTarget, what: str) -> bool:
    """Takes the lease of a device, if no session of this data folder has it."""
    try:
        taken.enter_context(lease(leases, target.device, log=lambda message: None, patience_s=0, what=what))
    except TargetUnavailable:
        return False
    return True
