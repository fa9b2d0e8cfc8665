"""The columns of a decoded ETDump. No decoding here."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import IntEnum
from functools import cached_property
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Int32Column: TypeAlias = NDArray[np.int32]
Int64Column: TypeAlias = NDArray[np.int64]


class EventKind(IntEnum):
    """What a row stands for. The values are stored, so they never change."""

    OTHER = 0  # Method::init, Program::load_method, and every name this reader does not know
    METHOD_EXECUTE = 1  # one whole inference
    DELEGATE_CALL = 2  # one call into a backend, from the outside
    DELEGATE_OP = 3  # a row that the backend wrote, inside a DELEGATE_CALL
    OPERATOR_CALL = 4  # one portable operator, with the framework's cost of calling it
    NATIVE_CALL = 5  # the operator's kernel alone, inside an OPERATOR_CALL


@dataclass(frozen=True)
class Events:
    """Every profile event of an ETDump: equal-length, read-only columns, one row per event, in file order.

    `parent` counts within the block, as `event` does. `parent_rows` gives row numbers of the whole table.
    The parent of a row is the call that its time is part of:
    DELEGATE_OP -> DELEGATE_CALL -> METHOD_EXECUTE and NATIVE_CALL -> OPERATOR_CALL -> METHOD_EXECUTE.
    Rows of kind OTHER have no parent and are nobody's parent, so a sum over children counts no time twice.
    """

    block: Int32Column
    """Index of the event's block in the file's `run_data`."""
    event: Int32Column
    """Index of the event among the profile events of its block."""
    kind: NDArray[np.int8]
    """An `EventKind`."""
    parent: Int32Column
    """`event` of the parent in the same block, -1 for none."""
    delegate_call: Int32Column
    """Ordinal of the delegate call in the block, for the call and the rows inside it; else -1."""
    position: Int32Column
    """0-based place among the rows with the same parent (in the block, for rows without a parent)."""
    name: Int32Column
    """Code of the name: index in `names`."""
    start_ns: Int64Column
    """Nanoseconds since the runtime's own start."""
    end_ns: Int64Column
    """Like `start_ns`, and never before it."""
    chain_index: Int32Column
    """Chain of the instruction, -1 where the runtime was in none."""
    instruction_id: Int32Column
    """Index of the instruction in its chain."""
    delegate_debug_id_int: Int32Column
    """The backend's integer identifier of the row, -1 for none (XNNPACK gives strings: the names)."""
    has_delegate_metadata: NDArray[np.bool_]
    """Whether the backend attached its own bytes to the row."""

    names: list[str]
    """The distinct names. A row inside a delegate is named by the delegate, as in ExecuTorch's Inspector."""
    block_names: list[str]
    """Per block: `Default` for loading, `Execute` for an inference."""
    block_bundled_input_index: Int32Column
    """Per block: the bundled input it ran with, -1 for none."""
    block_offsets: Int64Column
    """Rows of block b are `block_offsets[b]` up to, not including, `block_offsets[b + 1]`."""
    allocation_events: int
    """Events of the file that have no time, only an allocation: counted, not listed."""
    debug_events: int
    """Events of the file that hold an intermediate value: counted, not listed."""
    first_inference: int = 0
    """The inferences of the file before these events, if they are only a part of it."""

    def __post_init__(self) -> None:
        for field in fields(self):
            column = getattr(self, field.name)
            if isinstance(column, np.ndarray):
                column.setflags(write=False)

    def __len__(self) -> int:
        return len(self.block)

    @cached_property
    def duration_ns(self) -> Int64Column:
        """`end_ns - start_ns`; never negative."""
        return self.end_ns - self.start_ns

    def name_strings(self) -> NDArray[np.object_]:
        """The name of every row, as an array of `str`."""
        return np.array(self.names, dtype=object)[self.name]

    @cached_property
    def parent_rows(self) -> Int64Column:
        """The row number of every row's parent in the whole table, -1 for none."""
        return np.where(self.parent >= 0, self.block_offsets[self.block] + self.parent, -1)

    def block_rows(self, block: int) -> slice:
        """The rows of one block."""
        return slice(int(self.block_offsets[block]), int(self.block_offsets[block + 1]))

    @cached_property
    def execute_blocks(self) -> Int32Column:
        """The blocks that hold a `Method::execute`, in file order: one per inference, warm-up included.

        >>> events = read_etdump(path)                                      # doctest: +SKIP
        >>> for inference, block in enumerate(events.execute_blocks):       # doctest: +SKIP
        ...     rows = events.block_rows(block)
        """
        blocks = self.block[self.kind == EventKind.METHOD_EXECUTE]
        return blocks[np.append(True, blocks[1:] != blocks[:-1])[: len(blocks)]]
