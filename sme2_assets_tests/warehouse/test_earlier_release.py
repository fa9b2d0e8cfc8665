"""A data folder of an earlier release, with its tables and its published file, is used by this one.

`earlier/data_folder.tar.xz` was made before arms were called a and b: an emulated pair, a baseline, and
identical arms. It stays as it is.
"""

from __future__ import annotations

import tarfile
from pathlib import Path

import pandas as pd
import pytest

from sme2_assets.store import Store
from sme2_assets.warehouse import Warehouse
from sme2_assets.warehouse.check import check_store
from sme2_assets.warehouse.rebuild import differences, rebuild, sync

COMPARED = """
    SELECT session_id, factor, level, a_value, b_value, count(*) AS rows,
        sum(sme2_operators_b) AS on_unit FROM comparisons GROUP BY ALL ORDER BY ALL
"""


def quiet(message: str) -> None:
    pass


@pytest.fixture
def store(tmp_path: Path) -> Store:
    with tarfile.open(Path(__file__).parent / "earlier" / "data_folder.tar.xz") as archive:
        archive.extractall(tmp_path / "data")
    return Store(tmp_path / "data")


def test_its_runs_are_read_at_once(store: Store):
    warehouse = Warehouse(store.warehouse)
    runs = warehouse.query("SELECT experiment, count(*) AS n FROM runs GROUP BY ALL ORDER BY 1")
    assert runs.to_numpy().tolist() == [["aa", 2], ["sme2", 3]]


@pytest.mark.parametrize("make", [sync, rebuild])
def test_its_comparisons_are_made_again_from_the_evidence(store: Store, make):
    done = make(store, quiet)
    assert done.refused == []
    compared = Warehouse(store.warehouse).query(COMPARED)
    models = compared[compared["level"] == "model"]
    assert models[["factor", "a_value", "b_value"]].fillna("").to_numpy().tolist() == [
        ["sme2", "off", "on"],
        ["", "", ""],
    ]
    assert models["on_unit"].iloc[0] == 7
    found, _ = differences(store, quiet)
    assert found == []
    assert [it.what for it in check_store(store, quiet)] == []
    rebuild(store, quiet)
    pd.testing.assert_frame_equal(Warehouse(store.warehouse).query(COMPARED), compared)
