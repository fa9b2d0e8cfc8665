from __future__ import annotations

import os
import stat
import time
from pathlib import Path

import pandas as pd
import pytest

from sme2_assets.errors import Sme2Error, WarehouseError
from sme2_assets.warehouse import Warehouse
from sme2_assets.warehouse.schema import INFERENCES
from sme2_assets.warehouse.store import STAGING_LIFETIME_S
from sme2_assets_tests.made.run_folder import MadeRun, ingest

KEYS = {"variant": "toy_cnn-fp32", "target": "linux-sme2_off", "run_id": "r1"}


def inferences(count: int, duration_ns: int = 5) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "pass": "latency",
            "round": 0,
            "iteration": range(count),
            "is_warmup": False,
            "duration_ns": duration_ns,
            "cycles": None,
            "execute_ns": None,
            "emulated_ns": None,
            "emulated_execute_ns": None,
        }
    )


def parquet_files(warehouse: Warehouse) -> list[Path]:
    return sorted(warehouse.root.rglob("*.parquet"))


def test_a_repeated_write_replaces_its_own_file(warehouse: Warehouse, tmp_path: Path):
    ingest(warehouse, MadeRun().write(tmp_path))
    keys = {**KEYS, "run_id": MadeRun().run_id}
    first = warehouse.write(INFERENCES, inferences(3, duration_ns=5), keys)
    second = warehouse.write(INFERENCES, inferences(2, duration_ns=7), keys)
    assert first.parent == second.parent
    warehouse.publish()
    assert warehouse.query("SELECT duration_ns FROM inferences")["duration_ns"].tolist() == [7, 7]


def test_another_run_does_not_replace_it(warehouse: Warehouse):
    paths = {warehouse.write(INFERENCES, inferences(1), {**KEYS, "run_id": run}) for run in ("r1", "r2")}
    assert len(paths) == 2
    assert all(path.is_file() for path in paths)


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        (inferences(1).drop(columns="execute_ns"), r"missing \['execute_ns'\]"),
        (inferences(1).assign(surprise=1), r"surplus \['surprise'\]"),
        (inferences(1).assign(duration_ns="fast"), "could not be written"),
        (inferences(1).assign(duration_ns=2.0**70), "could not be written"),
    ],
    ids=["missing", "surplus", "not a number", "out of range"],
)
def test_rows_that_do_not_fit_the_schema_are_refused_and_leave_nothing(warehouse, rows, complaint):
    with pytest.raises(WarehouseError, match=complaint):
        warehouse.write(INFERENCES, rows, KEYS)
    assert parquet_files(warehouse) == []


@pytest.mark.parametrize("run_id", ["../../etc", "a/b", "", "a b", "r'1"])
def test_a_key_that_is_no_file_name_is_refused(warehouse: Warehouse, run_id: str):
    with pytest.raises(Sme2Error, match="cannot be used as a name"):
        warehouse.write(INFERENCES, inferences(1), {**KEYS, "run_id": run_id})
    assert parquet_files(warehouse) == []


def test_other_users_may_read_the_files(warehouse: Warehouse):
    mask = os.umask(0o022)
    try:
        path = warehouse.write(INFERENCES, inferences(1), KEYS)
    finally:
        os.umask(mask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_what_killed_writers_left_is_removed_after_a_day(warehouse: Warehouse):
    warehouse.staging.mkdir(parents=True)
    old, young = warehouse.staging / "old.parquet", warehouse.staging / "young.parquet"
    for path in (old, young):
        path.touch()
    yesterday = time.time() - STAGING_LIFETIME_S - 1
    os.utime(old, (yesterday, yesterday))
    warehouse.publish()
    assert not old.exists()
    assert young.exists()
