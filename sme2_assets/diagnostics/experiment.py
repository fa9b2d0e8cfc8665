"""Whether everything an experiment needs is there, before any work is done.

Belongs here: looking at models, platforms, devices, tools and disk, each with a remedy. Does not: building,
exporting or measuring anything.
"""

from __future__ import annotations

import os

from sme2_assets.defs.resources import Lab
from sme2_assets.diagnostics.doctor import check_build_tools, check_disk, existing
from sme2_assets.diagnostics.steps import FAILED, Checkup, detail_of
from sme2_assets.errors import Sme2Error
from sme2_assets.experiments.load import Loaded
from sme2_assets.experiments.plan import Planned
from sme2_assets.profiling.requests import require_room
from sme2_assets.written.problems import place_text


def check_experiment(loaded: Loaded, plan: Planned, lab: Lab) -> Checkup:
    """Everything that must hold before the first session, in the order people should see it."""
    made = Checkup(str(loaded.path), "experiment file")
    with made.step("file") as step:
        kind = "a configuration of the public kit" if loaded.from_kit else "an experiment file"
        step.detail = f"{loaded.path.name} is {kind} without unknown keys or values"
    for problem in plan.problems:
        line = f" (line {problem.line})" if problem.line is not None else ""
        with made.step(f"{place_text(problem.place)}{line}"):
            raise Sme2Error(problem.what, problem.remedy)
    for chosen in plan.chosen.values():
        with made.step(f"{'model' if chosen.spec.pte is None else 'program'} {chosen.key}") as step:
            ready = lab.store.current("model", chosen.key) is not None
            step.detail = f"{chosen.spec.place}; {'exported before' if ready else 'to be exported'}"
    _check_targets(made, loaded, plan, lab)
    check_build_tools(made)
    check_disk(made, lab.store)
    if (folder := loaded.output_folder) is not None:
        with made.step("output") as step:
            above = existing(folder)
            if not above.is_dir() or not os.access(above, os.W_OK):
                raise Sme2Error(f"{above} cannot be written to", "Choose another output folder.")
            step.detail = str(folder)
    return made


def require(made: Checkup, name: str) -> None:
    """An error with everything that failed, if anything did."""
    if made.failed:
        listed = "\n".join(
            f"  - {step.name}: {step.problem}{f' {step.remedy}' if step.remedy else ''}"
            for step in made.failed
        )
        raise Sme2Error(
            f"{name} cannot be run here; nothing was measured.\n{listed}",
            "Fix these, then `sme2 config check` the file again.",
        )


def _check_targets(made: Checkup, loaded: Loaded, plan: Planned, lab: Lab) -> None:
    asked = dict.fromkeys(
        (session.platform, session.device, sme2) for session in plan.sessions for sme2 in session.states
    )
    unable = set()
    for platform, device, sme2 in asked:
        with made.step(f"{platform}{f' {device}' if device else ''}, SME2 {sme2}") as step:
            target = lab.target(platform, device)
            try:
                step.detail = detail_of(target.availability(sme2))
            except Sme2Error as error:
                other = _other_way(loaded.from_kit, platform, sme2, target.fidelity)
                raise Sme2Error(error.what, f"{error.remedy or ''} {other}".strip()) from error
        if step.status == FAILED:
            unable.add((platform, device))
    for platform, device, cpus in dict.fromkeys(
        (session.platform, session.device, session.wishes.get("cpus")) for session in plan.sessions
    ):
        if cpus is not None:
            with made.step(f"{platform}, CPUs {cpus}") as step:
                step.detail = ", ".join(map(str, lab.target(platform, device).cpus(cpus)))
    for platform, device, cpus, threads in dict.fromkeys(
        (it.platform, it.device, it.wishes.get("cpus", ""), it.threads) for it in plan.sessions
    ):
        if threads > 1 and (platform, device) not in unable:
            with made.step(f"{platform}, {threads} threads"):
                require_room(lab.target(platform, device), threads, cpus)


def _other_way(from_kit: bool, platform: str, sme2: str, fidelity: str) -> str:
    """What someone without such a target can do."""
    if from_kit:
        others = [f"--platform {name}" for name in ("linux", "emulated") if name != platform]
        return f"Or measure elsewhere: {' or '.join(others)}."
    if sme2 == "on":
        return f"Or write `sme2: off` for a {'reference' if fidelity == 'reference' else 'baseline'}."
    return ""
