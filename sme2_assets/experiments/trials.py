"""Measuring for the gate and for advice: everything except printing.

Belongs here: which runs are made, and how they are judged. Dagster is imported when something is measured.
"""

from __future__ import annotations

import fcntl
import itertools
import os
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from sme2_assets.errors import Sme2Error
from sme2_assets.gate.advice import Candidate, Change, is_gain
from sme2_assets.gate.baseline import Baseline, ModelFacts
from sme2_assets.gate.changes import MOST_COMBINED, first_changes, try_changes
from sme2_assets.gate.judge import Finding, Tolerances, judge, updated
from sme2_assets.gate.summary import MARK, has_losses, record_command, summary
from sme2_assets.gate.take import Taken, taken_of, times_of
from sme2_assets.models.registry import parse_variant, variants_of
from sme2_assets.models.rewrites import NOTHING
from sme2_assets.models.spec import Variant
from sme2_assets.report.advice import Tried, tried_of
from sme2_assets.store import Store
from sme2_assets.warehouse import Warehouse

if TYPE_CHECKING:
    from sme2_assets.launch import Measured
    from sme2_assets.profiling.arm_requests import ArmsRequest
    from sme2_assets.profiling.requests import ProfileRequest

Log = Callable[[str], None]
# Called with how much of the whole is done, from 0 to 1.
Reached = Callable[[float], None]


def _nobody(share: float) -> None:
    """Ignores progress."""


class Timed(NamedTuple):
    """Where to measure times."""

    platform: str
    device: str | None
    threads: int


def measure(
    store: Store, wanted: dict[str, list[Timed]], log: Log, reached: Reached = _nobody
) -> dict[str, Taken]:
    """Measures each variant emulated with SME2 on, and its times if wanted. All of it, or an error."""
    from sme2_assets import launch
    from sme2_assets.defs.resources import Lab
    from sme2_assets.profiling.requests import ProfileRequest, requests_for, requests_for_this_machine
    from sme2_assets.targets import SME2_STATES

    lab = Lab(data_root=str(store.root))
    taken = {}
    with launch.open_instance(store) as instance:
        sessions = sum(len(places) + 1 for places in wanted.values())
        done = itertools.count()

        def run(request: ProfileRequest, settings: dict[str, Any]) -> Measured:
            told = _part(reached, next(done), sessions)
            return launch.measure_trial(lab, instance, request, settings, log, told)

        for variant, places in wanted.items():
            times = []
            for place in places:
                # Without a device: this machine, in the states it offers.
                given = (
                    requests_for(store, [variant], place.platform, SME2_STATES, place.device)
                    if place.device
                    else requests_for_this_machine(store, [variant], SME2_STATES, [place.platform])
                )
                [request] = given.requests
                session = run(request, {"threads": place.threads})
                times += [times_of(lab.warehouse, run_id, place.device or "") for run_id in session.run_ids]
            session = run(ProfileRequest(variant, "emulated", ("on",)), {})
            it = taken_of(store, session.run_ids[0])
            taken[variant] = it._replace(facts=it.facts.model_copy(update={"times": times}))
    return taken


def _part(reached: Reached, number: int, of: int) -> Reached:
    """The progress of one of several equal parts."""
    return lambda share: reached((number + share) / of)


@dataclass(frozen=True)
class Checked:
    """What the gate found for each variant, and the facts before and after."""

    found: dict[str, list[Finding]]
    before: dict[str, ModelFacts]
    after: dict[str, ModelFacts]
    path: Path

    @property
    def lost(self) -> bool:
        return any(map(has_losses, self.found.values()))

    @property
    def markdown(self) -> str:
        """With the mark that identifies the comment of an earlier run."""
        return summary(self.found, self.before, self.after, self.path)

    @property
    def text(self) -> str:
        return self.markdown.removeprefix(f"{MARK}\n")


