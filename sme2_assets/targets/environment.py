"""The state of the measuring machine: who else uses its CPUs, how fast and how hot they are.

Belongs here: reading it without privileges, saying in flags what may spoil a measurement, waiting for
quiet. Does not: deciding whether a measurement counts (analysis, checks), asking a device (device_facts),
which is read by the same functions from copies of its files.

Linux is read from `/proc` and `/sys`. Elsewhere (macOS) `ps`, `pmset` and `notifyutil` are asked; that way
is best effort and has not been tested on a Mac. Whatever cannot be read is None, never a guess.
"""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

HEAVY_CORES = 0.2
# Time the hypervisor gives to others is out of our hands and never free of noise; below this it is not news.
STOLEN_CORES = 0.05
# An idle machine this hot was not idle, or does not cool. Sensors with a limit of their own use that instead.
HOT_C = 90.0
# A phone's case and battery heat up slower than its cores, and slow them long before these are hot.
HOT_BATTERY_C = 40.0
# From about here on Android saves power by itself.
LOW_BATTERY_PERCENT = 15
# Tick counters advance by 10 ms, so a shorter sample would mostly measure rounding.
SHORTEST_SAMPLE_S = 0.05

_POLL_S = 1.0
# Cooling takes minutes, and looking costs a device some work.
_COOL_POLL_S = 5.0
_NAMED_IN_FLAGS = 3
_NAME_LENGTH = 64
# Some x86 kernels sleep 10 ms per idle CPU asked for its frequency; a large server would take seconds.
_FREQUENCY_BUDGET_S = 0.05
_COMMAND_TIMEOUT_S = 2.0
# Other hwmon drivers are not CPUs, and asking some of them (disks, I2C sensors) is slow or wakes the device.
_CPU_SENSORS = {"coretemp", "k10temp", "zenpower", "cpu_thermal", "macsmc_hwmon"}
# Cooling devices that slow the CPU down, as opposed to fans.
_CPU_COOLERS = re.compile(r"cpufreq|cpuidle|processor|intel_powerclamp", re.IGNORECASE)

_PROC = Path("/proc")
_SYS = Path("/sys")

Log = Callable[[str], None]


class HeavyProcess(NamedTuple):
    """A process of somebody else and the cores it kept busy during the sample."""

    name: str
    cores: float


@dataclass(frozen=True)
class Battery:
    """`plugged` is ac, usb, wireless, dock, or no; what was not told is None."""

    level_percent: int | None = None
    temperature_c: float | None = None
    plugged: str | None = None


@dataclass(frozen=True)
class Counters:
    """What the kernel has counted so far. One reading means nothing; the difference of two does.

    `own_s` is the CPU time of this process, its descendants and those of them that have ended, so two
    readings must come from the same process. `busy_s` is that of the whole machine.
    """

    clock_s: float
    busy_s: float | None = None
    own_s: float | None = None
    stolen_s: float | None = None
    quota_throttled_s: float | None = None
    thermal_events: int | None = None


@dataclass(frozen=True)
class Snapshot:
    """The machine during one short sample.

    It cannot tell what happened between two snapshots; `disturbances_between` tells some of that.
    `load_1m` lags by a minute and includes ourselves: it is a record, not a gate. A current frequency is
    low on an idle CPU; `frequency_cap` is the share of the hardware's maximum that may be reached now.
    `throttled` says in words where the machine slows itself because of heat.
    """

    at: str
    load_1m: float | None
    other_cores: float | None
    heavy_processes: list[HeavyProcess]
    cpu_frequency_khz: list[int] | None
    frequency_cap: float | None
    governor: str | None
    temperature_c: float | None
    counters: Counters
    throttled: list[str] = field(default_factory=list)
    battery: Battery | None = None

    def as_json(self) -> dict[str, Any]:
        """Plain lists, strings and finite numbers, fit for strict JSON."""
        return {**asdict(self), "heavy_processes": [list(process) for process in self.heavy_processes]}


@dataclass(frozen=True)
class ProcessTimes:
    """One process as the kernel counts it. `started` tells a process from a later one with its number."""

    pid: int
    parent: int
    name: str
    started: int
    cpu_s: float
    reaped_s: float = 0.0
    session: int = 0


