"""From trace events to timeline rows: every nanosecond of an inference in exactly one row."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from sme2_assets.analysis.categories import Backend, classify, is_xnnpack_name
from sme2_assets.analysis.conservation import require_conserved, require_inferences_apart
from sme2_assets.analysis.paths import PathsOfParts
from sme2_assets.errors import TraceError
from sme2_assets.etdump import EventKind, Events

KINDS = ("operator", "delegate_overhead", "framework_overhead")
OPERATOR, DELEGATE_OVERHEAD, FRAMEWORK_OVERHEAD = range(3)
OVERHEAD_NAMES = {DELEGATE_OVERHEAD: "Delegate overhead", FRAMEWORK_OVERHEAD: "Framework overhead"}
BACKENDS = ("xnnpack", "portable", "framework", "other delegate")
XNNPACK, PORTABLE, FRAMEWORK, OTHER_DELEGATE = range(4)

_CLASSIFIED_AS: dict[int, Backend] = {
    XNNPACK: "xnnpack",
    PORTABLE: "portable",
    OTHER_DELEGATE: "other delegate",
}


def execute_durations(events: Events) -> npt.NDArray[np.int64]:
    """`Method::execute` of each inference in nanoseconds, in order."""
    rows = np.flatnonzero(events.kind == EventKind.METHOD_EXECUTE)
    if len(events.execute_blocks) != len(rows):
        raise TraceError(
            "An inference of the trace has more than one Method::execute.",
            "Trace one method at a time; this reader accounts for one call per inference.",
        )
    return events.duration_ns[rows]


def timeline_rows(events: Events, warmup: int) -> pd.DataFrame:
    """The timeline of one trace: operators, one overhead row per delegate call, one per inference.

    Operators are the rows inside delegates and the kernels of portable operators. What a delegate
    call took beyond its operators is delegate overhead; what Method::execute took beyond delegate
    calls and portable kernels is framework overhead. XNNPACK rounds its operators to microseconds,
    so a delegate's overhead can come out slightly negative; it is kept as it is, because then the
    rows add up exactly. A trace whose events cannot be parts of one another is refused. A delegate's row that
    is not XNNPACK's has the backend `other delegate`, and nothing is concluded from its name; so has a call
    whose delegate wrote no rows, as an operator of its own. If inferences took several operator sequences,
    each sequence has places of its own (`paths`).
    """
    [(_, rows)] = Timeline(warmup).of_parts([events])
    return rows


def event_places(events: Events) -> pd.DataFrame:
    """Kind, backend, delegate and position of the timeline's rows, by the event that each row is of.

    A call whose delegate wrote no rows is the operator, not its overhead.
    """
    timeline = Timeline(0)
    [(_, rows)] = timeline.of_parts([events])
    places = rows[["kind", "backend", "delegate", "position"]].set_index(timeline.event_of_row)
    return places[~places.index.duplicated()]


class Timeline:
    """The timeline of a trace that is read in parts; after the last one, facts about the whole trace.

    `execute_ns` is Method::execute of each inference, `signatures` are the paths that they took;
    `event_of_row` is the event that each row of the last part is of.
    """

    def __init__(self, warmup: int) -> None:
        self._warmup = warmup
        self._paths = PathsOfParts()
        self._starts: list[npt.NDArray[np.int64]] = []
        self._ends: list[npt.NDArray[np.int64]] = []
        self.signatures: tuple[str, ...] = ()
        self.event_of_row: npt.NDArray[np.intp] = np.zeros(0, dtype=np.intp)
        self.execute_ns = np.zeros(0, dtype=np.int64)

    def of_parts(self, parts: Iterable[Events]) -> Iterator[tuple[Events, pd.DataFrame]]:
        """Each part with its rows, as in `timeline_rows`. The last check is made after the last part."""
        for events in parts:
            yield events, self._rows(events)
        starts, ends = np.concatenate(self._starts), np.concatenate(self._ends)
        require_inferences_apart(starts, ends)
        self.execute_ns = ends - starts

    def _rows(self, events: Events) -> pd.DataFrame:
        require_conserved(events)
        executes = np.flatnonzero(events.kind == EventKind.METHOD_EXECUTE)
        durations = events.duration_ns
        execute_ns = execute_durations(events)
        self._starts.append(events.start_ns[executes])
        self._ends.append(events.end_ns[executes])
        # Inference number of every row; -1 for blocks without an inference (loading).
        inference_of_block = np.full(len(events.block_names), -1, dtype=np.int64)
        inference_of_block[events.block[executes]] = np.arange(len(executes))
        inference = inference_of_block[events.block]
        parent_rows = events.parent_rows

        def of_kind(kind: EventKind) -> npt.NDArray[np.intp]:
            return np.flatnonzero((events.kind == kind) & (inference >= 0))

        written_rows, delegate_calls = of_kind(EventKind.DELEGATE_OP), of_kind(EventKind.DELEGATE_CALL)
        call_of = parent_rows.copy()
        has_rows = np.zeros(len(events), dtype=bool)
        has_rows[parent_rows[written_rows]] = True
        # Nobody knows what a call without rows did: it is an operator itself, and none of it is overhead.
        opaque_calls = delegate_calls[~has_rows[delegate_calls]]
        call_of[opaque_calls] = opaque_calls
        delegate_ops = np.sort(np.concatenate([written_rows, opaque_calls]))
        has_kernel = np.zeros(len(events), dtype=bool)
        kernels = of_kind(EventKind.NATIVE_CALL)
        has_kernel[parent_rows[kernels][parent_rows[kernels] >= 0]] = True
        # An operator call that names no kernel is its own operator row, with an unknown name.
        calls = of_kind(EventKind.OPERATOR_CALL)
        portable_ops = np.sort(np.concatenate([kernels, calls[~has_kernel[calls]]]))

        inside_delegate = _sum_by(call_of[delegate_ops], durations[delegate_ops], len(events))
        delegate_overhead = durations[delegate_calls] - inside_delegate[delegate_calls]
        accounted = _sum_by(inference[delegate_calls], durations[delegate_calls], len(executes)) + _sum_by(
            inference[portable_ops], durations[portable_ops], len(executes)
        )
        framework_overhead = execute_ns - accounted

        start_of_inference = events.start_ns[executes]
        paths = self._paths.next(events)
        self.signatures = paths.signatures

        def call_numbers(rows: npt.NDArray[np.intp]) -> npt.NDArray[np.int64]:
            return events.delegate_call[rows] + paths.first_delegate[inference[rows]]

        operators = np.concatenate([delegate_ops, portable_ops])
        self.event_of_row = np.concatenate([operators, delegate_calls, executes])
        rows = pd.DataFrame(
            {
                "iteration": events.first_inference
                + np.concatenate([inference[operators], inference[delegate_calls], np.arange(len(executes))]),
                "kind": np.repeat(
                    [OPERATOR, DELEGATE_OVERHEAD, FRAMEWORK_OVERHEAD],
                    [len(operators), len(delegate_calls), len(executes)],
                ),
                "backend": np.concatenate(
                    [
                        _delegate_backends(events, delegate_ops, call_of[delegate_ops]),
                        np.repeat(
                            [PORTABLE, FRAMEWORK], [len(portable_ops), len(delegate_calls) + len(executes)]
                        ),
                    ]
                ),
                "delegate": _nullable(
                    call_numbers(delegate_ops),
                    np.full(len(portable_ops), -1),
                    call_numbers(delegate_calls),
                    np.full(len(executes), -1),
                ),
                "position": _nullable(
                    np.where(call_of[delegate_ops] == delegate_ops, 0, events.position[delegate_ops]),
                    _ordinal_within(inference[portable_ops]) + paths.first_portable[inference[portable_ops]],
                    np.full(len(delegate_calls) + len(executes), -1),
                ),
                "start_ns": _nullable(
                    events.start_ns[operators] - start_of_inference[inference[operators]],
                    np.full(len(delegate_calls) + len(executes), np.iinfo(np.int64).min),
                    null=np.iinfo(np.int64).min,
                ),
                "duration_ns": np.concatenate([durations[operators], delegate_overhead, framework_overhead]),
            }
        )
        rows["is_warmup"] = rows["iteration"] < self._warmup
        return _with_names(rows, events, operators)


def _delegate_backends(
    events: Events, delegate_ops: npt.NDArray[np.intp], calls: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """The backend of each row of a delegate: XNNPACK where every row of its call is XNNPACK's."""
    is_strange = np.array([not is_xnnpack_name(name) for name in events.names], dtype=bool)
    strangers = calls[is_strange[events.name[delegate_ops]]]
    backends = np.full(len(delegate_ops), XNNPACK)
    if len(strangers):
        has_strangers = np.zeros(len(events), dtype=bool)
        has_strangers[strangers] = True
        backends[has_strangers[calls]] = OTHER_DELEGATE
    return backends


