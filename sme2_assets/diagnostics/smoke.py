"""`sme2 smoke`: the whole chain once, as short as possible, in a data folder of its own.

Belongs here: the order of the steps and where they happen. Does not: the steps themselves; each is the code
that a real measurement uses. It measures far too little for a verdict, and the results are thrown away; only
artifacts that are named by content (runner, model, tools) are shared with the real data folder.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from sme2_assets.diagnostics.steps import CheckStep, Checkup
from sme2_assets.errors import Sme2Error
from sme2_assets.store import Store, environment
from sme2_assets.targets.host import is_arm64

VARIANT = "toy_cnn-fp32"
# Just enough to give every pass and every table something to do.
SETTINGS = {"rounds": 1, "iterations": 3, "warmup": 1, "kernel_rounds": 1, "quiet_patience_s": 0}

Log = Callable[[str], None]


def smoke(
    store: Store,
    *,
    emulated: bool = False,
    keep: Path | None = None,
    log: Log = lambda message: None,
    watch: Callable[[CheckStep], None] = lambda step: None,
) -> Checkup:
    """Doctor, runner, model, measurement, analysis, export, validation. `keep`: where the data stays."""
    # A reference says nothing about SME2: on such a machine the emulated pair is what matters.
    native = is_arm64()
    emulated = emulated or not native
    made = Checkup(str(keep or "a data folder of its own"), "smoke test", watch)
    measured = [*(["run and analyse"] if native else []), *(["emulated pair"] if emulated else [])]
    made.expect("doctor", "runner", "export", *measured, "files", "validate")
    with _own_data_folder(store, keep) as own, made.until_a_failure():
        _take_steps(made, store, own, native, emulated, log)
    return made


def _take_steps(made: Checkup, store: Store, own: Store, native: bool, emulated: bool, log: Log) -> None:
    # Imported here: these take seconds, and `sme2 --help` must not wait for them.
    from sme2_assets import launch
    from sme2_assets.defs.resources import Lab
    from sme2_assets.diagnostics.doctor import examine
    from sme2_assets.diagnostics.validation import validate
    from sme2_assets.exchange.export import FORMATS, export_run
    from sme2_assets.models.export import export_variant
    from sme2_assets.warehouse.read import run_of_id

    lab = Lab(data_root=str(own.root))
    with made.step("doctor") as step:
        step.detail = f"{_passed([examine(store)])} things looked at, nothing needed is missing"
    with made.step("runner") as step:
        step.detail = _build(own, native, log)
    with made.step("export") as step:
        model = export_variant(VARIANT, own.artifacts, log=log)
        step.detail = f"{VARIANT} {'from the cache' if model.cached else 'exported'}, {model.pte_sha256[:12]}"
    run_ids = []
    with launch.open_instance(own) as instance:
        if native:
            with made.step("run and analyse") as step:
                platform, states = _native(lab)
                request = launch.ProfileRequest(VARIANT, platform, states)
                run_ids.append(launch.profile(lab, instance, [request], SETTINGS, log).run_ids[-1])
                step.detail = f"{VARIANT} on {platform}, SME2 {' and '.join(states)}"
        if emulated:
            with made.step("emulated pair") as step:
                lab.target("emulated").require("on")
                pair = launch.ProfileRequest(VARIANT, "emulated", ("off", "on"))
                run_ids.append(launch.profile(lab, instance, [pair], {}, log).run_ids[-1])
                step.detail = "SME2 off and on"
    runs = [run_of_id(lab.warehouse, run_id) for run_id in run_ids]
    with made.step("files") as step:
        written = [
            export_run(own, run, FORMATS, own.root / "exports" / run["run_id"], log=log) for run in runs
        ]
        step.detail = f"{sum(len(files) for files in written)} files"
    with made.step("validate") as step:
        names = [run["run_id"] for run in runs] + [str(files[-1].parent) for files in written]
        step.detail = f"{_passed([validate(name, own) for name in names])} checks of {len(names)} things"


def _passed(checkups: list[Checkup]) -> int:
    """How many steps there were; the first that failed is an error."""
    for made in checkups:
        for step in made.failed:
            raise Sme2Error(f"{made.what}: {step.name}: {step.problem}", step.remedy)
    return sum(len(made.steps) for made in checkups)


def _build(own: Store, native: bool, log: Log) -> str:
    from sme2_assets.runner.bundle import runner_for
    from sme2_assets.targets import open_target
    from sme2_assets.targets.host import host_platform

    target = open_target((native and host_platform()) or "emulated", own)
    runner = runner_for(target, own, log=log)
    return f"{'from the cache' if runner.cached else 'built'}, {runner.sha256[:12]}"


def _native(lab) -> tuple[str, tuple[str, ...]]:  # type: ignore[no-untyped-def]
    """This machine's own platform, and the states it offers."""
    from sme2_assets.targets import SME2_STATES
    from sme2_assets.targets.host import host_platform

    platform = host_platform()
    if platform is None:
        raise Sme2Error("This machine is not a platform that can be measured.", "Run `sme2 doctor`.")
    states = tuple(sme2 for sme2 in SME2_STATES if lab.target(platform).availability(sme2).ok)
    if not states:
        lab.target(platform).require("off")
    return platform, states


@contextmanager
def _own_data_folder(store: Store, keep: Path | None) -> Iterator[Store]:
    """A data folder that shares artifacts and tools with the real one, and nothing else.

    The environment names it too, for processes and libraries that look there; it is restored afterwards.
    """
    with tempfile.TemporaryDirectory(prefix="sme2-smoke-", ignore_cleanup_errors=True) as temporary:
        own = Store((keep or Path(temporary) / "data").resolve())
        own.root.mkdir(parents=True, exist_ok=True)
        for theirs, ours in ((store.artifacts, own.artifacts), (store.tools, own.tools)):
            if theirs.resolve() != ours.resolve() and not ours.exists():
                theirs.mkdir(parents=True, exist_ok=True)
                ours.symlink_to(theirs.resolve())
        with environment(SME2_DATA=str(own.root), DAGSTER_HOME=None):
            yield own