@dataclass(frozen=True)
class Sensors:
    """How fast, how hot and how well supplied the machine is at one moment."""

    cpu_frequency_khz: list[int] | None = None
    frequency_cap: float | None = None
    governor: str | None = None
    temperature_c: float | None = None
    throttled: list[str] = field(default_factory=list)
    battery: Battery | None = None


@dataclass(frozen=True)
class Reading:
    """All counters at about one moment."""

    processes: dict[int, ProcessTimes]
    own: set[int]
    counters: Counters


def take_snapshot(sample_s: float = 0.2) -> Snapshot:
    """Watches the machine for `sample_s` (at least 0.05 s). Never raises; what cannot be read is None."""
    read = _read_proc if (_PROC / "stat").exists() else _read_ps
    before = read()
    # Sensors are read inside the sample: it takes no longer for that, and our own work is not counted.
    sensors = _mac_sensors() if sys.platform == "darwin" else read_sensors(_SYS)
    until_s = before.counters.clock_s + max(sample_s, SHORTEST_SAMPLE_S)
    time.sleep(max(until_s - time.monotonic(), 0.0))
    return snapshot_of(before, read(), sensors, _load_1m())


def snapshot_of(before: Reading, after: Reading, sensors: Sensors, load_1m: float | None) -> Snapshot:
    """What two readings and the sensors between them say."""
    elapsed_s = after.counters.clock_s - before.counters.clock_s
    usage = cpu_usage(before.processes, after.processes, before.own | after.own, elapsed_s)
    other = other_cores(before.counters, after.counters)
    if other is None and after.processes:
        other = sum(process.cores for process in usage)
    return Snapshot(
        at=datetime.now(UTC).isoformat(timespec="milliseconds"),
        load_1m=load_1m,
        other_cores=None if other is None else round(other, 2),
        heavy_processes=[HeavyProcess(name, round(cores, 2)) for name, cores in usage if cores > HEAVY_CORES],
        cpu_frequency_khz=sensors.cpu_frequency_khz,
        frequency_cap=sensors.frequency_cap,
        governor=sensors.governor,
        temperature_c=sensors.temperature_c,
        counters=after.counters,
        throttled=sensors.throttled,
        battery=sensors.battery,
    )


def wait_until_quiet(
    *,
    limit_load: float,
    patience_s: float,
    log: Log,
    take: Callable[[], Snapshot] = take_snapshot,
    sleep: Callable[[float], None] = time.sleep,
    cool_patience_s: float | None = None,
) -> tuple[Snapshot, list[str]]:
    """Waits while others use more than `limit_load` cores or the machine is too hot; then gives up and flags.

    Gives the last snapshot and what is wrong with it; no flags mean quiet. A machine that was busy must be
    quiet twice in a row, as a build has short pauses. A frequency cap is flagged but not waited for: it is
    often set on purpose and stays. What begins after the last snapshot is not seen. Cooling takes longer than
    others take to leave, so heat has a patience of its own, `patience_s` unless told.
    """
    started_s, slept_s = time.monotonic(), 0.0
    waiting_for, quiet_in_a_row = "", 0
    while True:
        snapshot = take()
        busy, hot = busy_flags(snapshot, limit_load), heat_flags(snapshot)
        passing = busy + hot
        limit_s = patience_s if cool_patience_s is None or not hot else max(cool_patience_s, patience_s)
        quiet_in_a_row = 0 if passing else quiet_in_a_row + 1
        waited_s = max(time.monotonic() - started_s, slept_s)
        if quiet_in_a_row >= (2 if waiting_for else 1) or waited_s >= limit_s:
            break
        reason = "the machine to cool down" if hot else "a quiet machine" if busy else waiting_for
        if reason != waiting_for:
            log(f"waiting up to {limit_s - waited_s:.0f} s for {reason}: {'; '.join(passing)}")
            waiting_for = reason
        pause_s = min(_COOL_POLL_S if hot and not busy else _POLL_S, limit_s - waited_s)
        sleep(pause_s)
        slept_s += pause_s
    if passing:
        log(f"not quiet after {waited_s:.0f} s, measuring all the same: {'; '.join(passing)}")
    elif waiting_for:
        log(f"quiet after {waited_s:.0f} s")
    return snapshot, passing + cap_flags(snapshot) + battery_flags(snapshot)