def check(
    store: Store,
    path: Path,
    models: Collection[str],
    log: Log,
    *,
    reached: Reached = _nobody,
    times: bool = False,
    update: bool = False,
    other_version: bool = False,
    tolerances: Tolerances | None = None,
) -> Checked:
    """Measures models of the baseline again, all if none is named; `update` records what was gained."""
    baseline = Baseline.read(path)
    before = _chosen(baseline, models, path)
    if baseline.executorch != executorch_version() and not other_version:
        raise Sme2Error(
            f"{path} is from ExecuTorch {baseline.executorch}, this is {executorch_version()}: kernels may "
            "differ for that reason alone.",
            "Install that version, or compare anyway with --other-version.",
        )
    if update:
        _require_one_version(path, before)
    # Both states of a device are one session.
    places = {
        name: {Timed(it.platform, it.asked or None, it.threads): None for it in facts.times if times}
        for name, facts in before.items()
    }
    taken = measure(store, {name: list(each) for name, each in places.items()}, log, reached)
    tolerances = tolerances or Tolerances()
    found = {name: judge(before[name], it.facts, tolerances, it.because) for name, it in taken.items()}
    after = {name: it.facts for name, it in taken.items()}
    done = Checked(found, before, after, path)
    if update and not done.lost:
        _write(path, {name: updated(before[name], it, tolerances) for name, it in after.items()})
        log(f"Recorded in {path}.")
    return done


class Recorded(NamedTuple):
    """What is in the baseline now, and the variants that had times in it before and have none now."""

    facts: dict[str, ModelFacts]
    without_times: list[str]


def record(
    store: Store, path: Path, wanted: dict[str, list[Timed]], log: Log, reached: Reached = _nobody
) -> Recorded:
    """Measures variants and writes them to the baseline; the others in it stay as they are."""
    old = Baseline.read(path).models if path.exists() else {}
    _require_one_version(path, wanted)
    facts = {variant: each.facts for variant, each in measure(store, wanted, log, reached).items()}
    _write(path, facts)
    timed = {variant for variant in facts if variant in old and old[variant].times}
    return Recorded(facts, sorted(variant for variant in timed if not facts[variant].times))


def advise(
    store: Store,
    model: str,
    log: Log,
    *,
    reached: Reached = _nobody,
    rewrites: bool = True,
    precisions: bool = True,
    times: bool = True,
    device: str | None = None,
) -> Tried:
    """Makes every change that is worth trying, and measures it and the unchanged model.

    Times are taken of changes that gain: on the device, or on this machine if its times say something.
    """
    variant = parse_variant(model)
    first = first_changes(variant, rewrites=rewrites, precisions=precisions)
    if not first:
        raise Sme2Error(
            f"There is nothing to try with {variant.key}.",
            "A finished program cannot be changed: give the model that it was exported from. Otherwise leave "
            "out --no-rewrites and --no-precisions.",
        )
    if times and device is not None:
        # Before the changes are measured, which takes minutes.
        _places(store, [variant.key], device)
    # How many follow is not known yet; if there are more, the last part is repeated.
    steps = 1 + len(first) + MOST_COMBINED
    number = itertools.count()
    problems: dict[str, str] = {}

    def facts_of(key: str) -> ModelFacts:
        told = _part(reached, min(next(number), steps - 1), steps)
        return measure(store, {key: []}, log, told)[key].facts

    def attempt(change: Change) -> Candidate:
        log(f"trying {change.name}: {change.what}")
        try:
            return Candidate(change, facts_of(change.key))
        except Sme2Error as error:
            said = error.what.splitlines()[0]
            problems[change.key] = "the model has none" if NOTHING in said else said
            return Candidate(change, None, problems[change.key])

    base = facts_of(variant.key)
    tried = try_changes(variant, base, first, attempt)
    _keep(store, variant, [each.change.key for each in tried], problems, log)
    gaining = [each.change.key for each in tried if is_gain(base, each)]
    if times and gaining:
        time_changes(store, [variant.key, *gaining], device, log)
    return tried_of(Warehouse(store.warehouse), variant.key)


