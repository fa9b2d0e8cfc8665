"""Devices as people see them before they measure: what they are, how they are, what each can measure.

Belongs here: putting together what the other modules of this room know about a device, for people and
programs. Does not: how it is printed (cli), anything that changes a device.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from sme2_assets.errors import Sme2Error, TargetUnavailable
from sme2_assets.store import Store
from sme2_assets.targets.android.adb import Listed, require_adb
from sme2_assets.targets.android.target import one_device, power_journal
from sme2_assets.targets.base import Availability, MachineFacts
from sme2_assets.targets.environment.quiet import battery_flags, busy_flags, cap_flags, heat_flags
from sme2_assets.targets.keys import SME2_STATES
from sme2_assets.targets.remote.target import RemoteTarget
from sme2_assets.targets.ssh.address import SCHEME
from sme2_assets.targets.ssh.target import SshTarget

#: What others may use of a device's CPUs without being mentioned, in cores. No phone is ever idle.
_BUSY_CORES = 0.5


@dataclass(frozen=True)
class DeviceReport:
    """One device. What cannot be asked, because of its state, is None or empty."""

    address: str
    device: str
    platform: str
    state: str
    # adb: `usb`, `tcp` or `emulator`; else `ssh`.
    transport: str
    # Why it cannot be used, or what was wrong while it was asked, and what to do about it.
    problem: str | None = None
    remedy: str | None = None
    in_use: bool = False
    # Power settings of a session that died wait to be put back.
    restore_waits: bool = False
    facts: MachineFacts | None = None
    free_bytes: int | None = None
    stored_bytes: int | None = None
    # What may spoil a measurement now.
    health: list[str] = field(default_factory=list)
    # By SME2 state.
    measures: dict[str, Availability] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Known:
    """A device that can be asked for by name; `listed` is what adb says of it."""

    target: RemoteTarget
    listed: Listed | None = None

    def report(self, store: Store) -> DeviceReport:
        target = self.target
        known: dict[str, Any] = {"address": target.address, "platform": target.platform}
        if self.listed is None:
            known |= {"state": "reachable", "transport": "ssh"}
        else:
            known |= {"state": self.listed.state, "transport": self.listed.transport}
        try:
            device = target.device
        except Sme2Error as error:
            known |= {
                "device": "unknown",
                "state": "unreachable",
                "problem": error.what,
                "remedy": error.remedy,
            }
            return DeviceReport(**known)
        known |= {
            "device": device,
            "in_use": _in_use(store.leases, device),
            "restore_waits": power_journal(store.leases, device).is_file(),
        }
        if self.listed is not None and not self.listed.usable:
            problem = f"in the state {self.listed.state!r}"
            return DeviceReport(**known, problem=problem, remedy=self.listed.remedy)
        return _asked(target, known)


def known_devices(store: Store, named: str | None = None) -> list[Known]:
    """All that adb lists, in its order; or the one that is named."""
    if named is not None and named.startswith(SCHEME):
        return [Known(SshTarget(named))]
    listed = [each for each in require_adb().devices() if named in (None, each.serial)]
    if named is not None and not listed:
        raise TargetUnavailable(f"adb knows no device {named!r}.", "See `sme2 devices` for those it knows.")
    return [Known(one_device(store.tools, each.serial), each) for each in listed]


def _asked(target: RemoteTarget, known: dict[str, Any]) -> DeviceReport:
    try:
        measures = {sme2: target.availability(sme2) for sme2 in SME2_STATES}
        free, stored = target.space()
        return DeviceReport(
            **known,
            facts=target.facts(),
            free_bytes=free,
            stored_bytes=stored,
            health=_health(target),
            measures=measures,
        )
    except Sme2Error as error:
        return DeviceReport(**known, problem=error.what, remedy=error.remedy)


def _health(target: RemoteTarget) -> list[str]:
    snapshot = target.snapshot()
    return [
        *heat_flags(snapshot),
        *cap_flags(snapshot),
        *battery_flags(snapshot),
        *busy_flags(snapshot, _BUSY_CORES),
    ]


def _in_use(leases: Path, device: str) -> bool:
    """Whether a session of this data folder holds the device now."""
    lock = leases / f"{device}.lock"
    if not lock.is_file():
        return False
    try:
        with FileLock(lock).acquire(timeout=0):
            return False
    except Timeout:
        return True