def busy_flags(snapshot: Snapshot, limit_load: float) -> list[str]:
    """Who used the CPU, when all others together used more than `limit_load` cores; else nothing."""
    named = sum(process.cores for process in snapshot.heavy_processes)
    total = max(snapshot.other_cores or 0.0, named)
    if total <= limit_load:
        return []
    by_name: dict[str, float] = {}
    for name, cores in snapshot.heavy_processes:
        by_name[name] = by_name.get(name, 0.0) + cores
    ranked = sorted(by_name.items(), key=lambda item: item[1], reverse=True)
    flags = [f"busy: {name} used {cores:.1f} cores" for name, cores in ranked]
    hidden = total - named
    if not flags or hidden > limit_load:
        flags.insert(0, f"busy: small, short-lived or hidden processes used {hidden:.1f} cores")
    return flags[:_NAMED_IN_FLAGS]


def heat_flags(snapshot: Snapshot) -> list[str]:
    """Signs that the machine slows itself because of heat, or is about to."""
    flags = [f"hot: {hint}" for hint in snapshot.throttled]
    if not flags and snapshot.temperature_c is not None and snapshot.temperature_c >= HOT_C:
        flags.append(f"hot: {snapshot.temperature_c:.0f} °C")
    battery_c = snapshot.battery.temperature_c if snapshot.battery else None
    if battery_c is not None and battery_c >= HOT_BATTERY_C:
        flags.append(f"hot: the battery has {battery_c:.1f} °C, {HOT_BATTERY_C:.0f} °C or more slow a device")
    return flags


def battery_flags(snapshot: Snapshot) -> list[str]:
    """Whether the battery is so low that the system begins to save power."""
    level = snapshot.battery.level_percent if snapshot.battery else None
    if level is None or level > LOW_BATTERY_PERCENT:
        return []
    return [f"battery: {level} % are left, and systems save power then"]


def cap_flags(snapshot: Snapshot) -> list[str]:
    """Whether the CPU may not reach its maximum frequency (by choice, to save power, or because of heat)."""
    if snapshot.frequency_cap is None or snapshot.frequency_cap >= 0.99:
        return []
    return [f"capped: a CPU may reach {snapshot.frequency_cap:.0%} of its maximum frequency only"]


def disturbances_between(before: Snapshot, after: Snapshot, *, limit_load: float) -> list[str]:
    """What disturbed the time between two snapshots that this process took, from the kernel's counters.

    It sees averages: one busy second in a quiet minute is not seen. Nothing is said on what is not counted
    here; macOS counts none of it without privileges.
    """
    elapsed_s = after.counters.clock_s - before.counters.clock_s
    if elapsed_s <= 0:
        return []
    flags = []
    other = other_cores(before.counters, after.counters)
    if other is not None and other > limit_load:
        flags.append(f"busy: other processes used {other:.1f} cores over {elapsed_s:.0f} s")
    stolen_s = _grown(before.counters.stolen_s, after.counters.stolen_s)
    if stolen_s / elapsed_s > STOLEN_CORES:
        flags.append(f"stolen: the hypervisor gave {stolen_s / elapsed_s:.2f} cores to others")
    throttled_s = _grown(before.counters.quota_throttled_s, after.counters.quota_throttled_s)
    if throttled_s > 0:
        flags.append(f"quota: the container's CPU limit stopped its threads for {throttled_s:.2f} s")
    events = _grown(before.counters.thermal_events, after.counters.thermal_events)
    if events > 0:
        flags.append(f"hot: the CPU slowed itself {events:.0f} times")
    return flags


def other_cores(before: Counters, after: Counters) -> float | None:
    """Cores that others kept busy on average between two readings, short-lived and hidden processes too."""
    elapsed_s = after.clock_s - before.clock_s
    readings = (before.busy_s, after.busy_s, before.own_s, after.own_s)
    if elapsed_s <= 0 or any(reading is None for reading in readings):
        return None
    others_s = _grown(before.busy_s, after.busy_s) - _grown(before.own_s, after.own_s)
    return max(others_s, 0.0) / elapsed_s


def cpu_usage(
    before: Mapping[int, ProcessTimes], after: Mapping[int, ProcessTimes], own: set[int], elapsed_s: float
) -> list[HeavyProcess]:
    """Cores per process that is not `own`, the busiest first. A process that has ended is not in it."""
    if elapsed_s <= 0:
        return []
    usage = []
    for pid, process in after.items():
        if pid in own:
            continue
        earlier = before.get(pid)
        known = earlier is not None and earlier.started == process.started
        # A process that was not there before has used all of its time since.
        used_s = process.cpu_s - (earlier.cpu_s if earlier is not None and known else 0.0)
        usage.append(HeavyProcess(process.name, max(used_s, 0.0) / elapsed_s))
    return sorted(usage, key=lambda process: process.cores, reverse=True)


