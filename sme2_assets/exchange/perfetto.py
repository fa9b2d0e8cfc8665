"""A run, and the other arm of its session, as a trace that the Perfetto UI opens.

The format is that of Chrome's trace events (JSON), which Perfetto reads as it is, and other viewers too. Each
arm is a process, and once more for its kernels pass, which is another run of the model with other times.
On the track `inference` slices lie inside one another: Method::execute, the calls in it, the operators in
those. What is left of a slice is filled with overhead, so that every nanosecond of Method::execute is in
exactly one innermost slice. Samples are slices on a track for each thread, as long as the sampler's period.

Times are those that were measured. Only the start of a round is moved: round n of every arm starts at the
same place, so that arms can be seen one above the other.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from sme2_assets.analysis.paths import Paths
from sme2_assets.analysis.samples import attribute_samples
from sme2_assets.errors import Sme2Error
from sme2_assets.etdump import EventKind, Events, read_etdump
from sme2_assets.evidence.folder import TRACE_FILE, RunFolder
from sme2_assets.evidence.foreign import FOREIGN_FILE
from sme2_assets.evidence.result import TRACED_PASSES
from sme2_assets.evidence.samples import SAMPLES_FILE, Samples
from sme2_assets.warehouse.read import rows_of_view
from sme2_assets.warehouse.store import Warehouse

# Of each process, so that the file stays small enough to open at once.
MOST_INFERENCES = 5
MOST_SAMPLED_INFERENCES = 50
BETWEEN_ROUNDS_NS = 1_000_000
INFERENCE_TRACK = 1
FIRST_SAMPLE_TRACK = 10
DELEGATE_OVERHEAD, FRAMEWORK_OVERHEAD = "Delegate overhead", "Framework overhead"
# What an operator's slice tells, from the view operator_facts.
_FACTS = (
    *(
        "category",
        "op_type",
        "data_type",
        "on_sme_unit",
        "sme2_evidence",
        "module",
        "module_type",
        "source",
        "code",
    ),
    *("node_kind", "input_shape", "output_shape", "kernel_size", "macs", "samples", "sme_samples"),
)

Facts = dict[tuple[int, int], dict[str, Any]]


@dataclass(frozen=True)
class _Process:
    """One runner process of a run."""

    round: int
    pass_kind: str
    directory: Path
    warmup: int


class _Slice(NamedTuple):
    """A stretch of time on a track, in nanoseconds of the trace's clock."""

    name: str
    kind: str
    start: int
    end: int
    args: dict[str, Any]
    depth: int


@dataclass(frozen=True)
class _Shown:
    """What is drawn of one process: slices and samples between two times of its own clock."""

    process: _Process
    start: int
    end: int
    slices: list[_Slice]
    threads: dict[int, str]
    samples: list[tuple[int, _Slice]]


def trace_of_runs(
    warehouse: Warehouse, arms: Sequence[tuple[dict[str, Any], Path]], inferences: int = MOST_INFERENCES
) -> dict[str, Any]:
    """The trace of runs of one session; each with its row of the table `runs` and its folder."""
    shown = [_shown(warehouse, run, folder, inferences) for run, folder in arms]
    events: list[dict[str, Any]] = []
    for pass_number, pass_kind in enumerate(("etdump", "kernels")):
        bases = _bases([part for parts in shown for part in parts if part.process.pass_kind == pass_kind])
        for number, ((run, _), parts) in enumerate(zip(arms, shown, strict=True)):
            of_pass = [part for part in parts if part.process.pass_kind == pass_kind]
            if of_pass:
                pid = 1 + 2 * number + pass_number
                events += _metadata(pid, run, pass_kind, of_pass)
                for part in of_pass:
                    events += _drawn(pid, part, bases[part.process.round])
                if pass_kind == "etdump":
                    events += _counters(warehouse, pid, run["run_id"], of_pass, bases)
    # Stable: of events at one time those of a track stay in the order that opens and closes slices.
    events.sort(key=lambda event: (event["ph"] != "M", event.get("ts", 0)))
    return {
        "displayTimeUnit": "ns",
        "otherData": {
            "runs": ", ".join(run["run_id"] for run, _ in arms),
            "note": "Times are as measured; rounds of all arms are moved to start together.",
        },
        "traceEvents": events,
    }


