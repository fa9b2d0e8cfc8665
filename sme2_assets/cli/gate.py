"""`sme2 gate`: a file that says what a model had, and a check whether a change lost any of it.

Belongs here: options, and how results are printed. Heavy imports happen inside the commands.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Collection
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from sme2_assets.cli.support import (
    json_option,
    print_json,
    progress_log,
    say,
    tell,
    variants_of,
    verbose_option,
)
from sme2_assets.errors import Sme2Error
from sme2_assets.store import Store
from sme2_assets.targets.keys import PLATFORMS

if TYPE_CHECKING:
    from sme2_assets.gate.baseline import Baseline, ModelFacts
    from sme2_assets.gate.take import Taken
    from sme2_assets.launch import Measured

baseline_option = click.option(
    "--baseline",
    "path",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("sme2_gate.json"),
    show_default=True,
    help="The baseline; it belongs into your repository.",
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
        name, type=click.FloatRange(0), default=default, show_default=True, help=f"{what}, as a share."
    )


@click.group()
def gate() -> None:
    """Find out whether a change of a model lost anything on the SME unit.

    `record` writes down what is true of a model; `check` measures it again and fails when an operator lost
    its SME2 kernel or left the delegate, outputs moved, or the program grew. Both emulate SME2, so that no
    machine needs it.
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
    """Measure MODELS and write what is true of them into the baseline.

    Models that are in the file and not named here stay as they are.
    """
    from sme2_assets.gate.baseline import Baseline

    if device and not platform:
        raise click.UsageError("--device is for --times: add --times PLATFORM.")
    variants = list(dict.fromkeys(variant for model in models for variant in variants_of(model)))
    kept = {}
    if path.exists():
        old = Baseline.read(path)
        _require_one_version(old, variants, path)
        kept = {name: it for name, it in old.models.items() if name not in variants}
    taken = measure(
        store, {variant: [Timed(platform, device, threads)] if platform else [] for variant in variants}
    )
    facts = {variant: each.facts for variant, each in taken.items()}
    _write(path, {**kept, **facts})
    for variant, each in facts.items():
        say(f"{variant}: {each.units()} matrix operators on the SME unit; MACs: {each.macs_text()}.")
    say(f"Recorded in {path}. Commit it; `sme2 gate check` compares with it.")


@gate.command()
@click.argument("models", nargs=-1)
@baseline_option
@click.option("--times", is_flag=True, help="Also measure the times that were recorded, where they were.")
@click.option("--summary", "summary_file", type=click.Path(path_type=Path), help="Also write Markdown here.")
@click.option("--update", is_flag=True, help="When nothing was lost, record what was gained.")
@click.option("--other-version", is_flag=True, help="Compare with a baseline of another ExecuTorch.")
@_tolerance("--size", 0.01, "How much the program may grow")
@_tolerance("--macs", 0.01, "How much of all MACs may leave the unit")
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
    time: float,
    as_json: bool,
) -> None:
    """Measure MODELS of the baseline again; the exit code is 1 when one of them lost something.

    Without MODELS: all of them.
    """
    from sme2_assets.gate.baseline import Baseline
    from sme2_assets.gate.judge import Tolerances, judge
    from sme2_assets.gate.summary import MARK, has_losses, summary
    from sme2_assets.store import write_text_atomically

    baseline = Baseline.read(path)
    before = _chosen(baseline, models, path)
    if baseline.executorch != _executorch() and not other_version:
        raise Sme2Error(
            f"{path} is of ExecuTorch {baseline.executorch}, this is {_executorch()}: kernels may differ for "
            "that reason alone.",
            "Install that version; or compare all the same, with --other-version.",
        )
    if update:
        _require_one_version(baseline, before, path)
    # Both states of a device are one session.
    places = {
        name: {Timed(it.platform, it.asked or None, it.threads): None for it in facts.times if times}
        for name, facts in before.items()
    }
    taken = measure(store, {name: list(each) for name, each in places.items()})
    tolerances = Tolerances(size=size, macs=macs, time=time)
    found = {name: judge(before[name], it.facts, tolerances, it.because) for name, it in taken.items()}
    after = {name: it.facts for name, it in taken.items()}
    text = summary(found, before, after)
    if summary_file is not None:
        write_text_atomically(summary_file, text)
    if as_json:
        print_json({name: [asdict(finding) for finding in each] for name, each in found.items()})
    else:
        say(text.removeprefix(f"{MARK}\n"))
    if any(map(has_losses, found.values())):
        sys.exit(1)
    if update:
        if not times:
            after = {name: it.model_copy(update={"times": before[name].times}) for name, it in after.items()}
        _write(path, {**baseline.models, **after})
        tell(f"Recorded in {path}.")


