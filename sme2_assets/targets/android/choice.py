"""Which of the connected devices to use."""

from __future__ import annotations

import os
from collections.abc import Sequence

from sme2_assets.errors import TargetUnavailable
from sme2_assets.targets.android.adb import Adb, Listed, is_network_serial
from sme2_assets.targets.android.device import Device


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