def write_trace(path: Path, trace: dict[str, Any]) -> None:
    """One event a line: what people search for with grep is found."""
    head = {key: value for key, value in trace.items() if key != "traceEvents"}
    lines = ",\n".join(
        json.dumps(event, ensure_ascii=True, allow_nan=False) for event in trace["traceEvents"]
    )
    path.write_text(json.dumps(head, allow_nan=False)[:-1] + ', "traceEvents": [\n' + lines + "\n]}\n")


def faults_of_trace(document: Any) -> list[str]:
    """What is wrong with a trace by the format's own rules; Perfetto would drop or misplace such events."""
    events = document.get("traceEvents") if isinstance(document, dict) else None
    if not isinstance(events, list) or not events:
        return ["there are no trace events"]
    faults: list[str] = []
    tracks: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for event in events:
        fault = _fault_of_event(event)
        if fault is not None:
            faults.append(f"{fault}: {json.dumps(event)[:200]}")
        elif event["ph"] in "BEi":
            tracks.setdefault((event["pid"], event["tid"]), []).append(event)
    named = {event.get("pid") for event in events if event.get("name") == "process_name"}
    faults += [f"process {pid} has no name" for pid in sorted({pid for pid, _ in tracks} - named)]
    for (pid, tid), of_track in tracks.items():
        faults += [f"track {pid}/{tid}: {fault}" for fault in _nesting_faults(of_track)]
    return faults


def _fault_of_event(event: Any) -> str | None:
    if not isinstance(event, dict) or event.get("ph") not in ("B", "E", "i", "M", "C"):
        return "an event of no known kind"
    if not isinstance(event.get("name"), str) or not isinstance(event.get("pid"), int):
        return "an event without name or process"
    if event["ph"] == "M":
        return None if isinstance(event.get("args"), dict) else "metadata without arguments"
    at = event.get("ts")
    if not isinstance(at, int | float) or not math.isfinite(at) or at < 0:
        return "an event without a time"
    if event["ph"] in "BEi" and not isinstance(event.get("tid"), int):
        return "a slice without thread"
    values = event.get("args", {}).values()
    if event["ph"] == "C" and not (values and all(isinstance(value, int | float) for value in values)):
        return "a counter without number"
    return None


def _nesting_faults(events: list[dict[str, Any]]) -> Iterator[str]:
    """Slices of one track that do not lie inside one another, or have no end."""
    opened: list[str] = []
    last = 0.0
    for event in events:
        if event["ts"] < last:
            yield f"{event['name']!r} at {event['ts']} comes after what is later"
        last = event["ts"]
        if event["ph"] == "B":
            opened.append(event["name"])
        elif event["ph"] == "E" and (not opened or opened.pop() != event["name"]):
            yield f"{event['name']!r} at {event['ts']} ends, but another slice is the innermost one"
    yield from (f"{name!r} has no end" for name in opened)


def _shown(warehouse: Warehouse, run: dict[str, Any], folder: Path, inferences: int) -> list[_Shown]:
    facts = _operator_facts(warehouse, run["run_id"])
    return [
        _shown_process(
            process,
            facts,
            inferences if process.pass_kind == "etdump" else max(inferences, MOST_SAMPLED_INFERENCES),
        )
        for process in _processes(run, folder)
    ]


def _processes(run: dict[str, Any], folder: Path) -> list[_Process]:
    if not folder.is_dir():
        raise Sme2Error(
            f"The evidence of run {run['run_id']} is gone: there is no folder {folder}.",
            "Only a run whose traces are there can be shown as a trace; the tables come from the warehouse.",
        )
    if (folder / FOREIGN_FILE).is_file():
        return [_Process(0, "etdump", folder, 0 if pd.isna(run["warmup"]) else int(run["warmup"]))]
    return [
        _Process(each.facts.round, each.facts.pass_kind, each.folder, each.result.traced_warmup)
        for each in RunFolder.open(folder).processes(*TRACED_PASSES)
    ]


