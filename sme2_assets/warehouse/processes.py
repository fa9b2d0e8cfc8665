"""Times of the parts of an inference in each process: what summaries.sql makes its tables of rounds from.

In arrays: grouping the rows of a long trace by inference and category takes SQL three times as long.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import duckdb
import numpy as np
import pandas as pd
from numpy.typing import NDArray

from sme2_assets.analysis.categories import Category

Column: TypeAlias = NDArray[Any]
Sums: TypeAlias = NDArray[np.float64]
Row: TypeAlias = dict[str, Any]
# A process: its run, and its round.
Place: TypeAlias = tuple[str, int]

CATEGORIES = list(Category)
COMPUTE = [CATEGORIES.index(Category.CONV), CATEGORIES.index(Category.GEMM)]
DATA_MOVEMENT = CATEGORIES.index(Category.DATA_MOVEMENT)
# Classes of rows: each category inside delegates, each outside of them, and the two kinds of overhead.
PORTABLE = len(CATEGORIES)
OVERHEAD = DELEGATE_OVERHEAD, FRAMEWORK_OVERHEAD = 2 * PORTABLE, 2 * PORTABLE + 1
CLASSES = FRAMEWORK_OVERHEAD + 1
# Added to the class of an operator that is not known.
UNKNOWN = 16
# What calls can hide: of each category, of convolutions and matrix products together, and in all.
HIDDEN_COMPUTE, HIDDEN = len(CATEGORIES), len(CATEGORIES) + 1
# DuckDB's vectors that are read at once: some hundred thousand rows.
CHUNK = 200

_CATEGORY = " ".join(f"WHEN '{category}' THEN {code}" for code, category in enumerate(CATEGORIES))
_ROWS = f"""
    SELECT
        run_id, round, iteration, duration_ns::DOUBLE AS ns,
        (CASE kind
            WHEN 'delegate_overhead' THEN {DELEGATE_OVERHEAD}
            WHEN 'framework_overhead' THEN {FRAMEWORK_OVERHEAD}
            ELSE CASE category {_CATEGORY} ELSE error('an operator without category') END
                + if(backend = 'portable', {PORTABLE}, 0) + if(known, 0, {UNKNOWN})
        END)::UTINYINT AS class
    FROM timeline
    WHERE NOT is_warmup
"""
_CALLS = "SELECT run_id, round, iteration, delegate, hidden_ns FROM calls"
_FLOORED = "SELECT run_id, delegate, category, floored FROM floored_rows"
# For when there are no rows.
_CATEGORY_COLUMNS = ["run_id", "round", "category", "operators", "unknown_operators", "inferences"]
_CATEGORY_COLUMNS += ["median_ns", "mean_ns", "least_ns", "most_ns", "events", "total_ns"]
_PART_COLUMNS = ["run_id", "round", "inferences", "inference_ns", "compute_ns", "compute_most_ns"]
_PART_COLUMNS += ["data_movement_ns", "data_movement_most_ns", "portable_ns", "delegate_overhead_ns"]
_PART_COLUMNS += ["framework_overhead_ns", "delegate_calls", "operators", "portable_operators"]


def process_times(connection: duckdb.DuckDBPyConnection) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The rows of category_rounds, and those of part_rounds without what depends on the other rounds.

    From the timeline of all runs that the connection has, and from what floors.sql makes of it.
    """
    processes: dict[Place, _Process] = defaultdict(_Process)
    for place, rows in _by_process(connection, _ROWS):
        processes[place].add_rows(rows)
    floored_ns = _floored_ns(connection)
    for place, calls in _by_process(connection, _CALLS):
        if place in processes:
            processes[place].add_calls(calls, floored_ns[place[0]])
    by_category: list[Row] = []
    parts: list[Row] = []
    for (run_id, number), process in processes.items():
        place_of = {"run_id": run_id, "round": number}
        inferences = process.inferences()
        by_category += [place_of | row for row in inferences.by_category()]
        parts.append(place_of | inferences.parts())
    return pd.DataFrame(by_category, columns=_CATEGORY_COLUMNS), pd.DataFrame(parts, columns=_PART_COLUMNS)


