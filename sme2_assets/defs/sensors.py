"""What happens automatically: what follows a measurement is made, and problems are posted."""

import json
from datetime import UTC, datetime

import dagster as dg

from sme2_assets.defs import notify
from sme2_assets.defs.failures import events_of, failed_checks, failure_of
from sme2_assets.defs.jobs import summary_job
from sme2_assets.defs.model_sensor import model_variants_sensor
from sme2_assets.defs.nights import night_sensor
from sme2_assets.defs.partitions import NIGHT_TAG
from sme2_assets.defs.resources import Lab
from sme2_assets.report.night import open_regressions
from sme2_assets.targets.inventory import with_names_alone

# Fails every night while a regression lasts; the sensor posts the regression itself, once.
REGRESSION_CHECK = "no_regression"


@dg.run_failure_sensor(
    description="Posts every failed run that the UI, a sensor or a backfill started. Not those that a "
    "night's summary or the command line reports; `problems_sensor` posts failed checks.",
    default_status=dg.DefaultSensorStatus.RUNNING,
)
def failed_runs_sensor(context: dg.RunFailureSensorContext, lab: Lab) -> None:
    run = context.dagster_run
    events = events_of(context.instance, run.run_id)
    by_the_night = NIGHT_TAG in run.tags and run.job_name != summary_job.name
    if by_the_night or (failed_checks(events) and not context.get_step_failure_events()):
        return
    partition = run.tags.get("dagster/partition")
    what = f"Run {run.run_id[:8]} of {run.job_name} failed{f' for {partition}' if partition else ''}"
    why = with_names_alone(lab.store, str(failure_of(events, run.run_id)))
    notify.post(f"{what}\n- {why}", lab.store, log=context.log.warning)


@dg.sensor(
    description="Posts failed checks and new regressions, each once and all of a tick in one message. "
    "Warnings are left to the UI. On its first tick, all earlier checks count as posted.",
    minimum_interval_seconds=60,
    default_status=dg.DefaultSensorStatus.RUNNING,
)
def problems_sensor(context: dg.SensorEvaluationContext, lab: Lab) -> dg.SkipReason:
    cursor = json.loads(context.cursor) if context.cursor else {}
    since = datetime.fromisoformat(cursor["since"]) if cursor else datetime.now(UTC)
    ended = context.instance.get_run_records(
        dg.RunsFilter(
            statuses=[dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE], updated_after=since
        )
    )
    found = [
        text
        for record in reversed(ended)
        for text in failed_checks(events_of(context.instance, record.dagster_run.run_id))
        if REGRESSION_CHECK not in text
    ]
    regressions = open_regressions(lab.warehouse)
    told = cursor.get("regressions", [])
    lines = [
        *dict.fromkeys(found),
        *(f"Regression: {text}" for key, text in regressions.items() if key not in told),
    ]
    if lines:
        notify.post("\n".join(lines), lab.store, log=context.log.warning)
    newest = max((record.update_timestamp for record in ended), default=since)
    context.update_cursor(json.dumps({"since": newest.isoformat(), "regressions": sorted(regressions)}))
    return dg.SkipReason("\n".join(lines) or "Nothing new to report.")


# The conditions are on the assets.
results_sensor = dg.AutomationConditionSensorDefinition(
    "results_sensor",
    description="Requests what follows a measurement: comparison, report, overview.",
    target=dg.AssetSelection.assets("sme2_comparison", "report", "overview"),
    default_status=dg.DefaultSensorStatus.RUNNING,
    minimum_interval_seconds=30,
)

SENSORS = [model_variants_sensor, results_sensor, night_sensor, failed_runs_sensor, problems_sensor]
