"""Measuring for the gate and for advice: what both do before anybody prints anything.

Belongs here: which runs are made, and what is judged by them. Dagster is imported when something is measured.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from sme2_assets.errors import Sme2Error
from sme2_assets.gate.advice import Candidate, is_gain, moved, ranked
from sme2_assets.gate.baseline import Baseline, ModelFacts
from sme2_assets.gate.changes import changes_of
from sme2_assets.gate.judge import Finding, Tolerances, judge
from sme2_assets.gate.summary import MARK, has_losses, summary
from sme2_assets.gate.take import Taken, taken_of, times_of
from sme2_assets.models.registry import Variant, parse_variant
from sme2_assets.models.rewrites import NOTHING
from sme2_assets.store import Store

if TYPE_CHECKING:
    from sme2_assets.launch import Measured
    from sme2_assets.profiling.requests import ProfileRequest

Log = Callable[[str], None]
# Told how much of the whole is done, from 0 to 1.
Reached = Callable[[float], None]


def _nobody(share: float) -> None:
    """Who is told where nobody asked."""


class Timed(NamedTuple):
    """Where times are wanted."""

    platform: str
    device: str | None
    threads: int


def measure(
    store: Store, wanted: dict[str, list[Timed]], log: Log, reached: Reached = _nobody
) -> dict[str, Taken]:
    """Each variant emulated with SME2 on, and its times where they are wanted. All of it, or an error."""
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
            return launch.profile(lab, instance, [request], settings, log, reached=told).sessions[0]

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


def _part(reached: Reached, number: int, of: int) -> Reached:
    """What one of several equal parts tells."""
    return lambda share: reached((number + share) / of)


@dataclass(frozen=True)
class Checked:
    """What the gate found of each variant, and the facts before and after."""

    found: dict[str, list[Finding]]
    before: dict[str, ModelFacts]
    after: dict[str, ModelFacts]

    @property
    def lost(self) -> bool:
        return any(map(has_losses, self.found.values()))

    @property
    def markdown(self) -> str:
        """With the mark by which a comment of an earlier run is found again."""
        return summary(self.found, self.before, self.after)

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
    """Measures models of the baseline again, all where none is named; `update` records what was gained."""
    baseline = Baseline.read(path)
    before = _chosen(baseline, models, path)
    if baseline.executorch != executorch_version() and not other_version:
        raise Sme2Error(
            f"{path} is of ExecuTorch {baseline.executorch}, this is {executorch_version()}: kernels may "
            "differ for that reason alone.",
            "Install that version; or compare all the same, with --other-version.",
        )
    if update:
        _require_one_version(baseline, before, path)
    # Both states of a device are one session.
    places = {
        name: {Timed(it.platform, it.asked or None, it.threads): None for it in facts.times if times}
        for name, facts in before.items()
    }
    taken = measure(store, {name: list(each) for name, each in places.items()}, log, reached)
    found = {
        name: judge(before[name], it.facts, tolerances or Tolerances(), it.because)
        for name, it in taken.items()
    }
    after = {name: it.facts for name, it in taken.items()}
    done = Checked(found, before, after)
    if update and not done.lost:
        if not times:
            after = {name: it.model_copy(update={"times": before[name].times}) for name, it in after.items()}
        _write(path, {**baseline.models, **after})
        log(f"Recorded in {path}.")
    return done


def record(
    store: Store, path: Path, wanted: dict[str, list[Timed]], log: Log, reached: Reached = _nobody
) -> dict[str, ModelFacts]:
    """Measures variants and writes them into the baseline; what is not named stays as it is."""
    kept = {}
    if path.exists():
        old = Baseline.read(path)
        _require_one_version(old, wanted, path)
        kept = {name: it for name, it in old.models.items() if name not in wanted}
    facts = {variant: each.facts for variant, each in measure(store, wanted, log, reached).items()}
    _write(path, {**kept, **facts})
    return facts


@dataclass(frozen=True)
class Advised:
    """The model as it is, and every change that was tried, the best first."""

    variant: Variant
    base: ModelFacts
    tried: list[Candidate]

    def as_json(self) -> dict[str, Any]:
        return {
            "as it is": self.base.as_json(),
            "tried": [
                {
                    "change": each.name,
                    "what": each.what,
                    "code": each.code,
                    "gain": each.gain(self.base),
                    "is_gain": is_gain(self.base, each),
                    "onto_the_unit": moved(self.base, each),
                    "problem": each.problem,
                    "facts": each.facts and each.facts.as_json(),
                }
                for each in self.tried
            ],
        }


def advise(
    store: Store,
    model: str,
    log: Log,
    *,
    reached: Reached = _nobody,
    rewrites: bool = True,
    precisions: bool = True,
    places: Collection[Timed] = (),
) -> Advised:
    """Makes every change that is worth a try, and measures it beside the model as it is."""
    variant = parse_variant(model)
    changes = changes_of(variant, rewrites=rewrites, precisions=precisions)
    if not changes:
        raise Sme2Error(
            f"There is nothing to try with {variant.key}.",
            "A finished program is what it is: give the model that it was exported from. Otherwise leave "
            "--no-rewrites and --no-precisions out.",
        )
    steps = 1 + len(changes)
    base = measure(store, {variant.key: list(places)}, log, _part(reached, 0, steps))[variant.key].facts
    tried, problems = [], {}
    for number, (name, what, code, key) in enumerate(changes, start=1):
        log(f"trying {name}: {what}")
        try:
            told = _part(reached, number, steps)
            facts, problem = measure(store, {key: list(places)}, log, told)[key].facts, None
        except Sme2Error as error:
            facts, problem = None, error.what.splitlines()[0]
            if NOTHING in problem:
                problem = "the model has none"
            problems[key] = problem
        tried.append(Candidate(name, what, code, facts, problem))
    _keep(store, variant, problems, log)
    return Advised(variant, base, ranked(base, tried))


def _keep(store: Store, variant: Variant, problems: dict[str, str], log: Log) -> None:
    """As the asset `advice`, which takes what was measured: the table, and a section of the reports."""
    from sme2_assets import launch
    from sme2_assets.defs.jobs import advise_job
    from sme2_assets.defs.resources import Lab

    with launch.open_instance(store) as instance:
        jobs = launch.Jobs(Lab(data_root=str(store.root)), instance, log)
        jobs.run(advise_job.name, [variant.key], {"advice": {"config": {"problems": problems}}})


def _chosen(baseline: Baseline, models: Collection[str], path: Path) -> dict[str, ModelFacts]:
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
    if staying and baseline.executorch != executorch_version():
        raise Sme2Error(
            f"{path} is of ExecuTorch {baseline.executorch}, this is {executorch_version()}: one file is of "
            "one version.",
            f"Record all of it again: `sme2 gate record {' '.join(sorted({*staying, *measured}))}`.",
        )


def executorch_version() -> str:
    return version("executorch")


def _write(path: Path, models: dict[str, ModelFacts]) -> None:
    Baseline(executorch=executorch_version(), models=dict(sorted(models.items()))).write(path)
