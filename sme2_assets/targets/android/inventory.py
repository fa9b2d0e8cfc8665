"""Which Android devices are connected, what they are, how they are, and what each can measure.

Belongs here: putting together what the other modules of this room know about a device, for people and
programs that look before they measure. Does not: how it is printed (cli), anything that changes a device.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from sme2_assets.errors import Sme2Error
from sme2_assets.store import Store
from sme2_assets.targets.android.adb import Adb, Listed
from sme2_assets.targets.android.target import AndroidTarget, one_device, power_journal
from sme2_assets.targets.base import Availability, MachineFacts
from sme2_assets.targets.environment.quiet import battery_flags, busy_flags, cap_flags, heat_flags
from sme2_assets.targets.keys import SME2_STATES

#: What others may use of a device's CPUs without being mentioned, in cores. No phone is ever idle.
_BUSY_CORES = 0.5


@dataclass(frozen=True)
class DeviceReport:
    """One device. What cannot be asked, because of its state, is None or empty."""

    serial: str
    device: str
    state: str
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


def device_reports(store: Store, adb: Adb) -> list[DeviceReport]:
    """All that adb lists, in its order."""
    return [_report(store, listed) for listed in adb.devices()]


def _report(store: Store, listed: Listed) -> DeviceReport:
    target = one_device(store.tools, listed.serial)
    known: dict[str, Any] = {
        "serial": listed.serial,
        "device": target.device,
        "state": listed.state,
        "transport": listed.transport,
        "in_use": _in_use(store.leases, target.device),
        "restore_waits": power_journal(store.leases, target.device).is_file(),
    }
    if not listed.usable:
        return DeviceReport(**known, problem=f"in the state {listed.state!r}", remedy=listed.remedy)
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


def _health(target: AndroidTarget) -> list[str]:
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
