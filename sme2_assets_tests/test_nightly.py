"""Nights are real here: real runs of toy_cnn on this machine, a real instance, a real kill."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import duckdb
import pytest

from sme2_assets import automation, launch
from sme2_assets.definitions import build_definitions
from sme2_assets.errors import ExportError, Sme2Error
from sme2_assets.nightly import (
    NightSummary,
    PairResult,
    newly_killed_nights,
    night_folder,
    nightly,
    nights,
    open_regressions,
)
from sme2_assets.store import CHECKOUT, Store
from sme2_assets.targets.host import host_platform
from sme2_assets_tests.e2e.conftest import Workbench, make_data_folder
from sme2_assets_tests.webhook import Webhook, webhook  # noqa: F401  (a fixture)

QUICK = {"rounds": 1, "warmup": 0, "iterations": 1, "kernel_rounds": 0, "quiet_patience_s": 0}
NATIVE = host_platform() or "linux"
GOOD, BAD = "toy_cnn-fp32", "toy_cnn-fp16"


@pytest.fixture
def bench(tmp_path: Path, artifacts_dir: Path) -> Iterator[Workbench]:
    store = make_data_folder(tmp_path / "data", artifacts_dir)
    with dg.DagsterInstance.from_config(str(store.dagster_home)) as instance:
        yield Workbench(store, instance)


def a_night(bench: Workbench, *variants: str, **options: Any) -> NightSummary:
    options = {"settings": QUICK, "retry_pause_s": 0, "platforms": [NATIVE], **options}
    return nightly(bench.lab, bench.instance, log=print, variants=variants, **options)


def messages(store: Store) -> list[str]:
    path = night_folder(store) / "messages.jsonl"
    return [json.loads(line)["text"] for line in path.read_text().splitlines()] if path.exists() else []


def past_night(store: Store, night: str, status: str, *pairs: PairResult) -> NightSummary:
    summary = NightSummary(night, f"{night}T02:00:05+00:00", "here", status, pairs=list(pairs))
    summary.write(night_folder(store))
    return summary


def test_one_failing_pair_does_not_stop_the_others(bench: Workbench):
    tried: list[str] = []

    def profile(lab, instance, requests, settings, log):
        tried.append(requests[0].variant)
        if requests[0].variant == BAD:
            raise ExportError("The export failed.", "Mend the model.")
        return launch.profile(lab, instance, requests, settings, log)

    summary = a_night(bench, BAD, GOOD, profile=profile)
    assert tried == [BAD, BAD, BAD, GOOD]
    failed, measured = summary.pairs
    assert (failed.status, failed.attempts) == ("failed", 3)
    assert (failed.failure, failed.remedy) == ("The export failed.", "Mend the model.")
    assert (measured.status, measured.attempts, measured.failure) == ("measured", 1, None)
    assert measured.latency_ms["off"] > 0
    assert measured.session_id == bench.warehouse.query("SELECT session_id FROM runs")["session_id"][0]
    assert summary.status == "finished"
    assert not summary.ok
    assert nights(bench.store) == [summary]
    page = (night_folder(bench.store) / f"{summary.night}.md").read_text()
    for text in (page, summary.message()):
        assert "The export failed. What to do: Mend the model." in text
        assert "1 of 2 pairs measured, 1 failed" in text


def test_a_pair_that_fails_once_is_measured_at_the_next_attempt(bench: Workbench):
    attempts = iter([RuntimeError("the device was away"), None])

    def profile(*arguments):
        if error := next(attempts):
            raise error
        return launch.profile(*arguments)

    follow_ups: list[str] = []
    summary = a_night(bench, GOOD, profile=profile, afterwards=lambda: follow_ups.append("once"))
    assert summary.ok
    assert follow_ups == ["once"]
    [pair] = summary.pairs
    assert (pair.status, pair.attempts) == ("measured", 2)
    assert pair.failure == "RuntimeError: the device was away"
    assert "measured at attempt 2" in summary.markdown()


def test_what_follows_the_pairs_cannot_cost_the_night(bench: Workbench):
    def afterwards():
        raise Sme2Error("No history.", "Measure more nights.")

    summary = a_night(
        bench, GOOD, profile=lambda *_: launch.Profiled([], []), retries=0, afterwards=afterwards
    )
    assert summary.status == "finished"
    assert "No history. What to do: Measure more nights." in summary.message()
    assert not summary.ok


def test_a_machine_that_can_measure_nothing_leaves_a_record_that_says_so(bench: Workbench):
    summary = a_night(bench, GOOD, platforms=["mac" if NATIVE == "linux" else "linux"])
    assert not summary.ok
    assert "can be measured here" in (summary.problem or "")
    assert nights(bench.store) == [summary]


ENDLESS_NIGHT = f"""
import sys
import dagster as dg
from sme2_assets import launch
from sme2_assets.nightly import nightly
from sme2_assets.resources import Lab

