"""What a trace shows of one runner process: nested slices, and samples.

On the track of inferences: Method::execute, the calls in it, the operators in those. The rest of a slice is
filled with overhead, so that every nanosecond of Method::execute is in exactly one innermost slice. A sample
is a slice on the track of its thread, as long as the sampler's period. perfetto.py handles the format.
"""

from __future__ import annotations

from collections.abc import Iterator
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
from sme2_assets.evidence.samples import SAMPLES_FILE, Samples
from sme2_assets.warehouse.read import rows_of_view
from sme2_assets.warehouse.store import Warehouse

DELEGATE_OVERHEAD, FRAMEWORK_OVERHEAD = "Delegate overhead", "Framework overhead"
# What an operator's slice shows, from the view operator_facts.
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
    *(
        "node_kind",
        "input_shape",
        "output_shape",
        "kernel_size",
        "macs",
        "samples",
        "sme_samples",
        "instructions",
    ),
)

Facts = dict[tuple[int, int], dict[str, Any]]
# Inference, delegate (-1 for none) and position: one run of an operator in a process.
Place = tuple[int, int, int]


@dataclass(frozen=True)
class Process:
    """One runner process of a run; at most `most` of its inferences are shown."""

    round: int
    pass_kind: str
    directory: Path
    warmup: int
    most: int

    def inferences(self, events: Events) -> list[int]:
        """The blocks that are shown."""
        blocks = events.execute_blocks[self.warmup :][: self.most].tolist()
        if not blocks:
            raise Sme2Error(f"{self.directory / TRACE_FILE} contains no timed inference.", "Measure again.")
        return blocks


class Slice(NamedTuple):
    """A stretch of time on a track, in nanoseconds on the trace's clock."""

    name: str
    kind: str
    start: int
    end: int
    args: dict[str, Any]
    depth: int = 0
    place: Place | None = None


@dataclass(frozen=True)
class Shown:
    """What is drawn of one process; `samples` by thread, whose name says what it is."""

    slices: list[Slice]
    samples: dict[str, list[Slice]]


def processes_of(run: dict[str, Any], folder: Path, most: int, most_sampled: int) -> list[Process]:
    """The processes of a run whose trace has times: the tracer's and the sampler's."""
    if not folder.is_dir():
        raise Sme2Error(
            f"The evidence of run {run['run_id']} is gone: there is no folder {folder}.",
            "Only a run that still has its traces can be shown as one; the tables come from the warehouse.",
        )
    if (folder / FOREIGN_FILE).is_file():
        return [Process(0, "etdump", folder, 0 if pd.isna(run["warmup"]) else int(run["warmup"]), most)]
    return [
        Process(
            each.facts.round,
            each.facts.pass_kind,
            each.folder,
            each.result.traced_warmup,
            most if each.facts.pass_kind == "etdump" else max(most, most_sampled),
        )
        for each in RunFolder.open(folder).processes("etdump", "kernels")
    ]


def facts_of_operators(warehouse: Warehouse, run_id: str) -> Facts:
    """What is known about each operator of a run."""
    rows = rows_of_view(warehouse, "operator_facts", run_id)
    return {
        _key(row.delegate, row.position): {"backend": row.backend}
        | {name: _plain(getattr(row, name)) for name in _FACTS if not is_null(getattr(row, name))}
        for row in rows.itertuples(index=False)
    }


def window(process: Process) -> tuple[int, int]:
    """When the first inference shown starts, and when the last one ends."""
    events = read_etdump(process.directory / TRACE_FILE)
    executed = [_execute(events, block) for block in process.inferences(events)]
    return int(events.start_ns[executed[0]]), max(int(events.end_ns[row]) for row in executed)


def shown(process: Process, facts: Facts) -> Shown:
    """All that is drawn of a process: its slices, and its samples if it was sampled."""
    events = read_etdump(process.directory / TRACE_FILE)
    paths = Paths.of(events)
    slices = [
        drawn
        for iteration, block in enumerate(process.inferences(events), process.warmup)
        for drawn in _inference_slices(events, block, iteration, paths, facts)
    ]
    samples: dict[str, list[Slice]] = {}
    if process.pass_kind == "kernels":
        read = Samples.read(process.directory / SAMPLES_FILE)
        end = max(drawn.end for drawn in slices)
        samples = _sample_slices(read, events, process.warmup, facts, slices[0].start, end)
    return Shown(slices, samples)


def _execute(events: Events, block: int) -> int:
    rows = range(*events.block_rows(block).indices(len(events)))
    return next(row for row in rows if events.kind[row] == EventKind.METHOD_EXECUTE)


