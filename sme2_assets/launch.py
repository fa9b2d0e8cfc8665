"""Running the assets from Python: what the command line does, the UI would have done the same.

Every step is a run of the one Dagster instance, so it shows up in the UI with its logs and lineage.
"""

from __future__ import annotations

import logging
import os
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import dagster as dg
from filelock import FileLock, Timeout

from sme2_assets.errors import Sme2Error
from sme2_assets.models.registry import is_large
from sme2_assets.partitions import BUSY_POOL, MODEL_VARIANTS, pair_key, run_key
from sme2_assets.resources import Lab
from sme2_assets.store import Store, ready_dagster_home, safe_name
from sme2_assets.targets import PLATFORMS, SME2_STATES, TargetKey
from sme2_assets.targets.host import host_platform

Log = Callable[[str], None]
T = TypeVar("T")

RANGE_START = "dagster/asset_partition_range_start"
RANGE_END = "dagster/asset_partition_range_end"
# How Dagster begins to say that a step is left out because another failed.
SKIPPED = "Dependencies for step "
# Names the lock that the process of an in-process run holds for as long as it lives.
PROCESS_TAG = "sme2/process"
RUN_ASSETS = ("etdump_traces", "timeline", "kernel_samples")
PAIR_ASSETS = ("sme2_comparison", "report")


@dataclass(frozen=True)
class ProfileRequest:
    """A model on a platform in one or both SME2 states."""

    variant: str
    platform: str
    states: tuple[str, ...]

    @property
    def targets(self) -> list[TargetKey]:
        return [TargetKey(self.platform, sme2) for sme2 in self.states]


def open_instance(store: Store) -> dg.DagsterInstance:
    """The Dagster instance of the data folder; `$DAGSTER_HOME` wins where it is set."""
    os.environ["DAGSTER_HOME"] = str(ready_dagster_home(store))
    return dg.DagsterInstance.get()


@dataclass(frozen=True)
class LeftOut:
    """Something that should have been measured and was not, and why."""

    what: str
    error: Sme2Error
    requests: tuple[ProfileRequest, ...] = ()

    def __str__(self) -> str:
        return f"{self.what} was left out: {self.error}"


@dataclass(frozen=True)
class Measured:
    """A session that was measured: what was asked for, and the run of each arm, SME2 off first."""

    request: ProfileRequest
    session_id: str
    run_ids: tuple[str, ...]


@dataclass(frozen=True)
class Profiled:
    """What came of a number of requests."""

    sessions: list[Measured]
    left_out: list[LeftOut]

    @property
    def run_ids(self) -> list[str]:
        return [run_id for session in self.sessions for run_id in session.run_ids]


@dataclass(frozen=True)
class Here:
    """What this machine can measure: each platform with the states it can give.

    `notes` tell what it cannot give by its nature, such as SME2 without the CPU for it; `left_out` what it
    could give if something were mended.
    """

    platforms: dict[str, tuple[str, ...]]
    notes: list[str]
    left_out: list[LeftOut]


@dataclass(frozen=True)
class Requests:
    """What to measure, what is not measured by nature, and what is not because something is broken."""

    requests: list[ProfileRequest]
    notes: list[str]
    left_out: list[LeftOut]


def requests_for(
    lab: Lab,
    variants: Sequence[str],
    platform_name: str,
    states: tuple[str, ...],
    device: str | None = None,
) -> Requests:
    """A platform asked for by name must be able to give every state asked for.

    A reference has no SME2 states, so the pair that is asked for by default is one run.
    """
    target = lab.target(platform_name, device)
    notes = []
    if target.fidelity == "reference" and states == SME2_STATES:
        states = ("off",)
        notes.append(f"{platform_name} is a reference here: {target.availability('on').detail}")
    for sme2 in states:
        target.require(sme2)
    return Requests([ProfileRequest(variant, platform_name, states) for variant in variants], notes, [])


def requests_for_this_machine(
    lab: Lab, variants: Sequence[str], states: tuple[str, ...], named: Sequence[str] = ()
) -> Requests:
    """Every platform that tells something about SME2, in the states it can give here.

    Where platforms are named, these alone, a reference too.
    """
    here = platforms_here(lab, states, named)
    notes = list(here.notes)
    requests: list[ProfileRequest] = []
    for name, given in here.platforms.items():
        for variant in variants:
            if name == "emulated" and is_large(variant):
                notes.append(
                    f"{variant} on emulated is left out: it would take minutes. "
                    "Ask for it with --platform emulated."
                )
            else:
                requests.append(ProfileRequest(variant, name, given))
    if not requests:
        raise Sme2Error(
            f"Here {', '.join(variants)} can only be emulated, which would take minutes.",
            "Ask for it with --platform emulated.",
        )
    return Requests(requests, notes, here.left_out)


