"""What a remote device says about itself: what it is, and what state it is in.

Belongs here: asking it without root, in one round trip, and reading its answer with the functions that read
this host. Does not: how it is reached (connection), changing anything on it (power).

A device is asked for a few properties and files. Whatever it does not have, or does not let a shell read, is
None: only Android has `getprop` and `dumpsys`, and phones differ in what they hide.
"""

from __future__ import annotations

import errno
import hashlib
import re
import secrets
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

from sme2_assets.targets.base import MachineFacts
from sme2_assets.targets.clusters import (
    Cluster,
    chosen_cpus,
    cpu_name,
    parse_cpu_list,
    parse_features,
    parse_vector_bits,
    read_clusters,
    read_online,
)
from sme2_assets.targets.environment.processes import Reading, parse_process_stat, reading_of
from sme2_assets.targets.environment.sensors import Battery, read_sensors, read_thermal_events
from sme2_assets.targets.environment.snapshot import SHORTEST_SAMPLE_S, Snapshot, snapshot_of
from sme2_assets.targets.reading import integer, printable_name
from sme2_assets.targets.remote.connection import Connection, shell_program

# Every Linux reports CPU time to user space in hundredths of a second.
_TICK_HZ = 100
_PATIENCE_S = 60.0
_THERMAL_STATUS = ("none", "light", "moderate", "severe", "critical", "emergency", "shutdown")
_CPU_TEMPERATURE = 0

# A folder's name may contain a colon, so a path ends at the first one after a file name that was asked for.
_LISTED = re.compile(
    r"/(sys/(?:[\w.:@+-]+/)*(?:online|cpu_capacity|\w+_freq|scaling_governor|\w+_count|type|temp"
    r"|trip_point_\d+_(?:type|temp)|cur_state|scope|capacity)):(.*)"
)
FACTS = shell_program("sections", "facts")
_STATE = shell_program("sections", "state")


def device_facts(device: Connection) -> MachineFacts:
    """The facts of a device, in one round trip."""
    return facts_of(ask(device, FACTS), device.name)


def facts_of(answer: dict[str, str], serial: str) -> MachineFacts:
    """What a device's answer says; `serial` identifies it if it has no number of its own."""
    cpuinfo = answer.get("cpuinfo", "")
    clusters, _ = _clusters(answer)
    cores = sum(cluster.count or 0 for cluster in clusters)
    battery = parse_battery(answer.get("battery", ""))
    # The same phone on a cable and on the network has one serial number of its own, but two for adb.
    serial = _known(answer.get("ro.serialno")) or serial
    release = _known(answer.get("ro.build.version.release"))
    return MachineFacts(
        os=f"Android {release}" if release else _os_name(answer),
        kernel=_known(answer.get("kernel")) or "unknown",
        arch=_known(answer.get("arch")) or "unknown",
        cpu=cpu_name(cpuinfo, clusters) or "unknown",
        cores=cores or 1,
        memory_bytes=parse_memory(answer.get("meminfo", "")),
        model=_joined(answer.get("ro.product.manufacturer"), answer.get("ro.product.model")),
        soc=_joined(answer.get("ro.soc.manufacturer"), answer.get("ro.soc.model"))
        or _known(answer.get("ro.board.platform")),
        build=_known(answer.get("ro.build.fingerprint")),
        serial_sha256=hashlib.sha256(serial.encode()).hexdigest(),
        features=parse_features(cpuinfo),
        clusters=clusters,
        sme_vector_bits=parse_vector_bits(answer.get("sme_vector_bytes", "")),
        battery=asdict(battery) if battery else None,
    )


def device_cpus(device: Connection, choice: str) -> tuple[int, ...]:
    """The CPUs that a choice refers to on a device, among those that its shell may use now."""
    answer = ask(device, FACTS)
    clusters, online = _clusters(answer)
    everything = {cpu for cluster in clusters for cpu in cluster.cpus}
    allowed = parse_allowed(answer.get("status", ""))
    usable = set(online or everything) & set(allowed or everything)
    return chosen_cpus(choice, clusters, sorted(usable))


def device_snapshot(device: Connection, sample_s: float = 0.2) -> Snapshot:
    """The state of a device during one short sample, in one round trip.

    Our own processes are those below the daemon that serves us (adbd, sshd): our commands, and whatever else
    it runs there.
    """
    pause_s = max(sample_s, SHORTEST_SAMPLE_S)
    answer = ask(device, _STATE, f"{pause_s:.2f}")
    before, after = (_reading(answer, moment) for moment in ("before", "after"))
    with _mirrored(answer.get("files", "")) as root:
        sensors = read_sensors(root / "sys")
        events = read_thermal_events(root / "sys")
    status, cpu_c = parse_thermal_service(answer.get("thermal", ""))
    sensors = replace(
        sensors,
        # Android's own list says which sensors are the CPU's; the hottest file may belong to a charger.
        temperature_c=sensors.temperature_c if cpu_c is None else cpu_c,
        throttled=[*_status_hints(status), *sensors.throttled],
        battery=parse_battery(answer.get("battery", "")) or sensors.battery,
    )
    after = replace(after, counters=replace(after.counters, thermal_events=events))
    return snapshot_of(before, after, sensors, _first_number(answer.get("loadavg", "")))


