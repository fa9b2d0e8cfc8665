"""Can the verdicts be trusted? Identical arms, and arms with a hidden slow-down, measured for real.

`python -m benchmarks.measurement_bench`: natively on this machine. Blind trials in random order: what judges
a session is not told whether its second arm was slowed down, nor by how much. Prints how often identical arms
are called different (aim: at most 5 %), beside what one process per arm would have claimed on the same data,
and how often a slow-down of 2, 3, 5 and 10 % is found, in how many rounds. The trials are kept in the data
folder, and reports of this device tell their rates.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Iterable
from dataclasses import replace

import pandas as pd
from rich.console import Console
from rich.table import Table

from sme2_assets.analysis.statistics import PRACTICAL_RATIO
from sme2_assets.models.export import export_variant
from sme2_assets.profiling.arms import same_runner
from sme2_assets.profiling.blind import DOSES_PERCENT, blind_trial
from sme2_assets.profiling.plan import HARDWARE_PLAN
from sme2_assets.runner.build import build_runner
from sme2_assets.store import Store, default_data_root
from sme2_assets.targets.host import host_platform
from sme2_assets.targets.local import NativeTarget
from sme2_assets.warehouse import Warehouse
from sme2_assets.warehouse.blind import write_blind_trials

VARIANTS = ("toy_cnn-fp32", "toy_cnn-int8", "mobilenet_v3_small-fp32")
PLAN = replace(HARDWARE_PLAN, passes=("latency",), quiet_patience_s=0.0)


def identical_arms(trials: pd.DataFrame) -> Table:
    table = Table(
        "identical arms", "sessions", "called different", "one process per arm", "largest deviation"
    )
    for variant in (*VARIANTS, "all"):
        rows = trials[trials["variant"].isin(VARIANTS if variant == "all" else [variant])]
        table.add_row(
            variant,
            str(len(rows)),
            _share(rows["verdict"].isin(["faster", "slower"])),
            _share(~rows["single_process_ratio"].between(1 / PRACTICAL_RATIO, PRACTICAL_RATIO)),
            f"{rows['ratio'].where(rows['ratio'] > 1, 1 / rows['ratio']).max():.3f}x",
        )
    return table


def hidden_slowdowns(trials: pd.DataFrame) -> Table:
    table = Table("slow-down put in", "sessions", "found", "median estimate", "median rounds")
    for percent, rows in trials.groupby("dose_percent"):
        table.add_row(
            f"{percent:g} %",
            str(len(rows)),
            _share(rows["verdict"] == "slower"),
            f"{rows['ratio'].median():.3f}x",
            f"{rows['n'].median():.0f}",
        )
    return table


def cost(trials: pd.DataFrame) -> str:
    spent, used = trials["seconds"].sum(), trials["inference_seconds"].sum()
    return f"cost: {spent:.0f} s of sessions for {used:.0f} s of inferences ({spent / used:.1f}x)"


def _share(true: Iterable[bool]) -> str:
    values = list(true)
    return f"{sum(values)} ({sum(values) / max(1, len(values)):.1%})"


def progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--aa", type=int, default=34, help="A/A sessions per model (default 34)")
    parser.add_argument("--power", type=int, default=5, help="sessions per model and slow-down (default 5)")
    options = parser.parse_args()
    out = Console(width=110)
    store = Store(default_data_root())
    target = NativeTarget(host_platform() or "linux")
    runners = same_runner(build_runner(store.artifacts, log=progress))
    models = {variant: export_variant(variant, store.artifacts, log=progress) for variant in VARIANTS}
    doses = [0.0] * options.aa + [dose for dose in DOSES_PERCENT for _ in range(options.power)]
    schedule = [(variant, dose) for variant in VARIANTS for dose in doses]
    random.SystemRandom().shuffle(schedule)
    made = set()
    for number, (variant, dose) in enumerate(schedule, start=1):
        made.add(
            blind_trial(store, target, models[variant], runners, dose, PLAN, lambda line: None).session_id
        )
        progress(f"blind trial {number} of {len(schedule)}")
    warehouse = Warehouse(store.warehouse)
    for what, error in write_blind_trials(store, warehouse).items():
        progress(f"{what}: {error}")
    warehouse.publish()
    trials = warehouse.query("SELECT * FROM blind_trials")
    trials = trials[trials["session_id"].isin(made)]
    if options.aa:
        out.print(identical_arms(trials[trials["dose_percent"] == 0]))
    if options.power:
        out.print(hidden_slowdowns(trials[trials["dose_percent"] > 0]))
    out.print(cost(trials))
    return 0


if __name__ == "__main__":
    sys.exit(main())
