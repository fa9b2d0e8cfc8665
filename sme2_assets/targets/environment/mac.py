"""What macOS reports through `ps`, `pmset` and `notifyutil`."""

from __future__ import annotations

import os
import re
import time

from sme2_assets.targets.environment.processes import Counters, ProcessTimes, Reading, family
from sme2_assets.targets.environment.sensors import Battery, Sensors
from sme2_assets.targets.reading import integer, output_of, printable_name


def read_ps() -> Reading:
    clock_s = time.monotonic()
    # One `-o` per column: in POSIX a header, even an empty one, extends to the end of its argument.
    text = output_of(["ps", "-A", "-o", "pid=", "-o", "ppid=", "-o", "time=", "-o", "comm="])
    processes = {process.pid: process for process in parse_ps(text)}
    return Reading(processes, family(processes.values(), os.getpid()), Counters(clock_s=round(clock_s, 3)))


def mac_sensors() -> Sensors:
    pressure = output_of(["notifyutil", "-g", "com.apple.system.thermalpressurelevel"])
    return Sensors(
        frequency_cap=parse_speed_limit(output_of(["pmset", "-g", "therm"])),
        throttled=parse_thermal_pressure(pressure),
        battery=mac_battery(),
    )


def mac_battery() -> Battery | None:
    return parse_mac_battery(output_of(["pmset", "-g", "batt"]))


def parse_ps(text: str) -> list[ProcessTimes]:
    """Lines of `ps` with process number, parent, CPU time and command (a path on macOS)."""
    processes = []
    for line in text.splitlines():
        columns = line.split(None, 3)
        if len(columns) < 4:
            continue
        pid, parent, cpu_s = integer(columns[0]), integer(columns[1]), parse_cpu_time(columns[2])
        if pid is not None and parent is not None and cpu_s is not None:
            name = printable_name(columns[3].rpartition("/")[2])
            processes.append(ProcessTimes(pid, parent, name, 0, cpu_s))
    return processes


def parse_cpu_time(text: str) -> float | None:
    """Seconds of `[[days-]hours:]minutes:seconds[.hundredths]`."""
    match = re.fullmatch(r"(?:(?:(\d{1,6})-)?(\d{1,6}):)?(\d{1,9}):(\d{1,2}(?:\.\d{1,9})?)", text, re.ASCII)
    if match is None:
        return None
    days, hours, minutes, seconds = (float(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def parse_speed_limit(text: str) -> float | None:
    """`pmset -g therm`: the share of full speed that the CPU may reach. Only Intel Macs report it."""
    match = re.search(r"CPU_Speed_Limit\s*=\s*(\d{1,3})\b", text, re.ASCII)
    return int(match[1]) / 100 if match else None


def parse_thermal_pressure(text: str) -> list[str]:
    """`notifyutil -g com.apple.system.thermalpressurelevel`: a hint unless the level is 0, nominal."""
    match = re.search(r"thermalpressurelevel\s+(\d{1,3})\b", text, re.ASCII)
    return [f"macOS reports thermal pressure level {match[1]}"] if match and int(match[1]) > 0 else []


def parse_mac_battery(text: str) -> Battery | None:
    """`pmset -g batt`: what the Mac draws from, and how full its battery is; a desktop has none."""
    source = re.search(r"Now drawing from '([^'\n]*)'", text)
    if source is None:
        return None
    level = re.search(r"\b(\d{1,3})%", text, re.ASCII)
    plugged = {"AC Power": "ac", "Battery Power": "no"}.get(source[1])
    return Battery(level_percent=int(level[1]) if level else None, plugged=plugged)
