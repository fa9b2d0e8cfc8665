"""Facts about the machine this process runs on."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from functools import cache
from pathlib import Path

from sme2_assets.targets.base import MachineFacts

_ARM_CORES = {  # MIDR part numbers of Arm Ltd. (implementer 0x41) that /proc/cpuinfo gives without a name
    "0xd0c": "Neoverse-N1",
    "0xd40": "Neoverse-V1",
    "0xd49": "Neoverse-N2",
    "0xd4f": "Neoverse-V2",
    "0xd83": "Neoverse-V3AE",
    "0xd84": "Neoverse-V3",
    "0xd8e": "Neoverse-N3",
    "0xd08": "Cortex-A72",
    "0xd0b": "Cortex-A76",
}


def host_platform() -> str | None:
    """The native platform of this host: `linux`, `mac`, or None."""
    return {"Linux": "linux", "Darwin": "mac"}.get(platform.system())


def is_arm64() -> bool:
    return platform.machine() in ("aarch64", "arm64")


@cache
def host_has_sme2() -> bool:
    """Whether this CPU and operating system offer SME2 to a process."""
    if not is_arm64():
        return False
    if host_platform() == "mac":
        return _sysctl("hw.optional.arm.FEAT_SME2") == "1"
    features = re.search(r"^Features\s*:(.*)$", _cpuinfo(), re.MULTILINE)
    return features is not None and "sme2" in features.group(1).split()


@cache
def host_facts() -> MachineFacts:
    return MachineFacts(
        os=_os_name(),
        kernel=platform.release(),
        arch=platform.machine(),
        cpu=_cpu_name(),
        cores=os.cpu_count() or 1,
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    )


def _os_name() -> str:
    if host_platform() == "mac":
        return f"macOS {platform.mac_ver()[0]}"
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        return platform.system()


def _cpu_name() -> str:
    if host_platform() == "mac":
        return _sysctl("machdep.cpu.brand_string") or "Apple silicon"
    text = _cpuinfo()
    if named := re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE):
        return named.group(1).strip()
    part = re.search(r"^CPU part\s*:\s*(\S+)$", text, re.MULTILINE)
    implementer = re.search(r"^CPU implementer\s*:\s*(\S+)$", text, re.MULTILINE)
    if part and implementer:
        if implementer.group(1) == "0x41" and part.group(1) in _ARM_CORES:
            return _ARM_CORES[part.group(1)]
        return f"implementer {implementer.group(1)} part {part.group(1)}"
    return platform.machine()


def _cpuinfo() -> str:
    try:
        return Path("/proc/cpuinfo").read_text()
    except OSError:
        return ""


def _sysctl(name: str) -> str:
    try:
        done = subprocess.run(["sysctl", "-n", name], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()
