"""How a command runs somewhere: on this host, under emulation, on a device.

Belongs here: what a platform is, whether it is available, how files get to it and back.
Does not: what is run (profiling) and what it means (analysis).
"""

from __future__ import annotations

import os

from sme2_assets.store import Store
from sme2_assets.targets.base import Completed, MachineFacts, Program, Target, Workspace
from sme2_assets.targets.keys import PLATFORMS, SME2_STATES, TARGETS, TargetKey
from sme2_assets.targets.local import EmulatedTarget, NativeTarget
from sme2_assets.targets.shapes import emulated_cpu
from sme2_assets.toolchain import Availability

__all__ = [
    "PLATFORMS",
    "SME2_STATES",
    "TARGETS",
    "Availability",
    "Completed",
    "MachineFacts",
    "Program",
    "Target",
    "TargetKey",
    "Workspace",
    "availabilities",
    "open_target",
]


def open_target(platform: str, store: Store, device: str | None = None) -> Target:
    """The target of a platform; `device` chooses among several devices, by any of their names."""
    if platform == "emulated":
        return EmulatedTarget(store.tools, emulated_cpu(device))
    if platform == "android":
        device = device or os.environ.get("ANDROID_SERIAL")
    elif device is None:
        return NativeTarget(platform)
    # Imported here: most measurements are on this machine.
    from sme2_assets.targets.inventory import open_device

    return open_device(platform, store, device)


def availabilities(store: Store) -> list[tuple[TargetKey, str, Availability]]:
    """Every target with its fidelity, and whether this machine offers it."""
    opened = ((key, open_target(key.platform, store)) for key in TARGETS)
    return [(key, target.fidelity, target.availability(key.sme2)) for key, target in opened]