def _with_names(rows: pd.DataFrame, events: Events, operators: npt.NDArray[np.intp]) -> pd.DataFrame:
    """Adds the columns that follow from name and backend, looked up once per distinct pair."""
    backend = rows["backend"].to_numpy()
    kind = rows["kind"].to_numpy()
    # One number per pair: first the overhead kinds, which have no name in the trace, then name and backend.
    pair = kind.copy()
    pair[: len(operators)] = len(KINDS) + events.name[operators] * len(BACKENDS) + backend[: len(operators)]
    occurs = np.bincount(pair) > 0
    facts = [_facts_of_pair(number, events.names) for number in np.flatnonzero(occurs).tolist()]
    inverse = (np.cumsum(occurs) - 1)[pair]
    for column in ("name", "op_type", "data_type", "category", "sme2_evidence"):
        rows[column] = _categorical([getattr(fact, column) for fact in facts], inverse)
    rows["known"] = np.array([fact.known for fact in facts], dtype=bool)[inverse]
    rows["kind"] = pd.Categorical.from_codes(kind, list(KINDS))
    rows["backend"] = pd.Categorical.from_codes(backend, list(BACKENDS))
    return rows


class _NameFacts(NamedTuple):
    """The columns that a name decides."""

    name: str
    op_type: str | None = None
    data_type: str | None = None
    category: str | None = None
    sme2_evidence: str = "none"
    known: bool = True


