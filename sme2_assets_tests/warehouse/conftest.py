from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sme2_assets.evidence.manifest import Manifest
from sme2_assets.models.artifact import ExportedModel
from sme2_assets.profiling.arms import same_runner, sme2_arms
from sme2_assets.profiling.plan import plan_for
from sme2_assets.profiling.session import measure_session
from sme2_assets.runner.build import RunnerBinary
from sme2_assets.store import Store
from sme2_assets.targets.host import host_platform
from sme2_assets.targets.local import NativeTarget
from sme2_assets.warehouse import Warehouse
from sme2_assets_tests.made.run_folder import MadeRun, ingest
from sme2_assets_tests.warehouse.newest import compare_newest


@pytest.fixture
def warehouse(tmp_path: Path) -> Warehouse:
    return Warehouse(tmp_path / "data" / "warehouse")


@pytest.fixture(scope="session")
def paired(tmp_path_factory: pytest.TempPathFactory) -> Warehouse:
    """A warehouse with a hardware pair and an emulated pair, compared and published. Only for reading."""
    folder = tmp_path_factory.mktemp("paired")
    warehouse = Warehouse(folder / "warehouse")
    platforms = (("linux", "hardware", 6), ("emulated", "emulated", 1))
    runs = [
        MadeRun(sme2=sme2, platform=platform, fidelity=fidelity, rounds=rounds)
        for platform, fidelity, rounds in platforms
        for sme2 in ("off", "on")
    ]
    ingest(warehouse, *(run.write(folder / "runs") for run in runs))
    warehouse.publish()
    for platform, _, _ in platforms:
        compare_newest(warehouse, "toy_cnn-fp32", platform)
    warehouse.publish()
    return warehouse


@pytest.fixture(scope="session")
def real_run(
    tmp_path_factory: pytest.TempPathFactory,
    exported: Callable[[str], ExportedModel],
    runner_binary: RunnerBinary,
) -> tuple[Store, Manifest]:
    """A session that was really measured: this machine, SME2 off."""
    store = Store(tmp_path_factory.mktemp("real"))
    platform = host_platform()
    assert platform is not None
    [manifest] = measure_session(
        store,
        NativeTarget(platform),
        exported("toy_cnn-fp32"),
        same_runner(runner_binary),
        sme2_arms(["off"]),
        plan_for("hardware", rounds=2, warmup=2, iterations=4, quiet_patience_s=0),
        log=print,
    )
    return store, manifest


@pytest.fixture(scope="session")
def real_warehouse(real_run: tuple[Store, Manifest]) -> Warehouse:
    """The measured session in a warehouse of its own. Only for reading."""
    store, manifest = real_run
    warehouse = Warehouse(store.warehouse)
    ingest(warehouse, store.run_dir(manifest.run_id))
    warehouse.publish()
    return warehouse
