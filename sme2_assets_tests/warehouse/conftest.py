from __future__ import annotations

from pathlib import Path

import pytest

from sme2_assets.evidence.folder import RunFolder
from sme2_assets.evidence.manifest import Manifest
from sme2_assets.store import Store
from sme2_assets.warehouse import Warehouse
from sme2_assets_tests.archive import archived_store
from sme2_assets_tests.exchange.measured_pair import EMULATED, LINUX, make_pair
from sme2_assets_tests.made import MadeOnce


@pytest.fixture
def warehouse(tmp_path: Path) -> Warehouse:
    return Warehouse(tmp_path / "data" / "warehouse")


@pytest.fixture(scope="session")
def paired(made_once: MadeOnce) -> Warehouse:
    """A warehouse with a hardware pair and an emulated pair, compared and published. Only for reading."""
    folder = made_once("two-pairs", lambda empty: make_pair(Store(empty), LINUX, EMULATED))
    return Warehouse(folder / "warehouse")


@pytest.fixture(scope="session")
def real_run(made_once: MadeOnce) -> tuple[Store, Manifest]:
    """A session that was really measured, SME2 off, alone in a data folder. Only for reading."""
    store = Store(made_once("measured", lambda folder: archived_store(folder, "linux", published=True)))
    [folder] = store.runs.iterdir()
    return store, RunFolder.open(folder).manifest


@pytest.fixture(scope="session")
def real_warehouse(real_run: tuple[Store, Manifest]) -> Warehouse:
    return Warehouse(real_run[0].warehouse)