def _operator_facts(warehouse: Warehouse, run_id: str) -> Facts:
    rows = rows_of_view(warehouse, "operator_facts", run_id)
    return {
        _key(row.delegate, row.position): {"backend": row.backend}
        | {name: _plain(getattr(row, name)) for name in _FACTS if not _is_null(getattr(row, name))}
        for row in rows.itertuples(index=False)
    }


def _shown_process(process: _Process, facts: Facts, most: int) -> _Shown:
    events = read_etdump(process.directory / TRACE_FILE)
    blocks = events.execute_blocks()[process.warmup :][:most]
    paths = Paths.of(events)
    slices = [
        drawn
        for iteration, block in enumerate(blocks.tolist(), process.warmup)
        for drawn in _inference_slices(events, block, iteration, paths, facts)
    ]
    if not slices:
        raise Sme2Error(f"{process.directory / TRACE_FILE} contains no timed inference.", "Measure again.")
    start, end = slices[0].start, max(drawn.end for drawn in slices)
    threads: dict[int, str] = {}
    samples: list[tuple[int, _Slice]] = []
    if process.pass_kind == "kernels":
        read = Samples.read(process.directory / SAMPLES_FILE)
        threads, samples = _sample_slices(read, events, process.warmup, facts, start, end)
    return _Shown(process, start, end, slices, threads, samples)


def _inference_slices(
    events: Events, block: int, iteration: int, paths: Paths, facts: Facts
) -> Iterator[_Slice]:
    """Method::execute and all inside it, outer slices before inner ones."""
    children: dict[int, list[int]] = {}
    parents = events.parent_rows()
    rows = range(*events.block_rows(block).indices(len(events)))
    execute = next(row for row in rows if events.kind[row] == EventKind.METHOD_EXECUTE)
    for row in rows:
        if events.kind[row] != EventKind.OTHER and row != execute:
            parent = int(parents[row])
            children.setdefault(parent if parent >= 0 else execute, []).append(row)
    portable = [
        row
        for row in rows
        if events.kind[row] == EventKind.NATIVE_CALL
        or (events.kind[row] == EventKind.OPERATOR_CALL and row not in children)
    ]
    places = {row: (-1, place) for place, row in enumerate(portable, int(paths.first_portable[iteration]))}
    for row in rows:
        if events.delegate_call[row] >= 0:
            delegate = int(events.delegate_call[row] + paths.first_delegate[iteration])
            places[row] = (delegate, int(events.position[row]))
    start, end = int(events.start_ns[execute]), int(events.end_ns[execute])
    yield _Slice(
        "Method::execute", "inference", start, end, {"iteration": iteration, "duration_ns": end - start}, 0
    )
    yield from _inside(events, execute, start, end, 1, children, places, facts)


def _inside(
    events: Events,
    parent: int,
    start: int,
    end: int,
    depth: int,
    children: dict[int, list[int]],
    places: dict[int, tuple[int, int]],
    facts: Facts,
) -> Iterator[_Slice]:
    """The slices inside a call: its parts, and overhead wherever there is none.

    XNNPACK rounds its operators to microseconds, so the last of them may seem to end after their call. Its
    slice is cut there; its argument `duration_ns` is the time that was measured.
    """
    in_delegate = events.kind[parent] == EventKind.DELEGATE_CALL
    overhead = DELEGATE_OVERHEAD if in_delegate else FRAMEWORK_OVERHEAD
    kind = "delegate_overhead" if in_delegate else "framework_overhead"
    now = start

    def gap(until: int) -> Iterator[_Slice]:
        if until > now:
            yield _Slice(overhead, kind, now, until, {}, depth)

    for row in sorted(children.get(parent, []), key=lambda row: (events.start_ns[row], row)):
        began, ended = int(events.start_ns[row]), int(events.end_ns[row])
        first = min(max(began, now), end)
        last = min(max(ended, first), end)
        yield from gap(first)
        args: dict[str, Any] = {"duration_ns": ended - began}
        if last - first != ended - began:
            args["cut"] = True
        yield from _call(events, row, first, last, depth, args, children, places, facts)
        now = last
    yield from gap(end)