def parse_battery(text: str) -> Battery | None:
    """`dumpsys battery`."""
    fields = dict(re.findall(r"^\s*([A-Za-z ]+): *(\S+) *$", text, re.MULTILINE))
    level, scale = integer(fields.get("level", "")), integer(fields.get("scale", "")) or 100
    tenths = integer(fields.get("temperature", ""))
    sources = {name: fields.get(f"{name} powered") for name in ("AC", "USB", "Wireless", "Dock")}
    if level is None and tenths is None and not any(sources.values()):
        return None
    plugged = next((name.lower() for name, state in sources.items() if state == "true"), None)
    return Battery(
        level_percent=None if level is None else min(round(100 * level / scale), 100),
        # Tenths of a degree. Some boards without a sensor report 0, which no phone in use has.
        temperature_c=tenths / 10 if tenths and 0 < tenths < 1500 else None,
        plugged=plugged or ("no" if any(sources.values()) else None),
    )


def parse_thermal_service(text: str) -> tuple[int | None, float | None]:
    """`dumpsys thermalservice`: Android's thermal status, and the hottest current CPU temperature.

    It also lists temperatures of the last event, perhaps hours old, and thresholds; those are not readings.
    """
    status = re.search(r"^\s*Thermal Status: *(\d{1,2})\b", text, re.MULTILINE)
    _, _, rest = text.partition("Current temperatures from HAL:")
    current = re.match(r"(?:\s*Temperature\{[^}\n]*\})*", rest)
    found = re.findall(
        r"Temperature\{mValue=(-?\d{1,3}(?:\.\d{1,12})?), mType=(\d{1,2}),", current[0] if current else ""
    )
    celsius = [float(value) for value, kind in found if int(kind) == _CPU_TEMPERATURE]
    plausible = [value for value in celsius if -40 <= value <= 150]
    return int(status[1]) if status else None, max(plausible, default=None)


def parse_memory(meminfo: str) -> int | None:
    match = re.search(r"^MemTotal:\s*(\d{1,15}) kB$", meminfo, re.MULTILINE)
    return int(match[1]) * 1024 if match else None


def parse_allowed(status: str) -> tuple[int, ...]:
    match = re.search(r"^Cpus_allowed_list:\s*(\S+)$", status, re.MULTILINE)
    return parse_cpu_list(match[1]) if match else ()


def ask(device: Connection, program: str, *arguments: str, timeout_s: float = _PATIENCE_S) -> dict[str, str]:
    """The sections of a device's answer."""
    mark = f"sme2-{secrets.token_hex(8)}"
    text = device.script(program, mark, *arguments, timeout_s=timeout_s)
    sections = {}
    # The line break before a mark is ours.
    for part in text.replace("\r\n", "\n").split(f"\n{mark} ")[1:]:
        name, _, content = part.partition("\n")
        sections[name] = content
    return sections


@contextmanager
def _mirrored(listing: str) -> Iterator[Path]:
    """A temporary folder with the files from a `grep -H` answer, laid out as on a host."""
    with tempfile.TemporaryDirectory(prefix="sme2-device-") as folder:
        root = Path(folder)
        for line in listing.splitlines():
            match = _LISTED.fullmatch(line)
            if match and ".." not in match[1].split("/"):
                _lay_out(root / match[1], match[2])
        yield root


def _lay_out(file: Path, content: str) -> None:
    """Writes a file, unless no file system can have it there: a name that is too long, a file in a file."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
    except OSError as error:
        if error.errno not in (errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR, errno.EEXIST):
            raise


def _clusters(answer: dict[str, str]) -> tuple[tuple[Cluster, ...], tuple[int, ...] | None]:
    with _mirrored(answer.get("files", "")) as root:
        (root / "proc").mkdir()
        (root / "proc" / "cpuinfo").write_text(answer.get("cpuinfo", ""))
        return read_clusters(root / "proc", root / "sys"), read_online(root / "sys")


def _reading(answer: dict[str, str], moment: str) -> Reading:
    stats = [line.encode() for line in answer.get(f"processes {moment}", "").splitlines()]
    return reading_of(
        answer.get(f"stat {moment}", "").encode(),
        stats,
        root=_root_of(stats, integer(answer.get("self", "").strip()) or 0),
        tick_hz=_TICK_HZ,
        clock_s=_first_number(answer.get(f"uptime {moment}", "")) or 0.0,
    )


def _root_of(stats: Iterable[bytes], own: int) -> int:
    """The daemon: the first ancestor of our shell outside its session. Each command has a new session."""
    processes = {process.pid: process for raw in stats if (process := parse_process_stat(raw, _TICK_HZ))}
    pid = own
    for _ in range(len(processes)):
        process = processes.get(pid)
        if process is None or process.parent not in processes or process.parent == 1:
            break
        if processes[pid].session != processes[process.parent].session:
            return process.parent
        pid = process.parent
    return pid


def _status_hints(status: int | None) -> list[str]:
    if not status:
        return []
    name = _THERMAL_STATUS[status] if status < len(_THERMAL_STATUS) else "unknown"
    return [f"Android reports thermal status {status} ({name})"]


def _os_name(answer: dict[str, str]) -> str:
    pretty = re.search(r'^PRETTY_NAME="?([^"\n]+)"?$', answer.get("os-release", ""), re.MULTILINE)
    return printable_name(pretty[1]) if pretty else _known(answer.get("system")) or "unknown"


def _known(text: str | None) -> str | None:
    """A property as one printable line; None if Android has none."""
    line = (text or "").strip()
    return printable_name(line, 200) if line and line.lower() != "unknown" else None


def _joined(*parts: str | None) -> str | None:
    known = [name for part in parts if (name := _known(part))]
    # Many manufacturers put their name into the model's.
    if len(known) == 2 and known[1].lower().startswith(known[0].lower()):
        known = known[1:]
    return " ".join(known) or None


def _first_number(text: str) -> float | None:
    match = re.match(r"\s*(\d{1,12}(?:\.\d{1,6})?)\b", text, re.ASCII)
    return float(match[1]) if match else None
