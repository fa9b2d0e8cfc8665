"""Runs the jobs in this process: the command line does the same as the UI would.

Every step is a run of the one Dagster instance, so it shows up in the UI with its logs and lineage. The only
thing waited for is a device in use (targets/lease.py): a run whose process was killed stays "started" until
Dagster's run monitoring ends it, and is in nobody's way.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import dagster as dg

from sme2_assets.analysis.factors import SME2
from sme2_assets.definitions import build_definitions
from sme2_assets.defs.assets.models import current_export
from sme2_assets.defs.failures import failure_of
from sme2_assets.defs.jobs import arms_job, compare_job, measuring, noise_job, profile_job
from sme2_assets.defs.loggers import Log, progress_logger
from sme2_assets.defs.partitions import MODEL_VARIANTS, pair_key, range_tags, run_key
from sme2_assets.defs.resources import Lab
from sme2_assets.errors import Sme2Error
from sme2_assets.evidence.leftovers import remove_leftovers
from sme2_assets.models.registry import parse_variant, variants
from sme2_assets.profiling.arm_requests import ArmRequest, ArmsRequest
from sme2_assets.profiling.progress import Progress
from sme2_assets.profiling.requests import LeftOut, ProfileRequest, causes_of
from sme2_assets.store import Store, environment, ready_dagster_home


@dataclass(frozen=True)
class Measured:
    """A session that was measured: what was asked for, and the run of each arm, SME2 off first."""

    request: ProfileRequest
    session_id: str
    run_ids: tuple[str, ...]


@dataclass(frozen=True)
class Profiled:
    """The result of a number of requests."""

    sessions: list[Measured]
    left_out: list[LeftOut]

    @property
    def run_ids(self) -> list[str]:
        return [run_id for session in self.sessions for run_id in session.run_ids]


@contextmanager
def open_instance(store: Store) -> Iterator[dg.DagsterInstance]:
    """The Dagster instance of the data folder; `$DAGSTER_HOME` wins if it is set.

    It is set for processes of this block only: another data folder has an instance of its own.
    """
    remove_leftovers(store)
    home = str(ready_dagster_home(store))
    with environment(DAGSTER_HOME=home), dg.DagsterInstance.get() as instance:
        logs = instance.compute_log_manager
        logs.capture_logs = _deaf_to_ctrl_c(logs.capture_logs)  # type: ignore[method-assign]
        yield instance


def _deaf_to_ctrl_c(capture: Callable[..., AbstractContextManager[Any]]) -> Callable[..., Any]:
    """Ctrl-C is for this process alone. Dagster's helpers, which show here what a step prints, would each
    answer it with a traceback; they are ended with the step."""

    @contextmanager
    def captured(*given: Any, **named: Any) -> Iterator[Any]:
        with ExitStack() as stack:
            before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            try:
                # Programs inherit what is blocked when they start.
                context = stack.enter_context(capture(*given, **named))
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
            yield context

    return captured


def profile(
    lab: Lab,
    instance: dg.DagsterInstance,
    requests: Sequence[ProfileRequest],
    settings: dict[str, Any],
    log: Log,
    *,
    aa: bool = False,
    tags: Mapping[str, str] | None = None,
    reached: Callable[[float], None] = lambda share: None,
) -> Profiled:
    """Materialises everything from the runner to the report for the given models and platforms.

    A failure costs only itself: the rest is measured, and what was left out is returned with the reason.
    If nothing could be measured, that is an error. With `aa`, each state is measured against itself
    instead, which gives the noise of the device. `tags` mark the runs. `reached` is called with the share
    that is done.
    """
    progress = Progress(len(requests), log, reached)
    jobs, measure = Jobs(lab, instance, progress.log, tags, progress.step), _measure_noise if aa else _measure
    sessions: list[Measured] = []
    failures: dict[ProfileRequest, Sme2Error] = {}
    for index, request in enumerate(requests):
        # Traces and rows with their checks; for a pair also the comparison with its check, and the report.
        progress.begin(index, steps=7 if len(request.states) == 2 else 4)
        try:
            wishes = {**settings, "device": request.device} if request.device else settings
            lab.require(request.platform, request.states, wishes.get("device"))
            ensure_partition(lab, instance, request.variant, progress.log)
            sessions += measure(jobs, request, wishes)
        except Sme2Error as error:
            failures[request] = error
            if len(failures) < len(requests):
                log(str(causes_of({request: error})[0]))
    if failures and len(failures) == len(requests):
        raise next(iter(failures.values()))
    return Profiled(sessions, causes_of(failures))


def compare_arms(
    lab: Lab,
    instance: dg.DagsterInstance,
    request: ArmsRequest,
    settings: dict[str, Any],
    log: Log,
    reached: Callable[[float], None] = lambda share: None,
) -> str:
    """Measures and compares arms that differ in something other than SME2; returns their session.

    `reached` is called with the share that is done.
    """
    return str(_session_of_its_own(lab, instance, request, settings, log, reached)["session_id"])


def measure_trial(
    lab: Lab,
    instance: dg.DagsterInstance,
    request: ProfileRequest,
    settings: dict[str, Any],
    log: Log,
    reached: Callable[[float], None] = lambda share: None,
) -> Measured:
    """Measures a session that is no partition: what Dagster knows of the model's stays as it is.

    `reached` is called with the share that is done.
    """
    # What is not here, or cannot be exported, leaves no failed run.
    lab.require(request.platform, request.states, request.device)
    current_export(lab, request.variant, log)
    arms = tuple(
        ArmRequest(request.variant, settings.get("threads") or 1, sme2=state) for state in request.states
    )
    asked = ArmsRequest(SME2.name, arms, request.platform, request.device)
    facts: Any = _session_of_its_own(lab, instance, asked, settings, log, reached)
    return Measured(request, facts["session_id"], tuple(facts["run_ids"]))


def _session_of_its_own(
    lab: Lab,
    instance: dg.DagsterInstance,
    request: ArmsRequest,
    settings: dict[str, Any],
    log: Log,
    reached: Callable[[float], None],
) -> dict[str, object]:
    """What its asset attached to the session of these arms."""
    asked = {**settings, **asdict(request), "arms": [asdict(arm) for arm in request.arms]}
    config = {name: value for name, value in asked.items() if value is not None}
    progress = Progress(1, log, reached)
    progress.begin(0, steps=1)
    jobs = Jobs(lab, instance, progress.log, ended=progress.step)
    done = jobs.run(arms_job.name, ops={"arms_comparison": {"config": config}})
    [facts] = _facts_of(done, "arms_comparison")
    return facts


def ensure_partition(lab: Lab, instance: dg.DagsterInstance, variant: str, log: Log) -> None:
    """Makes sure of a model's partition; one that nobody registered gets one only if it can be exported."""
    key = parse_variant(variant).key
    if instance.has_dynamic_partition(MODEL_VARIANTS, key):
        return
    if key not in {it.key for it in variants()}:
        current_export(lab, key, log)
    instance.add_dynamic_partitions(MODEL_VARIANTS, [key])


