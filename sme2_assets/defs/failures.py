"""How a Dagster run ended, and why it failed, in the same words for command line, messages and summaries."""

from collections.abc import Iterable

import dagster as dg

from sme2_assets.errors import Sme2Error, disk_failure


def materialisations_in(
    instance: dg.DagsterInstance, run_id: str, asset: str
) -> list[dg.AssetMaterialization]:
    """The materialisations of an asset in a run."""
    return [
        event.step_materialization_data.materialization
        for event in events_of(instance, run_id)
        if event.is_step_materialization and event.asset_key == dg.AssetKey(asset)
    ]


def failed_checks(events: Iterable[dg.DagsterEvent]) -> list[str]:
    """What the checks of a run found; warnings are left to the UI."""
    found = []
    for event in events:
        if event.event_type == dg.DagsterEventType.ASSET_CHECK_EVALUATION:
            check = event.asset_check_evaluation_data
            if not check.passed and check.severity == dg.AssetCheckSeverity.ERROR:
                asset = check.asset_key.to_user_string()
                found.append(f"The check {check.check_name} of {asset} failed: {check.description}")
    return found


def failure_of(events: Iterable[dg.DagsterEvent], run_id: str) -> Sme2Error:
    """The failed step's own words; a defect of ours keeps its class and stack in the run's log."""
    events = list(events)
    for event in events:
        if event.is_step_failure:
            asset = str(event.step_key).partition(".")[0]
            data = event.step_failure_data
            if data.user_failure_data is not None:
                said = {label: value.value for label, value in data.user_failure_data.metadata.items()}
                what = said.get("what happened", data.user_failure_data.description)
                remedy = said.get("what to do")
                return Sme2Error(f"{asset}: {what}", str(remedy) if remedy else None)
            # A blocking check fails its step: what it found is said below.
            if data.error is not None and data.error.cls_name != "DagsterAssetCheckFailedError":
                cause = data.error.cause or data.error
                if told := disk_failure(cause.message):
                    return Sme2Error(f"{asset}: {told.what}", told.remedy)
                return Sme2Error(
                    f"{asset} failed: {cause.message.strip()}",
                    f"See run {run_id} in the UI (`sme2 dev`) for the whole log.",
                )
    for check in failed_checks(events):
        return Sme2Error(
            check,
            "Do not use this measurement. Where outputs are wrong, `sme2 check-model` with the model's name "
            "finds the operator.",
        )
    ended = [event.message for event in events if event.is_run_failure and event.message]
    return Sme2Error(f"Run {run_id} failed: {' '.join(ended)}".rstrip(": "), "See it in the UI (`sme2 dev`).")


def events_of(instance: dg.DagsterInstance, run_id: str) -> list[dg.DagsterEvent]:
    """The events that Dagster kept for a run."""
    entries = (record.event_log_entry for record in instance.get_records_for_run(run_id).records)
    return [entry.dagster_event for entry in entries if entry.dagster_event is not None]
