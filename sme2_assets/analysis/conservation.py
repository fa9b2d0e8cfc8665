"""Whether the events of a trace can be parts of one another, as a timeline takes for granted.

Overhead is the time of a call beyond what is inside it, so a timeline adds up whatever the trace says. What
can be wrong is the structure: events inside a call must be within its time, none may appear twice or overlap,
and a delegate's rows may take no longer than their call. A trace that fails gives no rows at all.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sme2_assets.analysis.categories import is_xnnpack_name
from sme2_assets.errors import TraceError, printable
from sme2_assets.etdump import EventKind, Events

CLOCK_NS = 1000
"""XNNPACK floors each row to whole microseconds, so k rows lose up to k of them and never gain any. Where its
clock itself ticks in microseconds, the rows of a call together can exceed it by one tick, and no more."""

LONGEST_INFERENCE_NS = 24 * 3600 * 10**9
"""No inference takes longer than a day, so nothing inside one does."""

_AGAIN = (
    "Profile again with `sme2 profile`. If that gives the same, the runtime writes a kind of trace that is "
    "not understood here: please report it with the trace."
)
_OTHER_BACKEND = (
    "Only XNNPACK's rows are understood here; another backend may write totals next to their parts, or times "
    "from its own clock. Trace without the rows of that backend, or lower the model to XNNPACK alone."
)
_Rows = npt.NDArray[np.intp]


def require_conserved(events: Events) -> None:
    """Raises a TraceError for the first event whose time is impossible, or would count twice or never within
    its inference."""
    executions = np.flatnonzero(events.kind == EventKind.METHOD_EXECUTE)
    for endless in executions[events.duration_ns[executions] > LONGEST_INFERENCE_NS][:1]:
        _refuse(
            events,
            endless,
            f"took {events.duration_ns[endless] / 86400e9:,.1f} days, which no inference does",
        )
    parents = events.parent_rows()
    in_inference = np.isin(events.block, events.execute_blocks())
    inside = np.flatnonzero((parents >= 0) & in_inference)
    # By call, then by time: events that overlap become neighbours.
    inside = inside[np.lexsort((events.end_ns[inside], events.start_ns[inside], parents[inside]))]
    calls = parents[inside]
    _require_once(events, inside, calls)
    _require_apart(events, inside, calls)
    _require_budget(events, inside, calls)
    _require_within(events, inside, calls)


def require_inferences_apart(start_ns: npt.NDArray[np.int64], end_ns: npt.NDArray[np.int64]) -> None:
    """Raises a TraceError for the first inference of a trace that begins before another has ended."""
    order = np.argsort(start_ns, kind="stable")
    for late in order[1:][start_ns[order[1:]] < end_ns[order[:-1]]][:1]:
        raise TraceError(
            f"Inference {late}: Method::execute begins before another Method::execute has ended: "
            "an inference appears twice.",
            _AGAIN,
        )


def _require_once(events: Events, inside: _Rows, calls: _Rows) -> None:
    one, two = inside[:-1], inside[1:]
    same = (calls[:-1] == calls[1:]) & (events.name[one] == events.name[two]) & (events.duration_ns[two] > 0)
    same &= (events.start_ns[one] == events.start_ns[two]) & (events.end_ns[one] == events.end_ns[two])
    # XNNPACK numbers the rows of a call, so there a name is enough, whatever the times are.
    numbered = np.array([is_xnnpack_name(name) for name in events.names], dtype=bool)
    rows = np.flatnonzero((events.kind[inside] == EventKind.DELEGATE_OP) & numbered[events.name[inside]])
    key = calls[rows] * len(events.names) + events.name[inside[rows]]
    order = np.argsort(key, kind="stable")
    again = rows[order[1:][key[order[1:]] == key[order[:-1]]]]
    for row in np.concatenate([two[same], inside[again]])[:1]:
        _refuse(events, row, "appears twice")


def _require_apart(events: Events, inside: _Rows, calls: _Rows) -> None:
    one, two = inside[:-1], inside[1:]
    for at in np.flatnonzero((calls[:-1] == calls[1:]) & (events.start_ns[two] < events.end_ns[one]))[:1]:
        nested = events.end_ns[two[at]] <= events.end_ns[one[at]]
        how = "lies inside" if nested else "overlaps with"
        _refuse(events, two[at], f"{how} {_name(events, one[at])}, so its time would be counted twice")


def _require_budget(events: Events, inside: _Rows, calls: _Rows) -> None:
    taken = np.zeros(len(events), dtype=np.int64)
    np.add.at(taken, calls, events.duration_ns[inside])
    spare = events.duration_ns - taken + CLOCK_NS * (events.kind == EventKind.DELEGATE_CALL)
    for call in np.flatnonzero(spare < 0)[:1]:
        rows = inside[calls == call]
        call_us, taken_us = events.duration_ns[call] / 1000, taken[call] / 1000
        _refuse(
            events, call, f"took {call_us:.15g} us, but the {len(rows)} rows inside {taken_us:.15g} us", rows
        )


def _require_within(events: Events, inside: _Rows, calls: _Rows) -> None:
    late_ns = events.end_ns[inside] - events.end_ns[calls]
    late_ns = late_ns - CLOCK_NS * (events.kind[inside] == EventKind.DELEGATE_OP)
    for at in np.flatnonzero((events.start_ns[inside] < events.start_ns[calls]) | (late_ns > 0))[:1]:
        _refuse(events, inside[at], f"lies outside {_name(events, calls[at])}, which it is part of")


def _refuse(events: Events, row: int, what: str, rows: _Rows | None = None) -> None:
    rows = np.array([row]) if rows is None else rows
    delegated = rows[events.kind[rows] == EventKind.DELEGATE_OP]
    strange = any(not is_xnnpack_name(events.names[code]) for code in events.name[delegated])
    inference = events.first_inference + int(np.searchsorted(events.execute_blocks(), events.block[row]))
    raise TraceError(
        f"Inference {inference}, instruction {events.instruction_id[row]}: {_name(events, row)} {what}.",
        _OTHER_BACKEND if strange else _AGAIN,
    )


def _name(events: Events, row: int) -> str:
    return printable(events.names[events.name[row]])
