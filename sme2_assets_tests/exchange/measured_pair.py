"""One measured pair, made once for all tests of this room, and all its files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from sme2_assets.exchange.export import FORMATS, export_run
from sme2_assets.store import Store
from sme2_assets.warehouse import Warehouse
from sme2_assets_tests.made import MadeOnce
from sme2_assets_tests.made.run_folder import MadeRun, ingest
from sme2_assets_tests.warehouse.newest import compare_newest, newest_run


@dataclass(frozen=True)
class Exported:
    """A data folder with a pair, and the export of its arm with SME2 on. Only for reading."""

    store: Store
    folder: Path

    @property
    def warehouse(self) -> Warehouse:
        return Warehouse(self.store.warehouse)

    def run(self, sme2: str) -> dict:
        return newest_run(self.warehouse, "toy_cnn-fp32", "linux", sme2)

    def table(self, sme2: str, name: str) -> Path:
        return self.folder / f"linux_sme2_{sme2}" / f"toy_cnn_xnnpack_fp32_linux_sme2_{sme2}_t1_{name}"


LINUX, EMULATED = ("linux", "hardware"), ("emulated", "emulated")


def make_pair(store: Store, *places: tuple[str, str], rounds: int = 6) -> None:
    """A pair on each platform in a data folder, compared and published."""
    warehouse = Warehouse(store.warehouse)
    made = [
        MadeRun(
            sme2=sme2, platform=platform, fidelity=fidelity, rounds=1 if fidelity == "emulated" else rounds
        )
        for platform, fidelity in places
        for sme2 in ("off", "on")
    ]
    ingest(warehouse, *(run.write(store.runs) for run in made))
    warehouse.publish()
    for platform, _ in places:
        compare_newest(warehouse, "toy_cnn-fp32", platform)
    warehouse.publish()


@pytest.fixture(scope="session")
def pair_files(made_once: MadeOnce) -> Exported:
    folder = made_once("pair-files", make_pair_files)
    return Exported(Store(folder), folder / "out")


def make_pair_files(folder: Path) -> None:
    store = Store(folder)
    make_pair(store, LINUX)
    made = Exported(store, folder / "out")
    export_run(store, made.run("on"), FORMATS, made.folder)