def time_changes(store: Store, variants: Sequence[str], device: str | None, log: Log) -> None:
    """All of them in one session, against the first. Only where times say something about SME2."""
    from sme2_assets import launch
    from sme2_assets.defs.resources import Lab

    lab = Lab(data_root=str(store.root))
    try:
        places = _places(store, variants, device)
        with launch.open_instance(store) as instance:
            for place in places:
                if lab.target(place.platform, device).fidelity == "hardware":
                    launch.compare_arms(lab, instance, place, {}, log)
    except Sme2Error as error:
        log(f"no times: {error.what}")


def _places(store: Store, variants: Sequence[str], device: str | None) -> list[ArmsRequest]:
    from sme2_assets.profiling.arm_requests import ArmRequest, places_of
    from sme2_assets.targets.inventory import platform_of

    platform = platform_of(store, device) if device else None
    return places_of(store, [ArmRequest(it) for it in variants], "change", platform, device)[0]


def _keep(store: Store, variant: Variant, tried: list[str], problems: dict[str, str], log: Log) -> None:
    """As the asset `advice`, made from what was measured: the table, and a section of the reports."""
    from sme2_assets import launch
    from sme2_assets.defs.jobs import advise_job
    from sme2_assets.defs.resources import Lab

    lab = Lab(data_root=str(store.root))
    with launch.open_instance(store) as instance:
        launch.ensure_partition(lab, instance, variant.key, log)
        jobs = launch.Jobs(lab, instance, log)
        config = {"variants": tried, "problems": problems}
        jobs.run(advise_job.name, [variant.key], {"advice": {"config": config}})


def _chosen(baseline: Baseline, models: Collection[str], path: Path) -> dict[str, ModelFacts]:
    """The part of the baseline that is meant: a variant, or all precisions of a model that are in it."""
    if not baseline.models:
        raise Sme2Error(f"{path} has no model in it.", "Record one first: `sme2 gate record MODEL`.")
    if not models:
        return baseline.models
    chosen = {}
    for model in models:
        found = {name: baseline.models[name] for name in _meant(baseline, model)}
        if not found:
            raise Sme2Error(
                f"{path} does not contain {model!r}; it has {', '.join(baseline.models)}.",
                f"Record it first: `{record_command(path, [model])}`.",
            )
        chosen.update(found)
    return chosen


def _meant(baseline: Baseline, model: str) -> list[str]:
    """The names in the baseline that `record` gave this model."""
    if named := [name for name in baseline.models if model in (name, name.rpartition("-")[0])]:
        return named
    with suppress(Sme2Error):
        return [name for name in variants_of(model) if name in baseline.models]
    return []


def _require_one_version(path: Path, measured: Collection[str]) -> None:
    """What is written is from this version, so nothing from another may stay in the file."""
    baseline = Baseline.read(path) if path.exists() else None
    staying = sorted(set(baseline.models).difference(measured)) if baseline else []
    if baseline and staying and baseline.executorch != executorch_version():
        raise Sme2Error(
            f"{path} is from ExecuTorch {baseline.executorch}, this is {executorch_version()}: one file "
            "is for one version.",
            f"Record all of it again: `{record_command(path, sorted({*staying, *measured}))}`.",
        )


def executorch_version() -> str:
    return version("executorch")


def _write(path: Path, measured: dict[str, ModelFacts]) -> None:
    """Puts what was measured in the place of what the baseline says of it now.

    Others may have written to it while this was measured, so it is read again, and no one else writes then.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # A lock on the folder leaves no file in a user's repository.
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        _require_one_version(path, measured)
        kept = Baseline.read(path).models if path.exists() else {}
        models = dict(sorted({**kept, **measured}.items()))
        Baseline(executorch=executorch_version(), models=models).write(path)
    finally:
        os.close(folder)