def profile(lab, instance, requests, settings, log):
    if requests[0].variant == {BAD!r}:
        settings = settings | {{"rounds": 100_000}}
    return launch.profile(lab, instance, requests, settings, log)

with dg.DagsterInstance.from_config(sys.argv[1] + "/dagster_home") as instance:
    nightly(Lab(data_root=sys.argv[1]), instance, log=lambda line: print(line, flush=True), profile=profile,
            variants=[{GOOD!r}, {BAD!r}, "toy_cnn-int8"], platforms=[{NATIVE!r}], settings={QUICK!r})
"""


@pytest.mark.slow
def test_a_night_killed_while_measuring_is_reported_and_what_it_finished_is_kept(bench: Workbench):
    process = subprocess.Popen(
        [sys.executable, "-c", ENDLESS_NIGHT, str(bench.store.root)],
        cwd=CHECKOUT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        lines = iter(process.stdout.readline, "")
        assert any(BAD in line and "round 3" in line for line in lines), "it ended before it was killed"
        [running] = nights(bench.store)
        assert running.status == "running"
        assert newly_killed_nights(bench.store, bench.instance, print) == [], "it is alive"
        with pytest.raises(Sme2Error, match="Another night is still running"):
            a_night(bench, GOOD)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    started = dg.RunsFilter(statuses=[dg.DagsterRunStatus.STARTED])
    [orphan] = bench.instance.get_runs(started)

    # The dead run holds the pool's one slot: were it not ended, this night would wait for ever.
    second = a_night(bench, GOOD)
    killed, newest = nights(bench.store)
    assert (killed.night, killed.status) == (running.night, "killed")
    assert [pair.status for pair in killed.pairs] == ["measured", "interrupted", "waiting"]
    assert newest == second
    assert second.ok
    assert second.night != killed.night
    assert f"Night {killed.night} was killed: 1 of 3 pairs were measured" in second.message()
    sessions = set(bench.warehouse.query("SELECT session_id FROM runs")["session_id"])
    assert sessions == {killed.pairs[0].session_id, second.pairs[0].session_id}
    assert bench.instance.get_runs(started) == []
    ended = bench.instance.get_run_by_id(orphan.run_id)
    assert ended is not None
    assert ended.status == dg.DagsterRunStatus.FAILURE


def test_a_night_that_is_stopped_says_so_at_once(bench: Workbench):
    def stopped(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        a_night(bench, GOOD, profile=stopped)
    [summary] = nights(bench.store)
    assert (summary.status, summary.pairs[0].status) == ("killed", "interrupted")


def test_a_damaged_record_stops_no_night(bench: Workbench):
    night_folder(bench.store).mkdir()
    (night_folder(bench.store) / "2001-01-01.json").write_text("{")
    (night_folder(bench.store) / "2001-01-02.json").write_text("[]")
    past_night(bench.store, "2001-01-03", "finished")
    assert [summary.night for summary in nights(bench.store)] == ["2001-01-03"]


def run_nightly_job(bench: Workbench, **config: Any) -> dg.ExecuteInProcessResult:
    return automation.nightly_job.execute_in_process(
        run_config={"ops": {"measure_night": {"config": {**QUICK, "platforms": [NATIVE], **config}}}},
        resources={"lab": bench.lab},
        instance=bench.instance,
        raise_on_error=False,
    )


@pytest.mark.slow
def test_the_job_measures_tells_and_shows_its_summary(bench: Workbench, webhook: Webhook):  # noqa: F811
    past_night(bench.store, "2001-01-01", "finished")
    result = run_nightly_job(bench, variants=[GOOD])
    assert result.success
    [_, summary] = nights(bench.store)
    assert summary.ok
    assert bench.warehouse.query("SELECT variant FROM runs")["variant"].tolist()[0] == GOOD
    assert webhook.texts == messages(bench.store) == [summary.message()]
    assert any(note.startswith("Nights missed: 2001-01-02T02:00") for note in summary.notes)
    [output] = [event for event in result.all_events if event.is_step_success or event.is_successful_output][
        :1
    ]
    assert output.step_output_data.metadata["night"].value == summary.night


def test_an_unreachable_webhook_does_not_fail_the_night(bench: Workbench, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SME2_WEBHOOK_URL", "http://127.0.0.1:1/")
    monkeypatch.setattr("sme2_assets.notify.PAUSE_S", 0)
    assert run_nightly_job(bench, variants=[GOOD]).success
    assert len(messages(bench.store)) == 1


def test_a_night_that_did_not_measure_everything_is_a_failed_run_that_is_told_once(
    bench: Workbench,
    webhook: Webhook,  # noqa: F811
):
    # Nothing is measured: that platform is not this machine's.
    result = run_nightly_job(bench, variants=[GOOD], platforms=["mac" if NATIVE == "linux" else "linux"])
    assert not result.success
    assert len(webhook.texts) == 1
    automation.failed_runs_sensor(failure_context(result, bench))
    assert len(webhook.texts) == 1, "the night has told it"


def failure_context(result: dg.ExecuteInProcessResult, bench: Workbench) -> dg.RunFailureSensorContext:
    [failure] = [it for it in result.all_events if it.event_type == dg.DagsterEventType.RUN_FAILURE]
    return dg.build_run_status_sensor_context(
        sensor_name="failed_runs_sensor",
        dagster_instance=bench.instance,
        dagster_run=result.dagster_run,
        dagster_event=failure,
        resources={"lab": bench.lab},
    ).for_run_failure()


def test_a_failed_run_is_posted_with_its_cause(bench: Workbench, webhook: Webhook):  # noqa: F811
    @dg.op
    def breaks():
        raise ValueError("the disk is full")

    @dg.job
    def anything():
        breaks()

    result = anything.execute_in_process(instance=bench.instance, raise_on_error=False)
    automation.failed_runs_sensor(failure_context(result, bench))
    [text] = webhook.texts
    assert f"Run {result.run_id[:8]} of anything failed" in text
    assert "breaks: ValueError: the disk is full" in text


def tick(bench: Workbench, cursor: str | None, repository: dg.RepositoryDefinition) -> str | None:
    context = dg.build_sensor_context(
        instance=bench.instance, cursor=cursor, repository_def=repository, resources={"lab": bench.lab}
    )
    automation.problems_sensor(context)
    return context.cursor


def test_failed_checks_are_told_once_and_warnings_are_not(bench: Workbench, webhook: Webhook):  # noqa: F811
    @dg.asset
    def thing() -> None: ...

    @dg.asset_check(asset=thing)
    def holds():
        return dg.AssetCheckResult(passed=False, description="it does not hold")

    @dg.asset_check(asset=thing)
    def looks_odd():
        return dg.AssetCheckResult(passed=False, severity=dg.AssetCheckSeverity.WARN)

    defs = dg.Definitions(assets=[thing], asset_checks=[holds, looks_odd])
    repository = defs.get_repository_def()
    job = defs.resolve_implicit_global_asset_job_def()
    job.execute_in_process(instance=bench.instance)
    cursor = tick(bench, None, repository)
    assert webhook.texts == [], "the past is not news"
    job.execute_in_process(instance=bench.instance)
    cursor = tick(bench, cursor, repository)
    assert webhook.texts == ["Check holds of thing failed: it does not hold"]
    tick(bench, cursor, repository)
    assert len(webhook.texts) == 1


REGRESSIONS = """
SELECT 'toy_cnn-fp32' AS variant, 'linux' AS platform, 'a-cpu' AS device, 'aarch64' AS arch,
       'hardware' AS fidelity, 1 AS threads, 'off' AS sme2, 'CONV' AS category,
       TIMESTAMPTZ '2026-01-02 12:00:00+00' AS night, 1e6 AS before_ns, 1.1e6 AS after_ns, 1.1 AS ratio,
       CAST(NULL AS DOUBLE) AS p_value, false AS acknowledged
