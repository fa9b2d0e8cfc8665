"""Program-counter samples of a kernels pass: classed by unit, attributed to operators.

A few thousand times a second the runner records where every thread is; it also traces the same inferences.
Here the two are joined by time: a sample belongs to the operator that was running when it was taken. Samples
that belong to no operator are rows of kinds of their own; none is dropped. `kernel_names` handles the names
of kernels, `timeline` the trace's rows and their numbering.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from sme2_assets.analysis.kernel_names import parse_kernel
from sme2_assets.analysis.paths import Paths
from sme2_assets.analysis.timeline import BACKENDS, FRAMEWORK, KINDS, PORTABLE, timeline_rows
from sme2_assets.etdump import EventKind, Events
from sme2_assets.evidence.samples import Function, Int64s, Samples

BETWEEN_INFERENCES = "between inferences"
UNATTRIBUTED = "unattributed"
SAMPLE_KINDS = (*KINDS, BETWEEN_INFERENCES, UNATTRIBUTED)
"""What a sample was taken in. The first three are the timeline's; between inferences is the runner's own
loop; unattributed is before the first or after the last inference, or in one that is not measured."""
_OPERATOR, _DELEGATE, _FRAMEWORK, _BETWEEN, _UNATTRIBUTED = range(len(SAMPLE_KINDS))

UNITS = ("SME", "SVE", "SIMD/FP", "load/store", "other", "unknown")
_SME, _SVE, _SIMD_FP, _LOAD_STORE, _OTHER, _UNKNOWN = range(len(UNITS))

KERNEL_SAMPLE_COLUMNS = (
    *("kind", "backend", "delegate", "position", "thread_kind", "library", "function_offset", "symbol"),
    *("kernel_family", "role", "data_types", "tile", "isa", "unit", "samples", "near_boundary_samples"),
)


def instruction_units(words: npt.ArrayLike) -> npt.NDArray[np.object_]:
    """The unit that each AArch64 instruction word is for; NO_WORD gives 'unknown'.

    The class is the architecture's top-level encoding space, bits 28 to 25 with bit 31. So it depends on how
    an instruction is encoded, not on what it does: loads and stores of ZA and SME2's multi-vector loads are
    SME, loads in SVE's space are SVE, loads of SIMD registers are load/store, and switching streaming mode on
    or off is a system instruction, other. SVE instructions inside an SME kernel run in streaming mode, on the
    SME unit, but still count as SVE here.
    """
    return np.array(UNITS, dtype=object)[_unit_codes(np.asarray(words, dtype=np.int64))]


def _unit_codes(words: Int64s) -> npt.NDArray[np.int8]:
    space = (words >> 25) & 0b1111
    conditions = [
        words < 0,
        (space == 0b0000) & ((words >> 31) & 1 == 1),
        space == 0b0010,
        space & 0b0111 == 0b0111,
        space & 0b0101 == 0b0100,
    ]
    return np.select(conditions, [_UNKNOWN, _SME, _SVE, _SIMD_FP, _LOAD_STORE], _OTHER).astype(np.int8)


def attribute_samples(samples: Samples, events: Events, warmup: int) -> pd.DataFrame:
    """One row per sample, in the file's order: where it was taken, and what was running then.

    `iteration`, `backend`, `delegate` and `position` are those of `timeline_rows`. Threads of the pool work
    for the operator that the main thread is in, so time alone decides. Warm-up is not sampled; a sample that
    falls into it anyway is unattributed.
    """
    intervals = _Intervals.of(events)
    where = intervals.containing(samples.time_ns)
    # By the time the clock was read the next operator may have begun: then it is unclear which one it was.
    before = intervals.containing(samples.time_ns - samples.lag_ns)
    measured = where.inference >= warmup
    kind = np.where(measured | (where.inference < 0), where.kind, _UNATTRIBUTED)
    in_operator = kind == _OPERATOR
    in_call = in_operator | (kind == _DELEGATE)
    # Samples outside inferences have no backend: code -1 is a missing category.
    backend = np.where(in_operator, where.backend, np.where(kind <= _FRAMEWORK, FRAMEWORK, -1))
    units = _unit_codes(samples.word) if samples.arch == "aarch64" else np.full(len(samples), _UNKNOWN)
    return pd.DataFrame(
        {
            "iteration": _nullable(where.inference),
            "kind": pd.Categorical.from_codes(kind, list(SAMPLE_KINDS)),
            "backend": pd.Categorical.from_codes(backend, list(BACKENDS)),
            "delegate": _nullable(np.where(in_call, where.delegate, -1)),
            "position": _nullable(np.where(in_operator, where.position, -1)),
            "thread": samples.thread,
            "function": samples.function,
            "unit": pd.Categorical.from_codes(units, list(UNITS)),
            "near_boundary": (where.near_boundary & in_call) | (in_operator & where.differs_from(before)),
        }
    )


@dataclass(frozen=True)
class _Where:
    """Per sample: where in the trace it is. -1 means none."""

    inference: Int64s
    kind: Int64s
    backend: Int64s
    delegate: Int64s
    position: Int64s
    near_boundary: npt.NDArray[np.bool_]

    def differs_from(self, other: _Where) -> npt.NDArray[np.bool_]:
        """Per sample: whether something else was running there."""
        return (
            (self.inference != other.inference)
            | (self.kind != other.kind)
            | (self.backend != other.backend)
            | (self.delegate != other.delegate)
            | (self.position != other.position)
        )


@dataclass(frozen=True)
class _Spans:
    """Stretches of time that do not overlap, ordered by their start, without empty ones."""

    start: Int64s
    end: Int64s
    number: Int64s
    """Of each span: the row that it represents."""

    @classmethod
    def of(cls, start: Int64s, end: Int64s) -> _Spans:
        # An empty stretch contains no sample, and would hide another that starts at the same time.
        number = np.flatnonzero(end > start)
        number = number[np.argsort(start[number], kind="stable")]
        return cls(start[number], end[number], number)

    def containing(self, time_ns: Int64s) -> Int64s:
        """The row that contains each time, -1 for none. A time on a boundary belongs to what starts there."""
        if len(self.start) == 0:
            return np.full(len(time_ns), -1)
        last_started = np.searchsorted(self.start, time_ns, side="right") - 1
        found = (last_started >= 0) & (time_ns < self.end[last_started])
        return np.where(found, self.number[last_started], -1)


@dataclass(frozen=True)
class _Intervals:
    """The trace as stretches of absolute time: inferences, calls in them, operators in calls."""

    executes: _Spans
    calls: _Spans
    call_inference: Int64s
    call_delegate: Int64s
    """Of each call: its delegate number, -1 for a portable operator."""
    call_position: Int64s
    """Of each call: the position of a portable operator, -1 for a delegate."""
    operators: _Spans
    operator_call: Int64s
    operator_backend: Int64s
    operator_position: Int64s
    earliest_boundary: Int64s
    latest_boundary: Int64s
    """The earliest and latest times of the boundary after each operator of a delegate, each sorted."""

    @classmethod
    def of(cls, events: Events) -> _Intervals:
        # Taken from the timeline itself, so that the two cannot number operators differently.
        rows = timeline_rows(events, warmup=0)
        rows = rows[rows["kind"] == KINDS[_OPERATOR]]
        executes = np.flatnonzero(events.kind == EventKind.METHOD_EXECUTE)
        iteration, delegate, position, start, duration = (
            rows[column].to_numpy(np.int64, na_value=-1)
            for column in ("iteration", "delegate", "position", "start_ns", "duration_ns")
        )
        start = start + events.start_ns[executes][iteration]
        delegated = delegate >= 0
        portable = ~delegated

        inference_of_block = np.full(len(events.block_names), -1, dtype=np.int64)
        inference_of_block[events.block[executes]] = np.arange(len(executes))
        called = np.flatnonzero(events.kind == EventKind.DELEGATE_CALL)
        called = called[inference_of_block[events.block[called]] >= 0]
        called_inference = inference_of_block[events.block[called]]
        called_delegate = events.delegate_call[called] + Paths.of(events).first_delegate[called_inference]

        # Calls are in the order of inference and delegate, so the call of an operator can be looked up.
        width = int(called_delegate.max(initial=0)) + 1
        call_of_operator = np.searchsorted(
            called_inference * width + called_delegate, iteration[delegated] * width + delegate[delegated]
        )
        placed = _place_boundaries(
            call_of_operator, start[delegated], duration[delegated], events.end_ns[called]
        )
        return cls(
            executes=_Spans.of(events.start_ns[executes], events.end_ns[executes]),
            calls=_Spans.of(
                np.concatenate([events.start_ns[called], start[portable]]),
                np.concatenate([events.end_ns[called], (start + duration)[portable]]),
            ),
            call_inference=np.concatenate([called_inference, iteration[portable]]),
            call_delegate=np.concatenate([called_delegate, np.full(int(portable.sum()), -1)]),
            call_position=np.concatenate([np.full(len(called), -1), position[portable]]),
            operators=_Spans.of(placed.start, placed.end),
            operator_call=call_of_operator,
            operator_backend=rows["backend"].cat.codes.to_numpy(np.int64)[delegated],
            operator_position=position[delegated],
            earliest_boundary=np.sort(placed.earliest_end),
            latest_boundary=np.sort(placed.latest_end),
        )

    def containing(self, time_ns: Int64s) -> _Where:
        inference = self.executes.containing(time_ns)
        call = self.calls.containing(time_ns)
        call = np.where((call >= 0) & (_at(self.call_inference, call) == inference), call, -1)
        operator = self.operators.containing(time_ns)
        operator = np.where((call >= 0) & (_at(self.operator_call, operator) == call), operator, -1)

        delegate = np.where(call >= 0, _at(self.call_delegate, call), -1)
        in_portable = (call >= 0) & (delegate < 0)
        kind = np.select(
            [(operator >= 0) | in_portable, call >= 0, inference >= 0, self._is_between(time_ns)],
            [_OPERATOR, _DELEGATE, _FRAMEWORK, _BETWEEN],
            _UNATTRIBUTED,
        )
        begun = np.searchsorted(self.earliest_boundary, time_ns, side="right")
        passed = np.searchsorted(self.latest_boundary, time_ns, side="left")
        return _Where(
            inference=inference,
            kind=kind,
            backend=np.where(in_portable, PORTABLE, _at(self.operator_backend, operator)),
            delegate=delegate,
            position=np.where(
                in_portable, _at(self.call_position, call), _at(self.operator_position, operator)
            ),
            near_boundary=(begun > passed) & (delegate >= 0),
        )

    def _is_between(self, time_ns: Int64s) -> npt.NDArray[np.bool_]:
        if len(self.executes.start) == 0:
            return np.zeros(len(time_ns), dtype=bool)
        return (time_ns >= self.executes.start[0]) & (time_ns < self.executes.end.max())


@dataclass(frozen=True)
class _Placed:
    start: Int64s
    end: Int64s
    earliest_end: Int64s
    latest_end: Int64s


_TICK_NS = 1000
"""XNNPACK reports times in whole microseconds."""


def _place_boundaries(
    call: npt.NDArray[np.intp], start: Int64s, duration: Int64s, call_end: Int64s
) -> _Placed:
    """Where the operators of delegates probably ran, and how sure that is.

    XNNPACK reads its clock once between two operators and floors each difference to microseconds; the
    runtime then lays these durations end to end from the true start. So the boundary after k operators is up
    to k microseconds later than reported, and never after the end of the call. On average half a microsecond
    is lost per operator: boundaries are moved by that, or by less where the call has less slack. A call whose
    rows look different (gaps, fractions of microseconds) has an exact clock and is left as it is.
    """
    if len(call) == 0:
        return _Placed(start, start + duration, start[:0], start[:0])
    calls = len(call_end)
    count = np.bincount(call, minlength=calls)
    first = np.searchsorted(call, np.arange(calls))[call]  # of each operator: the first one of its call
    before = np.arange(len(call)) - first  # operators before this one
    total = np.concatenate([[0], np.cumsum(duration)])
    told_start = start[first] + total[:-1] - total[first]
    told_end = told_start + duration
    is_floored = np.ones(calls, dtype=bool)
    is_floored[call[(told_start != start) | (duration % _TICK_NS != 0)]] = False
    floored = is_floored[call]

    last = first + count[call] - 1
    slack = np.where(floored, call_end[call] - told_end[last], 0)
    lost_ns = np.minimum(slack / count[call], _TICK_NS / 2)
    earliest = told_end + np.minimum(slack, 0)
    latest = told_end + np.clip(slack, 0, (before + 1) * _TICK_NS)
    return _Placed(
        start=np.where(floored, told_start + np.rint(before * lost_ns).astype(np.int64), start),
        end=np.where(floored, told_end + np.rint((before + 1) * lost_ns).astype(np.int64), start + duration),
        earliest_end=earliest[floored],
        latest_end=latest[floored],
    )


def _at(values: Int64s, index: Int64s) -> Int64s:
    """values[index], and -1 where the index is -1."""
    return np.append(values, -1)[index]


def _nullable(values: Int64s) -> pd.arrays.IntegerArray:
    return pd.arrays.IntegerArray(values.astype(np.int64), values < 0)


def kernel_sample_rows(samples: Samples, events: Events, warmup: int) -> pd.DataFrame:
    """Samples counted by operator, thread kind, function and unit, with the parts of the kernel's name.

    Attributed by `attribute_samples`; the counts add up to the number of samples. A function without a name,
    like most microkernels of a stripped library, has no role either.
    """
    rows = attribute_samples(samples, events, warmup)
    is_pool = np.array([not thread.main for thread in samples.threads], dtype=np.int64)
    # Numbers rather than texts: faster, and with categories pandas would count combinations that never occur.
    keys = pd.DataFrame(
        {
            **{column: rows[column].cat.codes for column in ("kind", "backend", "unit")},
            **{column: rows[column].to_numpy(np.int64, na_value=-1) for column in ("delegate", "position")},
            "pool": is_pool[samples.thread],
            "function": samples.function,
        }
    )
    near = rows["near_boundary"].groupby([keys[name] for name in keys])
    groups = near.agg(samples="size", near_boundary_samples="sum").reset_index().astype(np.int64)
    codes = {name: groups[name].to_numpy() for name in groups}
    counted = pd.DataFrame(
        {
            "kind": _texts(SAMPLE_KINDS, codes["kind"]),
            "backend": _texts(BACKENDS, codes["backend"]),
            "delegate": _nullable(codes["delegate"]),
            "position": _nullable(codes["position"]),
            "thread_kind": _texts(("main", "pool"), codes["pool"]),
            **{
                name: facts.take(codes["function"]).reset_index(drop=True)
                for name, facts in function_facts(samples.functions).items()
            },
            "unit": _texts(UNITS, codes["unit"]),
            "samples": codes["samples"],
            "near_boundary_samples": codes["near_boundary_samples"],
        },
        columns=list(KERNEL_SAMPLE_COLUMNS),
    )
    return counted.sort_values("samples", ascending=False, kind="stable", ignore_index=True)


def _texts(texts: Sequence[str], codes: Int64s) -> pd.Series:
    """The texts of codes; None for -1. Of type object, so that a column of only None has the same type."""
    return pd.Series(np.array([*texts, None], dtype=object)[codes], dtype=object)


def function_facts(functions: Sequence[Function]) -> dict[str, pd.Series]:
    """Columns with one entry per function."""
    names = [parse_kernel(function.symbol) for function in functions]
    texts = {
        "library": [function.library for function in functions],
        "symbol": [function.symbol for function in functions],
        "kernel_family": [name.family for name in names],
        "role": [
            name.role if function.symbol else None for function, name in zip(functions, names, strict=True)
        ],
        "data_types": ["_".join(name.data_types) or None for name in names],
        "tile": [name.tile for name in names],
        "isa": [name.isa for name in names],
    }
    offsets = pd.Series([function.offset for function in functions], dtype=np.int64)
    return {"function_offset": offsets, **{key: pd.Series(each, dtype=object) for key, each in texts.items()}}


def time_share_agreement(sample_rows: pd.DataFrame, timeline: pd.DataFrame) -> pd.DataFrame:
    """Each operator's share of the samples and its share of the time, in the same inferences.

    Both are shares of whole inferences, overheads included, so they need not add up to one over operators.
    Only samples of the main thread count: those of the pool would weight an operator by its threads.
    `sample_rows` comes from `kernel_sample_rows`, `timeline` from `timeline_rows`; warm-up is left out.
    """
    keys = ["backend", "delegate", "position"]
    inside = sample_rows[(sample_rows["thread_kind"] == "main") & sample_rows["kind"].isin(KINDS)]
    measured = timeline[~timeline["is_warmup"]]
    sampled = _by_operator(inside, keys, "samples")
    timed = _by_operator(measured, keys, "duration_ns")
    shares = pd.DataFrame(
        {
            "sample_share": sampled / max(inside["samples"].sum(), 1),
            "time_share": timed / max(measured["duration_ns"].sum(), 1),
        }
    ).fillna(0.0)
    shares["difference"] = shares["sample_share"] - shares["time_share"]
    result = shares.reset_index().sort_values("time_share", ascending=False, kind="stable")
    return result[[*keys, "sample_share", "time_share", "difference"]].reset_index(drop=True)


def _by_operator(rows: pd.DataFrame, keys: list[str], value: str) -> pd.Series:
    operators = rows[rows["kind"] == KINDS[_OPERATOR]]
    index = [operators["backend"].astype(object), *(operators[key].astype("Int64") for key in keys[1:])]
    return operators[value].groupby(index, dropna=False).sum().astype(float)