def family(processes: Iterable[ProcessTimes], root: int) -> set[int]:
    """`root` and all its descendants.

    Not its ancestors: a parent that waits for us uses no CPU, and one that works disturbs as others do. A
    process left behind by a killed session belongs to nobody and counts as a stranger.
    """
    children: dict[int, list[int]] = {}
    for process in processes:
        children.setdefault(process.parent, []).append(process.pid)
    found, open_ends = {root}, [root]
    while open_ends:
        for child in children.get(open_ends.pop(), []):
            if child not in found:
                found.add(child)
                open_ends.append(child)
    return found


def printable_name(raw: bytes | str, length: int = _NAME_LENGTH) -> str:
    """A process name without what would break JSON, a log line or a terminal.

    Any user can give a process any bytes as its name. Only the name is kept, never the command line, as
    that may hold secrets.
    """
    text = raw.decode("utf-8", "replace") if isinstance(raw, bytes) else raw
    text = text[:length]
    if not text.isprintable():
        text = "".join(letter if letter.isprintable() else "\ufffd" for letter in text)
    return text.strip() or "(no name)"


def parse_process_stat(raw: bytes, tick_hz: int) -> ProcessTimes | None:
    """`/proc/<pid>/stat`. The name may hold spaces and parentheses: it ends at the last one."""
    head, _, tail = raw.rpartition(b")")
    pid, _, name = head.partition(b"(")
    try:
        fields = tail.split(None, 20)
        return ProcessTimes(
            pid=int(pid),
            parent=int(fields[1]),
            name=printable_name(name),
            started=int(fields[19]),
            cpu_s=(int(fields[11]) + int(fields[12])) / tick_hz,
            reaped_s=(int(fields[13]) + int(fields[14])) / tick_hz,
            session=int(fields[3]),
        )
    except (ValueError, IndexError, OverflowError):
        return None


def parse_machine_stat(raw: bytes, tick_hz: int) -> tuple[float, float] | None:
    """Busy and stolen CPU seconds of the whole machine, from `/proc/stat`."""
    fields = raw.split(b"\n", 1)[0].split()
    if len(fields) < 9 or fields[0] != b"cpu":
        return None
    try:
        user, nice, system, _idle, _iowait, irq, softirq, stolen = (int(ticks) for ticks in fields[1:9])
        return (user + nice + system + irq + softirq) / tick_hz, stolen / tick_hz
    except (ValueError, OverflowError):
        return None


def parse_ps(text: str) -> list[ProcessTimes]:
    """Lines of `ps` with number, parent, CPU time and command (a path on macOS)."""
    processes = []
    for line in text.splitlines():
        columns = line.split(None, 3)
        if len(columns) < 4:
            continue
        pid, parent, cpu_s = _integer(columns[0]), _integer(columns[1]), parse_cpu_time(columns[2])
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
    """`pmset -g therm`: the share of full speed that the CPU may reach. Intel Macs alone say it."""
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


def read_sensors(sys_root: Path) -> Sensors:
    """Everything that `/sys` (or a copy of it) tells."""
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
    supplies = _matches(sys_root / "class" / "power_supply", "*")
    kinds = {supply: (_text(supply / "type") or "").lower() for supply in supplies}
    # A mouse has a battery too; the kernel says which ones do not supply the machine.
    batteries = [s for s, kind in kinds.items() if kind == "battery" and _text(s / "scope") != "Device"]
    if not batteries:
        return None
    level, tenths = _number(batteries[0] / "capacity"), _number(batteries[0] / "temp")
    names = {"mains": "ac", "usb": "usb", "wireless": "wireless"}
    sources = [(names[kind], _number(s / "online")) for s, kind in kinds.items() if kind in names]
    plugged = [name for name, online in sources if online]
    return Battery(
        level_percent=level if level is not None and 0 <= level <= 100 else None,
        temperature_c=tenths / 10 if tenths is not None and -400 <= tenths <= 1500 else None,
        plugged=plugged[0] if plugged else "no" if sources else None,
    )


