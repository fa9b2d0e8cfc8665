"""The target when no device is named: the only one that is connected, or `any` of several."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from sme2_assets.errors import Sme2Error, TargetUnavailable
from sme2_assets.evidence.device import Fidelity
from sme2_assets.targets.android.adb import require_adb
from sme2_assets.targets.android.choice import choose_device, device_names
from sme2_assets.targets.android.target import AndroidTarget, Log, emulating, one_device
from sme2_assets.targets.base import Availability, MachineFacts, Target, Workspace
from sme2_assets.targets.environment.snapshot import Snapshot
from sme2_assets.targets.lease import lease

ANY = "any"
_POOL_PAUSE_S = 2.0
_POOL_PATIENCE_S = 1800.0


def open_android(tools: Path, device: str | None) -> Target:
    """The target of a device by serial number, of `any` able one, or (None) of the only one."""
    device = device or os.environ.get("ANDROID_SERIAL")
    return (
        AndroidPool(tools, any_device=device == ANY) if device in (None, ANY) else one_device(tools, device)
    )


class AndroidPool(Target):
    """The only device, or `any` of several: which one is decided when a session begins."""

    platform = "android"
    bundled = True
    device = "android-any"

    def __init__(self, tools: Path, *, any_device: bool) -> None:
        self.tools = tools
        self.any_device = any_device
        self.fidelity: Fidelity = "emulated" if emulating() else "hardware"
        # What the next session asks of a device.
        self._states: set[str] = set()

    def candidates(self) -> list[AndroidTarget]:
        """The devices that are connected and in a state to be used."""
        adb = require_adb()
        if not self.any_device:
            return [one_device(self.tools, choose_device(adb, None).serial)]
        listed = adb.devices()
        usable = [device.serial for device in listed if device.usable]
        if not usable:
            if not listed:
                choose_device(adb, None)
            raise TargetUnavailable(
                f"No connected Android device can be used: {device_names(listed)}.",
                "; ".join(f"{device.serial}: {device.remedy}" for device in listed),
            )
        return [one_device(self.tools, serial) for serial in usable]

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

    def _first_free(self, held: ExitStack, leases: Path, log: Log) -> AndroidTarget:
        """Takes the lease of the first able device that nobody uses, waiting while all are in use."""
        deadline_s = time.monotonic() + _POOL_PATIENCE_S
        waiting = False
        while True:
            able = self._able_ones()
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
                    f"All suitable Android devices were still in use after {_POOL_PATIENCE_S:.0f} s.",
                    "Wait for the other sessions to end, or connect more devices.",
                )
            time.sleep(_POOL_PAUSE_S)

    def _able_ones(self) -> list[AndroidTarget]:
        candidates = self.candidates()
        states = sorted(self._states)
        able = [t for t in candidates if all(t.availability(state).ok for state in states)]
        if not able:
            for state in states:
                super().require(state)
            raise TargetUnavailable(
                "No single device gives " + " and ".join(f"SME2 {state}" for state in states) + ".",
                "Connect a device with SME2.",
            )
        return able

    def facts(self) -> MachineFacts:
        return self.candidates()[0].facts()

    def snapshot(self, sample_s: float = 0.2) -> Snapshot:
        return self.candidates()[0].snapshot(sample_s)

    def cpus(self, choice: str) -> tuple[int, ...]:
        return self.candidates()[0].cpus(choice)

    @contextmanager
    def workspace(self) -> Iterator[Workspace]:
        with self.candidates()[0].workspace() as workspace:
            yield workspace
