"""How a command runs somewhere: on this host, under emulation, on a device.

Belongs here: what a platform is, whether it is there, how files get to it and back.
Does not: what is run (profiling) and what it means (analysis).
"""

from __future__ import annotations

from sme2_assets.errors import Sme2Error
from sme2_assets.store import Store
from sme2_assets.targets.base import Availability, Completed, MachineFacts, Program, Target, Workspace
from sme2_assets.targets.keys import PLATFORMS, SME2_STATES, TARGETS, TargetKey
from sme2_assets.targets.local import EmulatedTarget, NativeTarget

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
    "open_target",
    "platform_of",
]


def platform_of(device: str) -> str:
    """The platform that a device is of, by its name."""
    return "linux" if device.startswith("ssh://") else "android"


def open_target(platform: str, store: Store, device: str | None = None) -> Target:
    """The target of a platform; `device` chooses among several devices."""
    if platform == "emulated":
        return EmulatedTarget(store.tools)
    if platform == "android":
        from sme2_assets.targets.android.pool import open_android

        return open_android(store.tools, device)
    if device is not None:
        if platform == "linux" and platform_of(device) == "linux":
            from sme2_assets.targets.ssh.target import SshTarget

            return SshTarget(device)
        raise Sme2Error(
            f"{device!r} is no device of platform {platform}.",
            "Name another Linux machine by its address, ssh://user@host, with --platform linux; leave it out "
            "for this machine.",
        )
    return NativeTarget(platform)
