"""One device behind adb, with adb as the transport."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from sme2_assets.distribution import adb_remedy
from sme2_assets.errors import Sme2Error
from sme2_assets.targets.android.adb import ENVIRONMENT_VARIABLE, Adb, is_network_serial
from sme2_assets.targets.base import Completed
from sme2_assets.targets.remote.connection import Connection
from sme2_assets.targets.remote.script import Script

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
        done = self._adb(["push", str(local.absolute()), remote], timeout_s)
        if done.returncode != 0:
            raise self._transfer_failure("could not be sent to", local.name, _said(done))

    def pull(self, remote: str, local: Path, *, timeout_s: float = 1800) -> None:
        done = self._adb(["pull", remote, str(local.absolute())], timeout_s)
        if done.returncode != 0:
            raise self._transfer_failure("could not be fetched from", remote, _said(done))

    def _adb(self, arguments: Sequence[str], timeout_s: float) -> Completed:
        return self.adb.run(["-s", self.serial, *arguments], timeout_s=timeout_s)

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


def _said(done: Completed) -> str:
    return done.stdout + "\n" + done.stderr
