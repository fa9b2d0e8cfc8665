"""The machine during one short sample: processes, counters and sensors together."""

from __future__ import annotations

import math
import os
import sys
import time
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sme2_assets.targets.environment.mac import mac_sensors, read_ps
from sme2_assets.targets.environment.processes import (
    Counters,
    HeavyProcess,
    Reading,
    cpu_usage,
    other_cores,
    read_proc,
)
from sme2_assets.targets.environment.sensors import Sensors, read_sensors

HEAVY_CORES = 0.2
# Tick counters advance by 10 ms, so a shorter sample would mostly measure rounding.
SHORTEST_SAMPLE_S = 0.05

_PROC = Path("/proc")
_SYS = Path("/sys")


@dataclass(frozen=True, kw_only=True)
class Snapshot(Sensors):
    """The machine during one short sample.

    It cannot show what happened between two snapshots; `disturbances_between` shows some of that.
    `load_1m` lags by a minute and includes ourselves: it is recorded, and decides nothing.
    """

    at: str
    load_1m: float | None
    other_cores: float | None
    heavy_processes: list[HeavyProcess]
    counters: Counters

    def as_json(self) -> dict[str, Any]:
        """Plain lists, strings and finite numbers, fit for strict JSON."""
        return {**asdict(self), "heavy_processes": [list(process) for process in self.heavy_processes]}


def take_snapshot(sample_s: float = 0.2) -> Snapshot:
    """Watches the machine for `sample_s` (at least 0.05 s). Never raises; unreadable values are None."""
    before = _reading()
    # Sensors are read during the sample: that makes it no longer, and our own work is not counted.
    sensors = mac_sensors() if sys.platform == "darwin" else read_sensors(_SYS)
    until_s = before.counters.clock_s + max(sample_s, SHORTEST_SAMPLE_S)
    time.sleep(max(until_s - time.monotonic(), 0.0))
    return snapshot_of(before, _reading(), sensors, _load_1m())


def snapshot_of(before: Reading, after: Reading, sensors: Sensors, load_1m: float | None) -> Snapshot:
    """What two readings and the sensors between them say."""
    elapsed_s = after.counters.clock_s - before.counters.clock_s
    usage = cpu_usage(before.processes, after.processes, before.own | after.own, elapsed_s)
    other = other_cores(before.counters, after.counters)
    if other is None and after.processes:
        other = sum(process.cores for process in usage)
    return Snapshot(
        **vars(sensors),
        at=datetime.now(UTC).isoformat(timespec="milliseconds"),
        load_1m=load_1m,
        other_cores=None if other is None else round(other, 2),
        heavy_processes=[HeavyProcess(name, round(cores, 2)) for name, cores in usage if cores > HEAVY_CORES],
        counters=after.counters,
    )


def _load_1m() -> float | None:
    try:
        load = os.getloadavg()[0]
    except (OSError, AttributeError):
        return None
    return round(load, 2) if math.isfinite(load) else None


def _reading() -> Reading:
    return read_proc(_PROC, _SYS) if (_PROC / "stat").exists() else read_ps()
