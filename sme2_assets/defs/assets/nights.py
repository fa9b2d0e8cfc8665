"""The results of a night."""

import platform as host
from datetime import UTC, datetime
from typing import Any

import dagster as dg

from sme2_assets.defs import notify
from sme2_assets.defs.assets.support import clear_failures
from sme2_assets.defs.failures import events_of, failure_of, materialisations_in
from sme2_assets.defs.jobs import profile_job
from sme2_assets.defs.nights import runs_of_night
from sme2_assets.defs.partitions import NIGHT_TAG, RANGE_START, parse_run_key
from sme2_assets.defs.resources import Lab, Nights
from sme2_assets.errors import Sme2Error
from sme2_assets.profiling.requests import ProfileRequest
from sme2_assets.report.answer import word_and_reason
from sme2_assets.report.claims import BASELINE
from sme2_assets.report.night import NightSummary, PairResult, night_folder, open_regressions
from sme2_assets.report.night import nights as recorded
from sme2_assets.report.tables import arm_text, fidelity_note, speedup_text
from sme2_assets.store import sha256_of_text
from sme2_assets.targets import SME2_STATES
from sme2_assets.targets.inventory import with_names_alone
from sme2_assets.warehouse import Warehouse
from sme2_assets.warehouse.read import comparison_of_session, rows_of_view, run_of_id
from sme2_assets.warehouse.shared import catch_up, publish_shared

STATUS = {dg.DagsterRunStatus.SUCCESS: "measured", dg.DagsterRunStatus.CANCELED: "stopped"}


@dg.asset(
    deps=[
        dg.AssetDep("timeline", partition_mapping=dg.AllPartitionMapping()),
        dg.AssetDep("sme2_comparison", partition_mapping=dg.AllPartitionMapping()),
        "regressions",
    ],
    group_name="results",
    kinds={"markdown"},
    code_version="1",
)
def night_summary(context: dg.AssetExecutionContext, lab: Lab, nights: Nights) -> dg.MaterializeResult:
    """The results of a night: `data/nightly/<night>.json` and `.md`, and a message to people.

    Every pair with its status, verdict, speedup, attempts; failures with what to do; regressions; what was
    left out and why. `night_sensor` requests it when all runs of a night have ended.
    """
    night = context.run.tags.get(NIGHT_TAG)
    with clear_failures():
        if night is None:
            raise Sme2Error(
                "There is no night to sum up: this run does not belong to one.",
                "Leave it to `night_sensor`, which requests it after a night, with the night as its tag.",
            )
        catch_up(lab.store, context.log.info)
        publish_shared(lab.store, context.log.info)
        summary = summed_up(context.instance, lab, nights, night)
        summary.write(night_folder(lab.store))
    notify.post(summary.message(), lab.store, log=context.log.warning)
    return dg.MaterializeResult(
        metadata={
            "night": night,
            "summary": dg.MetadataValue.md(summary.markdown()),
            "pairs measured": len(summary.having("measured")),
            "pairs failed": len(summary.having("failed")),
            "path": dg.MetadataValue.path(str(night_folder(lab.store) / f"{night}.md")),
        },
        data_version=dg.DataVersion(sha256_of_text(summary.markdown())[:16]),
    )


def summed_up(instance: dg.DagsterInstance, lab: Lab, nights: Nights, night: str) -> NightSummary:
    """The night according to its runs and the warehouse."""
    pairs: dict[ProfileRequest, list[dg.RunRecord]] = {}
    others: dict[str, dg.RunRecord] = {}
    records = runs_of_night(instance, night)
    for record in records:
        if (request := _requested(record)) is not None:
            pairs.setdefault(request, []).append(record)
        elif record.dagster_run.is_finished:
            # The last attempt counts.
            others[record.dagster_run.job_name] = record
    started, now = min(record.create_timestamp for record in records), datetime.now(UTC)
    return NightSummary(
        night,
        started.isoformat(),
        now.isoformat(),
        round((now - started).total_seconds(), 1),
        host.node(),
        [_result_of(instance, lab, request, of) for request, of in pairs.items()],
        list(open_regressions(lab.warehouse).values()),
        [*_missed(lab, nights, started), *_left_out(lab, nights)],
        [
            with_names_alone(
                lab.store, f"After the pairs: {failure_of(events_of(instance, run.run_id), run.run_id)}"
            )
            for run in (record.dagster_run for record in others.values())
            if run.is_failure
        ],
    )