def _by_process(connection: duckdb.DuckDBPyConnection, query: str) -> Iterator[tuple[Place, pd.DataFrame]]:
    """The rows of a query, some at a time, and only those of one process together."""
    rows = connection.execute(query)
    while len(chunk := rows.fetch_df_chunk(CHUNK)):
        runs, rounds = chunk["run_id"].cat, chunk["round"].to_numpy()
        process = (runs.codes.to_numpy().astype(np.int64) << 32) + rounds
        # A long trace has many chunks of a single process.
        is_single = (process == process[0]).all()
        for each in process[:1].tolist() if is_single else np.unique(process).tolist():
            place = str(runs.categories[each >> 32]), each & 0xFFFFFFFF
            yield place, chunk if is_single else chunk[process == each]


def _floored_ns(connection: duckdb.DuckDBPyConnection) -> dict[str, Sums]:
    """By run: what the rows of each delegate can hide at most, of each category and of COMPUTE."""
    found: dict[str, Sums] = defaultdict(lambda: np.zeros((HIDDEN, 0)))
    for run_id, delegate, category, rows in connection.execute(_FLOORED).fetchall():
        of_run = found[run_id] = _widened(found[run_id], delegate + 1)
        number = CATEGORIES.index(category)
        for row in (number, HIDDEN_COMPUTE) if number in COMPUTE else (number,):
            of_run[row, delegate] += 1000 * rows
    return found


def _widened(sums: Sums, width: int) -> Sums:
    kinds, known = sums.shape
    if width <= known:
        return sums
    wider = np.zeros((kinds, width))
    wider[:, :known] = sums
    return wider


class _Table:
    """A row of sums for each of some kinds, and a column for each inference, as they come."""

    def __init__(self, kinds: int) -> None:
        self.sums: Sums = np.zeros((kinds, 0))

    def add(self, kind: Column | int, iteration: Column, values: Column | None = None) -> None:
        """Adds values, or counts rows where there are none."""
        first, end, (kinds, width) = int(iteration.min()), int(iteration.max()) + 1, self.sums.shape
        if end > width:
            self.sums = _widened(self.sums, max(end, 2 * width))
        cell = (iteration.astype(np.int64) - first) + kind * np.int64(end - first)
        self.sums[:, first:end] += np.bincount(cell, values, kinds * (end - first)).reshape(kinds, -1)

    def of(self, inferences: Column) -> Sums:
        end = int(inferences[-1]) + 1
        first_ones = _widened(self.sums, end)[:, :end]
        return first_ones if len(inferences) == end else first_ones[:, inferences]


class _Process:
    """Adds up the rows of a process."""

    def __init__(self) -> None:
        self._ns, self._rows, self._unknown = _Table(CLASSES), _Table(CLASSES), _Table(CLASSES)
        self._hidden_ns = _Table(HIDDEN + 1)

    def add_rows(self, rows: pd.DataFrame) -> None:
        iteration, coded = rows["iteration"].to_numpy(), rows["class"].to_numpy()
        classes, unknown = coded % UNKNOWN, np.flatnonzero(coded >= UNKNOWN)
        self._ns.add(classes, iteration, rows["ns"].to_numpy())
        self._rows.add(classes, iteration)
        if len(unknown):
            self._unknown.add(classes[unknown], iteration[unknown])

    def add_calls(self, calls: pd.DataFrame, floored_ns: Sums) -> None:
        iteration, delegate = calls["iteration"].to_numpy(), calls["delegate"].to_numpy()
        hidden_ns = calls["hidden_ns"].to_numpy()
        self._hidden_ns.add(HIDDEN, iteration, hidden_ns)
        for kind, of_delegates in enumerate(_widened(floored_ns, int(delegate.max()) + 1)):
            if of_delegates.any():
                self._hidden_ns.add(kind, iteration, np.minimum(of_delegates[delegate], hidden_ns))

    def inferences(self) -> _Inferences:
        timed = np.flatnonzero(self._rows.sums.any(axis=0))
        tables = (self._ns, self._rows, self._unknown, self._hidden_ns)
        return _Inferences(*(table.of(timed) for table in tables))


