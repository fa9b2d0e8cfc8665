"""The nights: a schedule that requests a run for each pair, and a sensor that sums up when they have ended.

Belongs here: when a night is, what runs it has, when it is over. Does not: its results (the asset
`night_summary`); retries, the queue, one run per device, runs that hang or die (Dagster, see dagster.yaml).
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice
from zoneinfo import ZoneInfo

import dagster as dg

from sme2_assets.defs import notify
from sme2_assets.defs.failures import materialisations_in
from sme2_assets.defs.jobs import measuring, noise_job, profile_job, regressions_job, summary_job
from sme2_assets.defs.partitions import (
    DEVICE_TAG,
    MODEL_VARIANTS,
    NIGHT_TAG,
    PAIR_TAG,
    QUEUE_TAG,
    RANGE_START,
    pair_key,
    parse_run_key,
    range_tags,
    run_key,
)
from sme2_assets.defs.resources import Lab, Nights
from sme2_assets.errors import Sme2Error
from sme2_assets.models.registry import variants
from sme2_assets.report.night import night_folder
from sme2_assets.targets import TargetKey
from sme2_assets.targets.host import host_platform
from sme2_assets.targets.inventory import read_inventory

MAX_RETRIES = 2
# No pair takes this long. It ends a run whose machine went down, so that it is tried again.
MAX_RUNTIME = timedelta(hours=3)
# A comparison follows a pair within a minute or two; a summary waits no longer than this for one that failed.
COMPARISON_PATIENCE = timedelta(minutes=15)
# Comparisons of one pair that several devices may make in a night.
RECENT = 20
# How far back the sensor looks for nights without a summary.
MEMORY = timedelta(days=7)
ENDED = (dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED)


def nightly_schedule(when: Nights) -> dg.ScheduleDefinition:
    @dg.schedule(
        name="nightly_schedule",
        job=profile_job,
        cron_schedule=when.cron,
        execution_timezone=when.time_zone,
        description="Requests a run for each pair. If nights were missed, only the newest is measured.",
        # A night occupies the machine for hours, so it must be switched on.
        default_status=dg.DefaultScheduleStatus.RUNNING if when.on else dg.DefaultScheduleStatus.STOPPED,
    )
    def schedule(
        context: dg.ScheduleEvaluationContext, lab: Lab, nights: Nights
    ) -> Iterator[dg.RunRequest | dg.SkipReason]:
        for record in _runs_of_nights(context.instance):
            if record.dagster_run.status not in ENDED:
                yield dg.SkipReason(f"Night {record.dagster_run.tags[NIGHT_TAG]} is still running.")
                return
        due = context.scheduled_execution_time
        night = _name(context.instance, lab, due.astimezone(ZoneInfo(nights.time_zone)).date().isoformat())
        try:
            requests = nights.requests(lab).requests
        except Sme2Error as error:
            notify.post(f"Night {night} measured nothing: {error}", lab.store, log=context.log.warning)
            yield dg.SkipReason(str(error))
            return
        context.instance.add_dynamic_partitions(
            MODEL_VARIANTS, sorted({request.variant for request in requests})
        )
        for request in requests:
            keys = [run_key(request.variant, target) for target in request.targets]
            on_device = {"device": request.device} if request.device else {}
            yield dg.RunRequest(
                run_key=" ".join([due.isoformat(), keys[0], *on_device.values()]),
                partition_key=keys[0] if len(keys) == 1 else None,
                asset_selection=measuring("etdump_traces", nights.settings),
                run_config={"ops": {"etdump_traces": {"config": nights.settings | on_device}}},
                tags=_tags(night, lab, request.platform, request.device)
                | {PAIR_TAG: pair_key(request.variant, request.platform)}
                | (range_tags(keys) if len(keys) > 1 else {}),
            )

    return schedule


def _tags(night: str, lab: Lab, platform: str, device: str | None = None) -> dict[str, str]:
    """For Dagster's queue, retries and monitoring, and for the worker that has the device."""
    entry = read_inventory(lab.store).devices.get(device or "")
    return ({QUEUE_TAG: entry.worker} if entry and entry.worker else {}) | {
        NIGHT_TAG: night,
        DEVICE_TAG: device or lab.target(platform).occupied,
        "dagster/max_retries": str(MAX_RETRIES),
        "dagster/max_runtime": str(round(MAX_RUNTIME.total_seconds())),
    }