def _call(
    events: Events,
    row: int,
    start: int,
    end: int,
    depth: int,
    args: dict[str, Any],
    children: dict[int, list[int]],
    places: dict[int, tuple[int, int]],
    facts: Facts,
) -> Iterator[_Slice]:
    name = events.names[int(events.name[row])]
    if events.kind[row] == EventKind.DELEGATE_CALL or row not in places:
        if row in places:
            args["delegate"] = places[row][0]
        yield _Slice(name, "call", start, end, args, depth)
        yield from _inside(events, row, start, end, depth + 1, children, places, facts)
        return
    delegate, position = places[row]
    placed = {"position": position} | ({"delegate": delegate} if delegate >= 0 else {})
    yield _Slice(name, "operator", start, end, {**args, **placed, **facts.get(places[row], {})}, depth)


def _sample_slices(
    samples: Samples, events: Events, warmup: int, facts: Facts, start: int, end: int
) -> tuple[dict[int, str], list[tuple[int, _Slice]]]:
    """Every sample of the window on the track of its thread, up to the next one or the sampler's period."""
    where = attribute_samples(samples, events, warmup)
    threads: dict[int, str] = {}
    slices = []
    for thread, about in enumerate(samples.threads):
        chosen = np.flatnonzero(
            (samples.thread == thread) & (samples.time_ns >= start) & (samples.time_ns < end)
        )
        chosen = chosen[np.argsort(samples.time_ns[chosen], kind="stable")]
        if len(chosen) == 0:
            continue
        kind = "main thread" if about.main else "pool thread"
        threads[FIRST_SAMPLE_TRACK + thread] = f"samples: {about.name} {about.tid} ({kind})"
        times = samples.time_ns[chosen]
        ends = np.minimum(np.append(times[1:], end), times + samples.period_ns)
        functions = [samples.functions[index] for index in samples.function[chosen].tolist()]
        places = where.iloc[chosen].to_dict("records")
        for function, place, began, ended in zip(
            functions, places, times.tolist(), ends.tolist(), strict=True
        ):
            args = {
                "unit": place["unit"],
                "in": place["kind"],
                "near_boundary": bool(place["near_boundary"]),
                "library": function.library,
                "iteration": _plain(place["iteration"]),
            }
            if place["kind"] == "operator":
                key = _key(place["delegate"], place["position"])
                args |= {"delegate": key[0], "position": key[1]}
                shown = ("backend", "category", "module")
                args |= {name: facts[key][name] for name in shown if name in facts.get(key, {})}
            args = {name: value for name, value in args.items() if not _is_null(value)}
            name = function.symbol or f"{function.library or 'unknown'}+0x{function.offset:x}"
            drawn = _Slice(name, "sample", began, ended, args, 0)
            slices.append((FIRST_SAMPLE_TRACK + thread, drawn))
    return threads, slices


def _bases(parts: Sequence[_Shown]) -> dict[int, int]:
    """Where each round starts: behind the longest of the round before."""
    bases: dict[int, int] = {}
    now = 0
    for number in sorted({part.process.round for part in parts}):
        bases[number] = now
        now += max(part.end - part.start for part in parts if part.process.round == number)
        now += BETWEEN_ROUNDS_NS
    return bases


def _metadata(
    pid: int, run: dict[str, Any], pass_kind: str, parts: Sequence[_Shown]
) -> Iterator[dict[str, Any]]:
    state = "state unknown" if _is_null(run["sme2"]) else run["sme2"]
    arm = f" ({run['arm']})" if run["experiment"] in ("aa", "arms") else ""
    what = "" if pass_kind == "etdump" else ", kernels pass (sampled)"
    notes = {
        "emulated": ", emulated: times mean nothing",
        "reference": f", a reference on {run['arch']}: says nothing about SME2",
    }
    label = run["run_id"] + notes.get(run["fidelity"], "")
    threads = {INFERENCE_TRACK: "inference"}
    for part in parts:
        threads |= part.threads
    name = f"reference ({run['arch']})" if run["fidelity"] == "reference" else f"SME2 {state}"
    yield _named("process_name", pid, 0, {"name": f"{name}{arm}{what}"})
    yield _named("process_labels", pid, 0, {"labels": label})
    yield _named("process_sort_index", pid, 0, {"sort_index": pid})
    for tid, name in threads.items():
        yield _named("thread_name", pid, tid, {"name": name})
        yield _named("thread_sort_index", pid, tid, {"sort_index": tid})


