"""What the counter wrote: which blocks of instructions ran between which borders, and whose they are."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from sme2_assets.analysis.samples import BETWEEN_INFERENCES, UNATTRIBUTED, function_facts
from sme2_assets.analysis.timeline import FRAMEWORK_OVERHEAD, KINDS, event_places
from sme2_assets.errors import EvidenceError
from sme2_assets.etdump import EventKind, Events
from sme2_assets.evidence.operators import ProgramOperators
from sme2_assets.evidence.work import WorkFile
from sme2_assets.runner.recording import Module, Place, functions_of_places
from sme2_assets.work.instructions import classified

WORK_COLUMNS = (
    *("kind", "backend", "delegate", "position", "thread_kind", "library", "function_offset", "symbol"),
    *("kernel_family", "role", "data_types", "tile", "isa", "class", "unit", "instruction", "instructions"),
    *("multiply_accumulates", "bytes"),
)
MEASURES = ["instructions", "multiply_accumulates", "bytes"]


def write_work(
    counts: Path, modules: Path, work: Path, folders: Sequence[Path], log: Callable[[str], None]
) -> None:
    """Writes the work file of what the counter wrote, with the names of functions from the files that ran.

    `modules` is what the runner wrote of them.
    """
    found = work_of_counter(counts, modules, folders, log)
    # On one line: an indented column would have a line for each number.
    content = json.dumps({"schema": found.VERSION, **found.as_json()})
    work.write_text(content + "\n", encoding="utf-8")


def work_of_counter(
    counts: Path, modules: Path, folders: Sequence[Path] = (), log: Callable[[str], None] = lambda _: None
) -> WorkFile:
    """What the counter wrote, if it came to its end."""
    try:
        columns = _columns(counts, modules, folders, log)
    except (KeyError, ValueError) as error:
        what = f"{counts} is not what the counter of instructions writes: {error}."
        raise EvidenceError(what, WorkFile.REMEDY) from None
    return WorkFile.of({"schema": WorkFile.VERSION, **columns}, str(counts))


def _columns(
    counts: Path, modules: Path, folders: Sequence[Path], log: Callable[[str], None]
) -> dict[str, Any]:
    numbers: dict[int, int] = {}
    addresses: list[int] = []
    words: list[list[int]] = []
    borders: dict[str, list[Any]] = {"kind": [], "address": []}
    executions: dict[str, list[int]] = {"stretch": [], "block": [], "thread": [], "times": []}
    finished = False
    with counts.open(encoding="ascii") as file:
        for line in file:
            match line.split():
                case ["block", number, address, *encoded]:
                    numbers[int(number)] = len(words)
                    addresses.append(int(address, 16))
                    words.append([int(word, 16) for word in encoded])
                case ["border", kind, address]:
                    borders["kind"].append(kind)
                    borders["address"].append(int(address, 16))
                case ["end"]:
                    finished = True
                case [block, thread, times]:
                    row = len(borders["kind"]), numbers[int(block)], int(thread), int(times)
                    for column, value in zip(executions.values(), row, strict=True):
                        column.append(value)
                case _:
                    raise ValueError(line[:100])
    if not finished:
        raise ValueError("it has no end")
    loaded, spans = _modules(modules)
    places = [_place(spans, address, block[0]) for address, block in zip(addresses, words, strict=True)]
    functions, function_of_block = functions_of_places(loaded, places, folders, log)
    return {
        "functions": [function.as_json() for function in functions],
        "blocks": {"function": function_of_block, "words": words},
        "borders": borders,
        "executions": executions,
    }


def _modules(path: Path) -> tuple[list[Module], list[tuple[int, int]]]:
    """The modules of the process, and where each begins and ends."""
    loaded, spans = [], []
    for line in path.read_text(encoding="utf-8").splitlines()[1:]:
        _, begin, end, build_id, *name = line.split(" ", 4)
        loaded.append(Module(path="".join(name), build_id=None if build_id == "-" else build_id, image=None))
        spans.append((int(begin, 16), int(end, 16)))
    return loaded, spans


def _place(spans: Sequence[tuple[int, int]], address: int, word: int) -> Place:
    for number, (begin, end) in enumerate(spans):
        if begin <= address < end:
            return number, address - begin, word
    return None, address, word


@dataclass
class _Open:
    """An event that has begun."""

    stretches: list[int] = field(default_factory=list)
    """While it was the innermost one."""
    clock: list[tuple[int, int]] = field(default_factory=list)
    """The stretches that end with a border of the clock, and its address."""


def owners(borders: pd.DataFrame, events: Events, program: ProgramOperators | None) -> NDArray[np.int64]:
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
            _give_rows(owner, event, own_rows, _readings(events, own_rows, program))
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


def _readings(events: Events, rows: NDArray[np.int64], program: ProgramOperators | None) -> list[int]:
    """How often the delegate reads the clock for each row of a call.

    XNNPACK copies the inputs of a concatenation one by one, and sums their times in one row.
    """
    copies = [events.names[events.name[row]].startswith("Copy ") for row in rows]
    number = int(events.delegate_call[rows[0]])
    delegates = program.delegates if program else []
    nodes = delegates[number].nodes if number < len(delegates) else []
    inputs = iter([len(it.input_shapes) for it in nodes if it.kind.startswith("XNNConcatenate")])
    return [next(inputs, 1) if copy else 1 for copy in copies]


def _give_rows(
    owner: NDArray[np.int64], call: _Open, rows: NDArray[np.int64], readings: Sequence[int]
) -> None:
    """Gives each row of a call into a delegate its stretches.

    The delegate reads the clock before its first operator, and at another place after each of them. The last
    reading comes after the last operator, so that place is where the last reading was.
    """
    place = call.clock[-1][1] if call.clock else None
    ends = [stretch for stretch, address in call.clock if address == place]
    if len(ends) != sum(readings):
        raise _mismatch(f"the delegate's clock ends {len(ends)} operators, its trace has {sum(readings)}")
    begin = max((stretch for stretch, _ in call.clock if stretch < ends[0]), default=call.stretches[0] - 1)
    for end, row in zip(ends, np.repeat(rows, readings), strict=True):
        owner[begin + 1 : end + 1] = row
        begin = end


def _mismatch(what: str) -> EvidenceError:
    return EvidenceError(
        f"The instructions counted belong to no operator for certain: {what}.", WorkFile.REMEDY
    )


def work_of_events(
    work: WorkFile, events: Events, program: ProgramOperators | None, vector_bits: int
) -> pd.DataFrame:
    """What each event executed itself: by event (-1: none), thread, function, class and name.

    Instructions, and the multiply-accumulates and bytes they are.
    """
    return _executed(work, owners(_borders(work), events, program), vector_bits)


def _borders(work: WorkFile) -> pd.DataFrame:
    return pd.DataFrame({"kind": work.borders.kind, "address": work.borders.address})


def _executed(work: WorkFile, event_of_stretch: NDArray[np.int64], vector_bits: int) -> pd.DataFrame:
    blocks, executions = work.blocks, work.executions
    words = pd.Series(blocks.words, dtype=object).explode().astype(np.int64)
    kinds = classified(words, vector_bits).rename_axis("block").reset_index()
    per_block = kinds.groupby(["block", "class", "unit", "name"], as_index=False).agg(
        instructions=("name", "size"),
        multiply_accumulates=("multiply_accumulates", "sum"),
        bytes=("bytes", "sum"),
    )
    executed = pd.DataFrame(
        {
            "event": event_of_stretch[executions.stretch],
            "thread": executions.thread,
            "function": np.array(blocks.function, dtype=np.int64)[executions.block],
            "block": executions.block,
            "times": executions.times,
        }
    )
    keys = ["event", "thread", "function", "block"]
    executed = executed.groupby(keys, as_index=False)["times"].sum().merge(per_block, on="block")
    executed[MEASURES] = executed[MEASURES].mul(executed["times"], axis=0)
    return executed.groupby(["event", "thread", "function", "class", "unit", "name"], as_index=False)[
        MEASURES
    ].sum()


def operator_work_rows(
    work: WorkFile, events: Events, program: ProgramOperators | None, vector_bits: int
) -> pd.DataFrame:
    """The work of one inference by operator, or what it was in instead: no instruction is left out.

    An instruction is named where it multiplies: there its name tells what it multiplies. Where the borders
    are not those of the trace, all of it is unattributed.
    """
    try:
        event_of_stretch, of_no_event = owners(_borders(work), events, program), BETWEEN_INFERENCES
    except EvidenceError:
        event_of_stretch, of_no_event = np.full(len(work.borders.kind), -1), UNATTRIBUTED
    executed = _executed(work, event_of_stretch, vector_bits)
    inferences = max(len(events.execute_blocks), 1)
    places = event_places(events).reindex(executed["event"]).reset_index(drop=True)
    outside = executed["event"].to_numpy() < 0
    # What an event did beyond the operators and calls in it belongs to none of them.
    places["kind"] = places["kind"].astype(object).fillna(KINDS[FRAMEWORK_OVERHEAD])
    places.loc[outside, "kind"] = of_no_event
    names = executed["name"].where(executed["multiply_accumulates"] > 0)
    facts = function_facts(work.functions)
    rows = places.assign(
        thread_kind=np.where(executed["thread"] == 0, "main", "pool"),
        **{name: of.take(executed["function"]).reset_index(drop=True) for name, of in facts.items()},
        **{"class": executed["class"], "unit": executed["unit"], "instruction": names},
        **{name: executed[name] for name in MEASURES},
    )
    keys = [name for name in WORK_COLUMNS if name not in MEASURES]
    summed = rows.groupby(keys, as_index=False, dropna=False, sort=False, observed=True)[MEASURES].sum()
    summed[MEASURES] //= inferences
    return summed[list(WORK_COLUMNS)]
