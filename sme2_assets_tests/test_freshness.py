"""What has just been made is up to date: Dagster knows from which versions of its inputs."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pytest

# What the UI shows as out of date; Dagster has no public name for it.
from dagster._core.definitions.data_version import CachingStaleStatusResolver, StaleStatus
from dagster._core.loader import LoadingContextForTest

from sme2_assets.defs.assets import arms, noise, runners, traces
from sme2_assets.defs.jobs import arms_job, compare_job, noise_job, profile_job
from sme2_assets.defs.partitions import MODEL_VARIANTS
from sme2_assets.defs.resources import Lab
from sme2_assets.evidence.folder import RunFolder
from sme2_assets.evidence.manifest import Manifest
from sme2_assets.launch import Jobs
from sme2_assets.profiling.arms import ArmSpec
from sme2_assets.store import Store
from sme2_assets_tests.e2e.conftest import make_data_folder
from sme2_assets_tests.made.run_folder import MadeRun

VARIANT = "toy_cnn-fp32"
BOTH = [f"{VARIANT}|linux-sme2_{sme2}" for sme2 in ("off", "on")]
HERE = SimpleNamespace(platform="linux", fidelity="hardware")


@pytest.fixture
def jobs(tmp_path: Path, artifacts_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Jobs:
    """Sessions take no time and no device. Another model has been exported and measured before."""
    store = make_data_folder(tmp_path / "data", artifacts_dir)
    binary = SimpleNamespace(
        **dict.fromkeys(("sha256", "executorch_version", "compiler", "cmake_version"), "1"),
        path=tmp_path / "runner" / "sme2_runner",
        build_seconds=1.0,
        cached=False,
    )
    monkeypatch.setattr(Lab, "require", lambda *_, **__: HERE)
    monkeypatch.setattr(runners, "runner_for", lambda *_, **__: binary)
    for module in (traces, noise, arms):
        monkeypatch.setattr(module, "measure_session", made_session)
    instance = dg.DagsterInstance.ephemeral()
    instance.add_dynamic_partitions(MODEL_VARIANTS, [VARIANT, "toy_cnn-int8"])
    for asset, key in (("exported_model", "toy_cnn-int8"), ("runner_binary", "emulated-sme2_on")):
        instance.report_runless_asset_event(dg.AssetMaterialization(asset, partition=key))
    return Jobs(Lab(data_root=str(store.root)), instance, print)


def made_session(store: Store, *rest: Any, **_: Any) -> list[Manifest]:
    specs: list[ArmSpec] = next(it for it in rest if isinstance(it, list))
    factor = rest[-1] if isinstance(rest[-1], str) else None
    made = [
        MadeRun(
            sme2=spec.sme2,
            variant=spec.model.variant if spec.model else VARIANT,
            factor=factor or ("aa" if len({it.sme2 for it in specs}) < len(specs) else None),
            arm=spec.label,
            threads=spec.settings.get("threads", 1),
        )
        for spec in specs
    ]
    return [RunFolder.open(it.write(store.runs)).manifest for it in made]


def stale(jobs: Jobs) -> dict[str, list[str]]:
    """What is out of date, and why."""
    graph = jobs.definitions.resolve_asset_graph()
    resolver = CachingStaleStatusResolver(jobs.instance, graph, LoadingContextForTest(jobs.instance))
    found = {}
    for key in graph.get_all_asset_keys():
        for partition in jobs.instance.get_materialized_partitions(key) or [None]:
            if resolver.get_status(key, partition) == StaleStatus.STALE:
                causes = resolver.get_stale_root_causes(key, partition)
                found[f"{key.to_user_string()} {partition or ''}"] = [
                    f"{cause.asset_key.to_user_string()} {cause.reason}" for cause in causes
                ]
    return found


def test_the_first_measurement_of_a_model_is_up_to_date(jobs: Jobs):
    jobs.run(profile_job.name, BOTH)
    jobs.run(compare_job.name, [f"{VARIANT}|linux"])
    made = jobs.instance.get_materialized_partitions(dg.AssetKey("exported_model"))
    assert VARIANT in made, "the step that measured says what it made"
    assert stale(jobs) == {}


def test_the_first_noise_of_a_device_is_up_to_date(jobs: Jobs):
    jobs.run(noise_job.name, BOTH[:1])
    assert stale(jobs) == {}


def test_the_first_comparison_of_arms_is_up_to_date(jobs: Jobs):
    compared = [{"variant": VARIANT, "sme2": "off", "threads": threads} for threads in (1, 2)]
    config = {"factor": "threads", "platform": "linux", "arms": compared}
    jobs.run(arms_job.name, ops={"arms_comparison": {"config": config}})
    assert stale(jobs) == {}