def _requested(record: dg.RunRecord) -> ProfileRequest | None:
    """The pair that a run of a night was to measure; None if the run does something else."""
    tags = record.dagster_run.tags
    if record.dagster_run.job_name != profile_job.name:
        return None
    variant, target = parse_run_key(tags.get(RANGE_START) or tags["dagster/partition"])
    ops: Any = record.dagster_run.run_config.get("ops", {})
    config = ops.get("etdump_traces", {}).get("config", {})
    states = SME2_STATES if RANGE_START in tags else (target.sme2,)
    return ProfileRequest(variant, target.platform, states, config.get("device"))


def _result_of(
    instance: dg.DagsterInstance, lab: Lab, request: ProfileRequest, attempts: list[dg.RunRecord]
) -> PairResult:
    last = attempts[-1]
    pair = PairResult(
        request.variant,
        request.platform,
        list(request.states),
        STATUS.get(last.dagster_run.status, "failed"),
        len(attempts),
        round(sum((it.end_time or 0) - (it.start_time or it.end_time or 0) for it in attempts), 1),
        device=request.device,
    )
    failed = [record.dagster_run.run_id for record in attempts if record.dagster_run.is_failure]
    if failed:
        error = failure_of(events_of(instance, failed[-1]), failed[-1])
        pair.failure = with_names_alone(lab.store, error.what)
        pair.remedy = with_names_alone(lab.store, error.remedy) if error.remedy else None
    if pair.status == "measured":
        try:
            _take_result(pair, lab.warehouse, _run_ids(instance, attempts))
        except Sme2Error as error:
            pair.status, pair.failure, pair.remedy = "failed", error.what, error.remedy
    return pair


def _run_ids(instance: dg.DagsterInstance, attempts: list[dg.RunRecord]) -> list[str]:
    """The profile runs of a pair, SME2 off first. An attempt that started after the measurement made none."""
    for record in reversed(attempts):
        if made := materialisations_in(instance, record.dagster_run.run_id, "etdump_traces"):
            return sorted(str(each.metadata["run_id"].value) for each in made)
    raise Sme2Error("Its runs measured nothing.", "See them in the UI (`sme2 dev`).")


def _take_result(pair: PairResult, warehouse: Warehouse, run_ids: list[str]) -> None:
    """Adds what the warehouse has on a session; a run without rows there is a failure."""
    runs = [run_of_id(warehouse, run_id) for run_id in run_ids]
    pair.session_id = runs[0]["session_id"]
    for run in runs:
        if run["fidelity"] != "emulated":
            [latency] = rows_of_view(warehouse, "latency_summary", run["run_id"]).to_dict("records")
            pair.latency_ms[run["sme2"]] = round(float(latency["median_ns"]) / 1e6, 6)
    if len(runs) < 2:
        alone = BASELINE.say(session_id=pair.session_id, arm=arm_text(runs[0]))
        pair.reason = fidelity_note(runs[0]) or alone
        return
    rows = comparison_of_session(warehouse, runs[0]["session_id"])
    if rows.empty:
        raise Sme2Error(
            "It was measured, but not compared.", "See sme2_comparison of this pair in the UI (`sme2 dev`)."
        )
    row = rows[rows["level"] == "model"].iloc[0].to_dict()
    pair.verdict, pair.reason = word_and_reason(row)
    pair.speedup = speedup_text(row)


def _missed(lab: Lab, nights: Nights, started: datetime) -> list[str]:
    """Nights that were due since the last one began."""
    before = [datetime.fromisoformat(record["started_at"]) for record in recorded(lab.store)]
    last = max((moment for moment in before if moment < started), default=started)
    missed = [tick.isoformat(timespec="minutes") for tick in nights.ticks(last, started)]
    return [f"Nights missed: {', '.join(missed)}"] if missed else []


def _left_out(lab: Lab, nights: Nights) -> list[str]:
    try:
        wanted = nights.requests(lab)
    except Sme2Error as error:
        return [with_names_alone(lab.store, str(error))]
    return [*wanted.notes, *map(str, wanted.left_out)]
