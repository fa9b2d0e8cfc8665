"""The adb program: where it is, which devices it lists, and what to do about the state of each.

Belongs here: adb's own messages and exit codes. Does not: commands on a device (device).
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sme2_assets.distribution import adb_remedy
from sme2_assets.errors import ConnectionLost, TargetUnavailable
from sme2_assets.targets.base import Completed
from sme2_assets.targets.remote.connection import last_words

ENVIRONMENT_VARIABLE = "SME2_ADB"

#: What to do about each state of a listed device. Later versions of adb may add others.
STATE_REMEDIES = {
    "offline": "Unlock the device and plug it in again, or run `adb reconnect offline`. A device on the "
    "network is offline when it sleeps or left it: wake it, then `adb disconnect` and `adb connect` it.",
    "unauthorized": "Unlock the device and accept `Allow USB debugging` for this computer. If it does not "
    "ask: Developer options, Revoke USB debugging authorisations, then plug it in again.",
    "authorizing": "Wait a moment; if nothing changes, unlock the device and accept `Allow USB debugging`.",
    "connecting": "Wait a moment; if nothing changes, run `adb disconnect` and `adb connect` again.",
    "no permissions": "This user may not open the USB device: install the package android-udev-rules (or "
    "android-sdk-platform-tools-common), join the group plugdev, log in again, `adb kill-server`.",
    "recovery": "Start the device into Android: choose `Reboot system now`, or `adb reboot`.",
    "sideload": "Start the device into Android: `adb reboot`.",
    "rescue": "Start the device into Android: `adb reboot`.",
    "bootloader": "Start the device into Android: `fastboot reboot`.",
    "detached": "Another program has released the device: run `adb attach`.",
}
_OTHER_STATE_REMEDY = "Plug the device in again, then look at `adb devices -l`."

_ADB_SECONDS = 30.0


@dataclass(frozen=True)
class Listed:
    """A line of adb's listing."""

    serial: str
    state: str
    product: str | None
    model: str | None
    # How it is connected: `usb`, `tcp` or `emulator`.
    transport: str

    @property
    def usable(self) -> bool:
        return self.state == "device"

    @property
    def remedy(self) -> str | None:
        return None if self.usable else STATE_REMEDIES.get(self.state, _OTHER_STATE_REMEDY)


def find_adb() -> Path | None:
    """The adb to use: $SME2_ADB, an error if that is wrong; otherwise the one on PATH."""
    if named := os.environ.get(ENVIRONMENT_VARIABLE):
        path = Path(named).expanduser().absolute()
        if not os.access(path, os.X_OK) or path.is_dir():
            raise TargetUnavailable(
                f"{ENVIRONMENT_VARIABLE} is {named!r}, and there is no such program.",
                f"Point {ENVIRONMENT_VARIABLE} to adb, or unset it.",
            )
        return path
    found = shutil.which("adb")
    return Path(found) if found else None


def require_adb(server: str | None = None) -> Adb:
    path = find_adb()
    if path is None:
        raise TargetUnavailable(
            "adb, which talks to Android devices, was not found.", adb_remedy(ENVIRONMENT_VARIABLE)
        )
    return Adb(path, server)


def parse_devices(text: str) -> list[Listed]:
    """What `adb devices -l` printed."""
    listed = []
    for line in text.splitlines():
        match = re.match(r"(\S.*?)\s+(no permissions|[a-z]+)\b(.*)$", line)
        if match is None or line.startswith(("List of devices", "*", "adb ")):
            continue
        serial, state, rest = match.groups()
        facts = dict(re.findall(r"(?:^|\s)(usb|product|model|transport_id):(\S+)", rest))
        listed.append(Listed(serial, state, facts.get("product"), facts.get("model"), _transport(serial)))
    return listed


def _transport(serial: str) -> str:
    if serial.startswith("emulator-"):
        return "emulator"
    return "tcp" if is_network_serial(serial) else "usb"


def is_network_serial(serial: str) -> bool:
    """Whether the serial is an address (or a name that adb found on the network)."""
    return bool(re.search(r":\d{1,5}$|\._adb(-tls-connect)?\._tcp\.?$", serial))


@dataclass(frozen=True)
class Adb:
    """An adb program, and the server it asks (`tcp:host:port`) if one is named.

    It inherits our environment, so ADB_SERVER_SOCKET and the like work as in a terminal.
    """

    path: Path
    server: str | None = None

    @property
    def command(self) -> list[str]:
        return [str(self.path), *(["-L", self.server] if self.server else [])]

    def devices(self) -> list[Listed]:
        done = self.run(["devices", "-l"])
        if done.returncode != 0:
            raise TargetUnavailable(
                f"adb does not list its devices: {last_words(done.stderr)}",
                "Run `adb kill-server` and `adb start-server`. With a remote server, check ADB_SERVER_SOCKET "
                "and that the server runs with `adb -a`.",
            )
        return parse_devices(done.stdout)

    def listed(self, serial: str) -> Listed | None:
        return next((device for device in self.devices() if device.serial == serial), None)

    def run(self, arguments: Sequence[str], *, timeout_s: float = _ADB_SECONDS) -> Completed:
        """Runs adb itself; any exit code is returned."""
        command = [*self.command, *arguments]
        started = time.monotonic()
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                timeout=timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired as expired:
            raise ConnectionLost(
                f"`adb {shlex.join(arguments[:6])}` did not answer within {timeout_s:.0f} s.",
                "Look at `adb devices -l`; `adb kill-server` and `adb reconnect` help a server that hangs.",
            ) from expired
        except OSError as error:
            raise TargetUnavailable(
                f"{self.path} could not be started: {error}", adb_remedy(ENVIRONMENT_VARIABLE)
            ) from error
        return Completed(command, done.returncode, done.stdout, done.stderr, time.monotonic() - started)