def read_frequencies(sys_root: Path) -> list[int] | None:
    """Current frequencies from CPU 0 on; fewer than there are CPUs where the kernel answers slowly."""
    deadline_s = time.monotonic() + _FREQUENCY_BUDGET_S
    found = []
    for cpu in _cpus(sys_root):
        khz = _number(cpu / "cpufreq" / "scaling_cur_freq")
        if khz is not None:
            found.append(khz)
        if time.monotonic() > deadline_s:
            break
    return found or None


def read_frequency_cap(sys_root: Path) -> float | None:
    """The lowest share, over all CPUs, of the hardware's maximum frequency that is allowed now."""
    shares = []
    for cpu in _cpus(sys_root):
        allowed = _number(cpu / "cpufreq" / "scaling_max_freq")
        maximum = _number(cpu / "cpufreq" / "cpuinfo_max_freq")
        if allowed is not None and maximum is not None and maximum > 0:
            shares.append(round(allowed / maximum, 3))
    return min(shares, default=None)


def read_governor(sys_root: Path) -> str | None:
    """The frequency governor; several, with commas, where CPUs differ."""
    governors = {_text(cpu / "cpufreq" / "scaling_governor") for cpu in _cpus(sys_root)} - {None, ""}
    return ",".join(sorted(printable_name(governor) for governor in governors if governor)) or None


def read_temperature(sys_root: Path) -> float | None:
    """The hottest sensor that can be read; it need not be a CPU's."""
    files = [zone / "temp" for zone in _matches(sys_root / "class" / "thermal", "thermal_zone*")]
    for monitor in _matches(sys_root / "class" / "hwmon", "hwmon*"):
        if _text(monitor / "name") in _CPU_SENSORS:
            files += _matches(monitor, "temp*_input")
    return max((celsius for celsius in map(_celsius, files) if celsius is not None), default=None)


def read_throttling(sys_root: Path) -> list[str]:
    """Cooling devices that slow the CPU now, and zones at the temperature where slowing begins."""
    hints = []
    for cooler in _matches(sys_root / "class" / "thermal", "cooling_device*"):
        kind = printable_name(_text(cooler / "type") or "")
        if _CPU_COOLERS.search(kind) and (_number(cooler / "cur_state") or 0) > 0:
            hints.append(f"cooling device {kind} slows the CPU")
    for zone in _matches(sys_root / "class" / "thermal", "thermal_zone*"):
        celsius = _celsius(zone / "temp")
        trips = [
            _celsius(trip.with_name(trip.name.replace("_type", "_temp")))
            for trip in _matches(zone, "trip_point_*_type")
            if _text(trip) == "passive"
        ]
        limit = min((trip for trip in trips if trip is not None), default=None)
        # Some firmware gives 0 or less for a trip point that is not in use.
        if celsius is not None and limit is not None and 0 < limit <= celsius:
            kind = printable_name(_text(zone / "type") or zone.name)
            hints.append(f"{kind} is at {celsius:.0f} °C, its limit is {limit:.0f} °C")
    return list(dict.fromkeys(hints))


def read_thermal_events(sys_root: Path) -> int | None:
    """How often CPUs have slowed themselves since the machine started; x86 alone counts it."""
    counts = [
        _number(cpu / "thermal_throttle" / f"{part}_throttle_count")
        for cpu in _cpus(sys_root)
        for part in ("core", "package")
    ]
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def read_quota_throttled(proc_root: Path, sys_root: Path) -> float | None:
    """Seconds that a CPU quota has stopped threads of our control group or of a group around it."""
    total_s = None
    for line in (_text(proc_root / "self" / "cgroup") or "").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and "cpu" not in controllers.split(","):
            continue
        mount = sys_root / "fs" / "cgroup" / controllers
        parts = [part for part in path.split("/") if part not in ("", "..")]
        for depth in range(len(parts) + 1):
            throttled_s = _throttled_s(_text(mount.joinpath(*parts[:depth]) / "cpu.stat") or "")
            if throttled_s is not None:
                total_s = (total_s or 0.0) + throttled_s
    return total_s


def _throttled_s(cpu_stat: str) -> float | None:
    """Version 2 of control groups counts microseconds, version 1 nanoseconds."""
    for line in cpu_stat.splitlines():
        name, _, value = line.partition(" ")
        count = _integer(value)
        if name in ("throttled_usec", "throttled_time") and count is not None:
            return count / (1e6 if name == "throttled_usec" else 1e9)
    return None