@dataclass(frozen=True)
class _Inferences:
    """The timed inferences of a process, a column each. Times are NaN in emulation."""

    ns: Sums
    rows: Sums
    unknown: Sums
    hidden_ns: Sums

    def by_category(self) -> Iterator[Row]:
        for number, category in enumerate(CATEGORIES):
            yield from self._of_category(category, _inside_and_outside(number), self.hidden_ns[number])
        # Kept as a category of its own, so that the rows of a run add up to the inference. What the rows of a
        # call hide is counted as its overhead.
        yield from self._of_category("Overhead", [*OVERHEAD], -self.hidden_ns[HIDDEN])

    def _of_category(self, category: str, classes: list[int], change_ns: Column) -> Iterator[Row]:
        """`change_ns` is how much its times may be larger, or smaller, than they say."""
        rows = self.rows[classes].sum(axis=0)
        # Not every inference has every category where they took several operator sequences.
        has = rows > 0
        if not has.any():
            return
        ns = self.ns[classes].sum(axis=0)
        median_ns, bound_ns = np.median(np.stack([ns, ns + change_ns])[:, has], axis=1)
        yield {
            "category": category,
            "operators": 0 if category == "Overhead" else rows.max(),
            "unknown_operators": self.unknown[classes].sum(axis=0).max(),
            "inferences": has.sum(),
            "median_ns": median_ns,
            "mean_ns": ns.sum() / len(ns),
            "least_ns": min(median_ns, bound_ns),
            "most_ns": max(median_ns, bound_ns),
            "events": rows.sum(),
            "total_ns": ns.sum(),
        }

    def parts(self) -> Row:
        inference_ns = self.ns.sum(axis=0)

        def total_ns(classes: list[int]) -> Column:
            # Of no rows it is NaN, too, where times are.
            return self.ns[classes].sum(axis=0) + 0 * inference_ns

        def most_ns(part_ns: Column, row: int) -> Column:
            # No part is more than the inference, whatever a call of which the clock says nothing may hide.
            return np.minimum(part_ns + self.hidden_ns[row], np.maximum(part_ns, inference_ns))

        compute_ns = total_ns([each for number in COMPUTE for each in _inside_and_outside(number)])
        data_movement_ns = total_ns(_inside_and_outside(DATA_MOVEMENT))
        portable = list(range(PORTABLE, DELEGATE_OVERHEAD))
        times = {
            "inference_ns": inference_ns,
            "compute_ns": compute_ns,
            "compute_most_ns": most_ns(compute_ns, HIDDEN_COMPUTE),
            "data_movement_ns": data_movement_ns,
            "data_movement_most_ns": most_ns(data_movement_ns, DATA_MOVEMENT),
            "portable_ns": total_ns(portable),
            "delegate_overhead_ns": total_ns([DELEGATE_OVERHEAD]),
            "framework_overhead_ns": total_ns([FRAMEWORK_OVERHEAD]),
        }
        counts = {
            "delegate_calls": self.rows[DELEGATE_OVERHEAD],
            "operators": self.rows[:DELEGATE_OVERHEAD].sum(axis=0),
            "portable_operators": self.rows[portable].sum(axis=0),
        }
        means = {name: ns.mean() for name, ns in times.items()}
        return {"inferences": len(inference_ns)} | means | {name: each.max() for name, each in counts.items()}


def _inside_and_outside(category: int) -> list[int]:
    """The classes of a category's rows, inside delegates and outside of them."""
    return [category, PORTABLE + category]
