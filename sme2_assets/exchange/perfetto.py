"""A run, and the other arm of its session, as a trace that the Perfetto UI opens.

The format is Perfetto's own protobuf, with the messages of the published schema. Each arm is a group of
tracks, with another group for its kernels pass, which is a separate run of the model with different times;
the arms of a pass are one below the other. A flow leads from an operator of the kernels pass to its samples.

Times are those that were measured. Only the start of a round is moved: round n of every arm starts at the
same time, so that arms can be compared. Only one process is in memory at a time, however large the trace.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import (
    InternedData,
    TracePacket,
    TrackDescriptor,
    TrackEvent,
)
from perfetto.trace_builder.proto_builder import StreamingTraceProtoBuilder

from sme2_assets.exchange.slices import (
    Place,
    Process,
    Slice,
    facts_of_operators,
    is_null,
    processes_of,
    shown,
    window,
)
from sme2_assets.warehouse.store import Warehouse

SUFFIX = ".pftrace"
# For each process, so that the file stays small enough to open quickly.
MOST_INFERENCES = 5
MOST_SAMPLED_INFERENCES = 50
BETWEEN_ROUNDS_NS = 1_000_000
PASSES = ("etdump", "kernels")
COUNTERS = {
    "cpu_mhz": ("CPU frequency", "MHz"),
    "temperature_c": ("temperature", "°C"),
    "load_1m": ("load", "1 min"),
}
# The tag of Trace's packet field, which is all that a trace consists of.
_PACKET_TAG = 0x0A

Arm = tuple[dict[str, Any], Path]


@dataclass(frozen=True)
class _Part:
    """A process, and where it is in the trace."""

    process: Process
    start: int
    end: int
    base: int

    def at(self, time_ns: int) -> int:
        return time_ns - self.start + self.base


def write_trace(
    path: Path, warehouse: Warehouse, arms: Sequence[Arm], inferences: int = MOST_INFERENCES
) -> None:
    """The trace of runs of one session, each given by its row of the table `runs` and its folder."""
    # "off" comes before "on", and "a" before "b".
    arms = sorted(arms, key=lambda arm: str(arm[0]["arm"]))
    processes = [processes_of(run, folder, inferences, MOST_SAMPLED_INFERENCES) for run, folder in arms]
    with path.open("wb") as file:
        tracks = _Tracks(file)
        run = arms[0][0]
        runs = ", ".join(str(each["run_id"]) for each, _ in arms)
        root = tracks.add(
            f"{run['variant']} on {run['platform']}",
            description=f"{runs}. Times are as measured; rounds of all arms are moved to start together.",
        )
        for rank, pass_kind in enumerate(PASSES):
            of_pass = [[each for each in of_arm if each.pass_kind == pass_kind] for of_arm in processes]
            parts = _placed(of_pass)
            for number, ((run, _), of_arm) in enumerate(zip(arms, parts, strict=True)):
                if of_arm:
                    group = tracks.add(
                        _name_of_arm(run, pass_kind),
                        root,
                        rank=len(arms) * rank + number,
                        description=str(run["run_id"]),
                    )
                    _write_arm(tracks, group, warehouse, run, of_arm)


def _name_of_arm(run: Mapping[str, Any], pass_kind: str) -> str:
    state = "state unknown" if is_null(run["sme2"]) else run["sme2"]
    name = f"reference ({run['arch']})" if run["fidelity"] == "reference" else f"SME2 {state}"
    arm = f" ({run['arm']})" if run["experiment"] in ("aa", "arms") else ""
    what = "" if pass_kind == "etdump" else ", kernels pass (sampled)"
    notes = {"emulated": ", emulated: times mean nothing", "reference": ": says nothing about SME2"}
    return f"{name}{arm}{what}{notes.get(run['fidelity'], '')}"


def _placed(processes: Sequence[Sequence[Process]]) -> list[list[_Part]]:
    """Where the processes of each arm go: each round after the longest process of the previous round."""
    windows = {process: window(process) for of_arm in processes for process in of_arm}
    bases: dict[int, int] = {}
    now = 0
    for number in sorted({process.round for process in windows}):
        bases[number] = now
        now += max(end - start for process, (start, end) in windows.items() if process.round == number)
        now += BETWEEN_ROUNDS_NS
    return [
        [_Part(process, *windows[process], bases[process.round]) for process in of_arm]
        for of_arm in processes
    ]


def _write_arm(
    tracks: _Tracks, group: int, warehouse: Warehouse, run: Mapping[str, Any], parts: Sequence[_Part]
) -> None:
    facts = facts_of_operators(warehouse, run["run_id"])
    inference = tracks.add("inference", group)
    threads: dict[str, int] = {}
    for part in parts:
        drawn = shown(part.process, facts)
        flows = tracks.flows(drawn.samples)
        tracks.draw(inference, part, drawn.slices, flows)
        for name, samples in drawn.samples.items():
            if name not in threads:
                threads[name] = tracks.add(name, group, rank=1 + len(threads))
            tracks.draw(threads[name], part, samples, flows)
    if parts[0].process.pass_kind == "etdump":
        _write_counters(tracks, group, warehouse, run["run_id"], parts)


def _write_counters(
    tracks: _Tracks, group: int, warehouse: Warehouse, run_id: str, parts: Sequence[_Part]
) -> None:
    """The state of the machine before and after every round, where it could be read."""
    of_round = {part.process.round: part for part in parts}
    rows = warehouse.query(
        "SELECT round, moment, cpu_mhz, temperature_c, load_1m FROM environment WHERE run_id = ? "
        "ORDER BY round, moment DESC",
        [run_id],
    )
    for rank, (column, (name, unit)) in enumerate(COUNTERS.items(), start=1000):
        known = [row for row in rows.itertuples(index=False) if not is_null(getattr(row, column))]
        known = [row for row in known if row.round in of_round]
        track = tracks.add(name, group, rank=rank, unit=unit) if known else 0
        for row in known:
            part = of_round[row.round]
            at = part.at(part.end if row.moment == "after" else part.start)
            tracks.count(track, at, float(getattr(row, column)))


class _Tracks:
    """Writes tracks and what is on them, packet by packet; repeated texts are written once."""

    def __init__(self, file: IO[bytes]) -> None:
        self._builder = StreamingTraceProtoBuilder(file)
        self._known: dict[str, dict[str, int]] = {}
        self._tracks = self._flows = 0
        # Before the first packet a reader knows no texts.
        self._state = TracePacket.SEQ_INCREMENTAL_STATE_CLEARED

    def add(
        self, name: str, parent: int = 0, *, rank: int = 0, description: str = "", unit: str | None = None
    ) -> int:
        """A track below another one, ordered by rank; with a unit it is a counter."""
        self._tracks += 1
        packet = self._packet()
        track = packet.track_descriptor
        track.uuid, track.name, track.sibling_order_rank = self._tracks, name, rank
        track.child_ordering = TrackDescriptor.EXPLICIT
        if parent:
            track.parent_uuid = parent
        if description:
            track.description = description
        if unit is not None:
            track.counter.unit_name = unit
        self._builder.write_packet(packet)
        return self._tracks

    def flows(self, samples: Mapping[str, Sequence[Slice]]) -> dict[Place, int]:
        """A flow for each operator that was sampled in this process."""
        places = {
            each.place for of_thread in samples.values() for each in of_thread if each.place is not None
        }
        first = self._flows + 1
        self._flows += len(places)
        return {place: number for number, place in enumerate(sorted(places), first)}

    def draw(self, track: int, part: _Part, slices: Sequence[Slice], flows: Mapping[Place, int]) -> None:
        """Begin and end of every slice, in the order that opens and closes them."""
        opened: list[Slice] = []
        for drawn in slices:
            while opened and opened[-1].depth >= drawn.depth:
                self._edge(track, TrackEvent.TYPE_SLICE_END, part.at(opened.pop().end))
            # Shorter than XNNPACK's microsecond: an instant inside the slice that is open there.
            kind = TrackEvent.TYPE_INSTANT if drawn.end == drawn.start else TrackEvent.TYPE_SLICE_BEGIN
            flow = None if drawn.place is None else flows.get(drawn.place)
            self._edge(track, kind, part.at(drawn.start), drawn, part.process.round, flow)
            if kind == TrackEvent.TYPE_SLICE_BEGIN:
                opened.append(drawn)
        while opened:
            self._edge(track, TrackEvent.TYPE_SLICE_END, part.at(opened.pop().end))

    def count(self, track: int, at: int, value: float) -> None:
        packet = self._packet(at)
        event = packet.track_event
        event.type, event.track_uuid, event.double_counter_value = TrackEvent.TYPE_COUNTER, track, value
        self._builder.write_packet(packet)

    def _edge(
        self,
        track: int,
        edge: Any,
        at: int,
        drawn: Slice | None = None,
        round_number: int = 0,
        flow: int | None = None,
    ) -> None:
        packet = self._packet(at)
        event = packet.track_event
        event.type, event.track_uuid = edge, track
        if drawn is not None:
            texts = packet.interned_data
            event.name_iid = self._iid(texts, "event_names", "name", drawn.name)
            event.category_iids.append(self._iid(texts, "event_categories", "name", drawn.kind))
            for name, value in {"round": round_number, **drawn.args}.items():
                told = event.debug_annotations.add()
                told.name_iid = self._iid(texts, "debug_annotation_names", "name", name)
                if isinstance(value, bool):
                    told.bool_value = value
                elif isinstance(value, int):
                    told.int_value = value
                elif isinstance(value, float):
                    told.double_value = value
                else:
                    told.string_value_iid = self._iid(
                        texts, "debug_annotation_string_values", "str", str(value)
                    )
            if flow is not None:
                event.flow_ids.append(flow)
        self._builder.write_packet(packet)

    def _packet(self, at: int | None = None) -> TracePacket:
        packet = self._builder.create_packet()
        packet.trusted_packet_sequence_id = 1
        packet.sequence_flags, self._state = self._state, TracePacket.SEQ_NEEDS_INCREMENTAL_STATE
        if at is not None:
            packet.timestamp = at
        return packet

    def _iid(self, texts: InternedData, kind: str, field: str, text: str) -> int:
        """The number of a text; the packet where it first occurs carries the text."""
        known = self._known.setdefault(kind, {})
        if text not in known:
            known[text] = len(known) + 1
            entry = getattr(texts, kind).add(iid=known[text])
            setattr(entry, field, text.encode() if field == "str" else text)
        return known[text]


def read_packets(path: Path) -> Iterator[TracePacket]:
    """The packets of a trace, one at a time; ValueError if the file is not a trace."""
    with path.open("rb") as file:
        while tag := file.read(1):
            size = shift = 0
            more = tag[0] == _PACKET_TAG
            while more:
                byte = file.read(1)
                if not byte or shift > 63:
                    raise ValueError("a packet without an end")
                size |= (byte[0] & 0x7F) << shift
                shift += 7
                more = byte[0] >= 0x80
            content = file.read(size)
            if tag[0] != _PACKET_TAG or len(content) < size:
                raise ValueError("not a packet, or half of one")
            try:
                yield TracePacket.FromString(content)
            except Exception as error:
                raise ValueError(f"a packet that cannot be read: {error}") from error


def faults_of_trace(packets: Iterator[TracePacket]) -> tuple[int, list[str]]:
    """How many events there are, and what Perfetto would drop or misplace."""
    faults: list[str] = []
    described: set[int] = set()
    opened: dict[int, int] = {}
    last: dict[int, int] = {}
    events = 0
    for packet in packets:
        if packet.HasField("track_descriptor"):
            track = packet.track_descriptor
            if track.parent_uuid and track.parent_uuid not in described:
                faults.append(f"track {track.name!r} is below one that is not there")
            described.add(track.uuid)
        if not packet.HasField("track_event"):
            continue
        events += 1
        uuid, kind = packet.track_event.track_uuid, packet.track_event.type
        where = f"track {uuid} at {packet.timestamp}"
        if uuid not in described:
            faults.append(f"{where}: an event on a track that is not there")
        if packet.timestamp < last.get(uuid, 0):
            faults.append(f"{where}: an event comes after what is later")
        last[uuid] = packet.timestamp
        opened.setdefault(uuid, 0)
        opened[uuid] += (kind == TrackEvent.TYPE_SLICE_BEGIN) - (kind == TrackEvent.TYPE_SLICE_END)
        if opened[uuid] < 0:
            faults.append(f"{where}: a slice ends that never began")
            opened[uuid] = 0
    faults += [f"track {uuid}: {count} slices have no end" for uuid, count in opened.items() if count]
    return events, faults if events else [*faults, "there are no events"]
