"""`work.json`: which blocks of instructions the work pass executed, how often, and between which borders."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import model_validator

from sme2_assets.evidence.documents import Count, Document, Part
from sme2_assets.evidence.samples import Function, Word

WORK_FILE = "work.json"


class Blocks(Part):
    """Of equal length, one entry per block: the function it is in, and its instructions."""

    function: list[Count]
    words: list[list[Word]]


class Borders(Part):
    """Of equal length, one entry per border, in the order in which they were passed.

    An event of the tracer begins or ends; a delegate has read the clock, and goes on at `address`; the
    measured inferences are over.
    """

    kind: list[Literal["begin", "end", "clock", "stop"]]
    address: list[Count]


class Executions(Part):
    """Of equal length: how often a thread executed a block in a stretch. Stretch i ends with border i."""

    stretch: list[Count]
    block: list[Count]
    thread: list[Count]
    times: list[Count]


class WorkFile(Document):
    VERSION: ClassVar[int] = 1
    REMEDY: ClassVar[str] = "Measure again; if it happens again, report it as a defect."

    functions: tuple[Function, ...]
    blocks: Blocks
    borders: Borders
    executions: Executions

    @model_validator(mode="after")
    def _adds_up(self) -> Self:
        blocks, borders, executions = self.blocks, self.borders, self.executions
        for part in (blocks, borders, executions):
            if len({len(column) for _, column in part}) != 1:
                raise ValueError("columns are not of one length")
        for numbers, things in (
            (blocks.function, self.functions),
            (executions.stretch, borders.kind),
            (executions.block, blocks.words),
        ):
            if max(numbers, default=-1) >= len(things):
                raise ValueError("something is referred to that is not there")
        if borders.kind.count("stop") != 1 or borders.kind[-1] != "stop":
            raise ValueError("it ends before the measured inferences do")
        return self
