"""Flags for what may spoil a measurement, and waiting until it has passed."""

from __future__ import annotations

import time
from collections.abc import Callable

from sme2_assets.targets.environment.processes import counter_growth, other_cores
from sme2_assets.targets.environment.snapshot import Snapshot, take_snapshot

# We cannot control the time the hypervisor gives to others, and there is always some; below this it is noise.
STOLEN_CORES = 0.05
# An idle machine this hot was not idle, or does not cool. Sensors with their own limit use that instead.
HOT_C = 90.0
# A phone's case and battery heat up more slowly than its cores, and slow them down long before those are hot.
HOT_BATTERY_C = 40.0
# At about this level Android starts to save power by itself.
LOW_BATTERY_PERCENT = 15

_POLL_S = 1.0
# Cooling takes minutes, and each look costs the device some work.
_COOL_POLL_S = 5.0
_NAMED_IN_FLAGS = 3

Log = Callable[[str], None]


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

    Returns the last snapshot and what is wrong with it; no flags mean quiet. A machine that was busy must be
    quiet twice in a row, as a build has short pauses. A frequency cap is flagged but not waited for: it is
    often set on purpose and stays. Anything that begins after the last snapshot is not seen. Cooling takes
    longer than waiting for other processes, so it has its own limit, by default `patience_s`.
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
        log(f"not quiet after {waited_s:.0f} s, measuring anyway: {'; '.join(passing)}")
    elif waiting_for:
        log(f"quiet after {waited_s:.0f} s")
    return snapshot, passing + cap_flags(snapshot) + battery_flags(snapshot)


def busy_flags(snapshot: Snapshot, limit_load: float) -> list[str]:
    """Who used the CPU, if all others together used more than `limit_load` cores; otherwise nothing."""
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
    """Signs that the machine is slowing itself because of heat, or is about to."""
    flags = [f"hot: {hint}" for hint in snapshot.throttled]
    if not flags and snapshot.temperature_c is not None and snapshot.temperature_c >= HOT_C:
        flags.append(f"hot: {snapshot.temperature_c:.0f} °C")
    battery_c = snapshot.battery.temperature_c if snapshot.battery else None
    if battery_c is not None and battery_c >= HOT_BATTERY_C:
        flags.append(
            f"hot: the battery is at {battery_c:.1f} °C, and {HOT_BATTERY_C:.0f} °C or more slows a device"
        )
    return flags


def battery_flags(snapshot: Snapshot) -> list[str]:
    """Whether the battery is so low that the system begins to save power."""
    level = snapshot.battery.level_percent if snapshot.battery else None
    if level is None or level > LOW_BATTERY_PERCENT:
        return []
    return [f"battery: {level} % is left, and systems then save power"]


def cap_flags(snapshot: Snapshot) -> list[str]:
    """Whether the CPU may not reach its maximum frequency (by choice, to save power, or because of heat)."""
    if snapshot.frequency_cap is None or snapshot.frequency_cap >= 0.99:
        return []
    return [f"capped: a CPU may reach only {snapshot.frequency_cap:.0%} of its maximum frequency"]


def disturbances_between(before: Snapshot, after: Snapshot, *, limit_load: float) -> list[str]:
    """Disturbances between two snapshots that this process took, from the kernel's counters.

    These are averages: one busy second in a quiet minute is not seen. What the system does not count is not
    reported; macOS counts none of it without privileges.
    """
    elapsed_s = after.counters.clock_s - before.counters.clock_s
    if elapsed_s <= 0:
        return []
    flags = []
    other = other_cores(before.counters, after.counters)
    if other is not None and other > limit_load:
        flags.append(f"busy: other processes used {other:.1f} cores over {elapsed_s:.0f} s")
    stolen_s = counter_growth(before.counters.stolen_s, after.counters.stolen_s)
    if stolen_s / elapsed_s > STOLEN_CORES:
        flags.append(f"stolen: the hypervisor gave {stolen_s / elapsed_s:.2f} cores to others")
    throttled_s = counter_growth(before.counters.quota_throttled_s, after.counters.quota_throttled_s)
    if throttled_s > 0:
        flags.append(f"quota: the container's CPU limit stopped its threads for {throttled_s:.2f} s")
    events = counter_growth(before.counters.thermal_events, after.counters.thermal_events)
    if events > 0:
        flags.append(f"hot: the CPU slowed itself {events:.0f} times")
    return flags
