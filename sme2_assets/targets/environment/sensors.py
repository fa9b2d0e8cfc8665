"""The speed, temperature and power supply of a machine, from `/sys` or a copy of it."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field
from pathlib import Path

from sme2_assets.targets.reading import matches, number_of, printable_name, text_of

# Some x86 kernels sleep 10 ms for each idle CPU asked for its frequency; a large server would take seconds.
_FREQUENCY_BUDGET_S = 0.05
# Other hwmon drivers are not CPUs, and asking some of them (disks, I2C sensors) is slow or wakes the device.
_CPU_SENSORS = {"coretemp", "k10temp", "zenpower", "cpu_thermal", "macsmc_hwmon"}
# Cooling devices that slow the CPU down, as opposed to fans.
_CPU_COOLERS = re.compile(r"cpufreq|cpuidle|processor|intel_powerclamp", re.IGNORECASE)


@dataclass(frozen=True)
class Battery:
    """`plugged` is ac, usb, wireless, dock, or no; unreported values are None."""

    level_percent: int | None = None
    temperature_c: float | None = None
    plugged: str | None = None


@dataclass(frozen=True)
class Sensors:
    """The speed, temperature and power supply of the machine at one moment.

    The current frequency is low on an idle CPU; `frequency_cap` is the share of the hardware's maximum that
    may be reached now. `throttled` says in words where the machine is slowing itself because of heat.
    """

    cpu_frequency_khz: list[int] | None = None
    frequency_cap: float | None = None
    governor: str | None = None
    temperature_c: float | None = None
    throttled: list[str] = field(default_factory=list)
    battery: Battery | None = None


def read_sensors(sys_root: Path) -> Sensors:
    """Everything that `/sys` (or a copy of it) says."""
    return Sensors(
        cpu_frequency_khz=read_frequencies(sys_root),
        frequency_cap=read_frequency_cap(sys_root),
        governor=read_governor(sys_root),
        temperature_c=read_temperature(sys_root),
        throttled=read_throttling(sys_root),
        battery=read_battery(sys_root),
    )


def read_battery(sys_root: Path) -> Battery | None:
    """The battery of a laptop or board, and whether it is plugged in."""
    supplies = matches(sys_root / "class" / "power_supply", "*")
    kinds = {supply: text_of(supply / "type").lower() for supply in supplies}
    # A mouse has a battery too; the kernel says which ones do not supply the machine.
    batteries = [s for s, kind in kinds.items() if kind == "battery" and text_of(s / "scope") != "Device"]
    if not batteries:
        return None
    level, tenths = number_of(batteries[0] / "capacity"), number_of(batteries[0] / "temp")
    names = {"mains": "ac", "usb": "usb", "wireless": "wireless"}
    sources = [(names[kind], number_of(s / "online")) for s, kind in kinds.items() if kind in names]
    plugged = [name for name, online in sources if online]
    return Battery(
        level_percent=level if level is not None and 0 <= level <= 100 else None,
        temperature_c=tenths / 10 if tenths is not None and -400 <= tenths <= 1500 else None,
        plugged=plugged[0] if plugged else "no" if sources else None,
    )


def read_frequencies(sys_root: Path) -> list[int] | None:
    """Current frequencies, starting with CPU 0; not of all CPUs if the kernel answers slowly."""
    deadline_s = time.monotonic() + _FREQUENCY_BUDGET_S
    found = []
    for cpu in _cpus(sys_root):
        khz = number_of(cpu / "cpufreq" / "scaling_cur_freq")
        if khz is not None:
            found.append(khz)
        if time.monotonic() > deadline_s:
            break
    return found or None


def read_frequency_cap(sys_root: Path) -> float | None:
    """The lowest share, over all CPUs, of the hardware's maximum frequency that is allowed now."""
    shares = []
    for cpu in _cpus(sys_root):
        allowed = number_of(cpu / "cpufreq" / "scaling_max_freq")
        maximum = number_of(cpu / "cpufreq" / "cpuinfo_max_freq")
        if allowed is not None and maximum is not None and maximum > 0:
            shares.append(round(allowed / maximum, 3))
    return min(shares, default=None)


def read_governor(sys_root: Path) -> str | None:
    """The frequency governor; several, separated by commas, if CPUs differ."""
    governors = {text_of(cpu / "cpufreq" / "scaling_governor") for cpu in _cpus(sys_root)} - {""}
    return ",".join(sorted(map(printable_name, governors))) or None


def read_temperature(sys_root: Path) -> float | None:
    """The hottest sensor that can be read, not necessarily a CPU's."""
    files = [zone / "temp" for zone in matches(sys_root / "class" / "thermal", "thermal_zone*")]
    for monitor in matches(sys_root / "class" / "hwmon", "hwmon*"):
        if text_of(monitor / "name") in _CPU_SENSORS:
            files += matches(monitor, "temp*_input")
    return max((celsius for celsius in map(_celsius, files) if celsius is not None), default=None)


def read_throttling(sys_root: Path) -> list[str]:
    """Cooling devices that are slowing the CPU now, and zones at the temperature where slowing begins."""
    hints = []
    for cooler in matches(sys_root / "class" / "thermal", "cooling_device*"):
        kind = printable_name(text_of(cooler / "type"))
        if _CPU_COOLERS.search(kind) and (number_of(cooler / "cur_state") or 0) > 0:
            hints.append(f"cooling device {kind} slows the CPU")
    for zone in matches(sys_root / "class" / "thermal", "thermal_zone*"):
        celsius = _celsius(zone / "temp")
        trips = [
            _celsius(trip.with_name(trip.name.replace("_type", "_temp")))
            for trip in matches(zone, "trip_point_*_type")
            if text_of(trip) == "passive"
        ]
        limit = min((trip for trip in trips if trip is not None), default=None)
        # Some firmware gives 0 or less for a trip point that is not in use.
        if celsius is not None and limit is not None and 0 < limit <= celsius:
            kind = printable_name(text_of(zone / "type") or zone.name)
            hints.append(f"{kind} is at {celsius:.0f} °C, its limit is {limit:.0f} °C")
    return list(dict.fromkeys(hints))


def read_thermal_events(sys_root: Path) -> int | None:
    """How often CPUs have slowed themselves since the machine started; only x86 counts it."""
    counts = [
        number_of(cpu / "thermal_throttle" / f"{part}_throttle_count")
        for cpu in _cpus(sys_root)
        for part in ("core", "package")
    ]
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def _cpus(sys_root: Path) -> list[Path]:
    cpus = matches(sys_root / "devices" / "system" / "cpu", "cpu[0-9]*")
    return sorted(cpus, key=lambda cpu: (len(cpu.name), cpu.name))


def _celsius(file: Path) -> float | None:
    """A sensor's temperature; broken sensors give values no chip has."""
    millidegrees = number_of(file)
    if millidegrees is None or not -40_000 <= millidegrees <= 150_000:
        return None
    return round(millidegrees / 1000, 1)
