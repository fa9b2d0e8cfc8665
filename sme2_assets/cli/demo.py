"""`sme2 demo`: from nothing to a finding, in one command.

Belongs here: what the demo does, in what order, and how its result is printed. Heavy imports happen inside
the command.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import click
from rich.text import Text as Styled

from sme2_assets.cli.support import (
    ProgressLog,
    json_option,
    out,
    print_json,
    progress_log,
    say,
    tell,
    variants_of,
    verbose_option,
)
from sme2_assets.errors import Sme2Error
from sme2_assets.store import Store

if TYPE_CHECKING:
    from sme2_assets.report.unit_use import UnitUse
    from sme2_assets.warehouse import Warehouse


@click.command()
@click.argument("model", default="toy_cnn")
@verbose_option
@json_option
@click.pass_obj
def demo(store: Store, model: str, as_json: bool) -> None:
    """Profile MODEL at all its precisions, and show what runs on the SME unit.

    Fetches the emulator if it is missing, measures on every platform here that says something about SME2,
    and prints one table, its main finding, and the report to read next. The exit code is 1 if something that
    should work was left out.
    """
    # Before Dagster is loaded, so that a mistyped name is reported at once.
    variants = variants_of(model)
    with progress_log() as log:
        run_ids, left_out = _measured(store, variants, log)
    result = _Result.of(store, run_ids, left_out)
    if as_json:
        print_json(result.as_json())
    else:
        result.show()
    for cause in left_out:
        tell(cause, "bold red")
    if left_out:
        sys.exit(1)


def _measured(store: Store, variants: list[str], log: ProgressLog) -> tuple[list[str], list[str]]:
    """The runs that were measured, and what was left out that should work."""
    from sme2_assets import launch
    from sme2_assets.defs.resources import Lab
    from sme2_assets.profiling.requests import requests_for_this_machine
    from sme2_assets.targets import SME2_STATES
    from sme2_assets.targets.local import EmulatedTarget

    lab = Lab(data_root=str(store.root))
    try:
        EmulatedTarget(store.tools).provision(log)
    except Sme2Error as error:
        # It is then listed as left out, and everything else is measured.
        log(f"emulated: {error}")
    wanted = requests_for_this_machine(store, variants, SME2_STATES)
    for note in wanted.notes:
        tell(f"note: {note}", "yellow")
    with launch.open_instance(store) as instance:
        done = launch.profile(lab, instance, wanted.requests, {}, log, reached=log.reached)
    return done.run_ids, [str(each) for each in (*wanted.left_out, *done.left_out)]


@dataclass(frozen=True)
class _Baseline:
    """The latency of a run with SME2 off only, with nothing to compare it with."""

    run_id: str
    variant: str
    device: str
    median_ms: float
    p05_ms: float
    p95_ms: float
    rounds: int


@dataclass(frozen=True)
class _Result:
    """What the demo shows."""

    used: list[UnitUse]
    speedups: dict[str, str]
    baselines: list[_Baseline]
    finding: str | None
    report: str | None
    left_out: list[str]

    @classmethod
    def of(cls, store: Store, run_ids: Sequence[str], left_out: list[str]) -> _Result:
        from sme2_assets.report.files import PAGE_NAME, report_folder
        from sme2_assets.report.unit_use import finding, most_telling, unit_use
        from sme2_assets.warehouse import Warehouse
        from sme2_assets.warehouse.read import run_of_id

        warehouse = Warehouse(store.warehouse)
        used = unit_use(warehouse, run_ids)
        telling = most_telling(used)
        page = report_folder(store, run_of_id(warehouse, telling.run_id)) / PAGE_NAME if telling else None
        return cls(
            used,
            _speedups(warehouse, run_ids),
            _baselines(warehouse, run_ids),
            finding(used),
            page.as_uri() if page is not None and page.is_file() else None,
            left_out,
        )

    def as_json(self) -> dict[str, Any]:
        return {
            "runs": [{**use.as_json(), "speedup": self.speedups.get(use.run_id)} for use in self.used],
            "baselines": [asdict(baseline) for baseline in self.baselines],
            "finding": self.finding,
            "report": self.report,
            "left_out": self.left_out,
        }

    def show(self) -> None:
        from sme2_assets.report.claims import EMULATED
        from sme2_assets.report.terminal import print_table
        from sme2_assets.report.unit_use import unit_table

        if self.finding:
            out.print(Styled(f"Finding: {self.finding}", "bold"))
            out.print()
        if self.used:
            print_table(out, unit_table(self.used, self.speedups))
        if emulated := next((use for use in self.used if use.fidelity == "emulated"), None):
            say(EMULATED.say(run_id=emulated.run_id))
        for device in dict.fromkeys(baseline.device for baseline in self.baselines):
            latencies = ", ".join(
                f"{it.variant} {it.median_ms:.3f} ms ({it.p05_ms:.3f} to {it.p95_ms:.3f}, n = {it.rounds})"
                for it in self.baselines
                if it.device == device
            )
            out.print(Styled(f"SME2 off on {device}, with nothing to compare it with: {latencies}."))
        if self.report:
            say(f"report: {self.report}")


def _speedups(warehouse: Warehouse, run_ids: Sequence[str]) -> dict[str, str]:
    """The speedups of pairs on hardware as text, by the run with SME2 on."""
    from sme2_assets.report.tables import speedup_text

    rows = warehouse.query(
        "SELECT * FROM comparisons "
        "WHERE level = 'model' AND fidelity = 'hardware' AND list_contains(?, b_run_id)",
        [list(run_ids)],
    )
    return {row["b_run_id"]: speedup_text(row) for row in rows.to_dict("records")}


def _baselines(warehouse: Warehouse, run_ids: Sequence[str]) -> list[_Baseline]:
    from sme2_assets.analysis.insights.insight import device_text

    rows = warehouse.query(
        "SELECT run_id, runs.variant, runs.device, runs.arch, cpu, median_ns, p05_ns, p95_ns, "
        "latency_summary.rounds AS rounds FROM latency_summary JOIN runs USING (run_id) "
        "WHERE runs.fidelity = 'hardware' AND NOT runs.paired AND list_contains($run_ids, run_id) "
        "ORDER BY list_position($run_ids, run_id)",
        {"run_ids": list(run_ids)},
    )
    return [
        _Baseline(
            run_id=row["run_id"],
            variant=row["variant"],
            device=device_text(row),
            median_ms=row["median_ns"] / 1e6,
            p05_ms=row["p05_ns"] / 1e6,
            p95_ms=row["p95_ns"] / 1e6,
            rounds=int(row["rounds"]),
        )
        for row in rows.to_dict("records")
    ]
