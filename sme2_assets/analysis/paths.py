"""The operator sequences that the inferences of a trace took: one for each method, and for each branch in it.

The trace does not name the method. Where two inferences ran different operators, the third operator of one
is not the third of the other. So each further sequence continues the numbering of delegate calls and portable
operators where the previous one ended, and a place stands for one operator of one sequence.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sme2_assets.etdump import EventKind, Events

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Paths:
    """Numbered in the order in which the inferences first took them."""

    signatures: tuple[str, ...]
    """Of each path so far: a hash of its operators' names in order."""
    of_inference: Int64s
    first_delegate: Int64s
    """Of each inference: the number of its first delegate call."""
    first_portable: Int64s
    """Of each inference: the position of its first portable operator."""

    @classmethod
    def of(cls, events: Events) -> Paths:
        return PathsOfParts().next(events)


class PathsOfParts:
    """The paths of a trace that is read in parts: each part goes on where the one before ended."""

    def __init__(self) -> None:
        # As bytes, so that inferences are compared in full and not by a hash.
        self._numbers: dict[bytes, int] = {}
        self._signatures: list[str] = []
        self._first_delegate = [0]
        self._first_portable = [0]

    def next(self, events: Events) -> Paths:
        blocks = events.execute_blocks
        step = np.ascontiguousarray(np.stack([events.kind.astype(np.int32), events.name], axis=1))
        new = ~_like_the_one_before(step, events, blocks)
        numbers = np.zeros(len(blocks), dtype=np.int64)
        numbers[new] = [self._number(step, events, int(block)) for block in blocks[new]]
        of_inference = numbers[np.maximum.accumulate(np.where(new, np.arange(len(blocks)), 0))]
        return Paths(
            tuple(self._signatures),
            of_inference,
            np.array(self._first_delegate)[of_inference],
            np.array(self._first_portable)[of_inference],
        )

    def _number(self, step: npt.NDArray[np.int32], events: Events, block: int) -> int:
        rows = events.block_rows(block)
        sequence = step[rows].tobytes()
        if sequence not in self._numbers:
            self._numbers[sequence] = len(self._numbers)
            self._signatures.append(_signature(events, rows))
            self._first_delegate.append(
                self._first_delegate[-1] + _count(events, rows, EventKind.DELEGATE_CALL)
            )
            self._first_portable.append(self._first_portable[-1] + _portable_operators(events, rows))
        return self._numbers[sequence]


def _like_the_one_before(
    step: npt.NDArray[np.int32], events: Events, blocks: npt.NDArray[np.int32]
) -> npt.NDArray[np.bool_]:
    """Which inferences ran what the one before ran; none where that cannot be told for all at once."""
    alike = np.zeros(len(blocks), dtype=bool)
    starts, ends = events.block_offsets[blocks], events.block_offsets[blocks + 1]
    sizes = ends - starts
    if len(blocks) > 1 and (sizes == sizes[0]).all() and (starts[1:] == ends[:-1]).all():
        sequences = step[starts[0] : ends[-1]].reshape(len(blocks), -1)
        alike[1:] = (sequences[1:] == sequences[:-1]).all(axis=1)
    return alike


def _count(events: Events, rows: slice, kind: EventKind) -> int:
    return int((events.kind[rows] == kind).sum())


def _portable_operators(events: Events, rows: slice) -> int:
    """Kernels, and the operator calls that name no kernel."""
    kernels = events.kind[rows] == EventKind.NATIVE_CALL
    with_kernel = len(np.unique(events.parent[rows][kernels]))
    return int(kernels.sum()) + _count(events, rows, EventKind.OPERATOR_CALL) - with_kernel


def _signature(events: Events, rows: slice) -> str:
    steps = zip(events.kind[rows].tolist(), events.name[rows].tolist(), strict=True)
    text = "\0".join(f"{kind} {events.names[name]}" for kind, name in steps)
    return hashlib.sha256(text.encode()).hexdigest()
