"""One Android device as a target: which SME2 states it offers, its power modes, how it is reconnected."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from sme2_assets.errors import Sme2Error, TargetUnavailable
from sme2_assets.evidence.device import Fidelity
from sme2_assets.store import safe_name
from sme2_assets.targets.android.adb import Adb, is_network_serial, require_adb
from sme2_assets.targets.android.device import ROOT_VARIABLE, Device, choose_device, device_id_of
from sme2_assets.targets.android.power import applied, restore_from
from sme2_assets.targets.base import MachineFacts
from sme2_assets.targets.clusters import parse_features
from sme2_assets.targets.remote.target import RemoteTarget
from sme2_assets.targets.remote.workspace import RemoteWorkspace, root_folder
from sme2_assets.targets.shapes import DEFAULT
from sme2_assets.toolchain import Availability
from sme2_assets.toolchain.elf import AARCH64, machine_of
from sme2_assets.toolchain.qemu import Qemu, find_qemu

Log = Callable[[str], None]

EMULATE_VARIABLE = "SME2_ANDROID_EMULATE"
_DEFAULT_ROOT = "/data/local/tmp/sme2"


def emulating() -> bool:
    return os.environ.get(EMULATE_VARIABLE) == "1"


def one_device(tools: Path, serial: str, server: str | None = None) -> AndroidTarget:
    """The target of one device; under emulation if the environment says so."""
    return (EmulatedAndroidTarget if emulating() else AndroidTarget)(tools, serial, server)


class AndroidTarget(RemoteTarget):
    """One device, named by its serial number; `server` is its adb server, if not the default one."""

    platform = "android"
    fidelity: Fidelity = "hardware"
    look = "Look at `adb devices -l`"

    def __init__(self, tools: Path, serial: str, server: str | None = None) -> None:
        super().__init__()
        self.tools = tools
        self.address = serial
        self.server = server
        self.device = device_id_of(serial)

    @property
    def adb(self) -> Adb:
        return require_adb(self.server)

    @property
    def handle(self) -> Device:
        return Device(self.adb, self.address)

    @property
    def root(self) -> str:
        return root_folder(ROOT_VARIABLE, _DEFAULT_ROOT)

    def availability(self, sme2: str) -> Availability:
        try:
            device = choose_device(self.adb, self.address)
            machine, cpuinfo = _machine_and_cpuinfo(device)
        except Sme2Error as error:
            return Availability(False, error.what, error.remedy)
        if machine != "aarch64":
            return Availability(
                False,
                f"the Android device {self.address} is not aarch64 but {machine!r}.",
                "Use a device with a 64-bit Arm CPU and a 64-bit Android.",
            )
        return self._able(sme2, cpuinfo)

    def _able(self, sme2: str, cpuinfo: str) -> Availability:
        if sme2 == "on" and "sme2" not in parse_features(cpuinfo):
            return Availability(
                False,
                f"the CPU of the Android device {self.address} (or its kernel) has no SME2.",
                "Measure on a device with SME2, measure only android-sme2_off as a baseline, or set "
                f"{EMULATE_VARIABLE}=1 to see under emulation which operators take SME2 kernels.",
            )
        return Availability(True, self.address)

    @contextmanager
    def power(self, mode: str, leases: Path, log: Log) -> Iterator[dict[str, Any]]:
        if not mode:
            yield {}
            return
        with applied(self.handle, mode, power_journal(leases, self.device), log) as facts:
            yield facts

    def begin(self, leases: Path, log: Log) -> None:
        """Also restores settings that a dead process left changed."""
        super().begin(leases, log)
        journal = power_journal(leases, self.device)
        if journal.is_file():
            log(f"{self.device}: an earlier session died with power settings changed; putting them back")
            restore_from(journal, self.handle, log)

    def _reconnected(self) -> str:
        adb = self.adb
        listed = adb.listed(self.address)
        if listed is not None and listed.usable:
            return ""
        if is_network_serial(self.address):
            if listed is not None:
                adb.run(["disconnect", self.address])
            adb.run(["connect", self.address])
        elif listed is not None and listed.state == "offline":
            adb.run(["-s", self.address, "reconnect"])
        if listed is None:
            return "not connected"
        return f"in the state {listed.state!r}. {listed.remedy}"


class EmulatedAndroidTarget(AndroidTarget):
    """A device without SME2 that runs an emulator: outputs are real, times mean nothing.

    Which kernels run is only known by name: an emulator delivers the sampler's signals between blocks.
    """

    fidelity: Fidelity = "emulated"
    kernel_pass = None

    def _able(self, sme2: str, cpuinfo: str) -> Availability:
        try:
            qemu = self._qemu()
        except Sme2Error as error:
            return Availability(False, error.what, error.remedy)
        return Availability(True, f"{self.address}, under QEMU {qemu.version_text}")

    def facts(self) -> MachineFacts:
        cpu = f"QEMU -cpu {DEFAULT.option}"
        return replace(super().facts(), cpu=cpu, emulator=f"QEMU {self._qemu().version_text}")

    def _prepare(self, workspace: RemoteWorkspace) -> None:
        workspace.wrapper = [workspace.put(self._qemu().path), "-cpu", DEFAULT.option]

    def _qemu(self) -> Qemu:
        qemu = find_qemu(self.tools)
        if qemu is None:
            raise TargetUnavailable(
                f"{EMULATE_VARIABLE} is set, and no QEMU >= 10.1 was found to send to the device.",
                "Run `sme2 emulator`, or point SME2_QEMU at a static qemu-aarch64 for aarch64.",
            )
        if machine_of(qemu.path) != AARCH64:
            raise TargetUnavailable(
                f"{qemu.path} runs on this host's CPU, not on an aarch64 device.",
                "Point SME2_QEMU at a static qemu-aarch64 built for aarch64 (Debian's qemu-user, arm64).",
            )
        return qemu


def power_journal(leases: Path, device_id: str) -> Path:
    """Where a session keeps the power settings it has to restore."""
    return leases / f"{safe_name(device_id)}.power.json"


def _machine_and_cpuinfo(device: Device) -> tuple[str, str]:
    machine, _, cpuinfo = device.script("uname -m; cat /proc/cpuinfo").partition("\n")
    return machine.strip(), cpuinfo