def _name(instance: dg.DagsterInstance, lab: Lab, date: str) -> str:
    """The date, then date-2, date-3: a night that is started again does not overwrite the first."""
    night, number = date, 2
    while (night_folder(lab.store) / f"{night}.json").exists() or runs_of_night(instance, night):
        night, number = f"{date}-{number}", number + 1
    return night


def _runs_of_nights(instance: dg.DagsterInstance) -> list[dg.RunRecord]:
    """The pairs of recent nights."""
    recent = dg.RunsFilter(job_name=profile_job.name, created_after=datetime.now(UTC) - MEMORY)
    return [it for it in instance.get_run_records(recent) if NIGHT_TAG in it.dagster_run.tags]


def runs_of_night(instance: dg.DagsterInstance, night: str) -> list[dg.RunRecord]:
    """All runs of a night, oldest first: pairs and their retries, and what follows them."""
    records = instance.get_run_records(dg.RunsFilter(tags={NIGHT_TAG: night}))
    return sorted(records, key=lambda record: record.create_timestamp)


@dg.sensor(
    jobs=[noise_job, regressions_job, summary_job],
    description="When all pairs of a night have ended, well or not: noise of the machine, slow-downs, "
    "summary, in turn.",
    minimum_interval_seconds=30,
    default_status=dg.DefaultSensorStatus.RUNNING,
)
def night_sensor(
    context: dg.SensorEvaluationContext, lab: Lab, nights: Nights
) -> Iterator[dg.RunRequest | dg.SkipReason]:
    # It looks at all runs of a night, not at each as it ends, because a night may end with a success, with a
    # failure that is not retried, with a run that was stopped, or with a comparison.
    names = {record.dagster_run.tags[NIGHT_TAG] for record in _runs_of_nights(context.instance)}
    for night in sorted(names):
        records = runs_of_night(context.instance, night)
        if all(_is_over(context.instance, record) for record in records):
            begun = {record.dagster_run.job_name for record in records}
            following = (it for it in _what_follows(night, lab, nights) if it.job_name not in begun)
            yield from islice(following, 0 if summary_job.name in begun else 1)


def _what_follows(night: str, lab: Lab, nights: Nights) -> Iterator[dg.RunRequest]:
    """After the pairs, in this order."""
    # A night that only uses devices leaves this machine alone.
    native = host_platform() if nights.platforms or not nights.devices else None
    # Elsewhere there are no verdicts on times, so a noise floor has no use.
    if native is not None and lab.target(native).fidelity == "hardware":
        variant = nights.variants[0] if nights.variants else variants()[0].key
        yield dg.RunRequest(
            run_key=f"{night} {noise_job.name}",
            job_name=noise_job.name,
            partition_key=run_key(variant, TargetKey(native, "off")),
            asset_selection=measuring("aa_noise", nights.settings),
            run_config={
                "ops": {"aa_noise": {"config": {**nights.settings, "blind_trials": nights.blind_trials}}}
            },
            tags=_tags(night, lab, native),
        )
    for job in (regressions_job, summary_job):
        yield dg.RunRequest(run_key=f"{night} {job.name}", job_name=job.name, tags={NIGHT_TAG: night})


def _is_over(instance: dg.DagsterInstance, record: dg.RunRecord) -> bool:
    """Whether nothing more follows a run: no retry, and no comparison of the pair it measured."""
    run = record.dagster_run
    if run.status not in ENDED:
        return False
    if run.tags.get("dagster/will_retry") == "true":
        return "dagster/auto_retry_run_id" in run.tags
    waited_s = datetime.now(UTC).timestamp() - (record.end_time or 0)
    is_pair = run.status == dg.DagsterRunStatus.SUCCESS and RANGE_START in run.tags
    if not is_pair or waited_s > COMPARISON_PATIENCE.total_seconds():
        return True
    variant, target = parse_run_key(run.tags[RANGE_START])
    compared = instance.fetch_materializations(
        dg.AssetRecordsFilter(
            asset_key=dg.AssetKey("sme2_comparison"),
            asset_partitions=[pair_key(variant, target.platform)],
            after_timestamp=record.start_time,
        ),
        limit=RECENT,
    )
    # Another device may have measured the same pair. A retry that began after measuring has no session.
    made = materialisations_in(instance, run.run_id, "etdump_traces")
    measured = {it.metadata["session_id"].value for it in made}
    sessions = [it.asset_materialization.metadata for it in compared.records if it.asset_materialization]
    return any(not measured or it["session_id"].value in measured for it in sessions)