def _measure(jobs: Jobs, request: ProfileRequest, settings: dict[str, Any]) -> list[Measured]:
    keys = [run_key(request.variant, target) for target in request.targets]
    config = {"etdump_traces": {"config": settings}}
    result = jobs.run(profile_job.name, keys, config, measuring("etdump_traces", settings))
    traces = _facts_of(result, "etdump_traces")
    if len(request.states) == 2:
        # Of this session, whatever else has been measured of the model since.
        session = {"sme2_comparison": {"config": {"session": str(traces[0]["session_id"])}}}
        jobs.run(compare_job.name, [pair_key(request.variant, request.platform)], session)
    run_ids = tuple(sorted(str(facts["run_id"]) for facts in traces))
    return [Measured(request, str(traces[0]["session_id"]), run_ids)]


def _measure_noise(jobs: Jobs, request: ProfileRequest, settings: dict[str, Any]) -> list[Measured]:
    sessions = []
    for target in request.targets:
        key = run_key(request.variant, target)
        config = {"aa_noise": {"config": settings}}
        result = jobs.run(noise_job.name, [key], config, measuring("aa_noise", settings))
        [facts] = _facts_of(result, "aa_noise")
        run_ids: Any = facts["run_ids"]
        sessions.append(Measured(request, str(facts["session_id"]), tuple(run_ids)))
    return sessions


def _facts_of(result: dg.ExecuteInProcessResult, asset: str) -> list[dict[str, object]]:
    """What an asset attached to each partition that a run made."""
    made = [
        event.step_materialization_data.materialization for event in result.get_asset_materialization_events()
    ]
    return [
        {name: value.value for name, value in each.metadata.items()}
        for each in made
        if each.asset_key == dg.AssetKey(asset)
    ]


class Jobs:
    """Runs the jobs in this process, against a real instance."""

    def __init__(
        self,
        lab: Lab,
        instance: dg.DagsterInstance,
        log: Log,
        tags: Mapping[str, str] | None = None,
        ended: Callable[[], None] = lambda: None,
    ) -> None:
        self.definitions = build_definitions(lab, extra_loggers={"progress": progress_logger(log, ended)})
        self.instance = instance
        self.tags = dict(tags or {})

    def run(
        self,
        job: str,
        keys: Sequence[str] = (),
        ops: dict[str, Any] | None = None,
        assets: Sequence[dg.AssetKey] | None = None,
    ) -> dg.ExecuteInProcessResult:
        """One run of a job, or of some of its assets.

        Without a partition, for one, or for the range from the first key to the last.
        """
        result = self.definitions.resolve_job_def(job).execute_in_process(
            run_config={"loggers": {"progress": {}}, "ops": ops or {}},
            instance=self.instance,
            partition_key=keys[0] if len(keys) == 1 else None,
            tags={**self.tags, **(range_tags(keys) if len(keys) > 1 else {})},
            asset_selection=assets,
            raise_on_error=False,
        )
        if _was_interrupted(result):
            # Dagster keeps the signal to itself and calls the run failed, but it was canceled, and everything
            # that follows is, too.
            self.instance.report_run_canceled(result.dagster_run)
            raise KeyboardInterrupt
        if not result.success:
            raise failure_of(result.all_events, result.run_id)
        return result


def _was_interrupted(result: dg.ExecuteInProcessResult) -> bool:
    errors = [event.step_failure_data.error for event in result.all_events if event.is_step_failure]
    names = {each.cls_name for error in errors if error for each in (error, error.cause) if each}
    return bool(names & {"DagsterExecutionInterruptedError", "KeyboardInterrupt"})
