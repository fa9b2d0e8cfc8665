from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
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


def test_a_failed_rename_keeps_the_old_rows(warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch):
    path = warehouse.write(INFERENCES, inferences(3), KEYS)
    before = path.read_bytes()

    def fail(self: Path, target: Path) -> None:
        raise OSError("disk full")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", fail)
        with pytest.raises(OSError, match="disk full"):
            warehouse.write(INFERENCES, inferences(9), KEYS)
    assert parquet_files(warehouse) == [path]
    assert path.read_bytes() == before


def test_other_users_may_read_the_files(warehouse: Warehouse):
    mask = os.umask(0o022)
    try:
        path = warehouse.write(INFERENCES, inferences(1), KEYS)
    finally:
        os.umask(mask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


# In the process itself: another one may come too late.
WATCHED = """
import os, signal, sys, threading, time
from pathlib import Path
def kill():
    while not list(Path(sys.argv[1]).glob(sys.argv[2])):
        time.sleep(0.001)
    os.kill(os.getpid(), signal.SIGKILL)
threading.Thread(target=kill, daemon=True).start()
"""


def kill_when_it_appears(code: str, root: Path, pattern: str) -> None:
    """Runs `code` in a process of its own, which is killed as soon as a file of that pattern is there."""
    words = [sys.executable, "-c", WATCHED + code, str(root), pattern]
    killed = subprocess.run(words, capture_output=True, text=True, check=False)
    assert killed.returncode == -signal.SIGKILL, f"ended before it was killed: {killed.stderr}"


WRITE_MANY_ROWS = """
from sme2_assets.warehouse import Warehouse
from sme2_assets.warehouse.schema import INFERENCES
from sme2_assets_tests.warehouse.test_write import KEYS, inferences
Warehouse(Path(sys.argv[1])).write(INFERENCES, inferences(6_000_000), KEYS)
"""


def test_a_writer_killed_in_the_middle_leaves_nothing_a_query_sees(warehouse: Warehouse, tmp_path: Path):
    ingest(warehouse, MadeRun().write(tmp_path))
    warehouse.publish()
    complete = parquet_files(warehouse)
    counts = "SELECT (SELECT count(*) FROM runs), (SELECT count(*) FROM inferences)"
    before = warehouse.query(counts)
    kill_when_it_appears(WRITE_MANY_ROWS, warehouse.root, "staging/*")
    left = sorted(set(parquet_files(warehouse)) - set(complete))
    assert left, "the writer was killed before it wrote"
    assert {path.parent for path in left} == {warehouse.staging}
    warehouse.publish()
    pd.testing.assert_frame_equal(warehouse.query(counts), before)


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


def test_rows_that_no_commit_lists_are_unseen(
    warehouse: Warehouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A crash before the commit: every file is there, and none of them in the tables."""
    folder = MadeRun().write(tmp_path)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("sme2_assets.warehouse.store.add_commit", killed)
        with pytest.raises(KeyboardInterrupt):
            ingest(warehouse, folder)
    assert parquet_files(warehouse)
    warehouse.publish()
    for table in ("runs", "timeline", "inferences", "operator_summary", "latency_summary"):
        assert warehouse.query(f"SELECT * FROM {table}").empty, table
    ingest(warehouse, folder)
    warehouse.publish()
    assert len(warehouse.query("SELECT * FROM timeline")) > 0
    assert len(warehouse.query("SELECT * FROM latency_summary")) == 1
