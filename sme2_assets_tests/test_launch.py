"""Running assets in this process: what happens when others are at work in the same instance."""

from __future__ import annotations

import threading
from pathlib import Path

import dagster as dg

from sme2_assets.launch import wait_for_slot
from sme2_assets.partitions import BUSY_POOL
from sme2_assets.store import Store


def test_a_full_pool_is_waited_for_and_the_run_that_holds_it_is_named(tmp_path: Path):
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        storage = instance.event_log_storage
        storage.set_concurrency_slots(BUSY_POOL, 1)
        held = storage.claim_concurrency_slot(BUSY_POOL, run_id="another-run", step_key="etdump_traces")
        assert held.is_claimed
        lines: list[str] = []

        def log(line: str) -> None:
            lines.append(line)
            threading.Timer(0.2, storage.free_concurrency_slots_for_run, ["another-run"]).start()

        wait_for_slot(Store(tmp_path / "data"), instance, log)
        assert lines == ["waiting for run another-run to end"]
        assert storage.get_concurrency_info(BUSY_POOL).active_slot_count == 0


def test_an_instance_without_a_pool_is_not_waited_for(tmp_path: Path):
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        wait_for_slot(Store(tmp_path / "data"), instance, log=print)