def platforms_here(lab: Lab, states: tuple[str, ...], named: Sequence[str] = ()) -> Here:
    """Each platform that can be measured here and says something about SME2, with the states it can give.

    Where platforms are named, these alone, a reference too.
    """
    platforms: dict[str, tuple[str, ...]] = {}
    notes: list[str] = []
    left_out: list[LeftOut] = []
    for name in named or PLATFORMS:
        target = lab.target(name)
        availability = {sme2: target.availability(sme2) for sme2 in states}
        given = tuple(sme2 for sme2 in states if availability[sme2].ok)
        missing = {sme2: it for sme2, it in availability.items() if not it.ok}
        if target.fidelity == "reference" and name not in named:
            if given:
                notes.append(
                    f"{name} is left out: {availability[given[0]].detail}. Ask for it with --platform {name}."
                )
        elif given:
            platforms[name] = given
            notes += [
                f"{name} with SME2 {sme2} is left out: {it.detail} {it.remedy or ''}".strip()
                for sme2, it in missing.items()
            ]
        # A platform of another operating system is nothing a person would expect here.
        elif name == "emulated" and host_platform() == "linux":
            it = next(iter(missing.values()))
            left_out.append(LeftOut(name, Sme2Error(it.detail, it.remedy)))
    if not platforms:
        what = f"None of the platforms {', '.join(named)}" if named else "No platform"
        causes = " ".join(str(each) for each in left_out)
        raise Sme2Error(f"{what} can be measured here. {causes}".strip(), "Run `sme2 doctor`.")
    return Here(platforms, notes, left_out)


def profile(
    lab: Lab,
    instance: dg.DagsterInstance,
    requests: Sequence[ProfileRequest],
    settings: dict[str, Any],
    log: Log,
    *,
    aa: bool = False,
    tags: Mapping[str, str] | None = None,
) -> Profiled:
    """Materialises everything from the runner to the report for the given models and platforms.

    Each runner and each model is built once, before what needs it is measured. What fails costs only what
    hangs on it: the rest is measured, and what was left out is given, with the reason. When nothing could be
    measured, that is an error. With `aa` each state is measured against itself instead, which gives the
    noise of the device. `tags` mark the runs.
    """
    instance.add_dynamic_partitions(MODEL_VARIANTS, _distinct(request.variant for request in requests))
    with _launcher(lab, instance, log, tags) as launcher:
        sessions, failures = _profile(launcher, requests, settings, aa)
    if failures and len(failures) == len(requests):
        raise next(iter(failures.values()))
    return Profiled(sessions, _left_out(failures))


def _left_out(failures: Mapping[ProfileRequest, Sme2Error]) -> list[LeftOut]:
    """One entry for each cause, with all that it cost."""
    by_cause: dict[int, list[ProfileRequest]] = {}
    for request, error in failures.items():
        by_cause.setdefault(id(error), []).append(request)
    return [
        LeftOut(
            f"{', '.join(_distinct(request.variant for request in lost))} on "
            f"{' and '.join(_distinct(request.platform for request in lost))}",
            failures[lost[0]],
            tuple(lost),
        )
        for lost in by_cause.values()
    ]


def look_for_regressions(lab: Lab, instance: dg.DagsterInstance, log: Log) -> None:
    """Materialises the asset that searches the whole history for slow-downs."""
    with _launcher(lab, instance, log) as launcher:
        launcher.materialise(["regressions"], [])


def end_dead_runs(store: Store, instance: dg.DagsterInstance, log: Log) -> None:
    """Ends runs whose process was killed.

    They ran inside a process of ours, where Dagster's run monitoring does not look: they would stay
    "started" for ever and keep the one slot of their pool, and the next run would wait for it.
    """
    under_way = dg.RunsFilter(statuses=[dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING])
    for run in instance.get_runs(under_way):
        token = run.tags.get(PROCESS_TAG)
        if token is not None and not _is_held(_process_lock(store, token)):
            log(f"run {run.run_id} died with its process; it is ended and its slot is freed")
            instance.report_run_failed(run, "The process of this run was killed.")
            instance.event_log_storage.free_concurrency_slots_for_run(run.run_id)