UNION ALL
SELECT 'toy_cnn-int8', 'linux', 'a-cpu', 'aarch64', 'hardware', 1, 'off', 'CONV',
       TIMESTAMPTZ '2026-01-02 12:00:00+00', 1e6, 2e6, 2.0, 0.01, true
"""


def publish_regressions(bench: Workbench) -> None:
    """Puts them where the published file has its table or view of that name."""
    bench.warehouse.publish()
    with duckdb.connect(str(bench.warehouse.link.resolve())) as connection:
        for kind in ("TABLE", "VIEW"):
            try:
                connection.execute(f"DROP {kind} IF EXISTS regressions")
            except duckdb.CatalogException:
                continue
        connection.execute(f"CREATE VIEW regressions AS {REGRESSIONS}")


def test_an_open_regression_is_told_once_and_an_acknowledged_one_is_not(
    bench: Workbench,
    webhook: Webhook,  # noqa: F811
):
    assert open_regressions(bench.warehouse) == []
    bench.warehouse.publish()
    assert open_regressions(bench.warehouse) == []
    repository = build_definitions(bench.lab).get_repository_def()
    publish_regressions(bench)
    cursor = tick(bench, None, repository)
    tick(bench, cursor, repository)
    [text] = webhook.texts
    assert "toy_cnn-fp32 on linux, a-cpu, SME2 off, threads 1, CONV: 10.0% slower since 2026-01-02" in text
    assert "toy_cnn-int8" not in text
    assert [regression.p_value for regression in open_regressions(bench.warehouse)] == [None]


def test_the_sensor_tells_of_a_night_that_was_killed(bench: Workbench, webhook: Webhook):  # noqa: F811
    past_night(bench.store, "2026-01-01", "running", PairResult(GOOD, NATIVE, ["off"], status="running"))
    repository = build_definitions(bench.lab).get_repository_def()
    cursor = tick(bench, None, repository)
    tick(bench, cursor, repository)
    [text] = webhook.texts
    assert "Night 2026-01-01 on here: killed, 0 of 1 pairs measured" in text
    assert [night.status for night in nights(bench.store)] == ["killed"]


def test_the_schedule_asks_for_one_run_at_its_tick():
    with dg.DagsterInstance.ephemeral() as instance:
        context = dg.build_schedule_context(
            instance=instance, scheduled_execution_time=datetime(2026, 1, 2, 2, 0, tzinfo=UTC)
        )
        data = automation.nightly_schedule.evaluate_tick(context)
    assert [request.run_key for request in data.run_requests or []] == ["2026-01-02T02:00:00+00:00"]
    assert automation.nightly_schedule.job_name == "nightly"


SCHEDULE = """
from sme2_assets.automation import NIGHT_FRESHNESS, SCHEDULES
[schedule] = SCHEDULES
hours = NIGHT_FRESHNESS.fail_window.to_timedelta().total_seconds() / 3600
print(schedule.cron_schedule, schedule.execution_timezone, schedule.default_status.value, hours, sep=", ")
"""


@pytest.mark.parametrize(
    ("configured", "expected"),
    [
        ({}, "0 2 * * *, UTC, STOPPED, 36.0"),
        (
            {"SME2_NIGHTLY_CRON": "30 3 * * 1-5", "SME2_NIGHTLY_TIMEZONE": "Asia/Tokyo"},
            "30 3 * * 1-5, Asia/Tokyo, RUNNING, 84.0",
        ),
        ({"SME2_NIGHTLY_CRON": "at two"}, "SME2_NIGHTLY_CRON ('at two'"),
        ({"SME2_NIGHTLY_TIMEZONE": "Mars/Olympus"}, "SME2_NIGHTLY_TIMEZONE ('Mars/Olympus'"),
    ],
)
def test_cron_and_time_zone_come_from_the_environment(configured: dict[str, str], expected: str):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SME2_NIGHTLY")}
    done = subprocess.run(
        [sys.executable, "-c", SCHEDULE],
        cwd=CHECKOUT,
        env=environment | configured,
        capture_output=True,
        text=True,
    )
    assert expected in done.stdout + done.stderr


def test_nights_without_a_schedule_between_them_were_not_missed(bench: Workbench):
    now = datetime.now(UTC)
    summary = past_night(bench.store, "2026-01-01", "finished")
    replace(summary, started_at=(now - timedelta(hours=20)).isoformat()).write(night_folder(bench.store))
    assert automation._missed_nights(bench.lab, now) == []
