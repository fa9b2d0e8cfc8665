"""`sme2 smoke`: the whole way once, as short as it can be, in a data folder of its own.

What belongs here: the order of the steps and where they happen. What does not: the steps themselves; each is
the code that a real measurement uses. What is measured is far too little for a verdict and is thrown away;
only artifacts that are named by content (runner, model, tools) are shared with the real data folder.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from sme2_assets.errors import Sme2Error
from sme2_assets.steps import FAILED, NOT_REACHED, NOTE, PASSED, Step, taken
from sme2_assets.store import Store
from sme2_assets.targets.host import is_arm64

VARIANT = "toy_cnn-fp32"
# As little as gives every pass and every table something to do.
SETTINGS = {"rounds": 1, "iterations": 3, "warmup": 1, "kernel_rounds": 1, "quiet_patience_s": 0}

Log = Callable[[str], None]


@dataclass
class Smoke:
    """All steps, in order, and where the data is if it was kept."""

    data: str | None
    steps: list[Step] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return all(step.status in (PASSED, NOTE) for step in self.steps)

    @property
    def seconds(self) -> float:
        return round(sum(step.seconds for step in self.steps), 1)


class _Stop(Exception):
    """A step failed; those after it are not reached."""


def smoke(
    store: Store,
    *,
    emulated: bool = False,
    keep: Path | None = None,
    log: Log = lambda message: None,
    told: Callable[[Step], None] = lambda step: None,
) -> Smoke:
    """Doctor, runner, model, measurement, analysis, export, validation. `keep`: where the data stays."""
    result = Smoke(str(keep) if keep else None)
    # A reference says nothing about SME2: on such a machine the emulated pair is the main job.
    native = is_arm64()
    result.steps = [Step(name) for name in _step_names(native, emulated or not native)]
    with _own_data_folder(store, keep) as own, suppress(_Stop):
        _go(_Walk(result, told), store, own, native, emulated or not native, log)
    for step in result.steps:
        if step.status == NOT_REACHED:
            told(step)
    return result


def _step_names(native: bool, emulated: bool) -> list[str]:
    measured = [*(["run and analyse"] if native else []), *(["emulated pair"] if emulated else [])]
    return ["doctor", "runner", "export", *measured, "files", "validate"]


class _Walk:
    """Goes through the steps and tells each as it ends."""

    def __init__(self, result: Smoke, told: Callable[[Step], None]) -> None:
        self.result, self.told = result, told

    @contextmanager
    def step(self, name: str) -> Iterator[Step]:
        step = next(step for step in self.result.steps if step.name == name)
        with taken(step):
            yield step
        self.told(step)
        if step.status == FAILED:
            raise _Stop


def _go(walk: _Walk, store: Store, own: Store, native: bool, emulated: bool, log: Log) -> None:
    # Only here: what is behind them takes seconds to import, and `sme2 --help` must not wait for it.
    from sme2_assets import launch
    from sme2_assets.defs.resources import Lab
    from sme2_assets.exchange.export import FORMATS, export_run
    from sme2_assets.validation import validate
    from sme2_assets.warehouse.read import run_of_id

    lab = Lab(data_root=str(own.root))
    with walk.step("doctor") as step:
        step.detail = _examined(store)
    with walk.step("runner") as step:
        step.detail = _build(own, native, log)
    with walk.step("export") as step:
        step.detail = _export(own, log)
    run_ids = []
    with launch.open_instance(own) as instance:
        if native:
            with walk.step("run and analyse") as step:
                platform, states = _native(lab)
                request = launch.ProfileRequest(VARIANT, platform, states)
                run_ids.append(launch.profile(lab, instance, [request], SETTINGS, log).run_ids[-1])
                step.detail = f"{VARIANT} on {platform}, SME2 {' and '.join(states)}"
        if emulated:
            with walk.step("emulated pair") as step:
                lab.target("emulated").require("on")
                pair = launch.ProfileRequest(VARIANT, "emulated", ("off", "on"))
                run_ids.append(launch.profile(lab, instance, [pair], {}, log).run_ids[-1])
                step.detail = "SME2 off and on"
    runs = [run_of_id(lab.warehouse, run_id) for run_id in run_ids]
    with walk.step("files") as step:
        written = [
            export_run(own, run, FORMATS, own.root / "exports" / run["run_id"], log=log) for run in runs
        ]
        step.detail = f"{sum(len(files) for files in written)} files"
    with walk.step("validate") as step:
        names = [run["run_id"] for run in runs] + [str(files[-1].parent) for files in written]
        seen = [validate(name, own) for name in names]
        failed = [(it.what, part) for it in seen for part in it.steps if part.status == FAILED]
        if failed:
            what, part = failed[0]
            raise Sme2Error(f"{what}: {part.name}: {part.problem}", part.remedy)
        step.detail = f"{sum(len(it.steps) for it in seen)} checks of {len(seen)} things"


def _build(own: Store, native: bool, log: Log) -> str:
    from sme2_assets.runner.bundle import runner_for
    from sme2_assets.targets import open_target
    from sme2_assets.targets.host import host_platform

    target = open_target((native and host_platform()) or "emulated", own)
    runner = runner_for(target, own, log=log)
    return f"{'from the cache' if runner.cached else 'built'}, {runner.sha256[:12]}"


def _export(own: Store, log: Log) -> str:
    from sme2_assets.models.export import export_variant

    model = export_variant(VARIANT, own.artifacts, log=log)
    return f"{VARIANT} {'from the cache' if model.cached else 'exported'}, {model.pte_sha256[:12]}"


def _examined(store: Store) -> str:
    from sme2_assets.doctor import examine

    findings = examine(store)
    missing = [finding for finding in findings if finding.status == "missing"]
    if missing:
        raise Sme2Error(f"{missing[0].name}: {missing[0].detail}", missing[0].remedy)
    return f"{len(findings)} things looked at, nothing needed is missing"


def _native(lab) -> tuple[str, tuple[str, ...]]:  # type: ignore[no-untyped-def]
    """The platform that this machine is itself, and the states it can give."""
    from sme2_assets.targets import SME2_STATES
    from sme2_assets.targets.host import host_platform

    platform = host_platform()
    if platform is None:
        raise Sme2Error("This machine is no platform that can be measured.", "Run `sme2 doctor`.")
    states = tuple(sme2 for sme2 in SME2_STATES if lab.target(platform).availability(sme2).ok)
    if not states:
        lab.target(platform).require("off")
    return platform, states


@contextmanager
def _own_data_folder(store: Store, keep: Path | None) -> Iterator[Store]:
    """A data folder that shares artifacts and tools with the real one, and nothing else.

    The environment names it too, because processes and libraries look there; it is put back afterwards.
    """
    with tempfile.TemporaryDirectory(prefix="sme2-smoke-", ignore_cleanup_errors=True) as temporary:
        own = Store((keep or Path(temporary) / "data").resolve())
        own.root.mkdir(parents=True, exist_ok=True)
        for theirs, ours in ((store.artifacts, own.artifacts), (store.tools, own.tools)):
            if theirs.resolve() != ours.resolve() and not ours.exists():
                theirs.mkdir(parents=True, exist_ok=True)
                ours.symlink_to(theirs.resolve())
        before = {name: os.environ.get(name) for name in ("SME2_DATA", "DAGSTER_HOME")}
        os.environ["SME2_DATA"] = str(own.root)
        os.environ.pop("DAGSTER_HOME", None)
        try:
            yield own
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value
