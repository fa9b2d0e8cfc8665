"""`samples.json`: where every thread was while the kernels pass ran, a few thousand times a second."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Self

import numpy as np
import numpy.typing as npt
from pydantic import Field, StrictStr, model_validator

from sme2_assets.evidence.documents import Count, Document, Flag, Part

SAMPLES_FILE = "samples.json"
NO_WORD = -1

Int64s = npt.NDArray[np.int64]
Word = Annotated[Count, Field(lt=1 << 32)]


class SampledThread(Part):
    tid: Count
    name: StrictStr
    main: Flag


class Function(Part):
    """A function that a program counter was in."""

    library: StrictStr | None
    """File name of the library; None where no library is mapped at the address."""
    offset: Count
    """Where the function starts in its library."""
    symbol: StrictStr | None
    """None where the library does not export it."""


class SamplerClock(Part):
    trace_ns: Count
    monotonic_ns: Count
    lag_ns: Count


class SampleColumns(Part):
    """Of equal length, one entry per sample."""

    time_ns: list[Count]
    thread: list[Count]
    function: list[Count]
    address: list[Count]
    word: list[Word | None]


class SamplerDocument(Document):
    """What the runner's recording and the samples file made from it have in common."""

    VERSION: ClassVar[int] = 1
    REMEDY: ClassVar[str] = (
        "Run the kernels pass again; if it persists, the runner and this package do not match."
    )

    arch: StrictStr
    period_ns: Count
    dropped: Count
    missed: Count
    clock: SamplerClock
    threads: tuple[SampledThread, ...]


class SamplesFile(SamplerDocument):
    functions: tuple[Function, ...]
    samples: SampleColumns

    @model_validator(mode="after")
    def _columns_fit(self) -> Self:
        columns = self.samples
        count = len(columns.time_ns)
        for name in ("thread", "function", "address", "word"):
            if (found := len(getattr(columns, name))) != count:
                raise ValueError(f"{name} has {found} values for {count} samples")
        for name, named in (("thread", self.threads), ("function", self.functions)):
            if max(getattr(columns, name), default=-1) >= len(named):
                raise ValueError(f"{name} has a value out of range")
        return self


@dataclass(frozen=True)
class Samples:
    """What the sampler of one process wrote: equal-length columns, one row per sample."""

    arch: str
    period_ns: int
    dropped: int
    """Samples lost because the buffer was full."""
    missed: int
    """Timer ticks that came while the previous one was still pending."""
    lag_ns: int
    """About how much later than its program counter a sample's time was read."""
    threads: tuple[SampledThread, ...]
    functions: tuple[Function, ...]
    time_ns: Int64s
    """In the clock of the trace."""
    thread: Int64s
    """Index in `threads`."""
    function: Int64s
    """Index in `functions`."""
    address: Int64s
    """Offset of the program counter in the function's library."""
    word: Int64s
    """The instruction there; NO_WORD where it could not be read."""

    def __len__(self) -> int:
        return len(self.time_ns)

    @classmethod
    def read(cls, path: Path) -> Samples:
        """The samples of a file that the runner wrote."""
        file = SamplesFile.read(path)
        clock, columns = file.clock, file.samples
        words = [NO_WORD if word is None else word for word in columns.word]
        return cls(
            arch=file.arch,
            period_ns=file.period_ns,
            dropped=file.dropped,
            missed=file.missed,
            lag_ns=clock.lag_ns,
            threads=file.threads,
            functions=file.functions,
            time_ns=np.array(columns.time_ns, dtype=np.int64) + (clock.trace_ns - clock.monotonic_ns),
            thread=np.array(columns.thread, dtype=np.int64),
            function=np.array(columns.function, dtype=np.int64),
            address=np.array(columns.address, dtype=np.int64),
            word=np.array(words, dtype=np.int64),
        )
