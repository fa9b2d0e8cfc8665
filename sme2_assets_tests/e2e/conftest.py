"""A data folder of its own with a real Dagster instance; what is named by content is shared."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from sme2_assets.defs.resources import Lab
from sme2_assets.launch import compare_arms, profile
from sme2_assets.profiling.arm_requests import arms_of, places_of
from sme2_assets.profiling.requests import ProfileRequest
from sme2_assets.store import DAGSTER_YAML, Store
from sme2_assets.warehouse import Warehouse
from sme2_assets.warehouse.read import comparison_of_session


@dataclass(frozen=True)
class Workbench:
    """A data folder and its instance."""

    store: Store
    instance: dg.DagsterInstance

    @property
    def lab(self) -> Lab:
        return Lab(data_root=str(self.store.root))

    @property
    def warehouse(self) -> Warehouse:
        return self.lab.warehouse

    def profile(self, variant: str, platform: str, *states: str, **settings: int) -> list[str]:
        """Profiles as `sme2 profile` does, but waits for no quiet machine; gives what was logged."""
        settings.setdefault("quiet_patience_s", 0)
        lines: list[str] = []
        profile(self.lab, self.instance, [ProfileRequest(variant, platform, states)], settings, lines.append)
        return lines

    def compare(self, platform: str, device: str | None = None, **asked: Any) -> dict[str, Any]:
        """Compares arms as `sme2 compare` does, but shortly; gives the row of the whole model."""
        factor, arms = arms_of(**asked)
        [place], _, _ = places_of(self.store, arms, factor, platform, device)
        settings = {"rounds": 2, "warmup": 1, "iterations": 2, "kernel_rounds": 0, "quiet_patience_s": 0}
        shares: list[float] = []
        session = compare_arms(self.lab, self.instance, place, settings, print, shares.append)
        assert shares == sorted(shares)
        assert shares[-1] == 1
        rows = comparison_of_session(self.warehouse, session)
        [model] = rows[rows["level"] == "model"].to_dict("records")
        return model

    def materialisations(self, asset: str) -> dict[str, dict[str, object]]:
        """Metadata of the newest materialisation of each partition of an asset."""
        records = self.instance.fetch_materializations(dg.AssetKey(asset), limit=100, ascending=True).records
        return {
            str(record.partition_key): {
                label: value.value for label, value in record.asset_materialization.metadata.items()
            }
            for record in records
            if record.asset_materialization is not None
        }


def make_data_folder(root: Path, artifacts: Path) -> Store:
    """A data folder whose artifacts and tools are the shared ones."""
    store = Store(root)
    store.dagster_home.mkdir(parents=True)
    shutil.copy(DAGSTER_YAML, store.dagster_home)
    store.artifacts.symlink_to(artifacts)
    # The first test of a fresh machine may be one that fetches none.
    (artifacts / "tools").mkdir(parents=True, exist_ok=True)
    store.tools.symlink_to(artifacts / "tools")
    return store


@contextlib.contextmanager
def opened_workbench(root: Path, artifacts: Path) -> Iterator[Workbench]:
    store = make_data_folder(root, artifacts)
    with dg.DagsterInstance.from_config(str(store.dagster_home)) as instance:
        yield Workbench(store, instance)


@pytest.fixture(scope="module")
def workbench(tmp_path_factory: pytest.TempPathFactory, artifacts_dir: Path) -> Iterator[Workbench]:
    with opened_workbench(tmp_path_factory.mktemp("data") / "data", artifacts_dir) as made:
        yield made
