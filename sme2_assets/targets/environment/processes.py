"""Who uses the CPUs: the kernel's processes and counters, from `/proc` or from copies of its files."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from sme2_assets.targets.environment.sensors import read_thermal_events
from sme2_assets.targets.reading import bytes_of, integer, matches, printable_name, text_of


class HeavyProcess(NamedTuple):
    """Somebody else's process and the cores it kept busy during the sample."""

    name: str
    cores: float


@dataclass(frozen=True)
class Counters:
    """What the kernel has counted so far. One reading means nothing; the difference between two does.

    `own_s` is the CPU time of this process and its descendants, including those that have ended, so two
    readings must come from the same process. `busy_s` is that of the whole machine.
    """

    clock_s: float
    busy_s: float | None = None
    own_s: float | None = None
    stolen_s: float | None = None
    quota_throttled_s: float | None = None
    thermal_events: int | None = None


@dataclass(frozen=True)
class ProcessTimes:
    """One process as the kernel counts it. `started` sets it apart from a later one with the same number."""

    pid: int
    parent: int
    name: str
    started: int
    cpu_s: float
    reaped_s: float = 0.0
    session: int = 0


@dataclass(frozen=True)
class Reading:
    """All counters at about one moment."""

    processes: dict[int, ProcessTimes]
    own: set[int]
    counters: Counters


def other_cores(before: Counters, after: Counters) -> float | None:
    """Cores that others kept busy on average between two readings, even short-lived or hidden processes."""
    elapsed_s = after.clock_s - before.clock_s
    readings = (before.busy_s, after.busy_s, before.own_s, after.own_s)
    if elapsed_s <= 0 or any(reading is None for reading in readings):
        return None
    others_s = counter_growth(before.busy_s, after.busy_s) - counter_growth(before.own_s, after.own_s)
    return max(others_s, 0.0) / elapsed_s


def cpu_usage(
    before: Mapping[int, ProcessTimes], after: Mapping[int, ProcessTimes], own: set[int], elapsed_s: float
) -> list[HeavyProcess]:
    """Cores per process that is not `own`, the busiest first. Processes that have ended are not included."""
    if elapsed_s <= 0:
        return []
    usage = []
    for pid, process in after.items():
        if pid in own:
            continue
        earlier = before.get(pid)
        known = earlier is not None and earlier.started == process.started
        # A process that did not exist before has used all of its time since.
        used_s = process.cpu_s - (earlier.cpu_s if earlier is not None and known else 0.0)
        usage.append(HeavyProcess(process.name, max(used_s, 0.0) / elapsed_s))
    return sorted(usage, key=lambda process: process.cores, reverse=True)


def family(processes: Iterable[ProcessTimes], root: int) -> set[int]:
    """`root` and all its descendants.

    Not its ancestors: a parent that waits for us uses no CPU, and one that works disturbs us like any other.
    A process left behind by a killed session belongs to nobody and counts as a stranger.
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


def parse_process_stat(raw: bytes, tick_hz: int) -> ProcessTimes | None:
    """`/proc/<pid>/stat`. The name may contain spaces and parentheses: it ends at the last one."""
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


def reading_of(
    machine_stat: bytes, process_stats: Iterable[bytes], *, root: int, tick_hz: int, clock_s: float
) -> Reading:
    """The counters of a machine from its `/proc/stat` and that of every process; `root` and below are us."""
    machine = parse_machine_stat(machine_stat, tick_hz)
    parsed = (parse_process_stat(raw, tick_hz) for raw in process_stats)
    processes = {process.pid: process for process in parsed if process is not None}
    own = family(processes.values(), root)
    # With reaped children included, the sum over the tree never falls when a process in it ends.
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


def read_proc(proc_root: Path, sys_root: Path) -> Reading:
    """All counters of this machine now; our own processes are this one and its descendants."""
    clock_s = time.monotonic()
    reading = reading_of(
        bytes_of(proc_root / "stat"),
        # A process may end between the listing and the reading.
        (bytes_of(entry / "stat") for entry in matches(proc_root, "[0-9]*")),
        root=os.getpid(),
        tick_hz=os.sysconf("SC_CLK_TCK"),
        clock_s=clock_s,
    )
    return replace(
        reading,
        counters=replace(
            reading.counters,
            quota_throttled_s=read_quota_throttled(proc_root, sys_root),
            thermal_events=read_thermal_events(sys_root),
        ),
    )


def read_quota_throttled(proc_root: Path, sys_root: Path) -> float | None:
    """Seconds for which a CPU quota has stopped threads of our control group or of a group around it."""
    total_s = None
    for line in text_of(proc_root / "self" / "cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and "cpu" not in controllers.split(","):
            continue
        mount = sys_root / "fs" / "cgroup" / controllers
        parts = [part for part in path.split("/") if part not in ("", "..")]
        for depth in range(len(parts) + 1):
            throttled_s = _throttled_s(text_of(mount.joinpath(*parts[:depth]) / "cpu.stat"))
            if throttled_s is not None:
                total_s = (total_s or 0.0) + throttled_s
    return total_s


def _throttled_s(cpu_stat: str) -> float | None:
    """Version 2 of control groups counts in microseconds, version 1 in nanoseconds."""
    for line in cpu_stat.splitlines():
        name, _, value = line.partition(" ")
        count = integer(value)
        if name in ("throttled_usec", "throttled_time") and count is not None:
            return count / (1e6 if name == "throttled_usec" else 1e9)
    return None


def counter_growth(before: float | None, after: float | None) -> float:
    """The growth of a counter; 0 if it is unknown or was reset."""
    return 0.0 if before is None or after is None else max(after - before, 0.0)
