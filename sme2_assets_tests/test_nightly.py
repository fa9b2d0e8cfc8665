"""Nights are real here: real runs of toy_cnn on this machine, a real instance, a real daemon, a real kill."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import duckdb
import pytest
import yaml

from sme2_assets.definitions import build_definitions
from sme2_assets.defs.assets.nights import summed_up
from sme2_assets.defs.jobs import noise_job, profile_job, regressions_job, summary_job
from sme2_assets.defs.nights import night_sensor, nightly_schedule
from sme2_assets.defs.partitions import (
    DEVICE_TAG,
    MODEL_VARIANTS,
    NIGHT_TAG,
    PAIR_TAG,
    RANGE_END,
    RANGE_START,
    range_tags,
)
from sme2_assets.defs.resources import Nights
from sme2_assets.defs.sensors import failed_runs_sensor, problems_sensor
from sme2_assets.errors import Sme2Error
from sme2_assets.launch import Jobs
from sme2_assets.report.night import NightSummary, night_folder, nights, open_regressions
from sme2_assets.store import CHECKOUT, DAGSTER_YAML, Store
from sme2_assets.targets.host import host_platform
from sme2_assets.toolchain import Availability
from sme2_assets_tests.e2e.conftest import Workbench, opened_workbench
from sme2_assets_tests.targets.ssh.sshd_loopback import SshMachine
from sme2_assets_tests.warehouse.test_publish import write_nothing
from sme2_assets_tests.webhook import Webhook, webhook  # noqa: F401  (a fixture)

QUICK = {"rounds": 1, "warmup": 0, "iterations": 1, "kernel_rounds": 0, "quiet_patience_s": 0}
NATIVE = host_platform() or "linux"
OTHER = "mac" if NATIVE == "linux" else "linux"
GOOD, BAD = "toy_cnn-fp32", "toy_cnn-fp16"
NIGHT = "2026-01-02"
DUE = datetime(2026, 1, 2, 2, 0, tzinfo=UTC)


@pytest.fixture
def bench(tmp_path: Path, artifacts_dir: Path) -> Iterator[Workbench]:
    with opened_workbench(tmp_path / "data", artifacts_dir) as made:
        yield made


def messages(store: Store) -> list[str]:
    path = night_folder(store) / "messages.jsonl"
    return [json.loads(line)["text"] for line in path.read_text().splitlines()] if path.exists() else []


def asked_for(bench: Workbench, when: Nights, due: datetime = DUE) -> dg.ScheduleExecutionData:
    context = dg.build_schedule_context(
        instance=bench.instance,
        scheduled_execution_time=due,
        repository_def=build_definitions(bench.lab, when).get_repository_def(),
        resources={"lab": bench.lab, "nights": when},
    )
    return nightly_schedule(when).evaluate_tick(context)


@pytest.fixture
def machines(bench: Workbench, ssh_machine: SshMachine, second_machine: SshMachine) -> dict[str, SshMachine]:
    """Two machines of the inventory, by name."""
    named = {"pi5": ssh_machine, "workstation": second_machine}
    entries = [f"{name}: {{ssh: '{it.url}', labels: [lab]}}" for name, it in named.items()]
    (bench.store.root / "devices.yaml").write_text("devices:\n  " + "\n  ".join(entries) + "\n")
    return named


def test_a_night_over_devices_is_measured_on_each_and_told_by_device(
    bench: Workbench, machines: dict[str, SshMachine]
):
    when = Nights(variants=[GOOD], devices=["label:lab"], settings=QUICK)
    for request in asked_for(bench, when).run_requests or []:
        night = request.tags[NIGHT_TAG]
        jobs = Jobs(bench.lab, bench.instance, print, request.tags)
        jobs.run(profile_job.name, [request.partition_key], request.run_config["ops"])
    pairs = {pair.name: pair for pair in summed_up(bench.instance, bench.lab, when, night).pairs}
    assert list(pairs) == [f"{GOOD} on linux (pi5)", f"{GOOD} on linux (workstation)"]
    assert {pair.status for pair in pairs.values()} == {"measured"}
    runs = bench.warehouse.query("SELECT session_id, device FROM runs ORDER BY started_at")
    assert list(runs["device"]) == [machine.target().device for machine in machines.values()]
    assert list(runs["session_id"]) == [pair.session_id for pair in pairs.values()]


def test_what_a_night_says_of_its_devices_has_their_names_and_no_address(
    bench: Workbench, machines: dict[str, SshMachine]
):
    first, second = machines.values()
    second.kill()
    second.cut()
    job = build_definitions(bench.lab).resolve_job_def(profile_job.name)
    failed = bench.instance.create_run_for_job(
        job,
        tags={NIGHT_TAG: NIGHT, "dagster/partition": f"{GOOD}|linux-sme2_off"},
        run_config={"ops": {"etdump_traces": {"config": {"device": "pi5"}}}},
    )
    bench.instance.report_run_failed(
        failed, f"The connection to {first.url} was lost. Try `{first.device.by_hand} true`."
    )
    summary = summed_up(bench.instance, bench.lab, Nights(variants=[GOOD], devices=["label:lab"]), NIGHT)
    assert "The connection to pi5 was lost" in summary.message()
    assert "workstation was left out" in summary.message()
    for text in (summary.message(), summary.markdown()):
        assert not any(private in text for private in ("ssh://", "pi@", "127.0.0.1")), text


def test_a_night_over_devices_is_a_run_for_each_and_one_device_to_a_pair_at_a_time(
    bench: Workbench, machines: dict[str, SshMachine]
):
    tick = asked_for(bench, Nights(variants=[GOOD, BAD], devices=["label:lab"], settings=QUICK))
    requests = tick.run_requests or []
    assert sorted((it.tags[PAIR_TAG], it.tags[DEVICE_TAG]) for it in requests) == sorted(
        (f"{variant}|linux", name) for variant in (GOOD, BAD) for name in machines
    )
    assert len({it.run_key for it in requests}) == len(requests) == 4
    for request in requests:
        config = request.run_config["ops"]["etdump_traces"]["config"]
        assert config == QUICK | {"device": request.tags[DEVICE_TAG]}
    limits = yaml.safe_load(DAGSTER_YAML.read_text())["concurrency"]["runs"]["tag_concurrency_limits"]
    assert {DEVICE_TAG, PAIR_TAG} <= {limit["key"] for limit in limits if limit["limit"] == 1}


def measured(bench: Workbench, variant: str, platform: str = NATIVE, night: str | None = NIGHT) -> None:
    """A run of a night, in this process; it may fail."""
    bench.instance.add_dynamic_partitions(MODEL_VARIANTS, [variant])
    jobs = Jobs(bench.lab, bench.instance, print, {NIGHT_TAG: night} if night else None)
    try:
        jobs.run(profile_job.name, [f"{variant}|{platform}-sme2_off"], {"etdump_traces": {"config": QUICK}})
    except Sme2Error as error:
        print(error)


def ticked(bench: Workbench, when: Nights) -> list[dg.RunRequest]:
    """What the sensor of the nights asks for."""
    context = dg.build_sensor_context(instance=bench.instance, resources={"lab": bench.lab, "nights": when})
    return [it for it in night_sensor(context) if isinstance(it, dg.RunRequest)]


def ended(bench: Workbench, when: Nights) -> list[str]:
    """Runs what the sensor asks for until it asks for nothing more; gives the names of the jobs."""
    run = []
    while requests := ticked(bench, when):
        for request in requests:
            job = build_definitions(bench.lab, when).resolve_job_def(str(request.job_name))
            job.execute_in_process(
                instance=bench.instance,
                partition_key=request.partition_key,
                run_config=request.run_config,
                tags=request.tags,
                raise_on_error=False,
            )
            run.append(str(request.job_name))
    return run


def test_the_schedule_asks_for_one_run_for_each_pair(bench: Workbench, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(
        "sme2_assets.targets.local.EmulatedTarget.availability", lambda self, sme2: Availability(True, "")
    )
    when = Nights(variants=[GOOD, BAD], platforms=["emulated", NATIVE], settings=QUICK)
    requests = [it for it in asked_for(bench, when).run_requests or [] if "emulated" in str(it.run_key)]
    assert [(it.tags[RANGE_START], it.tags[RANGE_END]) for it in requests] == [
        (f"{variant}|emulated-sme2_off", f"{variant}|emulated-sme2_on") for variant in (GOOD, BAD)
    ]
    device = bench.lab.target(NATIVE).device
    assert {(it.tags[NIGHT_TAG], it.tags[DEVICE_TAG]) for it in requests} == {(NIGHT, device)}
    assert {it.tags["dagster/max_retries"] for it in requests} == {"2"}
    assert len({it.run_key for it in requests}) == 2
    assert {GOOD, BAD} <= set(bench.instance.get_dynamic_partitions(MODEL_VARIANTS))
    assert all(it.run_config["ops"]["etdump_traces"]["config"]["rounds"] == 1 for it in requests)
    assert nightly_schedule(when).job_name == "profile"


def test_a_machine_that_can_measure_nothing_says_so(bench: Workbench):
    data = asked_for(bench, Nights(variants=[GOOD], platforms=[OTHER]))
    assert not data.run_requests
    assert "can be measured here" in str(data.skip_message)
    [text] = messages(bench.store)
    assert text.startswith(f"Night {NIGHT} measured nothing: ")


def test_a_night_that_is_still_running_is_not_joined_by_another(bench: Workbench):
    job = build_definitions(bench.lab).resolve_job_def(profile_job.name)
    run = bench.instance.create_run_for_job(job, tags={NIGHT_TAG: NIGHT}, status=dg.DagsterRunStatus.STARTED)
    when = Nights(variants=[GOOD], platforms=[NATIVE])
    assert asked_for(bench, when).skip_message == f"Night {NIGHT} is still running."
    assert ticked(bench, when) == []
    bench.instance.report_run_canceled(run)
    [request] = asked_for(bench, when).run_requests or []
    assert request.tags[NIGHT_TAG] == f"{NIGHT}-2", "the first of that date is not overwritten"


def test_a_night_is_summed_up_when_its_runs_have_ended_and_is_told_once(bench: Workbench, webhook: Webhook):  # noqa: F811
    night_folder(bench.store).mkdir()
    before = datetime.now(UTC) - timedelta(days=3)
    earlier = NightSummary("2001-01-01", before.isoformat(), before.isoformat(), 1, "here", [], [], [], [])
    earlier.write(night_folder(bench.store))
    when = Nights(variants=[GOOD, BAD], platforms=[NATIVE], settings=QUICK)
    measured(bench, GOOD)
    measured(bench, BAD, OTHER)
    [failed] = bench.instance.get_runs(dg.RunsFilter(statuses=[dg.DagsterRunStatus.FAILURE]))
    # As Dagster marks a run that it will try again, before it has.
    bench.instance.add_run_tags(failed.run_id, {"dagster/will_retry": "true"})
    assert ticked(bench, when) == [], "it will be tried again"
    bench.instance.add_run_tags(failed.run_id, {"dagster/auto_retry_run_id": "another"})
    measured(bench, BAD, OTHER)
    after = [regressions_job.name, summary_job.name]
    hardware = bench.lab.target(NATIVE).fidelity == "hardware"
    assert ended(bench, when) == ([noise_job.name] if hardware else []) + after
    [_, record] = nights(bench.store)
    assert (record["night"], record["status"], record["ok"]) == (NIGHT, "finished", False)
    good, bad = record["pairs"]
    assert (good["status"], good["attempts"], good["failure"]) == ("measured", 1, None)
    assert good["latency_ms"]["off"] > 0
    assert good["session_id"] in bench.warehouse.query("SELECT session_id FROM runs")["session_id"].tolist()
    assert (bad["status"], bad["attempts"]) == ("failed", 2)
    assert "is not available here" in bad["failure"]
    page = (night_folder(bench.store) / f"{NIGHT}.md").read_text()
    [text] = webhook.texts
    for shown in (page, text):
        assert "1 of 2 pairs measured, 1 failed" in shown
        assert "What to do: " in shown
    missed = [note for note in record["notes"] if note.startswith("Nights missed: ")]
    assert len(missed[0].split(",")) >= 2
    assert messages(bench.store) == [text]
    failed_runs_sensor(failure_context(failed.run_id, bench))
    assert len(webhook.texts) == 1, "the night has told it"


def test_a_pair_that_fails_once_is_measured_at_the_next_attempt(bench: Workbench):
    job = build_definitions(bench.lab).resolve_job_def(profile_job.name)
    failed = bench.instance.create_run_for_job(
        job, tags={NIGHT_TAG: NIGHT, "dagster/partition": f"{GOOD}|{NATIVE}-sme2_off"}
    )
    bench.instance.report_run_failed(failed, "the device was away")
    measured(bench, GOOD)
    summary = summed_up(bench.instance, bench.lab, Nights(variants=[GOOD], platforms=[NATIVE]), NIGHT)
    [pair] = summary.pairs
    assert summary.ok
    assert (pair.status, pair.attempts) == ("measured", 2)
    assert "the device was away" in str(pair.failure)
    assert "measured at attempt 2" in summary.markdown()


def test_what_follows_the_pairs_cannot_cost_the_night(bench: Workbench):
    job = build_definitions(bench.lab).resolve_job_def(regressions_job.name)
    failed = bench.instance.create_run_for_job(job, tags={NIGHT_TAG: NIGHT})
    bench.instance.report_run_failed(failed, "no history")
    summary = summed_up(bench.instance, bench.lab, Nights(variants=[GOOD], platforms=[NATIVE]), NIGHT)
    assert not summary.ok
    assert "After the pairs: " in summary.message()
    assert "no history" in summary.message()


def test_a_night_whose_runs_were_stopped_was_killed(bench: Workbench):
    job = build_definitions(bench.lab).resolve_job_def(profile_job.name)
    tags = {NIGHT_TAG: NIGHT, "dagster/partition": f"{GOOD}|{NATIVE}-sme2_off"}
    bench.instance.report_run_canceled(bench.instance.create_run_for_job(job, tags=tags))
    summary = summed_up(bench.instance, bench.lab, Nights(variants=[GOOD], platforms=[NATIVE]), NIGHT)
    assert (summary.status, summary.pairs[0].status) == ("killed", "stopped")
    assert "killed after" in summary.headline
    assert "0 of 1 pairs measured, 1 stopped" in summary.headline


def test_a_summary_waits_for_the_comparison_of_a_pair(bench: Workbench):
    job = build_definitions(bench.lab).resolve_job_def(profile_job.name)
    keys = [f"{GOOD}|emulated-sme2_{sme2}" for sme2 in ("off", "on")]
    tags = {NIGHT_TAG: NIGHT, **range_tags(keys)}
    bench.instance.add_dynamic_partitions(MODEL_VARIANTS, [GOOD])
    run = bench.instance.create_run_for_job(job, tags=tags, status=dg.DagsterRunStatus.STARTED)
    for event_type in (dg.DagsterEventType.RUN_START, dg.DagsterEventType.RUN_SUCCESS):
        bench.instance.report_dagster_event(dg.DagsterEvent(event_type.value, job.name), run.run_id)
    assert ticked(bench, Nights()) == []
    bench.instance.report_runless_asset_event(
        dg.AssetMaterialization("sme2_comparison", partition=f"{GOOD}|emulated")
    )
    assert len(ticked(bench, Nights())) == 1


def test_a_damaged_record_stops_no_night(bench: Workbench):
    night_folder(bench.store).mkdir()
    (night_folder(bench.store) / "2001-01-01.json").write_text("{")
    (night_folder(bench.store) / "2001-01-02.json").write_text("[]")
    NightSummary("2001-01-03", "2001-01-03T02:00:00+00:00", "", 1, "", [], [], [], []).write(
        night_folder(bench.store)
    )
    assert [record["night"] for record in nights(bench.store)] == ["2001-01-03"]


def test_nights_are_due_when_their_cron_says_so():
    at = Nights(cron="30 3 * * 1-5", time_zone="Asia/Tokyo")
    since = datetime(2026, 1, 1, tzinfo=UTC)
    assert [tick.isoformat() for tick in at.ticks(since, since + timedelta(days=5, hours=1))] == [
        "2026-01-02T03:30:00+09:00",
        "2026-01-05T03:30:00+09:00",
    ], "over the weekend there is none, and the last one is not over"
    policy: Any = at.freshness()
    assert policy.fail_window.to_timedelta() == timedelta(days=3, hours=12)
    daily: Any = Nights().freshness()
    assert daily.fail_window.to_timedelta() == timedelta(hours=36)


def test_nights_begin_at_two_once_somebody_switches_them_on():
    schedule = build_definitions().resolve_schedule_def("nightly_schedule")
    assert (schedule.cron_schedule, schedule.execution_timezone) == ("0 2 * * *", "UTC")
    assert schedule.default_status == dg.DefaultScheduleStatus.STOPPED


def failure_context(run_id: str, bench: Workbench) -> dg.RunFailureSensorContext:
    records = bench.instance.get_records_for_run(run_id).records
    events = [record.event_log_entry.dagster_event for record in records]
    [failure] = [it for it in events if it and it.event_type == dg.DagsterEventType.RUN_FAILURE]
    run = bench.instance.get_run_by_id(run_id)
    assert run is not None
    return dg.build_run_status_sensor_context(
        sensor_name="failed_runs_sensor",
        dagster_instance=bench.instance,
        dagster_run=run,
        dagster_event=failure,
        resources={"lab": bench.lab},
    ).for_run_failure()


def test_a_failed_run_is_posted_with_its_cause(bench: Workbench, webhook: Webhook):  # noqa: F811
    @dg.op
    def breaks():
        raise ValueError("the fan has stopped")

    @dg.job
    def anything():
        breaks()

    result = anything.execute_in_process(instance=bench.instance, raise_on_error=False)
    failed_runs_sensor(failure_context(result.run_id, bench))
    [text] = webhook.texts
    assert f"Run {result.run_id[:8]} of anything failed" in text
    assert "breaks failed: ValueError: the fan has stopped" in text


def tick(bench: Workbench, cursor: str | None) -> str | None:
    context = dg.build_sensor_context(instance=bench.instance, cursor=cursor, resources={"lab": bench.lab})
    problems_sensor(context)
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
    job = defs.resolve_implicit_global_asset_job_def()
    job.execute_in_process(instance=bench.instance)
    cursor = tick(bench, None)
    assert webhook.texts == [], "the past is not news"
    job.execute_in_process(instance=bench.instance)
    cursor = tick(bench, cursor)
    assert webhook.texts == ["The check holds of thing failed: it does not hold"]
    tick(bench, cursor)
    assert len(webhook.texts) == 1


REGRESSIONS = """
SELECT 'toy_cnn-fp32' AS variant, 'linux' AS platform, 'a-cpu' AS device, 'aarch64' AS arch,
       'hardware' AS fidelity, 1 AS threads, '' AS cpus, '' AS power_mode, 'forward' AS method,
       'off' AS sme2, 'CONV' AS category,
       TIMESTAMPTZ '2026-01-02 12:00:00+00' AS night, 1e6 AS before_ns, 1.1e6 AS after_ns, 1.1 AS ratio,
       CAST(NULL AS DOUBLE) AS p_value, 2 AS others_watched, 1 AS others_slower, false AS acknowledged,
       'a' AS run_id
