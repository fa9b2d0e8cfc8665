"""Running assets in this process: what is measured here, and what happens when others are at work."""

from __future__ import annotations

import threading
from pathlib import Path

import dagster as dg
import pytest

from sme2_assets import launch
from sme2_assets.errors import Sme2Error
from sme2_assets.launch import ProfileRequest, requests_for_this_machine, wait_for_slot
from sme2_assets.partitions import BUSY_POOL
from sme2_assets.resources import Lab
from sme2_assets.store import Store
from sme2_assets.targets.base import Availability


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


@pytest.fixture
def only_emulation(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine that is no Arm one, with the emulator there."""
    monkeypatch.setattr(launch, "PLATFORMS", ("emulated",))
    monkeypatch.setattr(
        "sme2_assets.targets.local.EmulatedTarget.availability", lambda self, sme2: Availability(True, "")
    )


def test_a_large_model_is_emulated_only_when_somebody_asks_for_it(tmp_path: Path, only_emulation: None):
    lab, both = Lab(data_root=str(tmp_path)), ("off", "on")
    requests, [note] = requests_for_this_machine(lab, ["toy_cnn-fp32", "squeeze_sam-fp32"], both)
    assert requests == [ProfileRequest("toy_cnn-fp32", "emulated", both)]
    assert "squeeze_sam-fp32 on emulated is left out" in note
    with pytest.raises(Sme2Error, match="squeeze_sam-fp32 can only be emulated") as failed:
        requests_for_this_machine(lab, ["squeeze_sam-fp32"], both)
    assert "--platform emulated" in str(failed.value.remedy)
