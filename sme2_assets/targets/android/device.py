"""One device behind adb, with adb as the transport; and which of the connected devices to use."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from sme2_assets.distribution import adb_remedy
from sme2_assets.errors import Sme2Error, TargetUnavailable
from sme2_assets.targets.android.adb import ENVIRONMENT_VARIABLE, Adb, Listed, is_network_serial
from sme2_assets.targets.remote.connection import Connection, Script

ROOT_VARIABLE = "SME2_ANDROID_ROOT"


def device_id_of(serial: str) -> str:
    """What a device is called in data: serial numbers are private, and not valid as file names."""
    return f"android-{hashlib.sha256(serial.encode()).hexdigest()[:12]}"


@dataclass(frozen=True)
class Device(Connection):
    """One device, always named by its serial number."""

    root_variable: ClassVar[str] = ROOT_VARIABLE
    adb: Adb
    serial: str

    @property
    def device_id(self) -> str:
        return device_id_of(self.serial)

    @property
    def name(self) -> str:  # type: ignore[override]
        return self.serial

    def command(self, script: Script) -> list[str]:
        return [*self.adb.command, "-s", self.serial, "shell", "-T", script.remote_command()]

    def push(self, local: Path, remote: str, *, timeout_s: float = 1800) -> None:
        done = self.adb.run(["-s", self.serial, "push", str(local.absolute()), remote], timeout_s=timeout_s)
        if done.returncode != 0:
            said = done.stdout + "\n" + done.stderr
            raise self._transfer_failure("could not be sent to", local.name, said)

    def install_remedy(self) -> str:
        return adb_remedy(ENVIRONMENT_VARIABLE)

    def lost_remedy(self) -> str:
        try:
            listed = self.adb.listed(self.serial)
        except Sme2Error as error:
            return error.remedy or self.install_remedy()
        if listed is None:
            return "Connect the device again" + (
                f" (`adb connect {self.serial}`)."
                if is_network_serial(self.serial)
                else " (cable, port, hub)."
            )
        return listed.remedy or "The device is back: run it again. Check the cable if this happens often."


def choose_device(adb: Adb, named: str | None) -> Device:
    """The requested device, in a usable state; otherwise a TargetUnavailable that says what to do."""
    listed = adb.devices()
    serial = named or os.environ.get("ANDROID_SERIAL")
    if serial is None:
        if not listed:
            raise TargetUnavailable(
                "No Android device is connected.",
                "Connect one by USB with USB debugging on, or `adb connect ADDRESS:PORT`; docs/android.md "
                "has the steps.",
            )
        if len(listed) > 1:
            raise TargetUnavailable(
                f"Several Android devices are connected: {device_names(listed)}.",
                "Name one (`--device SERIAL`, or ANDROID_SERIAL), or say `--device any`.",
            )
        serial = listed[0].serial
    found = next((device for device in listed if device.serial == serial), None)
    if found is None:
        connect = f"`adb connect {serial}`, or name" if is_network_serial(serial) else "Connect it, or name"
        raise TargetUnavailable(
            f"adb knows no device {serial!r}; connected: {device_names(listed) or 'none'}.",
            f"{connect} one that is connected.",
        )
    if not found.usable:
        raise TargetUnavailable(f"The Android device {serial} is in the state {found.state!r}.", found.remedy)
    return Device(adb, serial)


def device_names(listed: Sequence[Listed]) -> str:
    """What adb lists, on one line."""
    return ", ".join(
        device.serial
        + (f" ({device.model})" if device.model else "")
        + ("" if device.usable else f" [{device.state}]")
        for device in listed
    )
