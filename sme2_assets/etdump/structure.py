"""The tree behind the flat list: which event is inside which call.

The runtime writes an event when it ends, so children come before their parents: the rows of a backend, then
their DELEGATE_CALL; the kernel, then its OPERATOR_CALL; finally Method::execute. The parent of a row is the
next event of the right kind in the same block.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sme2_assets.etdump.events import EventKind
from sme2_assets.etdump.flatbuffer import Malformed

Rows = NDArray[np.int64]


@dataclass(frozen=True)
class Structure:
    parent: NDArray[np.int32]
    delegate_call: NDArray[np.int32]
    position: NDArray[np.int32]


@dataclass(frozen=True)
class _Family:
    """Calls of one kind, and what belongs inside them."""

    parents: Rows
    children: Rows
    parent_number: Rows
    """Per child: index in `parents`."""
    orphans: Rows
    """Rows that belong inside such a call but whose block ends before one comes."""


def structure_of(
    kind: NDArray[np.int8],
    block: Rows,
    block_offsets: Rows,
    instruction_id: NDArray[np.int32],
    first_block: int = 0,
) -> Structure:
    """Parent, delegate call and position of every row; the first block has this number in the file.

    A block with a Method::execute claims to be a whole inference. The time of a row in it whose call is
    missing would go to another call or to none, so that is an error. A block without one (loading a method,
    an inference that died) claims nothing: a row without a call there has no parent.
    """
    executions = np.flatnonzero(kind == EventKind.METHOD_EXECUTE)
    delegate_calls = np.flatnonzero(kind == EventKind.DELEGATE_CALL)
    operator_calls = np.flatnonzero(kind == EventKind.OPERATOR_CALL)
    calls = np.flatnonzero((kind == EventKind.DELEGATE_CALL) | (kind == EventKind.OPERATOR_CALL))
    in_delegate = _family(delegate_calls, np.flatnonzero(kind == EventKind.DELEGATE_OP), block)
    in_operator = _family(operator_calls, np.flatnonzero(kind == EventKind.NATIVE_CALL), block)
    in_execution = _family(executions, calls, block)

    is_inference = np.zeros(len(block_offsets) - 1, dtype=bool)
    is_inference[block[executions]] = True
    for family in (in_delegate, in_operator, in_execution):
        _require_no_orphan(family, kind, block, is_inference, first_block)
    for family in (in_delegate, in_operator):
        _require_same_instruction(family, block, instruction_id, is_inference, first_block)

    parent_row = np.full(len(kind), -1, dtype=np.int64)
    position = np.zeros(len(kind), dtype=np.int32)
    for family in (in_delegate, in_operator, in_execution):
        parent_row[family.children] = family.parents.take(family.parent_number)
        position[family.children] = _place_in_run(family.parent_number)
    roots = np.flatnonzero(parent_row < 0)
    position[roots] = _place_in_run(block.take(roots))

    ordinal = _place_in_run(block.take(delegate_calls))
    delegate_call = np.full(len(kind), -1, dtype=np.int32)
    delegate_call[delegate_calls] = ordinal
    delegate_call[in_delegate.children] = ordinal.take(in_delegate.parent_number)

    parent = (parent_row - block_offsets.take(block)).astype(np.int32)
    parent[roots] = -1
    return Structure(parent, delegate_call, position)


def _family(parents: Rows, children: Rows, block: Rows) -> _Family:
    is_parent = np.zeros(len(block), dtype=np.int64)
    is_parent[parents] = 1
    following = np.cumsum(is_parent).take(children)  # the count of parents so far is the number of the next
    block_of_next = np.append(block.take(parents), -1).take(following)
    found = block_of_next == block.take(children)
    if found.all():
        return _Family(parents, children, following, orphans=children[:0])
    return _Family(parents, children[found], following[found], orphans=children[~found])


def _require_no_orphan(
    family: _Family, kind: NDArray[np.int8], block: Rows, is_inference: NDArray[np.bool_], first_block: int
) -> None:
    orphans = family.orphans[is_inference.take(block.take(family.orphans))]
    if len(orphans):
        orphan_kind = EventKind(int(kind[orphans[0]]))
        raise Malformed(
            f"block {first_block + block[orphans[0]]} has a {orphan_kind.name} row without the call it is "
            "part of: the inference was not recorded to its end"
        )


def _require_same_instruction(
    family: _Family,
    block: Rows,
    instruction_id: NDArray[np.int32],
    is_inference: NDArray[np.bool_],
    first_block: int,
) -> None:
    """The runtime stamps a call and what is inside it with the same instruction."""
    own = instruction_id.take(family.children)
    of_parent = instruction_id.take(family.parents).take(family.parent_number)
    strangers = np.flatnonzero(own != of_parent)
    strangers = strangers[is_inference.take(block.take(family.children.take(strangers)))]
    if len(strangers):
        first = strangers[0]
        raise Malformed(
            f"block {first_block + block[family.children[first]]} has a row of instruction {own[first]} "
            f"inside the call of instruction {of_parent[first]}: the call it is part of is missing"
        )


def _place_in_run(values: Rows) -> Rows:
    """0, 1, 2, ... restarting wherever the value changes."""
    places = np.arange(len(values))
    if len(values) == 0:
        return places
    starts = np.concatenate([[0], np.flatnonzero(values[1:] != values[:-1]) + 1])
    return places - np.repeat(starts, np.diff(starts, append=len(values)))