class Timed(NamedTuple):
    """Where times are wanted."""

    platform: str
    device: str | None
    threads: int


def measure(store: Store, wanted: dict[str, list[Timed]]) -> dict[str, Taken]:
    """Each variant emulated with SME2 on, and its times where they are wanted. All of it, or an error."""
    from sme2_assets import launch
    from sme2_assets.defs.resources import Lab
    from sme2_assets.gate.take import taken_of, times_of
    from sme2_assets.profiling.requests import ProfileRequest, requests_for, requests_for_this_machine
    from sme2_assets.targets import SME2_STATES

    lab = Lab(data_root=str(store.root))
    taken = {}
    with launch.open_instance(store) as instance, progress_log() as log:
        sessions = sum(len(places) + 1 for places in wanted.values())
        done = itertools.count()

        def run(request: ProfileRequest, settings: dict[str, Any]) -> Measured:
            before = next(done)

            def reached(share: float) -> None:
                log.reached((before + share) / sessions)

            return launch.profile(lab, instance, [request], settings, log, reached=reached).sessions[0]

        for variant, places in wanted.items():
            times = []
            for place in places:
                # Without a device: this machine, in the states that it has.
                given = (
                    requests_for(store, [variant], place.platform, SME2_STATES, place.device)
                    if place.device
                    else requests_for_this_machine(store, [variant], SME2_STATES, [place.platform])
                )
                [request] = given.requests
                session = run(request, {"threads": place.threads})
                times += [times_of(lab.warehouse, run_id, place.device or "") for run_id in session.run_ids]
            session = run(ProfileRequest(variant, "emulated", ("on",)), {})
            taken[variant] = taken_of(store, lab.warehouse, session.run_ids[0], times)
    return taken


def _chosen(baseline: Baseline, models: tuple[str, ...], path: Path) -> dict[str, ModelFacts]:
    """What of the baseline is meant: a variant, or all precisions of a model that are in it."""
    if not models:
        return baseline.models
    chosen = {}
    for model in models:
        found = {name: it for name, it in baseline.models.items() if model in (name, name.rpartition("-")[0])}
        if not found:
            raise Sme2Error(
                f"{path} has nothing of {model!r}; it has {', '.join(baseline.models) or 'no model'}.",
                f"Record it first: `sme2 gate record {model}`.",
            )
        chosen.update(found)
    return chosen


def _require_one_version(baseline: Baseline, measured: Collection[str], path: Path) -> None:
    """What is written is of this version, so nothing of another one may stay beside it."""
    staying = sorted(set(baseline.models).difference(measured))
    if staying and baseline.executorch != _executorch():
        raise Sme2Error(
            f"{path} is of ExecuTorch {baseline.executorch}, this is {_executorch()}: one file is of one "
            "version.",
            f"Record all of it again: `sme2 gate record {' '.join(sorted({*staying, *measured}))}`.",
        )


def _executorch() -> str:
    from importlib.metadata import version

    return version("executorch")


def _write(path: Path, models: dict[str, ModelFacts]) -> None:
    from sme2_assets.gate.baseline import Baseline

    Baseline(executorch=_executorch(), models=dict(sorted(models.items()))).write(path)
