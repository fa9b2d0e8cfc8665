"""Can the verdicts be trusted? Identical arms, and arms with a known slow-down, measured for real.

`python -m benchmarks.measurement_bench`: natively on this machine. Prints how often identical arms are
called different (aim: at most 5 %), beside what one process per arm would have claimed on the same data,
and how often a slow-down of 2, 3, 5 and 10 % is found, in how many rounds.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from sme2_assets.analysis.statistics import PRACTICAL_RATIO, Speedup, paired_speedup, speedup_verdict
from sme2_assets.evidence.result import RunnerResult
from sme2_assets.models.artifact import ExportedModel
from sme2_assets.models.export import export_variant
from sme2_assets.profiling.arms import aa_arms, same_runner
from sme2_assets.profiling.plan import HARDWARE_PLAN, Plan
from sme2_assets.profiling.session import measure_session
from sme2_assets.runner.build import RunnerBinary, build_runner
from sme2_assets.store import Store, default_data_root
from sme2_assets.targets.host import host_platform
from sme2_assets.targets.local import NativeTarget

VARIANTS = ("toy_cnn-fp32", "toy_cnn-int8", "mobilenet_v3_small-fp32")
PLAN = replace(HARDWARE_PLAN, passes=("latency",), quiet_patience_s=0.0)


@dataclass(frozen=True)
class Session:
    """What one session gave."""

    variant: str
    speedup: Speedup
    verdict: str
    single_process_ratio: float
    seconds: float
    inference_seconds: float


class Bench:
    """The machine, the runner and the models that all sessions use."""

    def __init__(self, data: Path) -> None:
        artifacts = Store(default_data_root()).artifacts
        self.store = Store(data)
        self.target = NativeTarget(host_platform() or "linux")
        self.runner: RunnerBinary = build_runner(artifacts, log=progress)
        self.models: dict[str, ExportedModel] = {
            variant: export_variant(variant, artifacts, log=progress) for variant in VARIANTS
        }

    def session(self, variant: str, slowdown_percent: float, plan: Plan = PLAN) -> Session:
        started = time.monotonic()
        manifests = measure_session(
            self.store,
            self.target,
            self.models[variant],
            same_runner(self.runner),
            aa_arms("off", slowdown_percent),
            plan,
            log=lambda line: None,
        )
        seconds = time.monotonic() - started
        results = [
            [
                RunnerResult.read(self.store.run_dir(manifest.run_id) / process.directory / "result.json")
                for process in manifest.info.processes
            ]
            for manifest in manifests
        ]
        first, second = ([median(result.iteration_ns) for result in arm] for arm in results)
        # Arm b is the slowed one: b / a is above 1 when the slow-down shows.
        speedup = paired_speedup(second, first)
        inference_ns = sum(
            (result.warmup_wall_ns or 0) + (result.timed_wall_ns or 0) for arm in results for result in arm
        )
        return Session(
            variant, speedup, speedup_verdict(speedup)[0], second[0] / first[0], seconds, inference_ns / 1e9
        )


def identical_arms(sessions: Sequence[Session]) -> Table:
    table = Table(
        "identical arms", "sessions", "called different", "one process per arm", "largest deviation"
    )
    for variant in (*VARIANTS, "all"):
        rows = [row for row in sessions if variant in (row.variant, "all")]
        wrong = sum(row.verdict in ("faster", "slower") for row in rows)
        naive = sum(not 1 / PRACTICAL_RATIO <= row.single_process_ratio <= PRACTICAL_RATIO for row in rows)
        largest = max(max(row.speedup.ratio, 1 / row.speedup.ratio) for row in rows)
        table.add_row(
            variant,
            str(len(rows)),
            f"{wrong} ({wrong / len(rows):.1%})",
            f"{naive} ({naive / len(rows):.1%})",
            f"{largest:.3f}x",
        )
    return table


def known_slowdowns(sessions: dict[float, list[Session]]) -> Table:
    table = Table("slow-down put in", "sessions", "found", "median estimate", "median rounds")
    for percent, rows in sessions.items():
        found = sum(row.verdict == "faster" for row in rows)
        table.add_row(
            f"{percent:g} %",
            str(len(rows)),
            f"{found} ({found / len(rows):.0%})",
            f"{median(row.speedup.ratio for row in rows):.3f}x",
            f"{median(row.speedup.n for row in rows):.0f}",
        )
    return table


def cost(sessions: Sequence[Session]) -> str:
    spent = sum(row.seconds for row in sessions)
    used = sum(row.inference_seconds for row in sessions)
    return f"cost: {spent:.0f} s of sessions for {used:.0f} s of inferences ({spent / used:.1f}x)"


def progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--aa", type=int, default=34, help="A/A sessions per model (default 34)")
    parser.add_argument("--power", type=int, default=5, help="sessions per model and slow-down (default 5)")
    options = parser.parse_args()
    out = Console(width=110)
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder))
        identical: list[Session] = []
        for index in range(options.aa):
            identical += [bench.session(variant, 0.0) for variant in VARIANTS]
            progress(f"A/A: {index + 1} of {options.aa} sessions per model")
        slowed: dict[float, list[Session]] = {}
        for percent in (2.0, 3.0, 5.0, 10.0):
            slowed[percent] = [
                bench.session(variant, percent) for _ in range(options.power) for variant in VARIANTS
            ]
            progress(f"slow-down of {percent:g} %: done")
    out.print(identical_arms(identical))
    out.print(known_slowdowns(slowed))
    out.print(cost([*identical, *(row for rows in slowed.values() for row in rows)]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
