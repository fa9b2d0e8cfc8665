"""`sme2 gate`: a file that says what a model had, and a check that a change lost none of it.

Belongs here: options, and how results are printed. Heavy imports happen inside the commands.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from sme2_assets.cli.support import (
    AtLeast,
    json_option,
    print_json,
    progress_log,
    say,
    tell,
    variants_of,
    verbose_option,
)
from sme2_assets.store import Store
from sme2_assets.targets.keys import PLATFORMS

baseline_option = click.option(
    "--baseline",
    "path",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("sme2_gate.json"),
    show_default=True,
    help="The baseline; keep it in your repository.",
)

# Emulated times mean nothing.
times_option = click.option(
    "--times",
    "platform",
    type=click.Choice([name for name in PLATFORMS if name != "emulated"]),
    help="Also measure times on this platform.",
)


def _tolerance(name: str, default: float, what: str) -> Callable[[Any], Any]:
    return click.option(
        name, type=AtLeast(0), default=default, show_default=True, help=f"{what}, as a fraction."
    )


@click.group()
def gate() -> None:
    """Find out whether a change to a model lost anything on the SME unit.

    `record` writes down the facts about a model; `check` measures it again and fails if an operator lost its
    SME2 kernel, left the delegate or executes more, outputs moved, or the program grew. Both emulate SME2, so
    they run on machines without it.
    """


@gate.command()
@click.argument("models", nargs=-1, required=True)
@baseline_option
@times_option
@click.option("--device", help="The device for --times, as in `sme2 profile`.")
@click.option("--threads", type=click.IntRange(1), default=1, show_default=True, help="Threads for --times.")
@verbose_option
@click.pass_obj
def record(
    store: Store, models: tuple[str, ...], path: Path, platform: str | None, device: str | None, threads: int
) -> None:
    """Measure MODELS and write the facts about them to the baseline.

    Models in the file that are not named here stay as they are.
    """
    from sme2_assets.experiments import trials

    if device and not platform:
        raise click.UsageError("--device is for --times: add --times PLATFORM.")
    places = [trials.Timed(platform, device, threads)] if platform else []
    wanted = {variant: places for model in models for variant in variants_of(model)}
    with progress_log() as log:
        recorded = trials.record(store, path, wanted, log, log.reached)
    for variant, each in recorded.facts.items():
        say(
            f"{variant}: {each.units()} matrix operators on the SME unit; MACs: {each.macs_text()}; "
            f"instructions (work, not time): {each.instructions_text()}."
        )
    if recorded.without_times:
        tell(
            f"The times of {', '.join(recorded.without_times)} are no longer in {path}: "
            "record them again with --times.",
            "yellow",
        )
    say(f"Recorded in {path}. Commit it; `sme2 gate check` compares with it.")


@gate.command()
@click.argument("models", nargs=-1)
@baseline_option
@click.option("--times", is_flag=True, help="Also measure recorded times again, on the same platforms.")
@click.option(
    "--summary", "summary_file", type=click.Path(path_type=Path), help="Also write Markdown to this file."
)
@click.option("--update", is_flag=True, help="If nothing was lost, record what was gained.")
@click.option("--other-version", is_flag=True, help="Accept a baseline of another ExecuTorch version.")
@_tolerance("--size", 0.01, "How much the program may grow")
@_tolerance("--macs", 0.01, "How much of all MACs may leave the unit")
@_tolerance("--work", 0.01, "How much more an operator or the model may execute")
@_tolerance("--time", 0.10, "How much slower it may be")
@verbose_option
@json_option
@click.pass_obj
def check(
    store: Store,
    models: tuple[str, ...],
    path: Path,
    times: bool,
    summary_file: Path | None,
    update: bool,
    other_version: bool,
    size: float,
    macs: float,
    work: float,
    time: float,
    as_json: bool,
) -> None:
    """Measure MODELS of the baseline again; the exit code is 1 if any of them lost something.

    Without MODELS, all models of the baseline are measured.
    """
    from sme2_assets.experiments import trials
    from sme2_assets.gate.judge import Tolerances
    from sme2_assets.store import write_text_atomically

    tolerances = Tolerances(size=size, macs=macs, work=work, time=time)
    with progress_log() as log:
        done = trials.check(
            store,
            path,
            models,
            log,
            reached=log.reached,
            times=times,
            update=update,
            other_version=other_version,
            tolerances=tolerances,
        )
    if summary_file is not None:
        write_text_atomically(summary_file, done.markdown)
    if as_json:
        print_json({name: [asdict(finding) for finding in each] for name, each in done.found.items()})
    else:
        say(done.text)
    if done.lost:
        sys.exit(1)