def _facts_of_pair(pair: int, names: list[str]) -> _NameFacts:
    if pair < len(KINDS):
        return _NameFacts(OVERHEAD_NAMES[pair])
    name_code, backend = divmod(pair - len(KINDS), len(BACKENDS))
    name = names[name_code]
    operator = classify(name, _CLASSIFIED_AS[backend])
    return _NameFacts(
        name,
        operator.op_type,
        operator.dtype,
        operator.category.value,
        operator.sme2_evidence,
        operator.known,
    )


def _categorical(values: list[str | None], inverse: npt.NDArray[np.intp]) -> pd.Categorical:
    # Typed, because without any level pandas would choose another type and could not join the two.
    levels = pd.Index(sorted({value for value in values if value is not None}), dtype="str")
    code_of = {None: -1, **{level: code for code, level in enumerate(levels)}}
    return pd.Categorical.from_codes(np.array([code_of[value] for value in values])[inverse], levels)


def _sum_by(groups: npt.NDArray[np.int64], values: npt.NDArray[np.int64], size: int) -> npt.NDArray[np.int64]:
    """Sums per group, in integers: exact for every duration, unlike np.bincount's floats."""
    sums = np.zeros(size, dtype=np.int64)
    np.add.at(sums, groups, values)
    return sums


def _ordinal_within(groups: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """0, 1, 2, ... within each run of equal values; `groups` is sorted."""
    starts = np.flatnonzero(np.r_[True, groups[1:] != groups[:-1]]) if len(groups) else np.zeros(0, dtype=int)
    return np.arange(len(groups)) - np.repeat(starts, np.diff(np.r_[starts, len(groups)]))


def _nullable(*parts: npt.NDArray, null: int = -1) -> pd.arrays.IntegerArray:
    values = np.concatenate(parts).astype(np.int64)
    return pd.arrays.IntegerArray(values, values == null)
