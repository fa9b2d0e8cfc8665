"""Whether everything an experiment needs is there, before any work is done.

Belongs here: looking at models, platforms, devices, tools and disk, each with a remedy. Does not: building,
exporting or measuring anything.
"""

from __future__ import annotations

import functools
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from sme2_assets.defs.resources import Lab
from sme2_assets.doctor import MIN_FREE_GIB
from sme2_assets.errors import Sme2Error
from sme2_assets.experiments.load import Loaded
from sme2_assets.experiments.plan import Planned
from sme2_assets.experiments.problems import place_text
from sme2_assets.runner.build import find_compiler, find_toolchain
from sme2_assets.store import Store


@dataclass(frozen=True)
class Check:
    """One thing that was looked at."""

    name: str
    ok: bool
    detail: str
    remedy: str | None = None


def checks_of(loaded: Loaded, plan: Planned, lab: Lab) -> list[Check]:
    """Everything that must hold before the first session, in the order people should see it."""
    return list(_checks(loaded, plan, lab))


def require(checks: Iterable[Check], name: str) -> None:
    """An error with everything that failed, if anything did."""
    failed = [check for check in checks if not check.ok]
    if failed:
        listed = "\n".join(
            f"  - {check.name}: {check.detail}{f' {check.remedy}' if check.remedy else ''}"
            for check in failed
        )
        raise Sme2Error(
            f"{name} cannot be run here; nothing was measured.\n{listed}",
            "Mend these, then `sme2 config check` the file again.",
        )


def _checks(loaded: Loaded, plan: Planned, lab: Lab) -> Iterator[Check]:
    kind = "a configuration of the public kit" if loaded.from_kit else "an experiment file"
    yield Check("file", True, f"{loaded.path.name} is {kind} without unknown keys or values")
    for problem in plan.problems:
        line = f" (line {problem.line})" if problem.line is not None else ""
        yield Check(f"{place_text(problem.place)}{line}", False, problem.what, problem.remedy)
    for chosen in plan.chosen.values():
        what = "program" if chosen.spec.pte is not None else "model"
        ready = lab.store.current("model", chosen.key) is not None
        state = "exported before" if ready else "to be exported"
        yield Check(f"{what} {chosen.key}", True, f"{chosen.spec.place}; {state}")
    yield from _targets(loaded, plan, lab)
    yield _attempt("C++ compiler", lambda: " ".join(find_compiler()))
    yield _attempt("build tools", _toolchain)
    yield _disk(lab.store)
    if loaded.experiment.output is not None:
        yield _output(output_folder(loaded))


def _targets(loaded: Loaded, plan: Planned, lab: Lab) -> Iterator[Check]:
    asked = dict.fromkeys(
        (session.platform, session.device, sme2) for session in plan.sessions for sme2 in session.states
    )
    for platform, device, sme2 in asked:
        name = f"{platform}{f' {device}' if device else ''}, SME2 {sme2}"
        try:
            target = lab.target(platform, device)
            found = target.availability(sme2)
        except Sme2Error as error:
            yield Check(name, False, error.what, error.remedy)
            continue
        remedy = found.remedy
        if not found.ok and loaded.from_kit:
            others = [f"--platform {name}" for name in ("linux", "emulated") if name != platform]
            remedy = f"{remedy or ''} Or measure elsewhere: {' or '.join(others)}.".strip()
        elif not found.ok and sme2 == "on":
            what = "reference" if target.fidelity == "reference" else "baseline"
            remedy = f"{remedy or ''} Or write `sme2: off` for a {what}.".strip()
        yield Check(name, found.ok, found.detail, remedy)
    for platform, device, cpus in dict.fromkeys(
        (session.platform, session.device, session.wishes.get("cpus")) for session in plan.sessions
    ):
        if cpus is not None:
            yield _attempt(
                f"{platform}, CPUs {cpus}", functools.partial(_cpus_text, lab, platform, device, cpus)
            )


def _cpus_text(lab: Lab, platform: str, device: str | None, cpus: str) -> str:
    return ", ".join(map(str, lab.target(platform, device).cpus(cpus)))


def _attempt(name: str, find: Callable[[], str]) -> Check:
    try:
        return Check(name, True, find())
    except Sme2Error as error:
        return Check(name, False, error.what, error.remedy)


def _toolchain() -> str:
    tools = find_toolchain()
    return f"CMake {tools.cmake_version}, ExecuTorch {tools.executorch_version}"


def _disk(store: Store) -> Check:
    folder = _existing(store.root)
    free_gib = shutil.disk_usage(folder).free / 2**30
    return Check(
        "disk",
        free_gib >= MIN_FREE_GIB,
        f"{free_gib:.1f} GiB free at {folder}",
        f"Free at least {MIN_FREE_GIB:.0f} GiB, or set SME2_DATA.",
    )


def output_folder(loaded: Loaded) -> Path:
    """Where the experiment's reports are copied to."""
    assert loaded.experiment.output is not None
    return loaded.path.resolve().parent / Path(loaded.experiment.output).expanduser()


def _output(folder: Path) -> Check:
    existing = _existing(folder)
    ok = existing.is_dir() and os.access(existing, os.W_OK)
    return Check(
        "output",
        ok,
        f"{folder}" if ok else f"{existing} cannot be written to",
        "Choose another output folder.",
    )


def _existing(folder: Path) -> Path:
    return next(path for path in (folder, *folder.parents) if path.exists())
