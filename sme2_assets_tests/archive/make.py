"""How the archive is made. Sessions are measured here for the test, too, that compares fresh ones with it."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from sme2_assets.models.artifact import ExportedModel
from sme2_assets.models.export import export_variant
from sme2_assets.profiling.arms import same_runner, sme2_arms
from sme2_assets.profiling.plan import plan_for
from sme2_assets.profiling.session import measure_session
from sme2_assets.runner.build import RunnerBinary
from sme2_assets.runner.bundle import runner_for
from sme2_assets.store import Store, default_data_root
from sme2_assets.targets.base import Target
from sme2_assets.targets.local import EmulatedTarget, NativeTarget
from sme2_assets_tests.archive import HERE, VARIANTS, name_here


def make() -> None:
    """Replaces the archive; runners and tools are those of the data folder."""
    base = Store(default_data_root())
    emulated = EmulatedTarget(base.tools)
    emulated.provision(print)
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder))
        [model, *_] = [export_variant(variant, store.artifacts, log=print) for variant in VARIANTS]
        measure_pair(store, emulated, model, runner_for(emulated, base, log=print))
        measure_here(store, model, runner_for(NativeTarget("linux"), base, log=print))
        for old in HERE.glob("executorch-*"):
            shutil.rmtree(old)
        visible = shutil.ignore_patterns(".*")
        for made in (store.artifacts / "models", store.runs):
            shutil.copytree(made, HERE / name_here() / made.name, ignore=visible)


def measure_pair(store: Store, emulated: Target, model: ExportedModel, runner: RunnerBinary) -> None:
    """Both states, as short as an emulated session is by itself."""
    _measure(store, emulated, model, runner, "off", "on")


def measure_here(store: Store, model: ExportedModel, runner: RunnerBinary) -> None:
    """This machine without SME2, in two short rounds."""
    short = {"rounds": 2, "warmup": 2, "iterations": 4, "kernel_sampling_s": 0.05, "quiet_patience_s": 0}
    _measure(store, NativeTarget("linux"), model, runner, "off", **short)


def _measure(
    store: Store, target: Target, model: ExportedModel, runner: RunnerBinary, *states: str, **wishes: float
) -> None:
    plan = plan_for(target.fidelity, **wishes)
    measure_session(store, target, model, same_runner(runner), sme2_arms(states), plan, print)