def _inference_slices(
    events: Events, block: int, iteration: int, paths: Paths, facts: Facts
) -> Iterator[Slice]:
    """Method::execute and everything inside it, outer slices before inner ones."""
    children: dict[int, list[int]] = {}
    parents = events.parent_rows
    rows = range(*events.block_rows(block).indices(len(events)))
    execute = _execute(events, block)
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
    first = int(paths.first_portable[iteration])
    places = {row: (iteration, -1, place) for place, row in enumerate(portable, first)}
    for row in rows:
        if events.delegate_call[row] >= 0:
            delegate = int(events.delegate_call[row] + paths.first_delegate[iteration])
            places[row] = (iteration, delegate, int(events.position[row]))
    start, end = int(events.start_ns[execute]), int(events.end_ns[execute])
    yield Slice(
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
    places: dict[int, Place],
    facts: Facts,
) -> Iterator[Slice]:
    """The slices inside a call: its parts, and overhead in the gaps between them.

    XNNPACK rounds its operators to microseconds, so the last one may seem to end after its call. Its slice is
    cut there; its argument `duration_ns` is the time that was measured.
    """
    in_delegate = events.kind[parent] == EventKind.DELEGATE_CALL
    overhead = DELEGATE_OVERHEAD if in_delegate else FRAMEWORK_OVERHEAD
    kind = "delegate_overhead" if in_delegate else "framework_overhead"
    now = start

    def gap(until: int) -> Iterator[Slice]:
        if until > now:
            yield Slice(overhead, kind, now, until, {}, depth)

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
    places: dict[int, Place],
    facts: Facts,
) -> Iterator[Slice]:
    name = events.names[int(events.name[row])]
    if events.kind[row] == EventKind.DELEGATE_CALL or row not in places:
        if row in places:
            args["delegate"] = places[row][1]
        yield Slice(name, "call", start, end, args, depth)
        if events.kind[row] == EventKind.DELEGATE_CALL and row not in children:
            # As in the timeline, where nobody knows what it did.
            iteration, delegate, _ = places[row]
            yield _operator(name, start, end, depth + 1, args, (iteration, delegate, 0), facts)
        else:
            yield from _inside(events, row, start, end, depth + 1, children, places, facts)
        return
    yield _operator(name, start, end, depth, args, places[row], facts)


def _operator(
    name: str, start: int, end: int, depth: int, args: dict[str, Any], place: Place, facts: Facts
) -> Slice:
    _, delegate, position = place
    placed = {"position": position} | ({"delegate": delegate} if delegate >= 0 else {})
    told = {**args, **placed, **facts.get((delegate, position), {})}
    return Slice(name, "operator", start, end, told, depth, place)


def _sample_slices(
    samples: Samples, events: Events, warmup: int, facts: Facts, start: int, end: int
) -> dict[str, list[Slice]]:
    """Every sample in the window on the track of its thread, up to the next one or one sampler period."""
    where = attribute_samples(samples, events, warmup)
    threads: dict[str, list[Slice]] = {}
    for thread, about in enumerate(samples.threads):
        chosen = np.flatnonzero(
            (samples.thread == thread) & (samples.time_ns >= start) & (samples.time_ns < end)
        )
        chosen = chosen[np.argsort(samples.time_ns[chosen], kind="stable")]
        if len(chosen) == 0:
            continue
        times = samples.time_ns[chosen]
        ends = np.minimum(np.append(times[1:], end), times + samples.period_ns)
        functions = [samples.functions[index] for index in samples.function[chosen].tolist()]
        kind = "main thread" if about.main else "pool thread"
        drawn = threads.setdefault(f"samples: {about.name} {about.tid} ({kind})", [])
        for function, found, began, ended in zip(
            functions, where.iloc[chosen].to_dict("records"), times.tolist(), ends.tolist(), strict=True
        ):
            args = {
                "unit": found["unit"],
                "in": found["kind"],
                "near_boundary": bool(found["near_boundary"]),
                "library": function.library,
                "iteration": _plain(found["iteration"]),
            }
            place = None
            if found["kind"] == "operator":
                key = _key(found["delegate"], found["position"])
                args |= {"delegate": key[0], "position": key[1]}
                told = ("backend", "category", "module")
                args |= {name: facts[key][name] for name in told if name in facts.get(key, {})}
                place = (int(found["iteration"]), *key)
            args = {name: value for name, value in args.items() if not is_null(value)}
            name = function.symbol or f"{function.library or 'unknown'}+0x{function.offset:x}"
            drawn.append(Slice(name, "sample", began, ended, args, place=place))
    return threads


def _key(delegate: Any, position: Any) -> tuple[int, int]:
    """The place of an operator in its run; a portable one is in no delegate."""
    return -1 if is_null(delegate) else int(delegate), int(position)


def is_null(value: Any) -> bool:
    # Most values are of these types, and there are millions.
    if isinstance(value, str | int | list | np.ndarray):
        return False
    return value is None or bool(pd.isna(value))


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else None if is_null(value) else value
