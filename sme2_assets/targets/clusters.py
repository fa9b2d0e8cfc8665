"""The kinds of CPUs that a machine has, and the choice of some of them by name, list or mask.

Belongs here: grouping CPUs by what the kernel says about them, naming the groups, resolving a choice.
Does not: binding a process to CPUs, which the runner does itself.

Names are ranks by speed on this machine: the fastest of three or more kinds is `prime`, the slowest
`efficiency`, all in between `performance`; two kinds are `performance` and `efficiency`; one kind is `all`.
CPUs that cannot be ranked are `all` too: an unknown core is not called an efficiency core.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from sme2_assets.errors import Sme2Error
from sme2_assets.targets.reading import text_of

NAMES = ("prime", "performance", "efficiency")
EVERY_CPU = "all"
MOST_CPUS = 1024

_ARM = "0x41"
# Part numbers of Arm Ltd., which /proc/cpuinfo gives without a name.
_ARM_CORES = {
    0xD03: "Cortex-A53",
    0xD05: "Cortex-A55",
    0xD07: "Cortex-A57",
    0xD08: "Cortex-A72",
    0xD09: "Cortex-A73",
    0xD0A: "Cortex-A75",
    0xD0B: "Cortex-A76",
    0xD0C: "Neoverse-N1",
    0xD0D: "Cortex-A77",
    0xD40: "Neoverse-V1",
    0xD41: "Cortex-A78",
    0xD44: "Cortex-X1",
    0xD46: "Cortex-A510",
    0xD47: "Cortex-A710",
    0xD48: "Cortex-X2",
    0xD49: "Neoverse-N2",
    0xD4B: "Cortex-A78C",
    0xD4C: "Cortex-X1C",
    0xD4D: "Cortex-A715",
    0xD4E: "Cortex-X3",
    0xD4F: "Neoverse-V2",
    0xD80: "Cortex-A520",
    0xD81: "Cortex-A720",
    0xD82: "Cortex-X4",
    0xD83: "Neoverse-V3AE",
    0xD84: "Neoverse-V3",
    0xD85: "Cortex-X925",
    0xD87: "Cortex-A725",
    0xD8A: "C1-Nano",
    0xD8B: "C1-Pro",
    0xD8C: "C1-Ultra",
    0xD8E: "Neoverse-N3",
    0xD90: "C1-Premium",
}
# Which of two cores of one chip is faster, by family; for devices that hide frequency and capacity.
_FAMILIES = (
    ("Cortex-A53", "Cortex-A55", "Cortex-A510", "Cortex-A520", "C1-Nano"),
    (
        *("Cortex-A57", "Cortex-A72", "Cortex-A73", "Cortex-A75", "Cortex-A76", "Cortex-A77", "Cortex-A78"),
        *("Cortex-A78C", "Cortex-A710", "Cortex-A715", "Cortex-A720", "Cortex-A725", "C1-Pro"),
    ),
    ("Cortex-X1", "Cortex-X1C", "Cortex-X2", "Cortex-X3", "Cortex-X4", "Cortex-X925"),
    ("C1-Premium", "C1-Ultra"),
)
_RANKS = {
    core: (family, generation)
    for family, cores in enumerate(_FAMILIES)
    for generation, core in enumerate(cores)
}


@dataclass(frozen=True)
class Cluster:
    """CPUs of one kind. Two clusters may share a name: both are between the fastest and the slowest.

    `count` is how many there are; `cpus` is empty where the system does not number them (macOS).
    """

    name: str
    cpus: tuple[int, ...]
    max_khz: int | None = None
    capacity: int | None = None
    core: str | None = None
    count: int | None = None


@dataclass(frozen=True)
class Cpu:
    """One CPU as the kernel describes it."""

    number: int
    max_khz: int | None = None
    capacity: int | None = None
    core: str | None = None


def read_clusters(proc_root: Path, sys_root: Path) -> tuple[Cluster, ...]:
    """The clusters of the machine with these `/proc` and `/sys` folders, or copies of them."""
    cores = parse_cores(text_of(proc_root / "cpuinfo"))
    folder = sys_root / "devices" / "system" / "cpu"
    numbers = {int(path.name[3:]) for path in folder.glob("cpu[0-9]*") if path.name[3:].isdecimal()}
    return clusters_of(
        Cpu(
            number,
            max_khz=_positive(text_of(folder / f"cpu{number}" / "cpufreq" / "cpuinfo_max_freq")),
            capacity=_positive(text_of(folder / f"cpu{number}" / "cpu_capacity")),
            core=cores.get(number),
        )
        for number in sorted(numbers | set(cores))
    )


def read_online(sys_root: Path) -> tuple[int, ...] | None:
    """CPUs that can run something now; None where the kernel does not say."""
    return parse_cpu_list(text_of(sys_root / "devices" / "system" / "cpu" / "online")) or None


def clusters_of(cpus: Iterable[Cpu]) -> tuple[Cluster, ...]:
    """CPUs grouped by kind, the fastest first. A CPU with nothing known about it (offline) is left out."""
    listed = list(cpus)
    known = [cpu for cpu in listed if cpu.capacity is not None or cpu.max_khz is not None]
    if known:
        # With a gap in the key, a CPU would be ranked by what is not known about it.
        with_capacity = all(cpu.capacity is not None for cpu in known)
        with_speed = all(cpu.max_khz is not None for cpu in known)
        if with_capacity or with_speed:
            return _named(
                known,
                {
                    cpu.number: (
                        cpu.capacity or 0 if with_capacity else 0,
                        cpu.max_khz or 0 if with_speed else 0,
                    )
                    for cpu in known
                },
            )
    if listed and all(cpu.core in _RANKS for cpu in listed):
        return _named(listed, {cpu.number: _RANKS[cpu.core] for cpu in listed if cpu.core})
    return (_cluster(EVERY_CPU, listed),) if listed else ()


def chosen_cpus(choice: str, clusters: Sequence[Cluster], online: Sequence[int]) -> tuple[int, ...]:
    """The CPUs that a choice refers to: `prime`, `performance,prime`, `all`, `0-3,7` or `0xf0`."""
    text = choice.strip().lower()
    cpus: set[int] = set()
    for part in text.split(","):
        cpus |= _part(part.strip(), choice, clusters, online)
    if unknown := sorted(cpus - set(online)):
        there = {cpu for cluster in clusters for cpu in cluster.cpus}
        which = "offline" if there.issuperset(unknown) else "not online, or nonexistent"
        raise Sme2Error(
            f"{_cpus_text(unknown)} of the choice {choice!r} {'is' if len(unknown) == 1 else 'are'} {which}.",
            f"Online: {cpu_list(online)}. {_choices_text(clusters)}",
        )
    return tuple(sorted(cpus))


def parse_cpu_list(text: str) -> tuple[int, ...]:
    """`0-3,7` as numbers; empty where the text is not such a list."""
    cpus: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"(\d{1,4})(?:-(\d{1,4}))?", part.strip(), re.ASCII)
        if match is None:
            return ()
        first, last = int(match[1]), int(match[2] or match[1])
        if not first <= last < MOST_CPUS:
            return ()
        cpus.update(range(first, last + 1))
    return tuple(sorted(cpus))


def cpu_list(cpus: Iterable[int]) -> str:
    """CPUs as people and the runner write them: 0-3,7."""
    ranges: list[list[int]] = []
    for cpu in sorted(set(cpus)):
        if ranges and ranges[-1][1] == cpu - 1:
            ranges[-1][1] = cpu
        else:
            ranges.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)


def parse_cores(cpuinfo: str) -> dict[int, str]:
    """The core of each CPU, from `/proc/cpuinfo`, which has only CPUs that are online."""
    cores = {}
    for block in re.split(r"\n\s*\n", cpuinfo):
        fields = dict(re.findall(r"^([^:\n]+?)[ \t]*:[ \t]*(.*?)[ \t]*$", block, re.MULTILINE))
        number = fields.get("processor", "")
        core = core_name(fields.get("CPU implementer", ""), fields.get("CPU part", ""))
        name = core or fields.get("model name")
        if name and re.fullmatch(r"\d{1,4}", number, re.ASCII) and int(number) < MOST_CPUS:
            cores[int(number)] = name
    return cores


def parse_features(cpuinfo: str) -> tuple[str, ...]:
    """The features that all CPUs have; a process may be moved to any of them."""
    lines = re.findall(r"^(?:Features|flags)[ \t]*:[ \t]*(.*)$", cpuinfo, re.MULTILINE)
    common = set.intersection(*(set(line.split()) for line in lines)) if lines else set()
    return tuple(dict.fromkeys(name for name in (lines[0].split() if lines else ()) if name in common))


def parse_vector_bits(text: str) -> int | None:
    """From `/proc/sys/abi/sme_default_vector_length`, in bytes, which exists only on a CPU with SME."""
    count = _positive(text)
    return count * 8 if count is not None and 16 <= count <= 256 else None


def core_name(implementer: str, part: str) -> str | None:
    """The name of a core from its numbers in `/proc/cpuinfo`; the numbers if it is not known."""
    if not re.fullmatch(r"0x[0-9a-fA-F]{1,4}", part) or not implementer:
        return None
    if implementer.lower() == _ARM and int(part, 16) in _ARM_CORES:
        return _ARM_CORES[int(part, 16)]
    return f"implementer {implementer} part {part}"


def cpu_text(clusters: Sequence[Cluster]) -> str | None:
    """The cores of a machine on one line: `1x Cortex-X4 + 3x Cortex-A720`; just the name of a single kind."""
    cores = [cluster.core for cluster in clusters]
    if not cores or any(core is None for core in cores):
        return None
    if len(set(cores)) == 1:
        return cores[0]
    return " + ".join(f"{cluster.count}x {cluster.core}" for cluster in clusters)


def cpu_name(cpuinfo: str, clusters: Sequence[Cluster]) -> str | None:
    """What a Linux machine calls its CPU, or its cores if it has no name for it."""
    if named := re.search(r"^model name\s*:\s*(.+)$", cpuinfo, re.MULTILINE):
        return named[1].strip()
    return cpu_text(clusters) or next(iter(parse_cores(cpuinfo).values()), None)


def described(clusters: Sequence[Cluster]) -> str:
    """The clusters in words: `prime (7), performance (4-6)`."""
    return ", ".join(f"{cluster.name} ({cpu_list(cluster.cpus)})" for cluster in clusters)


def _part(part: str, choice: str, clusters: Sequence[Cluster], online: Sequence[int]) -> set[int]:
    if part == EVERY_CPU:
        return set(online)
    named = {cpu for cluster in clusters if cluster.name == part for cpu in cluster.cpus}
    if named:
        # A cluster's name refers to those of its CPUs that are online: phones switch cores off to save power.
        if awake := named & set(online):
            return awake
        raise Sme2Error(f"All CPUs of {part!r} ({cpu_list(named)}) are offline.", _choices_text(clusters))
    if part in NAMES:
        raise Sme2Error(f"This machine has no CPUs called {part!r}.", _choices_text(clusters))
    if re.fullmatch(r"0x[0-9a-f]{1,256}", part):
        mask = int(part, 16)
        listed = {cpu for cpu in range(mask.bit_length()) if mask >> cpu & 1}
    else:
        listed = set(parse_cpu_list(part))
    if not listed:
        raise Sme2Error(f"{choice!r} does not choose any CPUs.", _choices_text(clusters))
    return listed


def _choices_text(clusters: Sequence[Cluster]) -> str:
    numbers = "a list such as 0-3,7, or a mask such as 0xf0"
    named = [cluster for cluster in clusters if cluster.name in NAMES and cluster.cpus]
    if not named:
        return f"All CPUs here are of one kind, as far as can be told: give `all`, {numbers}."
    return f"There are {described(named)}; give one of these names, `all`, {numbers}."


def _named(cpus: Sequence[Cpu], ranks: dict[int, tuple[int, int]]) -> tuple[Cluster, ...]:
    order = sorted({ranks[cpu.number] for cpu in cpus}, reverse=True)
    if len(order) == 1:
        return (_cluster(EVERY_CPU, cpus),)
    middle = ["performance"] * (len(order) - 2)
    names = ["prime", *middle, "efficiency"] if middle else ["performance", "efficiency"]
    return tuple(
        _cluster(name, [cpu for cpu in cpus if ranks[cpu.number] == rank])
        for name, rank in zip(names, order, strict=True)
    )


def _cluster(name: str, cpus: Sequence[Cpu]) -> Cluster:
    cores = {cpu.core for cpu in cpus} - {None}
    return Cluster(
        name=name,
        cpus=tuple(cpu.number for cpu in cpus),
        max_khz=max((cpu.max_khz for cpu in cpus if cpu.max_khz is not None), default=None),
        capacity=max((cpu.capacity for cpu in cpus if cpu.capacity is not None), default=None),
        core=cores.pop() if len(cores) == 1 else None,
        count=len(cpus),
    )


def _cpus_text(cpus: Sequence[int]) -> str:
    return f"CPU {cpus[0]}" if len(cpus) == 1 else f"CPUs {cpu_list(cpus)}"


def _positive(text: str) -> int | None:
    stripped = text.strip()
    return int(stripped) if re.fullmatch(r"[1-9]\d{0,11}", stripped, re.ASCII) else None