UNION ALL
SELECT 'toy_cnn-int8', 'linux', 'a-cpu', 'aarch64', 'hardware', 1, '', '', 'forward', 'off', 'CONV',
       TIMESTAMPTZ '2026-01-02 12:00:00+00', 1e6, 2e6, 2.0, 0.01, 2, 1, true, 'b'
UNION ALL
SELECT 'model_' || number, 'linux', 'slow-cpu', 'aarch64', 'hardware', 1, '', '', 'forward', 'off', category,
       TIMESTAMPTZ '2026-01-02 12:00:00+00', 1e6, 1.2e6, 1.2, 0.01, 4, 3, false, 'of_model_' || number
FROM range(4) AS models(number), unnest(['latency', 'CONV']) AS categories(category)
"""


def publish_regressions(bench: Workbench) -> None:
    """Puts them where the published file has its table or view of that name."""
    # A file that nobody has open yet.
    write_nothing(bench.warehouse)
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
    assert open_regressions(bench.warehouse) == {}
    bench.warehouse.publish()
    assert open_regressions(bench.warehouse) == {}
    publish_regressions(bench)
    cursor = tick(bench, None)
    tick(bench, cursor)
    [text] = webhook.texts
    assert "toy_cnn-fp32 on linux, a-cpu, SME2 off, threads 1, CONV: 10.0% slower since 2026-01-02" in text
    assert "; 1 of 2 series of other models on this device slowed down with it" in text
    assert "toy_cnn-int8" not in text
    # What most models of a device share is one regression, and not that of a model.
    assert text.count("slow-cpu") == 1
    assert "slow-cpu on linux: 8 series of 4 models slower since 2026-01-02, the middle one by 20.0%." in text


# A session that is to be killed in its third round waits there, until there is the file that lets all go on.
HELD = """
import time
from pathlib import Path
from sme2_assets.profiling import session

