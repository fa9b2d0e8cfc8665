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
    """Of each path: a hash of its operators' names in order."""
    of_inference: Int64s
    first_delegate: Int64s
    """Of each inference: the number of its first delegate call."""
    first_portable: Int64s
    """Of each inference: the position of its first portable operator."""

    @classmethod
    def of(cls, events: Events) -> Paths:
        blocks = events.execute_blocks()
        # As bytes, so that inferences are compared in full and not by a hash.
        step = np.ascontiguousarray(np.stack([events.kind.astype(np.int32), events.name], axis=1))
        sequences = [step[events.block_rows(int(block))].tobytes() for block in blocks]
        number = {sequence: place for place, sequence in enumerate(dict.fromkeys(sequences))}
        of_inference = np.array([number[sequence] for sequence in sequences], dtype=np.int64)
        first = [events.block_rows(int(blocks[sequences.index(sequence)])) for sequence in number]
        return cls(
            tuple(_signature(events, rows) for rows in first),
            of_inference,
            _starts([_count(events, rows, EventKind.DELEGATE_CALL) for rows in first])[of_inference],
            _starts([_portable_operators(events, rows) for rows in first])[of_inference],
        )


def _starts(counts: list[int]) -> Int64s:
    return np.cumsum([0, *counts])[:-1].astype(np.int64)


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
