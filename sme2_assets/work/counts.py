"""What the counter wrote: which blocks of instructions ran between which borders, and whose they are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from sme2_assets.errors import EvidenceError
from sme2_assets.etdump import EventKind, Events
from sme2_assets.work.instructions import classified

_REMEDY = "Measure again; if it happens again, report it as a defect."


@dataclass(frozen=True)
class Counts:
    """Stretch i lies before border i. Nothing that ran between start and stop is in no stretch."""

    words: pd.Series
    """The instructions of each block, one row for each; the index is the block."""
    executions: pd.DataFrame
    """stretch, block, thread, executions"""
    borders: pd.DataFrame
    """kind (begin, end, clock, stop) and address"""


def read_counts(path: Path) -> Counts:
    words: dict[int, list[int]] = {}
    executions: list[tuple[int, int, int, int]] = []
    borders: list[tuple[str, int]] = []
    finished = False
    try:
        with path.open(encoding="ascii") as file:
            for line in file:
                match line.split():
                    case ["block", number, _, *encoded]:
                        words[int(number)] = [int(word, 16) for word in encoded]
                    case ["border", kind, address]:
                        borders.append((kind, int(address, 16)))
                    case ["end"]:
                        finished = True
                    case [block, thread, number]:
                        executions.append((len(borders), int(block), int(thread), int(number)))
                    case _:
                        raise ValueError(line[:100])
    except ValueError as error:
        raise EvidenceError(
            f"{path} is not what the counter of instructions writes: {error}.", _REMEDY
        ) from None
    if (
        not finished
        or borders[-1:] != [("stop", 0)]
        or not {block for _, block, _, _ in executions} <= set(words)
    ):
        raise EvidenceError(f"{path} ends before the measured inferences do.", _REMEDY)
    return Counts(
        pd.Series(words, name="word").explode().astype(np.int64),
        pd.DataFrame(executions, columns=["stretch", "block", "thread", "executions"]),
        pd.DataFrame(borders, columns=["kind", "address"]),
    )


@dataclass
class _Open:
    """An event that has begun."""

    stretches: list[int] = field(default_factory=list)
    """While it was the innermost one."""
    clock: list[tuple[int, int]] = field(default_factory=list)
    """The stretches that end with a border of the clock, and its address."""


def owners(borders: pd.DataFrame, events: Events) -> NDArray[np.int64]:
    """The row of the event that each stretch belongs to, -1 for what the runner did between them.

    Nothing is attributed where the borders are not those of the trace: EvidenceError.
    """
    inferences = np.flatnonzero(np.isin(events.block, events.execute_blocks))
    is_row = events.kind[inferences] == EventKind.DELEGATE_OP
    ended = _ended(borders)
    owner = np.full(len(borders), -1, dtype=np.int64)
    for row in inferences[~is_row]:
        event = next(ended, None)
        if event is None:
            raise _mismatch("fewer events ended than the trace has")
        owner[event.stretches] = row
        own_rows = inferences[is_row & (events.parent_rows[inferences] == row)]
        if len(own_rows):
            _give_rows(owner, event, own_rows)
    if next(ended, None) is not None:
        raise _mismatch("more events ended than the trace has")
    return owner


def _ended(borders: pd.DataFrame) -> Iterator[_Open]:
    """The events in the order in which they ended, which is that of the trace."""
    inside: list[_Open] = []
    for stretch, (kind, address) in enumerate(borders.itertuples(index=False)):
        if inside:
            inside[-1].stretches.append(stretch)
        if kind == "begin":
            inside.append(_Open())
        elif kind == "end":
            if not inside:
                raise _mismatch("an event ended that had not begun")
            yield inside.pop()
        elif kind == "clock" and inside:
            inside[-1].clock.append((stretch, address))


def _give_rows(owner: NDArray[np.int64], call: _Open, rows: NDArray[np.int64]) -> None:
    """Gives each row of a call into a delegate its stretches.

    The delegate reads the clock before its first operator, and at another place after each of them. The last
    reading comes after the last operator, so that place is where the last reading was.
    """
    place = call.clock[-1][1] if call.clock else None
    ends = [stretch for stretch, address in call.clock if address == place]
    if len(ends) != len(rows):
        raise _mismatch(f"the delegate's clock ends {len(ends)} operators, its trace has {len(rows)}")
    begin = max((stretch for stretch, _ in call.clock if stretch < ends[0]), default=call.stretches[0] - 1)
    for end, row in zip(ends, rows, strict=True):
        owner[begin + 1 : end + 1] = row
        begin = end


def _mismatch(what: str) -> EvidenceError:
    return EvidenceError(f"The instructions counted belong to no operator for certain: {what}.", _REMEDY)


def work_of_events(counts: Counts, events: Events, vector_bits: int) -> pd.DataFrame:
    """What each event executed itself: by event (-1: none), thread, class and name.

    Instructions, and the multiply-accumulates and bytes they are.
    """
    kinds = classified(counts.words, vector_bits).rename_axis("block").reset_index()
    per_block = kinds.groupby(["block", "class", "name"], as_index=False).agg(
        instructions=("name", "size"),
        multiply_accumulates=("multiply_accumulates", "sum"),
        bytes=("bytes", "sum"),
    )
    executions = counts.executions.assign(event=owners(counts.borders, events)[counts.executions["stretch"]])
    executions = executions.groupby(["event", "thread", "block"], as_index=False)["executions"].sum()
    executed = executions.merge(per_block, on="block")
    measures = ["instructions", "multiply_accumulates", "bytes"]
    executed[measures] = executed[measures].mul(executed["executions"], axis=0)
    return executed.groupby(["event", "thread", "class", "name"], as_index=False)[measures].sum()
