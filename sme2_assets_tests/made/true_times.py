"""Run folders of operators whose true times are known to the nanosecond.

The trace has what XNNPACK would report of them: whole microseconds, in a call whose time is exact.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from sme2_assets_tests.made.run_folder import MadeRun
from sme2_assets_tests.made.traces import Delegate, Portable


@dataclass(frozen=True)
class TrueOperator:
    """`{}` in the name becomes the data type, which with SME2 on is the packed one."""

    name: str
    off_ns: float
    on_ns: float


@dataclass(frozen=True)
class TrueRun(MadeRun):
    """One arm of a session with one delegate; every inference takes its operators' true times, give or take
    `jitter`, and `overhead_ns`. `pace` is what the rounds take beyond that, for each a factor."""

    operators: Sequence[TrueOperator] = ()
    jitter: float = 0.0
    overhead_ns: int = 2_345
    pace: Sequence[float] = field(default=())

    def _write_process(self, directory: Path, pass_kind: str, noise: random.Random, iterations: int) -> None:
        pace = [*self.pace, *[1.0] * self.rounds][int(directory.parent.name.partition("_")[2])]
        super(TrueRun, replace(self, slowness=self.slowness * pace))._write_process(
            directory, pass_kind, noise, iterations
        )

    def _calls(self, noise: random.Random) -> list[Delegate | Portable]:
        reported, total_ns = [], float(self.overhead_ns)
        for number, operator in enumerate(self.operators):
            true_ns = operator.on_ns if self.sme2 == "on" else operator.off_ns
            true_ns *= self.slowness * noise.uniform(1 - self.jitter, 1 + self.jitter)
            name = operator.name.format("PF32" if self.sme2 == "on" else "F32")
            reported.append((f"{name} #{number + 1}", 1000 * int(true_ns // 1000)))
            total_ns += true_ns
        return [Delegate(reported, round(total_ns))]