def _named(name: str, pid: int, tid: int, args: dict[str, Any]) -> dict[str, Any]:
    return {"ph": "M", "name": name, "pid": pid, "tid": tid, "args": args}


def _drawn(pid: int, part: _Shown, base: int) -> Iterator[dict[str, Any]]:
    """Begin and end of every slice, in the order that opens and closes them.

    Not one event with a duration: its end would be a sum of decimals, and a viewer that adds them finds some
    slices to end a hair after those they lie in.
    """
    tracks: dict[int, list[_Slice]] = {INFERENCE_TRACK: part.slices}
    for tid, drawn in part.samples:
        tracks.setdefault(tid, []).append(drawn)
    for tid, drawn_slices in tracks.items():
        opened: list[_Slice] = []
        for drawn in drawn_slices:
            while opened and opened[-1].depth >= drawn.depth:
                yield _edge("E", pid, tid, opened.pop(), part, base)
            if drawn.end == drawn.start:
                # Below XNNPACK's microsecond. An instant: viewers disagree on what ends first at one time.
                yield _edge("i", pid, tid, drawn, part, base)
                continue
            yield _edge("B", pid, tid, drawn, part, base)
            opened.append(drawn)
        while opened:
            yield _edge("E", pid, tid, opened.pop(), part, base)


def _edge(phase: str, pid: int, tid: int, drawn: _Slice, part: _Shown, base: int) -> dict[str, Any]:
    at = drawn.end if phase == "E" else drawn.start
    edge: dict[str, Any] = {"ph": phase, "name": drawn.name, "cat": drawn.kind, "pid": pid, "tid": tid}
    edge["ts"] = _us(at - part.start + base)
    if phase == "i":
        edge["s"] = "t"  # Of its thread: it lies inside the slice that is open there.
    return edge if phase == "E" else {**edge, "args": {"round": part.process.round, **drawn.args}}


def _counters(
    warehouse: Warehouse, pid: int, run_id: str, parts: Sequence[_Shown], bases: dict[int, int]
) -> Iterator[dict[str, Any]]:
    """The machine before and after every round, where it could be read."""
    lengths = {part.process.round: part.end - part.start for part in parts}
    rows = warehouse.query(
        "SELECT round, moment, cpu_mhz, temperature_c, load_1m FROM environment WHERE run_id = ?", [run_id]
    )
    names = {"cpu_mhz": "CPU frequency (MHz)", "temperature_c": "temperature (°C)", "load_1m": "load (1 min)"}
    for row in rows.itertuples(index=False):
        if row.round not in bases:
            continue
        at = bases[row.round] + (lengths.get(row.round, 0) if row.moment == "after" else 0)
        for column, name in names.items():
            value = getattr(row, column)
            if not _is_null(value):
                yield {
                    "ph": "C",
                    "name": name,
                    "pid": pid,
                    "tid": 0,
                    "ts": _us(at),
                    "args": {"value": float(value)},
                }


def _key(delegate: Any, position: Any) -> tuple[int, int]:
    """The place of an operator in its run; a portable one is in no delegate."""
    return -1 if _is_null(delegate) else int(delegate), int(position)


def _is_null(value: Any) -> bool:
    # Most values are of these types, and there are millions.
    if isinstance(value, str | int | list | np.ndarray):
        return False
    return value is None or bool(pd.isna(value))


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else None if _is_null(value) else value


def _us(nanoseconds: int) -> float:
    """Microseconds, the format's unit, with the nanoseconds behind the point."""
    return nanoseconds / 1000
