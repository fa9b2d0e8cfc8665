"""How heat and frequency affected one process: pure rules over what the runner read while it measured.

Belongs here: deciding from a runner's readings whether its CPU slowed down. Does not: reading the machine
between processes (environment), deciding whether a measurement counts (analysis, checks).

The rules look at the CPU that the measuring thread was on. An idle CPU is slow because it is idle, which says
nothing about heat.
"""

from __future__ import annotations

from collections.abc import Sequence

from sme2_assets.evidence.result import Conditions
from sme2_assets.targets.clusters import Cluster

# Frequencies move in steps of a few percent, and a reading is of one moment.
FELL_BELOW = 0.9
# The maximum may be a clock that a CPU reaches only while others are idle, and cannot sustain.
SLOW_BELOW = 0.75


def throttling_flags(conditions: Sequence[Conditions], clusters: Sequence[Cluster] = ()) -> list[str]:
    """Signs that the measuring thread's CPU slowed down, was slow all the time, or changed to another kind.

    Two readings are compared if they are of one CPU or one cluster. Missing readings give no flag: an empty
    list does not mean that nothing happened.
    """
    readings = [
        (each.cpu, each.cpu_khz[each.cpu])
        for each in conditions
        if each.cpu is not None and each.cpu in each.cpu_khz
    ]
    return [
        *_moved(conditions, clusters),
        *(_fell(readings, clusters) or _slow(readings, clusters)),
    ]


def _fell(readings: Sequence[tuple[int, int]], clusters: Sequence[Cluster]) -> list[str]:
    """The deepest fall below an earlier reading of the same kind of CPU."""
    worst: tuple[float, int, int, int] | None = None
    for later, (cpu, khz) in enumerate(readings):
        for earlier_cpu, earlier_khz in readings[:later]:
            share = khz / earlier_khz
            if (
                _alike(cpu, earlier_cpu, clusters)
                and share < FELL_BELOW
                and (worst is None or share < worst[0])
            ):
                worst = (share, cpu, earlier_khz, khz)
    if worst is None:
        return []
    _, cpu, before, after = worst
    return [f"throttled: CPU {cpu} fell from {_ghz(before)} to {_ghz(after)} GHz while it measured"]


def _slow(readings: Sequence[tuple[int, int]], clusters: Sequence[Cluster]) -> list[str]:
    """Far below its maximum in every reading: capped, throttled before, or held back by its governor."""
    shares = []
    for cpu, khz in readings:
        kind = _kind(cpu, clusters)
        if kind is None or not kind.max_khz:
            return []
        shares.append((khz / kind.max_khz, cpu, khz, kind.max_khz))
    if not shares or max(shares)[0] >= SLOW_BELOW:
        return []
    _, cpu, khz, most = max(shares)
    return [f"slow: CPU {cpu} ran at {_ghz(khz)} GHz or less, its maximum is {_ghz(most)} GHz"]


def _moved(conditions: Sequence[Conditions], clusters: Sequence[Cluster]) -> list[str]:
    """The scheduler moved the measuring thread to another kind of CPU: its times do not form one series."""
    kinds = [kind for each in conditions if each.cpu is not None if (kind := _kind(each.cpu, clusters))]
    if not kinds or all(kind == kinds[0] for kind in kinds):
        return []
    numbers = [each.cpu for each in conditions if each.cpu is not None]
    return [
        f"moved: the measuring thread began on CPU {numbers[0]} ({kinds[0].name}) "
        f"and was seen on {', '.join(sorted({kind.name for kind in kinds[1:]}))} CPUs; --cpus binds it"
    ]


def _alike(cpu: int, other: int, clusters: Sequence[Cluster]) -> bool:
    kind = _kind(cpu, clusters)
    return cpu == other or (kind is not None and other in kind.cpus)


def _kind(cpu: int, clusters: Sequence[Cluster]) -> Cluster | None:
    return next((cluster for cluster in clusters if cpu in cluster.cpus), None)


def _ghz(khz: int) -> str:
    return f"{khz / 1e6:.2f}"
