"""One Android device as a target: whether it can give an SME2 state, its sessions, and how it comes back."""

from __future__ import annotations

import os
import re
import secrets
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from sme2_assets.errors import ConnectionLost, Sme2Error, TargetUnavailable
from sme2_assets.evidence.device import Fidelity
from sme2_assets.store import safe_name
from sme2_assets.targets.android.adb import is_network_serial, require_adb
from sme2_assets.targets.android.choice import choose_device
from sme2_assets.targets.android.device import Device, device_id_of
from sme2_assets.targets.android.facts import device_cpus, device_facts, device_snapshot
from sme2_assets.targets.android.power import applied, restore_from
from sme2_assets.targets.android.script import Script, shell_program
from sme2_assets.targets.android.workspace import SETUP_SECONDS, AndroidWorkspace, android_root, free_bytes
from sme2_assets.targets.base import Availability, MachineFacts, Target
from sme2_assets.targets.clusters import parse_features
from sme2_assets.targets.elf import AARCH64, machine_of
from sme2_assets.targets.environment.snapshot import Snapshot
from sme2_assets.targets.lease import lease
from sme2_assets.targets.local import EmulatedTarget
from sme2_assets.targets.qemu import Qemu, find_qemu

Log = Callable[[str], None]

EMULATE_VARIABLE = "SME2_ANDROID_EMULATE"

_BUSY_PATIENCE_S = 600.0
_RECOVER_PAUSE_S = 1.0
_HOLD = shell_program("sessions", "hold")
_END_SESSION = shell_program("sessions", "end_session")
_IDENTITY = shell_program("identity")
_SPACE = shell_program("space")
_CLEAN = shell_program("sessions", "clean")


def emulating() -> bool:
    return os.environ.get(EMULATE_VARIABLE) == "1"


def one_device(tools: Path, serial: str) -> AndroidTarget:
    """The target of one device; under emulation when the environment says so."""
    return (EmulatedAndroidTarget if emulating() else AndroidTarget)(tools, serial)