enough = session._enough
def held(arms, plan, rounds, spent_s):
    while rounds > 2 and not Path({gate!r}).exists():
        time.sleep(0.1)
    return enough(arms, plan, rounds, spent_s)
session._enough = held
"""
DEPLOYMENT = """
from sme2_assets.definitions import build_definitions
from sme2_assets.defs.resources import Nights

defs = build_definitions(
    when=Nights(
        cron={cron!r}, on=True, variants={variants!r}, platforms=[{platform!r}], settings={settings!r}
    )
)
"""


def wait_for(answer: Callable[[], Any], patience_s: float = 1200) -> Any:
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        if found := answer():
            return found
        time.sleep(0.5)
    raise AssertionError("nothing happened")


def process_of(instance: dg.DagsterInstance, run_id: str) -> int:
    events = instance.get_records_for_run(run_id).records
    said = " ".join(record.event_log_entry.message for record in events)
    return int(re.findall(r"Started process for run \(pid: (\d+)\)", said)[0])


def is_measuring(instance: dg.DagsterInstance, run_id: str) -> bool:
    records = instance.get_records_for_run(run_id).records
    return any("round 2" in record.event_log_entry.user_message for record in records)


@pytest.mark.thorough
def test_dagster_s_daemon_runs_a_night_past_a_killed_command_line_and_a_killed_run(
    bench: Workbench,
    webhook: Webhook,  # noqa: F811
    tmp_path: Path,
):
    """A process of `sme2 profile` is killed before the night, and a run of the night while it measures."""
    started = dg.RunsFilter(statuses=[dg.DagsterRunStatus.STARTED])
    environment = {
        **os.environ,
        "SME2_DATA": str(bench.store.root),
        "DAGSTER_HOME": str(bench.store.dagster_home),
        "PYTHONPATH": str(CHECKOUT),
    }
    command = [
        sys.executable,
        "-m",
        "sme2_assets.cli",
        "profile",
        GOOD,
        "--platform",
        NATIVE,
        "--sme2",
        "off",
    ]
    with subprocess.Popen([*command, "--rounds", "1000"], env=environment) as process:
        try:
            wait_for(
                lambda: any(
                    is_measuring(bench.instance, it.run_id) for it in bench.instance.get_runs(started)
                )
            )
        finally:
            process.kill()
    [orphan] = bench.instance.get_runs(started)
    measured(bench, BAD, night=None)
    assert [run.run_id for run in bench.instance.get_runs(started)] == [orphan.run_id], "the next one went on"

    definitions, gate = tmp_path / "deployment.py", tmp_path / "go-on"
    settings = {**QUICK, "rounds": 4}
    # The daemon has to be up by then: it makes up for no night of before.
    soon = datetime.now(UTC) + timedelta(minutes=3)
    definitions.write_text(
        HELD.format(gate=str(gate))
        + DEPLOYMENT.format(
            cron=f"{soon.minute} {soon.hour} * * *",
            variants=[GOOD, BAD],
            platform=NATIVE,
            settings=settings,
        )
    )
    daemon = subprocess.Popen(
        [Path(sys.executable).with_name("dagster-daemon"), "run", "-f", str(definitions)],
        env=environment,
        start_new_session=True,
    )
    try:

        def measuring() -> str | None:
            for run in bench.instance.get_runs(started):
                if run.run_id != orphan.run_id and is_measuring(bench.instance, run.run_id):
                    return run.run_id
            return None

        killed = wait_for(measuring)
        assert len(bench.instance.get_runs(started)) == 2, "one run of the night at a time, and the dead one"
        os.kill(process_of(bench.instance, killed), signal.SIGKILL)
        gate.touch()
        [record] = wait_for(lambda: nights(bench.store))
    finally:
        os.killpg(daemon.pid, signal.SIGTERM)
        try:
            daemon.wait(timeout=60)
        except subprocess.TimeoutExpired:
            os.killpg(daemon.pid, signal.SIGKILL)
            daemon.wait()
    assert record["ok"], record
    assert sorted(pair["attempts"] for pair in record["pairs"]) == [1, 2]
    [again] = [pair for pair in record["pairs"] if pair["attempts"] == 2]
    assert again["failure"]
    assert [text for text in webhook.texts if text.startswith(f"Night {record['night']} ")]
