"""Devices as people see them before they measure: what they are, their state, what each can measure.

Belongs here: putting together what the other modules of this package know about a device, for people and
programs. Does not: how it is printed (cli), anything that changes a device.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from sme2_assets.errors import Sme2Error, TargetUnavailable, did_you_mean
from sme2_assets.store import Store
from sme2_assets.targets.android.adb import ENVIRONMENT_VARIABLE, Listed, require_adb
from sme2_assets.targets.android.target import one_device, power_journal
from sme2_assets.targets.base import MachineFacts
from sme2_assets.targets.environment.quiet import battery_flags, busy_flags, cap_flags, heat_flags
from sme2_assets.targets.inventory import LABEL, Entry, Inventory, read_inventory
from sme2_assets.targets.keys import SME2_STATES
from sme2_assets.targets.lease import is_leased
from sme2_assets.targets.pool import ANY
from sme2_assets.targets.remote.target import RemoteTarget
from sme2_assets.targets.ssh.address import SCHEME
from sme2_assets.targets.ssh.target import SshTarget
from sme2_assets.toolchain import Availability

#: How much CPU others may use on a device without being mentioned, in cores. No phone is ever idle.
_BUSY_CORES = 0.5
# Differs between two machines, however alike their installations are.
_BOOT = "cat /proc/sys/kernel/random/boot_id 2>/dev/null || :"


@dataclass(frozen=True)
class DeviceReport:
    """One device. Whatever its state does not let us ask is None or empty."""

    address: str
    # Its name and labels in the inventory.
    name: str | None
    labels: list[str]
    device: str
    platform: str
    state: str
    # adb: `usb`, `tcp` or `emulator`; otherwise `ssh`.
    transport: str
    # Why it cannot be used, or what went wrong while asking it, and what to do about it.
    problem: str | None = None
    remedy: str | None = None
    in_use: bool = False
    # The session that holds it, of whatever computer: its name begins with that of the computer.
    holder: str | None = None
    # Power settings of a session that died are waiting to be restored.
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
    """A device that can be requested; `listed` is what adb says about it, `problem` why it cannot be used."""

    target: RemoteTarget
    name: str | None = None
    labels: tuple[str, ...] = ()
    listed: Listed | None = None
    problem: Sme2Error | None = None

    def report(self, store: Store) -> DeviceReport:
        target, listed, problem = self.target, self.listed, self.problem
        if listed is not None and not listed.usable:
            problem = Sme2Error(f"in the state {listed.state!r}", listed.remedy)
        device = "unknown"
        try:
            device = target.device
        except Sme2Error as error:
            problem = error
        known: dict[str, Any] = {
            "address": target.address,
            "name": self.name,
            "labels": list(self.labels),
            "device": device,
            "platform": target.platform,
            "state": listed.state if listed else "unreachable" if problem else "reachable",
            "transport": listed.transport if listed else "ssh" if target.platform == "linux" else "adb",
            "in_use": is_leased(store.leases, device),
            "restore_waits": power_journal(store.leases, device).is_file(),
        }
        if problem is not None:
            return DeviceReport(**known, problem=problem.what, remedy=problem.remedy)
        return _asked(target, known)


def report_all(store: Store, known: Sequence[Known]) -> list[DeviceReport]:
    """A report of each, with what is wrong with several of them together."""
    reports = [it.report(store) for it in known]
    machines = [(it.target, report) for it, report in zip(known, reports, strict=True) if report.facts]
    names = Counter(report.device for _, report in machines if report.transport == "ssh")
    copies = [(_boot_of(target), report) for target, report in machines if names[report.device] > 1]
    return [_with_copies(report, copies) for report in reports]


def _boot_of(target: RemoteTarget) -> str | None:
    try:
        found = re.search(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", target.handle.script(_BOOT))
    except Sme2Error:
        return None
    return found[0] if found else None


def _with_copies(report: DeviceReport, booted: Sequence[tuple[str | None, DeviceReport]]) -> DeviceReport:
    """The report of a machine, with a problem if other machines have the same name for themselves.

    `booted` has all machines with such names, each with what identifies its kernel since it started: one
    machine may have two addresses.
    """
    own = next((boot for boot, other in booted if other is report), None)
    copies = [
        other.name or other.address
        for boot, other in booted
        if other.device == report.device and boot and own and boot != own
    ]
    if not copies:
        return report
    return replace(
        report,
        problem=f"It has the same /etc/machine-id as {' and '.join(copies)}: they count as one device, and "
        "their results are mixed.",
        remedy="On a machine whose installation was copied, empty /etc/machine-id, run "
        "`systemd-machine-id-setup` as root, and restart it.",
    )


def known_devices(store: Store, choice: str | None, log: Callable[[str], None]) -> list[Known]:
    """The devices of the inventory, then others that adb lists; with a choice, only those that match it.

    An adb that does not work is reported by `log` and costs only what it would list.
    """
    inventory = read_inventory(store)
    choice = None if choice == ANY else choice
    if choice is not None and (choice in inventory.devices or choice.startswith(LABEL)):
        return [_of_inventory(store, name, entry) for name, entry in inventory.chosen(choice).items()]
    if choice is not None and choice.startswith(SCHEME):
        return [Known(SshTarget(choice))]
    known = (
        [_of_inventory(store, name, entry) for name, entry in inventory.devices.items()] if not choice else []
    )
    here = {entry.adb for entry in inventory.devices.values() if entry.server is None}
    try:
        adb = require_adb()
    except TargetUnavailable as error:
        # Machines over SSH do not need adb; but one that is named and is not there is a mistake.
        if known:
            return known
        if choice is None and not os.environ.get(ENVIRONMENT_VARIABLE):
            log(f"Android devices are not shown: {error}")
            return []
        if choice is None or not inventory.devices:
            raise
        raise _nowhere(inventory, choice, error.what, error.remedy) from None
    try:
        listed = [each for each in adb.devices() if each.serial not in here if choice in (None, each.serial)]
    except Sme2Error as error:
        if not known:
            raise
        log(f"Devices that only adb knows are not shown: {error}")
        listed = []
    if choice is not None and not listed:
        what, remedy = f"adb knows no device {choice!r}.", "See `sme2 devices` for those it knows."
        if inventory.devices:
            raise _nowhere(inventory, choice, what, remedy)
        raise TargetUnavailable(what, remedy)
    return known + [Known(one_device(store.tools, each.serial), listed=each) for each in listed]


def _nowhere(inventory: Inventory, choice: str, adb: str, remedy: str | None) -> TargetUnavailable:
    """A device that is not in the inventory; `adb` says why adb does not have it either."""
    names = list(inventory.devices)
    return TargetUnavailable(
        f"The inventory has no device {choice!r}{did_you_mean(choice, names)}. {adb}",
        f"The inventory has {', '.join(names)}. If {choice!r} is a serial number: {remedy}",
    )


def _of_inventory(store: Store, name: str, entry: Entry) -> Known:
    known = Known(entry.target(store.tools), name, tuple(entry.labels))
    if entry.adb is None:
        return known
    try:
        listed = require_adb(entry.server).listed(entry.adb)
    except Sme2Error as error:
        return replace(known, problem=error)
    missing = Sme2Error("not connected", "Connect it; `adb devices -l` shows what is.")
    return replace(known, listed=listed, problem=None if listed else missing)


def _asked(target: RemoteTarget, known: dict[str, Any]) -> DeviceReport:
    try:
        measures = {sme2: target.availability(sme2) for sme2 in SME2_STATES}
        free, stored = target.space()
        holder = target.holder()
        return DeviceReport(
            **{**known, "in_use": known["in_use"] or holder is not None},
            holder=holder,
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
    unread = ["unknown: what other processes use could not be read from /proc"]
    return [
        *(unread if snapshot.other_cores is None else []),
        *heat_flags(snapshot),
        *cap_flags(snapshot),
        *battery_flags(snapshot),
        *busy_flags(snapshot, _BUSY_CORES),
    ]
