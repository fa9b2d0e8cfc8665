"""Facts about the machine this process runs on.

On macOS they are read with `sysctl` and `pmset`, following Apple's documentation; this has not been run on a
Mac.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path

from sme2_assets.evidence.device import AARCH64, architecture, device_name
from sme2_assets.store import safe_name
from sme2_assets.targets.base import MachineFacts
from sme2_assets.targets.clusters import (
    Cluster,
    chosen_cpus,
    cpu_name,
    parse_features,
    parse_vector_bits,
    read_clusters,
)
from sme2_assets.targets.environment.mac import mac_battery
from sme2_assets.targets.environment.sensors import read_battery
from sme2_assets.targets.reading import output_of, printable_name, text_of

_PROC = Path("/proc")
_SYS = Path("/sys")
_MACHINE_ID = Path("/etc/machine-id")
#: Names this host as a device, where its own name would not last (a container, a fleet of clones).
DEVICE_VARIABLE = "SME2_DEVICE"
# Apple's names for performance levels, the fastest first.
_MAC_LEVELS = {"Super": "prime", "Performance": "performance", "Efficiency": "efficiency"}


def host_platform() -> str | None:
    """The native platform of this host: `linux`, `mac`, or None."""
    return {"Linux": "linux", "Darwin": "mac"}.get(platform.system())


def host_arch() -> str:
    return architecture(platform.machine())


def is_arm64() -> bool:
    return host_arch() == AARCH64


def host_device() -> str:
    """The name of this host as a device: `$SME2_DEVICE`, otherwise its CPU and six digits of its own.

    The digits are a hash of what the operating system calls this installation, so they stay the same across
    reboots and updates, and do not reveal what was hashed.
    """
    if named := os.environ.get(DEVICE_VARIABLE):
        return safe_name(named)
    return device_name(_lasting_facts().cpu, _installation())


@cache
def host_has_sme2() -> bool:
    """Whether this CPU and operating system offer SME2 to a process."""
    if not is_arm64():
        return False
    if host_platform() == "mac":
        return _sysctl("hw.optional.arm.FEAT_SME2") == "1"
    return "sme2" in parse_features(_cpuinfo())


def host_facts() -> MachineFacts:
    """What this machine is, with the current state of its battery."""
    battery = mac_battery() if host_platform() == "mac" else read_battery(_SYS)
    return replace(_lasting_facts(), battery=asdict(battery) if battery else None)


def host_cpus(choice: str) -> tuple[int, ...]:
    """The CPUs that a choice refers to on this Linux machine, among those that this process may use."""
    return chosen_cpus(choice, _lasting_facts().clusters, sorted(os.sched_getaffinity(0)))


@cache
def _lasting_facts() -> MachineFacts:
    mac = host_platform() == "mac"
    return MachineFacts(
        os=_os_name(),
        kernel=platform.release(),
        arch=host_arch(),
        cpu=_cpu_name(),
        cores=os.cpu_count() or 1,
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        model=(_sysctl("hw.model") or None) if mac else _linux_model(),
        build=(_sysctl("kern.osversion") or None) if mac else None,
        features=parse_sysctl_features(_sysctl_all("hw.optional.arm")) if mac else parse_features(_cpuinfo()),
        clusters=mac_clusters(_sysctl) if mac else read_clusters(_PROC, _SYS),
        sme_vector_bits=parse_vector_bits(
            _sysctl("hw.optional.arm.sme_max_svl_b")
            if mac
            else text_of(_PROC / "sys" / "abi" / "sme_default_vector_length")
        ),
    )


def _installation() -> str:
    """An identifier of this installation of the operating system."""
    if host_platform() == "mac":
        told = output_of(["ioreg", "-rd1", "-c", "IOPlatformExpertDevice"])
        found = re.search(r'"IOPlatformUUID" = "([^"]+)"', told)
        return found[1] if found else platform.node()
    # A container, or an image that was never started, may have none.
    machine_id = text_of(_MACHINE_ID)
    return machine_id if re.fullmatch(r"[0-9a-f]{32}", machine_id) else platform.node()


def mac_clusters(sysctl: Callable[[str], str]) -> tuple[Cluster, ...]:
    """The performance levels of a Mac; macOS does not say which CPU belongs to which."""
    levels = sysctl("hw.nperflevels")
    clusters = []
    for level in range(int(levels) if levels.isdecimal() and int(levels) < 10 else 0):
        count = sysctl(f"hw.perflevel{level}.logicalcpu")
        name = sysctl(f"hw.perflevel{level}.name")
        if count.isdecimal() and name:
            clusters.append(Cluster(_MAC_LEVELS.get(name, name.lower()), (), core=name, count=int(count)))
    return tuple(clusters)


def parse_sysctl_features(text: str) -> tuple[str, ...]:
    """`sysctl hw.optional.arm`: the features present, by Arm's names (FEAT_SME2)."""
    return tuple(re.findall(r"^hw\.optional\.arm\.(FEAT_\w+): 1$", text, re.MULTILINE))


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
    return cpu_name(_cpuinfo(), read_clusters(_PROC, _SYS)) or platform.machine()


def _linux_model() -> str | None:
    """The name of the board or computer, as its firmware gives it."""
    for file in ("firmware/devicetree/base/model", "class/dmi/id/product_name"):
        if name := text_of(_SYS / file).strip("\0 "):
            return printable_name(name)
    return None


def _cpuinfo() -> str:
    return text_of(_PROC / "cpuinfo")


def _sysctl(name: str) -> str:
    return output_of(["sysctl", "-n", name]).strip()


def _sysctl_all(prefix: str) -> str:
    return output_of(["sysctl", prefix])