class AndroidTarget(Target):
    """One device, named by its serial number."""

    platform = "android"
    fidelity: Fidelity = "hardware"
    bundled = True

    def __init__(self, tools: Path, serial: str) -> None:
        self.tools = tools
        self.serial = serial
        self.device = device_id_of(serial)
        self._log: Log = lambda message: None
        # Who answered when the lease began: an address on a network can become another device's.
        self._identity: str | None = None
        # Sessions that may still be held over there because the connection was lost.
        self._sessions: list[str] = []

    @property
    def handle(self) -> Device:
        """The device as adb addresses it, whatever its state."""
        return Device(require_adb(), self.serial)

    def availability(self, sme2: str) -> Availability:
        try:
            device = choose_device(require_adb(), self.serial)
            machine, cpuinfo = _machine_and_cpuinfo(device)
        except Sme2Error as error:
            return Availability(False, error.what, error.remedy)
        if machine != "aarch64":
            return Availability(
                False,
                f"the Android device {self.serial} is not aarch64 but {machine!r}.",
                "Use a device with a 64-bit Arm CPU and a 64-bit Android.",
            )
        return self._able(sme2, cpuinfo)

    def _able(self, sme2: str, cpuinfo: str) -> Availability:
        if sme2 == "on" and "sme2" not in parse_features(cpuinfo):
            return Availability(
                False,
                f"the CPU of the Android device {self.serial} (or its kernel) has no SME2.",
                "Measure on a device with SME2, measure only android-sme2_off as a baseline, or set "
                f"{EMULATE_VARIABLE}=1 to see under emulation which operators take SME2 kernels.",
            )
        return Availability(True, self.serial)

    def facts(self) -> MachineFacts:
        return device_facts(self.handle)

    def snapshot(self, sample_s: float = 0.2) -> Snapshot:
        return device_snapshot(self.handle, sample_s)

    def cpus(self, choice: str) -> tuple[int, ...]:
        return device_cpus(self.handle, choice)

    @contextmanager
    def power(self, mode: str, leases: Path, log: Log) -> Iterator[dict[str, Any]]:
        if not mode:
            yield {}
            return
        with applied(self.handle, mode, power_journal(leases, self.device), log) as facts:
            yield facts

    @contextmanager
    def leased(self, leases: Path, log: Log) -> Iterator[Target]:
        with lease(leases, self.device, log=log):
            self.begin(leases, log)
            yield self

    def begin(self, leases: Path, log: Log) -> None:
        """What the holder of the lease does first: puts back what a process that died has left set."""
        self._log = log
        self._sessions.clear()
        self._identity = self._who()
        journal = power_journal(leases, self.device)
        if journal.is_file():
            log(f"{self.device}: an earlier session died with power settings changed; putting them back")
            restore_from(journal, self.handle, log)

    @contextmanager
    def workspace(self) -> Iterator[AndroidWorkspace]:
        device, root = self.handle, android_root()
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
            workspace = AndroidWorkspace(device, root, name, self._log)
            self._prepare(workspace)
            yield workspace
            self._log(f"{self.device}: {workspace.bytes_pushed / 1e6:.1f} MB pushed in this session")
        finally:
            # Never in the way of what ended the session: what is left is removed when the next one begins.
            holder.close()

    def _prepare(self, workspace: AndroidWorkspace) -> None:
        """What has to be on the device besides a program."""

    def recover(self, patience_s: float, log: Log) -> None:
        """Waits until the device answers, asking adb to reconnect; ends what is left of our sessions."""
        deadline_s = time.monotonic() + patience_s
        reason = ""
        while True:
            try:
                problem = self._reconnected()
                who = None if problem else self._who()
            except Sme2Error as error:
                problem, who = str(error), None
            if not problem and self._identity in (None, who):
                log(f"{self.device} answers again")
                return
            if not problem:
                raise TargetUnavailable(
                    f"A different device now answers at {self.serial}, not the one the session began with.",
                    "Look at `adb devices -l`, connect the right one, and measure again.",
                )
            if problem != reason:
                log(f"{self.device}: {problem}")
                reason = problem
            if time.monotonic() > deadline_s:
                raise ConnectionLost(
                    f"{self.serial} did not come back within {patience_s:.0f} s ({problem}).",
                    "Connect the device again (`sme2 devices` shows its state), then measure again.",
                )
            time.sleep(_RECOVER_PAUSE_S)

    def _reconnected(self) -> str:
        """Nothing when the device answers; else in which state it is, after asking for a new connection."""
        adb = require_adb()
        listed = adb.listed(self.serial)
        if listed is not None and listed.usable:
            self._end_sessions()
            return ""
        if is_network_serial(self.serial):
            if listed is not None:
                adb.run(["disconnect", self.serial])
            adb.run(["connect", self.serial])
        elif listed is not None and listed.state == "offline":
            adb.run(["-s", self.serial, "reconnect"])
        if listed is None:
            return "not connected"
        return f"in the state {listed.state!r}. {listed.remedy}"

    def _who(self) -> str:
        """What tells devices apart: only Android has it, elsewhere all are alike."""
        return self.handle.script(_IDENTITY)

    def _end_sessions(self) -> None:
        """Also where the device has not noticed yet that the connection is gone, as after a loss of Wi-Fi."""
        for name in list(self._sessions):
            half = len(name) // 2
            self.handle.script(_END_SESSION, android_root(), name[:half], name[half:])
            self._sessions.remove(name)

    def space(self) -> tuple[int | None, int]:
        """Bytes that are free where our folder is or would be, and bytes that it takes."""
        answer = self.handle.script(_SPACE, android_root(), timeout_s=SETUP_SECONDS)
        df, _, kib = answer.rpartition("stored ")
        return free_bytes(df), int(kib.strip() or 0) * 1024

    def clean(self) -> int:
        """Removes everything of ours from the device; gives the bytes that were freed."""
        answer = self.handle.script(_CLEAN, android_root(), timeout_s=SETUP_SECONDS).strip()
        if answer.startswith("held by"):
            raise TargetUnavailable(
                f"{self.serial} is measuring ({answer}).", "Wait for the session to end, or stop it."
            )
        return int(answer or 0) * 1024


class EmulatedAndroidTarget(AndroidTarget):
    """A device without SME2 that runs an emulator: kernels and outputs are real, times mean nothing."""

    fidelity: Fidelity = "emulated"
    # As on this host, see EmulatedTarget.
    sampling_environment: ClassVar[Mapping[str, str]] = EmulatedTarget.sampling_environment

    def _able(self, sme2: str, cpuinfo: str) -> Availability:
        try:
            qemu = self._qemu()
        except Sme2Error as error:
            return Availability(False, error.what, error.remedy)
        return Availability(True, f"{self.serial}, under QEMU {qemu.version_text}")

    def facts(self) -> MachineFacts:
        return replace(super().facts(), cpu="QEMU -cpu max", emulator=f"QEMU {self._qemu().version_text}")

    def _prepare(self, workspace: AndroidWorkspace) -> None:
        workspace.wrapper = [workspace.put(self._qemu().path), "-cpu", "max"]

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
    """Where a session keeps the power settings it has to put back."""
    return leases / f"{safe_name(device_id)}.power.json"


def _machine_and_cpuinfo(device: Device) -> tuple[str, str]:
    machine, _, cpuinfo = device.script("uname -m; cat /proc/cpuinfo").partition("\n")
    return machine.strip(), cpuinfo


def _host_name() -> str:
    """A part of a session's name, for the people who wonder who uses the device."""
    return re.sub(r"[^A-Za-z0-9]+", "-", socket.gethostname()).strip("-")[:24] or "host"
