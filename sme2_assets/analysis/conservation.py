"""Whether the events of a trace can be parts of one another, as a timeline takes for granted.

Overhead is the time of a call beyond what is inside it, so a timeline adds up whatever the trace says. What
can be wrong is the structure: events inside a call must be within its time, none may appear twice or overlap,
and a delegate's rows may take no longer than their call. A trace that fails gives no rows at all.
"""

from __future__ import annotations

from dataclasses import dataclass

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
    is_inference = np.zeros(len(events.block_names), dtype=bool)
    is_inference[events.block[executions]] = True
    inside = _Inside.of(events, np.flatnonzero((events.parent_rows >= 0) & is_inference[events.block]))
    _require_once(events, inside)
    _require_apart(events, inside)
    _require_budget(events, inside)
    _require_within(events, inside)


@dataclass(frozen=True)
class _Inside:
    """Rows inside calls, in the order in which those that overlap are neighbours."""

    row: _Rows
    call: _Rows
    name: npt.NDArray[np.int32]
    start_ns: npt.NDArray[np.int64]
    end_ns: npt.NDArray[np.int64]
    in_delegate: npt.NDArray[np.bool_]
    like_next: npt.NDArray[np.bool_]
    """Of all rows but the last: whether the next is inside the same call."""

    @classmethod
    def of(cls, events: Events, rows: _Rows) -> _Inside:
        # A runtime writes what is inside a call as it happens, so that sorting by call is mostly enough.
        inside = cls._in_order(events, rows[np.argsort(events.parent_rows[rows], kind="stable")])
        start_ns, end_ns = inside.start_ns, inside.end_ns
        is_later = start_ns[:-1] < start_ns[1:]
        is_later |= (start_ns[:-1] == start_ns[1:]) & (end_ns[:-1] <= end_ns[1:])
        if (is_later | ~inside.like_next).all():
            return inside
        return cls._in_order(events, inside.row[np.lexsort((end_ns, start_ns, inside.call))])

    @classmethod
    def _in_order(cls, events: Events, rows: _Rows) -> _Inside:
        call = events.parent_rows[rows]
        return cls(
            rows,
            call,
            events.name[rows],
            events.start_ns[rows],
            events.end_ns[rows],
            events.kind[rows] == EventKind.DELEGATE_OP,
            call[:-1] == call[1:],
        )


def require_inferences_apart(start_ns: npt.NDArray[np.int64], end_ns: npt.NDArray[np.int64]) -> None:
    """Raises a TraceError for the first inference of a trace that begins before another has ended."""
    order = np.argsort(start_ns, kind="stable")
    for late in order[1:][start_ns[order[1:]] < end_ns[order[:-1]]][:1]:
        raise TraceError(
            f"Inference {late}: Method::execute begins before another Method::execute has ended: "
            "an inference appears twice.",
            _AGAIN,
        )


def _require_once(events: Events, inside: _Inside) -> None:
    name, start_ns, end_ns = inside.name, inside.start_ns, inside.end_ns
    same = inside.like_next & (name[:-1] == name[1:]) & (end_ns[1:] > start_ns[1:])
    same &= (start_ns[:-1] == start_ns[1:]) & (end_ns[:-1] == end_ns[1:])
    # XNNPACK numbers the rows of a call, so there a name is enough, whatever the times are.
    is_numbered = np.array([is_xnnpack_name(name) for name in events.names], dtype=bool)
    numbered = np.flatnonzero(inside.in_delegate & is_numbered[name])
    key = inside.call[numbered] * len(events.names) + name[numbered]
    # Names are numbered as they first appear, so that most traces have these keys in order.
    order = np.arange(len(key)) if (key[:-1] < key[1:]).all() else np.argsort(key, kind="stable")
    again = numbered[order[1:][key[order[1:]] == key[order[:-1]]]]
    for at in np.concatenate([np.flatnonzero(same) + 1, again])[:1]:
        _refuse(events, inside.row[at], "appears twice")


def _require_apart(events: Events, inside: _Inside) -> None:
    for at in np.flatnonzero(inside.like_next & (inside.start_ns[1:] < inside.end_ns[:-1]))[:1]:
        how = "lies inside" if inside.end_ns[at + 1] <= inside.end_ns[at] else "overlaps with"
        other = _name(events, inside.row[at])
        _refuse(events, inside.row[at + 1], f"{how} {other}, so its time would be counted twice")


def _require_budget(events: Events, inside: _Inside) -> None:
    taken = np.zeros(len(events), dtype=np.int64)
    np.add.at(taken, inside.call, inside.end_ns - inside.start_ns)
    spare = events.duration_ns - taken + CLOCK_NS * (events.kind == EventKind.DELEGATE_CALL)
    for call in np.flatnonzero(spare < 0)[:1]:
        rows = inside.row[inside.call == call]
        call_us, taken_us = events.duration_ns[call] / 1000, taken[call] / 1000
        _refuse(
            events, call, f"took {call_us:.15g} us, but the {len(rows)} rows inside {taken_us:.15g} us", rows
        )


def _require_within(events: Events, inside: _Inside) -> None:
    late_ns = inside.end_ns - events.end_ns[inside.call] - CLOCK_NS * inside.in_delegate
    for at in np.flatnonzero((inside.start_ns < events.start_ns[inside.call]) | (late_ns > 0))[:1]:
        call = _name(events, inside.call[at])
        _refuse(events, inside.row[at], f"lies outside {call}, which it is part of")


def _refuse(events: Events, row: int, what: str, rows: _Rows | None = None) -> None:
    rows = np.array([row]) if rows is None else rows
    delegated = rows[events.kind[rows] == EventKind.DELEGATE_OP]
    strange = any(not is_xnnpack_name(events.names[code]) for code in events.name[delegated])
    inference = events.first_inference + int(np.searchsorted(events.execute_blocks, events.block[row]))
    raise TraceError(
        f"Inference {inference}, instruction {events.instruction_id[row]}: {_name(events, row)} {what}.",
        _OTHER_BACKEND if strange else _AGAIN,
    )


def _name(events: Events, row: int) -> str:
    return printable(events.names[events.name[row]])