def wait_for_slot(store: Store, instance: dg.DagsterInstance, log: Log) -> None:
    """Waits until nothing else builds, exports or measures in this instance.

    Dagster's in-process executor would wait too, but without pause: it would keep a core busy that the one
    who measures right now needs.
    """
    told = False
    while True:
        pool = instance.event_log_storage.get_concurrency_info(BUSY_POOL)
        if pool.slot_count == 0 or pool.active_slot_count < pool.slot_count:
            return
        end_dead_runs(store, instance, log)
        if not told:
            log(f"waiting for run {', '.join(sorted(pool.active_run_ids))} to end")
            told = True
        time.sleep(1)


@contextmanager
def _launcher(
    lab: Lab, instance: dg.DagsterInstance, log: Log, tags: Mapping[str, str] | None = None
) -> Iterator[_Launcher]:
    """A launcher whose runs can be told from those of a dead process."""
    end_dead_runs(lab.store, instance, log)
    token = secrets.token_hex(8)
    path = _process_lock(lab.store, token)
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path):
        yield _Launcher(lab, instance, log, token, tags)
    path.unlink(missing_ok=True)


def _process_lock(store: Store, token: str) -> Path:
    return store.leases / f"process-{safe_name(token)}.lock"


def _is_held(path: Path) -> bool:
    try:
        with FileLock(path, timeout=0):
            path.unlink(missing_ok=True)
            return False
    except Timeout:
        return True


def _profile(
    launcher: _Launcher, requests: Sequence[ProfileRequest], settings: dict[str, Any], aa: bool
) -> tuple[list[Measured], dict[ProfileRequest, Sme2Error]]:
    """Measures all that can be measured; gives the sessions, and the failure of each request without one."""
    sessions: list[Measured] = []
    failures: dict[ProfileRequest, Sme2Error] = {}

    def attempt(concerned: Iterable[ProfileRequest], step: Callable[[], object]) -> None:
        """Takes a step for requests that nothing has failed yet; its failure is theirs."""
        still_there = [request for request in concerned if request not in failures]
        if not still_there:
            return
        try:
            step()
        except Sme2Error as error:
            failures.update(dict.fromkeys(still_there, error))
            if len(failures) < len(requests):
                launcher.log(str(_left_out(dict.fromkeys(still_there, error))[0]))

    def require(request: ProfileRequest) -> None:
        target = launcher.lab.target(request.platform, settings.get("device"))
        for sme2 in request.states:
            target.require(sme2)

    for request in requests:
        attempt([request], partial(require, request))
    # A pair from source is built by hand, as it needs a checkout.
    if settings.get("runner") != "source":
        for targets in _distinct(tuple(request.targets) for request in requests):
            keys = [str(target) for target in targets]
            attempt(
                [request for request in requests if tuple(request.targets) == targets],
                partial(launcher.materialise, ["runner_binary"], keys),
            )
    for variant in _distinct(request.variant for request in requests):
        attempt(
            [request for request in requests if request.variant == variant],
            partial(launcher.materialise, ["exported_model"], [variant]),
        )
    measure = _measure_noise if aa else _measure
    for request in requests:
        attempt([request], lambda request=request: sessions.extend(measure(launcher, request, settings)))  # type: ignore[misc]
    return sessions, failures


def _measure(launcher: _Launcher, request: ProfileRequest, settings: dict[str, Any]) -> list[Measured]:
    result = launcher.materialise(
        RUN_ASSETS,
        [run_key(request.variant, target) for target in request.targets],
        {"etdump_traces": {"config": settings}},
    )
    traces = _facts_of(result, "etdump_traces")
    if len(request.states) == 2:
        launcher.materialise(PAIR_ASSETS, [pair_key(request.variant, request.platform)])
    run_ids = tuple(sorted(str(facts["run_id"]) for facts in traces))
    return [Measured(request, str(traces[0]["session_id"]), run_ids)]


def _measure_noise(launcher: _Launcher, request: ProfileRequest, settings: dict[str, Any]) -> list[Measured]:
    sessions = []
    for target in request.targets:
        key = run_key(request.variant, target)
        result = launcher.materialise(["aa_noise"], [key], {"aa_noise": {"config": settings}})
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


