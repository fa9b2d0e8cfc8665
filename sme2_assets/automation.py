"""What happens by itself: new models become partitions, the night is measured, people are told.

The night is a job with one op, which runs every pair as a Dagster run of its own. It is off until
somebody wants it: in the UI under Automation, or by setting SME2_NIGHTLY_CRON.
"""

import json
import os
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise, takewhile
from typing import Any
from zoneinfo import ZoneInfo

import dagster as dg
from dagster._core.storage.asset_check_execution_record import AssetCheckExecutionRecordStatus
from dagster._utils.schedules import cron_string_iterator
from pydantic import Field

from sme2_assets import launch, notify
from sme2_assets.assets.support import clear_failures
from sme2_assets.assets.traces import ProfileConfig
from sme2_assets.errors import Sme2Error
from sme2_assets.models.registry import arrivals, is_known, variants
from sme2_assets.nightly import Regression, newly_killed_nights, nightly, nights, open_regressions
from sme2_assets.partitions import MODEL_VARIANTS, model_partitions
from sme2_assets.resources import Lab
from sme2_assets.store import sha256_of_text
from sme2_assets.targets.host import host_platform

CRON_VARIABLE = "SME2_NIGHTLY_CRON"
TIMEZONE_VARIABLE = "SME2_NIGHTLY_TIMEZONE"
CRON = os.environ.get(CRON_VARIABLE) or "0 2 * * *"
TIMEZONE = os.environ.get(TIMEZONE_VARIABLE) or "UTC"
# Metadata of a failed night whose summary has been posted: the failure sensor need not say it again.
TOLD = "night"
# Fails every night for as long as a regression stays; the sensor tells the regression itself, once.
REGRESSION_CHECK = "no_regression"
# Failures of a check that are looked at in one tick of the sensor.
CHECK_HISTORY = 100
# A whole folder of models that is dropped at once arrives over several ticks.
MOST_EXPORTS_PER_TICK = 10


