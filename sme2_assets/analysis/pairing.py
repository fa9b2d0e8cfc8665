"""Which operator of one arm corresponds to which of the other: the one place that decides it.

Names do not help: another kernel has another name, and the numbers in names shift. Positions help only where
both arms have the same operators, and SME2 can add some, such as a packing step. So the operator types of
each delegate are aligned, and two operators are a pair if every longest common subsequence pairs them.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

KEYS = ["backend", "delegate", "position"]
Place = tuple[Hashable, ...]

ONE_ARM = "It is in one arm only."
UNCERTAIN = "The arms differ around it: which of several of its kind it is in the other arm is uncertain."


class Pair(NamedTuple):
    """Places of one operator in both arms; None where an arm lacks it, and then why."""

    a: Place | None
    b: Place | None
    why_alone: str | None = None


def place_of(row: Any) -> Place:
    """What identifies an operator within a run: its backend, delegate and position."""
    return tuple(None if pd.isna(row[name]) else row[name] for name in KEYS)


def operator_pairs(a: pd.DataFrame, b: pd.DataFrame) -> list[Pair]:
    """Every operator of both arms once, in order. Both frames have KEYS and `op_type`."""
    sequences = _sequences(a), _sequences(b)
    pairs: list[Pair] = []
    for key in dict.fromkeys([*sequences[0], *sequences[1]]):
        pairs += _paired(*(of_arm.get(key, []) for of_arm in sequences))
    return pairs


def _sequences(rows: pd.DataFrame) -> dict[Place, list[tuple[Place, str]]]:
    """The places of the operators of each backend and delegate, in order, with their types."""
    sequences: dict[Place, list[tuple[Place, str]]] = {}
    for row in rows.drop_duplicates(KEYS).sort_values(KEYS)[[*KEYS, "op_type"]].to_dict("records"):
        place = place_of(row)
        sequences.setdefault(place[:2], []).append((place, row["op_type"]))
    return sequences


def _paired(a: list[tuple[Place, str]], b: list[tuple[Place, str]]) -> Iterator[Pair]:
    certain, possible = _matches([kind for _, kind in a], [kind for _, kind in b])
    next_b = 0
    for i, (place, _) in enumerate(a):
        if i not in certain:
            yield Pair(place, None, UNCERTAIN if possible[i].any() else ONE_ARM)
            continue
        yield from _alone(b, possible, range(next_b, certain[i]))
        yield Pair(place, b[certain[i]][0])
        next_b = certain[i] + 1
    yield from _alone(b, possible, range(next_b, len(b)))


def _alone(b: list[tuple[Place, str]], possible: npt.NDArray[np.bool_], which: range) -> Iterator[Pair]:
    for j in which:
        yield Pair(None, b[j][0], UNCERTAIN if possible[:, j].any() else ONE_ARM)


def _matches(a: list[str], b: list[str]) -> tuple[dict[int, int], npt.NDArray[np.bool_]]:
    """Pairs that are in every longest common subsequence, and a matrix of those that are in any."""
    if a == b:
        return {i: i for i in range(len(a))}, np.eye(len(a), dtype=bool)
    same = np.array(a, dtype=object)[:, None] == np.array(b, dtype=object)[None, :]
    before, after = _lengths(same), _lengths(same[::-1, ::-1])[::-1, ::-1]
    possible = same & (before[:-1, :-1] + 1 + after[1:, 1:] == before[-1, -1])
    # Each longest one has exactly one pair of each rank (pairs before it): if only one exists, all have it.
    rows, columns = np.nonzero(possible)
    rank = before[rows, columns]
    only = np.bincount(rank, minlength=1)[rank] == 1
    return dict(zip(rows[only].tolist(), columns[only].tolist(), strict=True)), possible


def _lengths(same: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """Length of the longest common subsequence of the first i and the first j items, for all i and j."""
    lengths = np.zeros((same.shape[0] + 1, same.shape[1] + 1), dtype=np.int64)
    for i, row in enumerate(same):
        lengths[i + 1, 1:] = np.maximum.accumulate(np.maximum(lengths[i, 1:], lengths[i, :-1] + row))
    return lengths