def _distinct(items: Iterable[T]) -> list[T]:
    """Each item once, in the order of their first appearance."""
    return list(dict.fromkeys(items))


class _Launcher:
    """Runs selections of the assets in this process, against a real instance."""

    def __init__(
        self,
        lab: Lab,
        instance: dg.DagsterInstance,
        log: Log,
        token: str,
        tags: Mapping[str, str] | None = None,
    ) -> None:
        # Imported here: the definitions import this package's other modules, not the other way round.
        from sme2_assets.definitions import build_definitions

        self.definitions = build_definitions(lab, extra_loggers={"progress": _progress_logger(log)})
        self.lab = lab
        self.instance = instance
        self.log = log
        self.token = token
        self.tags = dict(tags or {})

    def materialise(
        self, assets: Sequence[str], keys: Sequence[str], ops: dict[str, Any] | None = None
    ) -> dg.ExecuteInProcessResult:
        """One run: without a partition, for one, or for the range from the first key to the last."""
        wait_for_slot(self.lab.store, self.instance, self.log)
        selection = [dg.AssetKey(name) for name in assets]
        job = self.definitions.resolve_implicit_job_def_def_for_assets(selection)
        if job is None:
            raise ValueError(f"no job holds all of {assets}")
        result = job.execute_in_process(
            run_config={"loggers": {"progress": {}}, "ops": ops or {}},
            instance=self.instance,
            asset_selection=selection,
            partition_key=keys[0] if len(keys) == 1 else None,
            tags={
                **self.tags,
                PROCESS_TAG: self.token,
                **({RANGE_START: keys[0], RANGE_END: keys[-1]} if len(keys) > 1 else {}),
            },
            raise_on_error=False,
        )
        if _was_interrupted(result):
            # Dagster takes the signal for itself; whoever wants to stop wants to stop all that follows, too.
            raise KeyboardInterrupt
        if not result.success:
            raise _failure_of(result)
        return result


def _was_interrupted(result: dg.ExecuteInProcessResult) -> bool:
    errors = [event.step_failure_data.error for event in result.all_events if event.is_step_failure]
    names = {each.cls_name for error in errors if error for each in (error, error.cause) if each}
    return bool(names & {"DagsterExecutionInterruptedError", "KeyboardInterrupt"})


def _failure_of(result: dg.ExecuteInProcessResult) -> Sme2Error:
    """The failed step's own words; a defect of ours keeps its class and stack in the run's log."""
    for event in result.all_events:
        if event.event_type == dg.DagsterEventType.ASSET_CHECK_EVALUATION:
            check = event.asset_check_evaluation_data
            if check.blocking and not check.passed and check.severity == dg.AssetCheckSeverity.ERROR:
                return Sme2Error(
                    f"The check {check.check_name} of {check.asset_key.to_user_string()} failed: "
                    f"{check.description}",
                    "See the asset's page in the UI (`sme2 dev`) and docs/architecture.md for its meaning.",
                )
    for event in result.all_events:
        if event.is_step_failure:
            data = event.step_failure_data
            if data.user_failure_data is not None:
                said = {label: value.value for label, value in data.user_failure_data.metadata.items()}
                what = said.get("what happened", data.user_failure_data.description)
                remedy = said.get("what to do")
                return Sme2Error(f"{event.step_key}: {what}", str(remedy) if remedy else None)
            if data.error is not None:
                cause = data.error.cause or data.error
                return Sme2Error(
                    f"{event.step_key} failed: {cause.message.strip()}",
                    f"See run {result.run_id} in the UI (`sme2 dev`) for the whole log.",
                )
    return Sme2Error(f"Run {result.run_id} failed.", "See it in the UI (`sme2 dev`).")


def _progress_logger(log: Log) -> dg.LoggerDefinition:
    """Passes on what assets say, without Dagster's own event messages."""

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            meta = getattr(record, "dagster_meta", {})
            message = str(meta.get("orig_message", ""))
            # That later steps do not run is no news to people: the error that ends the run is.
            if meta.get("step_key") and not meta.get("dagster_event") and not message.startswith(SKIPPED):
                log(message)

    @dg.logger(None, description="Progress for the command line.")
    def progress(_init_context: dg.InitLoggerContext) -> logging.Logger:
        logger = logging.Logger("sme2", level=logging.INFO)
        logger.addHandler(Handler())
        return logger

    return progress
