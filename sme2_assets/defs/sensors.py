"""What happens by itself: what follows a measurement, new models become partitions, people are told."""

import json
import time
from datetime import UTC, datetime

import dagster as dg

from sme2_assets.defs import notify
from sme2_assets.defs.failures import events_of, failed_checks, failure_of
from sme2_assets.defs.nights import night_sensor
from sme2_assets.defs.partitions import MODEL_VARIANTS, NIGHT_TAG, model_partitions
from sme2_assets.defs.resources import Lab
from sme2_assets.errors import Sme2Error
from sme2_assets.models.registry import arrivals, is_known, variants
from sme2_assets.report.night import open_regressions
from sme2_assets.store import sha256_of_text

# Fails every night for as long as a regression stays; the sensor tells the regression itself, once.
REGRESSION_CHECK = "no_regression"
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


@dg.run_failure_sensor(default_status=dg.DefaultSensorStatus.RUNNING)
def failed_runs_sensor(context: dg.RunFailureSensorContext, lab: Lab) -> None:
    """Posts every failed run that the UI, a sensor or a backfill started.

    Not those of a night, whose summary tells them, nor those of the command line, which tells them itself. A
    failed check is told by `problems_sensor`.
    """
    run = context.dagster_run
    events = events_of(context.instance, run.run_id)
    if NIGHT_TAG in run.tags or (failed_checks(events) and not context.get_step_failure_events()):
        return
    what = f"Run {run.run_id[:8]} of {run.job_name} failed"
    if partition := run.tags.get("dagster/partition"):
        what += f" for {partition}"
    notify.post(f"{what}\n- {failure_of(events, run.run_id)}", lab.store, log=context.log.warning)


@dg.sensor(minimum_interval_seconds=60, default_status=dg.DefaultSensorStatus.RUNNING)
def problems_sensor(context: dg.SensorEvaluationContext, lab: Lab) -> dg.SkipReason:
    """Posts failed checks and new regressions, each once and all of a tick in one message.

    Checks that only warn are left to the UI. On its first tick it takes the past of the checks as told.
    """
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
    return dg.SkipReason("\n".join(lines) or "Nothing new to tell.")


# Asks for what follows a measurement: comparison, report, overview. The conditions stand at the assets.
results_sensor = dg.AutomationConditionSensorDefinition(
    "results_sensor",
    target=dg.AssetSelection.assets("sme2_comparison", "report", "overview"),
    default_status=dg.DefaultSensorStatus.RUNNING,
    minimum_interval_seconds=30,
)

SENSORS = [model_variants_sensor, results_sensor, night_sensor, failed_runs_sensor, problems_sensor]