def reading_of(
    machine_stat: bytes, process_stats: Iterable[bytes], *, root: int, tick_hz: int, clock_s: float
) -> Reading:
    """The counters of a machine by its `/proc/stat` and that of every process; `root` and below are we."""
    machine = parse_machine_stat(machine_stat, tick_hz)
    parsed = (parse_process_stat(raw, tick_hz) for raw in process_stats)
    processes = {process.pid: process for process in parsed if process is not None}
    own = family(processes.values(), root)
    # With the reaped children the sum over the tree never falls when one of it ends.
    own_s = sum(processes[pid].cpu_s + processes[pid].reaped_s for pid in own if pid in processes)
    return Reading(
        processes,
        own,
        Counters(
            clock_s=round(clock_s, 3),
            busy_s=machine[0] if machine else None,
            own_s=round(own_s, 3) if root in processes else None,
            stolen_s=machine[1] if machine else None,
        ),
    )


def _read_proc() -> Reading:
    clock_s = time.monotonic()
    reading = reading_of(
        _bytes(_PROC / "stat") or b"",
        # A process may end between the listing and the reading.
        (_bytes(entry / "stat") or b"" for entry in _matches(_PROC, "[0-9]*")),
        root=os.getpid(),
        tick_hz=os.sysconf("SC_CLK_TCK"),
        clock_s=clock_s,
    )
    return replace(
        reading,
        counters=replace(
            reading.counters,
            quota_throttled_s=read_quota_throttled(_PROC, _SYS),
            thermal_events=read_thermal_events(_SYS),
        ),
    )


def _read_ps() -> Reading:
    clock_s = time.monotonic()
    # One `-o` per column: in POSIX a header, even an empty one, extends to the end of its argument.
    text = _output(["ps", "-A", "-o", "pid=", "-o", "ppid=", "-o", "time=", "-o", "comm="])
    processes = {process.pid: process for process in parse_ps(text)}
    return Reading(processes, family(processes.values(), os.getpid()), Counters(clock_s=round(clock_s, 3)))


def mac_battery() -> Battery | None:
    return parse_mac_battery(_output(["pmset", "-g", "batt"]))


def _mac_sensors() -> Sensors:
    pressure = _output(["notifyutil", "-g", "com.apple.system.thermalpressurelevel"])
    return Sensors(
        frequency_cap=parse_speed_limit(_output(["pmset", "-g", "therm"])),
        throttled=parse_thermal_pressure(pressure),
        battery=mac_battery(),
    )


def _output(command: list[str]) -> str:
    """What a command prints; nothing when it is missing, fails or hangs."""
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            timeout=_COMMAND_TIMEOUT_S,
            stdin=subprocess.DEVNULL,
            # Times have a decimal comma in some languages.
            env={**os.environ, "LC_ALL": "C"},
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.decode("utf-8", "replace") if done.returncode == 0 else ""


def _load_1m() -> float | None:
    try:
        load = os.getloadavg()[0]
    except (OSError, AttributeError):
        return None
    return round(load, 2) if math.isfinite(load) else None


def _grown(before: float | None, after: float | None) -> float:
    """The growth of a counter; none when it is unknown or was reset."""
    return 0.0 if before is None or after is None else max(after - before, 0.0)


def _cpus(sys_root: Path) -> list[Path]:
    cpus = _matches(sys_root / "devices" / "system" / "cpu", "cpu[0-9]*")
    return sorted(cpus, key=lambda cpu: (len(cpu.name), cpu.name))


def _celsius(file: Path) -> float | None:
    """A sensor's temperature; broken sensors give values no chip has."""
    millidegrees = _number(file)
    if millidegrees is None or not -40_000 <= millidegrees <= 150_000:
        return None
    return round(millidegrees / 1000, 1)


def _number(file: Path) -> int | None:
    return _integer(_text(file) or "")


def _integer(text: str) -> int | None:
    return int(text) if re.fullmatch(r"-?\d{1,20}", text, re.ASCII) else None


def _text(file: Path) -> str | None:
    raw = _bytes(file)
    return None if raw is None else raw.decode("utf-8", "replace").strip()


def _bytes(file: Path) -> bytes | None:
    try:
        return file.read_bytes()
    except (OSError, ValueError):
        return None


def _matches(directory: Path, pattern: str) -> list[Path]:
    try:
        return sorted(directory.glob(pattern))
    except OSError:
        return []