@dg.sensor(
    asset_selection=[dg.AssetKey("exported_model")],
    minimum_interval_seconds=30,
    default_status=dg.DefaultSensorStatus.RUNNING,
)
def model_variants_sensor(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
    """Makes every registered model variant a partition, and takes away those whose model is gone.

    What somebody brought (a file in a models folder, an installed package) is exported on arrival and
    whenever its code changes; what comes with this package is exported when it is first profiled. What was
    measured stays in the warehouse when a partition goes.
    """
    known = context.instance.get_dynamic_partitions(MODEL_VARIANTS)
    registered = [variant.key for variant in variants()]
    new = [key for key in registered if key not in known]
    # Those that are not registered may have been asked for: a model of another source, or options.
    gone = [key for key in known if key not in registered and not is_known(key)]
    exports, cursor = _exports_to_ask_for(context)
    context.update_cursor(cursor)
    if gone:
        context.log.info(f"No longer partitions, for their models are gone: {', '.join(gone)}")
    if not (new or gone or exports):
        return dg.SkipReason("The partitions are the registered model variants already.")
    requests: list[dg.AddDynamicPartitionsRequest | dg.DeleteDynamicPartitionsRequest] = []
    if new:
        requests.append(model_partitions.build_add_request(new))
    if gone:
        requests.append(model_partitions.build_delete_request(gone))
    return dg.SensorResult(run_requests=exports, dynamic_partitions_requests=requests)


def _exports_to_ask_for(context: dg.SensorEvaluationContext) -> tuple[list[dg.RunRequest], str]:
    """Runs for variants that are new or changed, some at a time, and the cursor that remembers them."""
    asked: dict[str, str] = json.loads(context.cursor) if context.cursor else {}
    wanted = {}
    for variant, spec in arrivals():
        try:
            wanted[variant.key] = sha256_of_text(json.dumps(spec.identity(), sort_keys=True))[:16]
        except (OSError, Sme2Error) as error:
            context.log.warning(f"{variant} is not exported now: {error}")
    fresh = [key for key, identity in wanted.items() if asked.get(key) != identity][:MOST_EXPORTS_PER_TICK]
    runs = [
        dg.RunRequest(
            # The moment is part of it: a file that is changed and changed back is exported again.
            run_key=f"{key}:{wanted[key]}:{time.time_ns()}",
            partition_key=key,
            asset_selection=[dg.AssetKey("exported_model")],
        )
        for key in fresh
    ]
    remembered = {key: asked[key] for key in wanted if key in asked} | {key: wanted[key] for key in fresh}
    return runs, json.dumps(remembered)


class NightConfig(ProfileConfig):
    """What a night measures, and how much of it. The schedule leaves all of it at its defaults."""

    variants: list[str] = Field([], description="Model variants; empty: all that are registered.")
    platforms: list[str] = Field([], description="Platforms; empty: all that this machine gives.")


def _after_the_pairs(
    lab: Lab, instance: dg.DagsterInstance, settings: dict[str, Any], log: Callable[[str], None]
) -> None:
    """One A/A session of the machine, so that its noise floor stays known, and the search for slow-downs."""
    native = host_platform()
    # Elsewhere there are no verdicts on times that a noise floor would serve.
    if native is not None and lab.target(native).fidelity == "hardware":
        request = launch.ProfileRequest(variants()[0].key, native, ("off",))
        launch.profile(lab, instance, [request], settings, log, aa=True)
    launch.look_for_regressions(lab, instance, log)


@dg.op
def measure_night(context: dg.OpExecutionContext, config: NightConfig, lab: Lab) -> None:
    """Measures every pair, leaves the summary in data/nightly/ and posts it; fails if any pair did."""
    settings = config.model_dump(exclude={"variants", "platforms"}, exclude_none=True)
    with clear_failures():
        summary = nightly(
            lab,
            context.instance,
            log=context.log.info,
            variants=config.variants,
            platforms=config.platforms,
            settings=settings,
            zone=ZoneInfo(TIMEZONE),
            notes=_missed_nights(lab, datetime.now(UTC)),
            afterwards=lambda: _after_the_pairs(lab, context.instance, settings, context.log.info),
        )
    notify.post(summary.message(), lab.store, log=context.log.warning)
    metadata: dict[str, dg.MetadataValue] = {
        TOLD: dg.MetadataValue.text(summary.night),
        "summary": dg.MetadataValue.md(summary.markdown()),
    }
    if not summary.ok:
        raise dg.Failure(summary.message(), metadata, allow_retries=False)
    context.add_output_metadata(metadata)


@dg.job(name="nightly", description="All model variants on all platforms of this machine, pair by pair.")
def nightly_job() -> None:
    measure_night()


def _nightly_schedule() -> dg.ScheduleDefinition:
    @dg.schedule(
        job=nightly_job,
        cron_schedule=CRON,
        execution_timezone=TIMEZONE,
        # It takes the machine for hours, so whoever wants it says so.
        default_status=dg.DefaultScheduleStatus.RUNNING
        if os.environ.get(CRON_VARIABLE)
        else dg.DefaultScheduleStatus.STOPPED,
    )
    def nightly_schedule(context: dg.ScheduleEvaluationContext) -> dg.RunRequest:
        """One night a tick. After a standstill Dagster catches up on the last missed tick, not on all."""
        return dg.RunRequest(run_key=context.scheduled_execution_time.isoformat())

    return nightly_schedule


try:
    nightly_schedule = _nightly_schedule()
except dg.DagsterInvalidDefinitionError as error:
    raise Sme2Error(
        f"The nightly schedule is not one: {error}",
        f"Correct {CRON_VARIABLE} ({CRON!r}, five fields) or {TIMEZONE_VARIABLE} ({TIMEZONE!r}, "
        "e.g. Europe/Berlin).",
    ) from error


@dg.run_failure_sensor(default_status=dg.DefaultSensorStatus.RUNNING)
def failed_runs_sensor(context: dg.RunFailureSensorContext, lab: Lab) -> None:
    """Posts every failed run that the UI, a schedule or a backfill started.

    Not those that the night or the command line starts: they tell it themselves.
    """
    causes = []
    for event in context.get_step_failure_events():
        data = event.step_failure_data
        if data.user_failure_data is not None:
            if TOLD in data.user_failure_data.metadata:
                return
            causes.append(f"{event.step_key}: {data.user_failure_data.description}")
        elif data.error is not None:
            causes.append(f"{event.step_key}: {(data.error.cause or data.error).message.strip()}")
    run = context.dagster_run
    what = f"Run {run.run_id[:8]} of {run.job_name} failed"
    if partition := run.tags.get("dagster/partition"):
        what += f" for {partition}"
    said = causes or [context.failure_event.message or "it ended without a word"]
    notify.post("\n- ".join([what, *said]), lab.store, log=context.log.warning)


@dg.sensor(minimum_interval_seconds=60, default_status=dg.DefaultSensorStatus.RUNNING)
def problems_sensor(context: dg.SensorEvaluationContext, lab: Lab) -> dg.SensorResult | dg.SkipReason:
    """Posts failed checks, new regressions and killed nights, each once and all of a tick in one message.

    Checks that only warn are left to the UI. On its first tick it takes the past of the checks as told.
    """
    cursor = json.loads(context.cursor) if context.cursor else {"checks": None, "regressions": []}
    failures = _failed_checks(context)
    regressions = {_identity(regression): regression for regression in open_regressions(lab.warehouse)}
    killed = newly_killed_nights(lab.store, context.instance, context.log.info)
    lines = [
        *(f"{night.headline}. What it measured is kept." for night in killed),
        *_distinct(
            text
            for number, text in failures.items()
            if cursor["checks"] is not None and number not in cursor["checks"]
        ),
        *(f"Regression: {it}" for key, it in regressions.items() if key not in cursor["regressions"]),
    ]
    if lines:
        notify.post("\n".join(lines), lab.store, log=context.log.warning)
    context.update_cursor(json.dumps({"checks": sorted(failures), "regressions": sorted(regressions)}))
    return dg.SkipReason("\n".join(lines) or "Nothing new to tell.")


def _failed_checks(context: dg.SensorEvaluationContext) -> dict[int, str]:
    """The newest failures of every check by the number of their record.

    Remembering the numbers is safer than a position: a check's number is given when it is planned, so a
    slow check can fail after one with a higher number did.
    """
    if context.repository_def is None:
        return {}
    failures = {}
    keys = context.repository_def.asset_graph.asset_check_keys
    for key in sorted(key for key in keys if key.name != REGRESSION_CHECK):
        for record in context.instance.event_log_storage.get_asset_check_execution_history(
            key, limit=CHECK_HISTORY, status={AssetCheckExecutionRecordStatus.FAILED}
        ):
            evaluation = record.evaluation
            if evaluation is not None and evaluation.severity == dg.AssetCheckSeverity.ERROR:
                failures[record.id] = (
                    f"Check {key.name} of {key.asset_key.to_user_string()} failed: {evaluation.description}"
                )
    return failures


def _identity(regression: Regression) -> str:
    it = regression
    where = [it.platform, it.device, it.arch, str(it.threads)]
    return "|".join([it.variant, *where, it.sme2, it.category or "", it.night])


def _distinct(items: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(items))


def _ticks(since: datetime) -> Iterable[datetime]:
    """When nights are due after a moment; endless."""
    return cron_string_iterator(since.timestamp() + 1, CRON, TIMEZONE)


def _missed_nights(lab: Lab, now: datetime) -> list[str]:
    """Nights that were due since the last one began; the last of them is the one that starts now."""
    before = nights(lab.store)
    if not before:
        return []
    due = takewhile(lambda tick: tick <= now, _ticks(datetime.fromisoformat(before[-1].started_at)))
    missed = list(due)[:-1]
    return [f"Nights missed: {', '.join(tick.isoformat(timespec='minutes') for tick in missed)}"] * bool(
        missed
    )


def _longest_pause() -> timedelta:
    """Between two nights, over the next fortnight of them: weekends count."""
    return max(later - earlier for earlier, later in pairwise(islice(_ticks(datetime.now(UTC)), 15)))


# For assets that every night materialises. Dagster looks at the newest partition, so it tells that there
# was no night, and not that a pair is missing from one: that is in the night's summary.
NIGHT_FRESHNESS = dg.FreshnessPolicy.time_window(
    warn_window=_longest_pause() + timedelta(hours=4), fail_window=_longest_pause() + timedelta(hours=12)
)
NIGHT_FRESH_ASSETS = ("etdump_traces", "timeline", "sme2_comparison")

JOBS = [nightly_job]
SCHEDULES = [nightly_schedule]
# Makes the overview anew when a report is; its condition stands at the asset.
overview_sensor = dg.AutomationConditionSensorDefinition(
    "overview_sensor",
    target=dg.AssetSelection.assets("overview"),
    default_status=dg.DefaultSensorStatus.RUNNING,
    minimum_interval_seconds=60,
)

SENSORS = [model_variants_sensor, failed_runs_sensor, problems_sensor, overview_sensor]
