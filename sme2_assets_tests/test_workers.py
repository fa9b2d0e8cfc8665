"""Which worker measures on which device, and when its run is over. All of it: e2e/test_deployment.py."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from click.testing import CliRunner
from dagster._core.launcher import WorkerStatus

from sme2_assets.cli import main
from sme2_assets.definitions import build_definitions
from sme2_assets.defs.jobs import noise_job, profile_job
from sme2_assets.defs.nights import _what_follows, nightly_schedule
from sme2_assets.defs.partitions import QUEUE_TAG
from sme2_assets.defs.resources import Lab, Nights
from sme2_assets.defs.workers import WorkerRunLauncher
from sme2_assets.errors import TargetUnavailable
from sme2_assets.store import Store
from sme2_assets.targets import open_target

VARIANT = "toy_cnn-fp32"
INVENTORY = """
devices:
  here: {ssh: 'ssh://a@127.0.0.1:9', labels: [rack, one], worker: one}
  there: {ssh: 'ssh://b@127.0.0.1:9', labels: [rack, two], worker: two, has_sme2: false}
"""


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    monkeypatch.delenv("SME2_INVENTORY", raising=False)
    monkeypatch.setenv("SME2_WORKER", "one")
    (tmp_path / "devices.yaml").write_text(INVENTORY)
    return Lab(data_root=str(tmp_path))


def test_a_device_is_measured_by_its_own_worker_alone(lab: Lab, monkeypatch: pytest.MonkeyPatch):
    store = lab.store
    assert open_target("linux", store, "here").address == "ssh://a@127.0.0.1:9"  # type: ignore[attr-defined]
    with pytest.raises(TargetUnavailable, match="worker two") as caught:
        open_target("linux", store, "there")
    assert "dagster-celery/queue: two" in str(caught.value.remedy)
    pool: Any = open_target("linux", store, "label:rack")
    assert [target.address for target in pool.candidates()] == ["ssh://a@127.0.0.1:9"]
    elsewhere = open_target("linux", store, "label:two").availability("off")
    assert not elsewhere.ok
    assert "measured by other workers" in elsewhere.detail
    monkeypatch.delenv("SME2_WORKER")
    with pytest.raises(TargetUnavailable, match="worker one"):
        open_target("linux", store, "here")


def test_a_night_asks_no_device_of_another_worker_and_hands_its_runs_to_that_one(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
):
    """Nobody listens at the addresses: whoever asked a device would leave it out."""
    monkeypatch.setenv("SME2_WORKER", "lab")
    when = Nights(variants=[VARIANT], devices=["label:rack"])
    with dg.instance_for_test() as instance:
        context = dg.build_schedule_context(
            instance=instance,
            scheduled_execution_time=datetime(2026, 1, 2, tzinfo=UTC),
            repository_def=build_definitions(lab, when).get_repository_def(),
            resources={"lab": lab, "nights": when},
        )
        requests = nightly_schedule(when).evaluate_tick(context).run_requests or []
    assert [request.tags[QUEUE_TAG] for request in requests] == ["one", "two"]
    assert [request.partition_key for request in requests] == [None, f"{VARIANT}|linux-sme2_off"]


def test_a_night_of_devices_alone_measures_no_noise_of_the_machine_that_asks_for_it(lab: Lab):
    asked = [it.job_name for it in _what_follows("night", lab, Nights(devices=["label:rack"]))]
    assert asked
    assert noise_job.name not in asked


def test_a_run_of_the_command_line_is_not_ended_because_no_worker_has_it(lab: Lab):
    launcher = WorkerRunLauncher(default_queue="lab", broker="memory://", backend="cache+memory://")
    with dg.instance_for_test() as instance:
        job = build_definitions(lab).resolve_job_def(profile_job.name)
        run = instance.create_run_for_job(job, tags={"dagster/partition": f"{VARIANT}|linux-sme2_off"})
        assert launcher.check_run_worker_health(run).status == WorkerStatus.RUNNING
        instance.add_run_tags(run.run_id, {"dagster-celery/task_id": run.run_id})
        lost = instance.get_run_by_id(run.run_id)
        assert lost is not None
        found = launcher.check_run_worker_health(lost)
    assert found.status == WorkerStatus.FAILED
    assert "PENDING" in str(found.msg)


def test_a_worker_without_a_deployment_says_what_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for home in (None, str(Store(tmp_path).dagster_home)):
        if home:
            Path(home).mkdir(parents=True)
            monkeypatch.setenv("DAGSTER_HOME", home)
        else:
            monkeypatch.delenv("DAGSTER_HOME", raising=False)
        done = CliRunner().invoke(main, ["--data", str(tmp_path), "worker", "rack"])
        assert done.exit_code == 1
        assert "no dagster.yaml of a deployment" in done.stderr.replace("\n", " ")
        assert "deploy/dagster.yaml" in done.stderr.replace("\n", " ")
