"""A session: the interleaved measurement of one model on one platform, one or both arms.

Each runner process is fresh and does one pass. Whatever fails, fails the whole session before
anything is renamed into place: there are no rows from a crashed run. A device that goes away is no failure
of what it finished: it is waited for, and the round in which it went is measured again.
"""

from __future__ import annotations

import hashlib
import json
import math
import secrets
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from statistics import median

import numpy as np

import sme2_assets
from sme2_assets.analysis.numerics import MINIMUM_SQNR_DB, compare_outputs, worst_agreement, worst_sqnr_db
from sme2_assets.analysis.statistics import paired_speedup
from sme2_assets.errors import ConnectionLost, RunnerError, Sme2Error
from sme2_assets.models.artifact import ExportedModel, read_manifest
from sme2_assets.models.failures import load_failure
from sme2_assets.models.operators import read_operators
from sme2_assets.profiling.manifest import (
    DELEGATION_FILE,
    LOG_FILE,
    OPERATORS_FILE,
    RESULT_FILE,
    SAMPLES_FILE,
    TRACE_FILE,
    TRACED_PASSES,
    Context,
    Identity,
    Info,
    Manifest,
    Moment,
    Process,
)
from sme2_assets.profiling.plan import Plan, arm_orders
from sme2_assets.runner.build import RunnerBinary
from sme2_assets.runner.result import RunnerResult, read_result, runner_failure
from sme2_assets.store import Store, new_directory, sha256_of_file
from sme2_assets.targets.base import Completed, Target, Workspace
from sme2_assets.targets.clusters import Cluster, cpu_list, parse_cpu_list
from sme2_assets.targets.environment import disturbances_between, wait_until_quiet
from sme2_assets.targets.heat import throttling_flags
from sme2_assets.targets.keys import SME2_STATES

Log = Callable[[str], None]

# What others may use of the CPU while a round begins, in cores.
QUIET_CORES = 0.3
# A connection that is lost more often within one round will not carry it at all.
MOST_LOSSES = 3


@dataclass(frozen=True)
class ArmSpec:
    """One arm of an experiment: its name, and the SME2 state it runs in."""

    label: str
    sme2: str
    # A known slow-down put in on purpose, to see whether it is found. Such runs never reach the warehouse.
    slowdown_percent: float = 0.0


def sme2_arms(states: Sequence[str]) -> list[ArmSpec]:
    """The arms that differ in SME2: named by their state."""
    return [ArmSpec(sme2, sme2) for sme2 in states]


def same_runner(runner: RunnerBinary) -> dict[str, RunnerBinary]:
    """One binary for both states."""
    return dict.fromkeys(SME2_STATES, runner)


def aa_arms(sme2: str, slowdown_percent: float = 0.0) -> list[ArmSpec]:
    """Two identical arms: whatever differs between them is noise, or the slow-down put into the second."""
    return [ArmSpec("a", sme2), ArmSpec("b", sme2, slowdown_percent)]


@dataclass
class _Arm:
    """One arm while it is being measured."""

    spec: ArmSpec
    run_id: str
    directory: Path
    processes: list[Process] = field(default_factory=list)
    results: list[RunnerResult] = field(default_factory=list)

    def latency_medians_ns(self) -> list[float]:
        """The observation of each round so far."""
        return [median(result.iteration_ns) for result in self.results if result.pass_kind == "latency"]

    def inference_ns(self) -> float:
        """About what one inference takes, from whatever has been measured; infinite before that."""
        return min((median(result.iteration_ns) for result in self.results), default=math.inf)

    def forget_round(self, index: int) -> None:
        """Drops what was measured of a round that was not finished."""
        whole = sum(process.round < index for process in self.processes)
        del self.processes[whole:], self.results[whole:]
        shutil.rmtree(self.directory / _round_name(index), ignore_errors=True)


@dataclass
class _Session:
    """What a session measures, and where; its workspace is opened anew when the device was away."""

    target: Target
    model: ExportedModel
    runners: Mapping[str, RunnerBinary]
    arms: dict[str, _Arm]
    plan: Plan
    cpus: str
    clusters: tuple[Cluster, ...]
    log: Log
    # What is left of the patience for a quiet and a cool machine, for all rounds together.
    quiet_patience_s: float
    cool_patience_s: float
    _open: ExitStack = field(default_factory=ExitStack)
    _workspace: Workspace | None = None

    def __enter__(self) -> _Session:
        self._workspace = self._open.enter_context(self.target.workspace())
        return self

    def __exit__(self, *failure: object) -> None:
        self._open.close()

    @property
    def workspace(self) -> Workspace:
        assert self._workspace is not None, "the session is not entered"
        return self._workspace

    def reconnect(self) -> None:
        """Waits for the device and begins a fresh workspace on it; ConnectionLost if it stays away."""
        self.target.recover(self.plan.reconnect_patience_s, self.log)
        with suppress(Sme2Error):
            self._open.close()
        self._open = ExitStack()
        self.__enter__()


def measure_session(
    store: Store,
    target: Target,
    model: ExportedModel,
    runners: Mapping[str, RunnerBinary],
    arm_specs: Sequence[ArmSpec],
    plan: Plan,
    log: Log,
) -> list[Manifest]:
    """Measures the arms of one model interleaved in one session; gives a manifest per arm.

    `runners` has the runner of each SME2 state: the same one, or the two of a pair that was built alike.
    """
    for spec in arm_specs:
        target.require(spec.sme2)
    experiment = "aa" if len({spec.sme2 for spec in arm_specs}) < len(arm_specs) else "sme2"
    seed = secrets.randbelow(2**31)
    started = datetime.now(timezone.utc)
    session_id = f"{started:%Y%m%dT%H%M%S}-{secrets.token_hex(3)}"
    with ExitStack() as pending:
        target = pending.enter_context(target.leased(store.leases, log))
        machine = target.facts()
        if plan.qos and target.platform != "mac":
            raise Sme2Error(
                f"Threads have no quality of service on {target.platform}.",
                "Leave `qos` empty; `cpus` chooses CPUs on linux and android.",
            )
        cpus = cpu_list(target.cpus(plan.cpus)) if plan.cpus else ""
        placement = ", ".join(part for part in (cpus, plan.qos) if part)
        power = pending.enter_context(target.power(plan.power, store.leases, log))
        arms = {}
        for spec in arm_specs:
            run_id = _run_id(session_id, model, target, spec)
            directory = pending.enter_context(new_directory(store.run_dir(run_id)))
            # The run folder is whole evidence: what the operators are does not depend on the model's folder.
            shutil.copyfile(model.operators, directory / OPERATORS_FILE)
            shutil.copyfile(model.delegation, directory / DELEGATION_FILE)
            arms[spec.label] = _Arm(spec, run_id, directory)
        patience_s = (plan.quiet_patience_s, plan.cool_patience_s)
        with _Session(
            target, model, runners, arms, plan, cpus, machine.clusters, log, *patience_s
        ) as session:
            environment = _measure_rounds(session, seed)
        finished = datetime.now(timezone.utc)
        arms_sqnr_db = _arms_sqnr_db(list(arms.values()))
        manifests = []
        for arm in arms.values():
            manifest = Manifest(
                run_id=arm.run_id,
                session_id=session_id,
                experiment=experiment,
                arm=arm.spec.label,
                paired=len(arms) == 2,
                identity=Identity(
                    variant=model.variant,
                    model=model.model,
                    precision=model.precision,
                    platform=target.platform,
                    sme2=arm.spec.sme2,
                    threads=plan.threads,
                    pte_sha256=model.pte_sha256,
                    runner_sha256=runners[arm.spec.sme2].sha256,
                    runner_pair=runners[arm.spec.sme2].pair,
                    cpus=placement,
                    power_mode=plan.power,
                ),
                context=Context(
                    fidelity=target.fidelity,
                    device=target.device,
                    machine=machine.as_json(),
                    cpu=_cpu_of(arm),
                    power=power,
                    load_before=environment[0].snapshot["load_1m"],
                    load_after=environment[-1].snapshot["load_1m"],
                ),
                info=_info(arm, model, plan, seed, started, finished, environment, arms_sqnr_db),
            )
            manifest.write(arm.directory)
            manifests.append(manifest)
    if experiment == "sme2":
        for manifest in manifests:
            identity = manifest.identity
            partition = _partition_name(identity.variant, identity.platform, identity.sme2)
            store.set_current("run", partition, manifest.run_id)
    return manifests


def _run_id(session_id: str, model: ExportedModel, target: Target, spec: ArmSpec) -> str:
    arm = f"sme2_{spec.sme2}" if spec.label == spec.sme2 else f"sme2_{spec.sme2}-aa_{spec.label}"
    return f"{session_id}-{model.variant}-{target.platform}-{arm}"


def _measure_rounds(session: _Session, seed: int) -> list[Moment]:
    """Round after round until the plan is fulfilled; gives the machine's state around each."""
    arms, plan, log = session.arms, session.plan, session.log
    environment: list[Moment] = []
    started = time.monotonic()
    for index, order in enumerate(arm_orders(list(arms), plan.max_rounds, seed)):
        try:
            environment += _measured_round(session, index, order)
        except ConnectionLost as lost:
            if index == 0:
                raise
            environment[-1].flags.append(f"lost: the device went away in round {index + 1} and stayed away")
            log(f"{lost.what} The {index} finished rounds are kept.")
            break
        done, why = _enough(list(arms.values()), plan, index + 1, time.monotonic() - started)
        log(f"{session.model.variant} on {session.target.platform}: round {index + 1}{why}")
        if done:
            break
    return environment


def _measured_round(session: _Session, index: int, order: list[str]) -> list[Moment]:
    """One round of all arms; from its beginning again when the device went away in it."""
    losses: list[str] = []
    while True:
        try:
            before, after = _try_round(session, index, order)
        except ConnectionLost as lost:
            for arm in session.arms.values():
                arm.forget_round(index)
            if len(losses) == MOST_LOSSES:
                raise
            session.log(f"{lost.what} Waiting for the device; round {index + 1} is measured again.")
            losses.append("lost: the device went away, and the round was measured again")
            session.reconnect()
        else:
            return [before, replace(after, flags=[*after.flags, *losses[:1]])]


def _try_round(session: _Session, index: int, order: list[str]) -> tuple[Moment, Moment]:
    target, plan = session.target, session.plan
    asked = time.monotonic()
    before, flags = wait_until_quiet(
        limit_load=QUIET_CORES,
        patience_s=session.quiet_patience_s,
        cool_patience_s=session.cool_patience_s,
        log=session.log,
        take=target.snapshot,
    )
    if flags:
        waited_s = time.monotonic() - asked
        session.quiet_patience_s = max(0.0, session.quiet_patience_s - waited_s)
        session.cool_patience_s = max(0.0, session.cool_patience_s - waited_s)
    slowed: list[str] = []
    for order_index, label in enumerate(order):
        for pass_kind in plan.passes_of_round(index):
            result = _run_pass(session, session.arms[label], index, order_index, pass_kind)
            slowed += throttling_flags(result.conditions, session.clusters)
    # The counters since `before` tell what disturbed the round; nothing more needs sampling.
    after = target.snapshot(sample_s=0)
    disturbed = disturbances_between(before, after, limit_load=QUIET_CORES)
    return (
        Moment(index, "before", before.as_json(), flags),
        Moment(index, "after", after.as_json(), [*disturbed, *dict.fromkeys(slowed)]),
    )


def _enough(arms: list[_Arm], plan: Plan, rounds: int, spent_s: float) -> tuple[bool, str]:
    """Whether the session may stop after this round, and a word on it."""
    if rounds < plan.rounds:
        return False, f" of {plan.rounds}" + (" or more" if plan.max_rounds > plan.rounds else "")
    if rounds == plan.max_rounds:
        return True, f" of {rounds}"
    if len(arms) < 2:
        return True, f" of {rounds}"
    speedup = paired_speedup(arms[0].latency_medians_ns(), arms[1].latency_medians_ns())
    if speedup.low is not None and speedup.high is not None:
        width = speedup.high / speedup.low - 1
        if width <= plan.interval_width:
            return True, f": the interval is {width:.1%} wide, narrow enough"
        if spent_s >= plan.budget_s:
            return True, f": the interval is {width:.1%} wide, the budget of {plan.budget_s:.0f} s is spent"
        return False, f": the interval is {width:.1%} wide, going on"
    return spent_s >= plan.budget_s, ""


def current_run_dir(store: Store, variant: str, platform: str, sme2: str) -> Path:
    """The folder of the newest complete run of a partition."""
    run_id = store.require_current("run", _partition_name(variant, platform, sme2), "etdump_traces")
    return store.run_dir(run_id)


def _partition_name(variant: str, platform: str, sme2: str) -> str:
    return f"{variant}.{platform}-sme2_{sme2}"


def _round_name(index: int) -> str:
    return f"round_{index:02d}"


def _run_pass(
    session: _Session, arm: _Arm, round_index: int, order_index: int, pass_kind: str
) -> RunnerResult:
    """One runner process: run it, believe nothing that does not fit, keep its files."""
    workspace, model, plan = session.workspace, session.model, session.plan
    environ = {"SME2_RUNNER_SME2": arm.spec.sme2}
    if pass_kind == "kernels":
        environ |= session.target.sampling_environment
    name = f"{arm.spec.label}_{round_index:02d}_{pass_kind}"
    iterations = plan.iterations_of(pass_kind, arm.inference_ns())
    command = [
        *workspace.install(session.runners[arm.spec.sme2].program),
        "--model",
        workspace.put(model.pte),
    ]
    for path in model.inputs:
        command += ["--input", workspace.put(path)]
    command += ["--pass", pass_kind, "--threads", str(plan.threads)]
    if session.cpus:
        command += ["--cpus", session.cpus]
    if plan.qos:
        command += ["--qos", plan.qos]
    warmup, warmup_cap = plan.warmup_of(pass_kind)
    command += ["--warmup", str(warmup), "--iterations", str(iterations)]
    if warmup_cap > warmup:
        command += ["--warmup-cap", str(warmup_cap)]
    command += ["--result", workspace.path(f"{name}.json"), "--outputs", workspace.path(f"{name}_outputs")]
    if pass_kind in TRACED_PASSES:
        command += ["--etdump", workspace.path(f"{name}.etdump")]
    if pass_kind == "kernels":
        command += ["--samples", workspace.path(f"{name}.samples.json")]
    if arm.spec.slowdown_percent:
        command += ["--slowdown-percent", str(arm.spec.slowdown_percent)]
    completed = workspace.run(command, environ, plan.timeout_s)
    if completed.returncode != 0:
        raise _failure(completed, model, arm, round_index, pass_kind)

    relative = Path(_round_name(round_index)) / pass_kind
    directory = arm.directory / relative
    directory.mkdir(parents=True)
    (directory / LOG_FILE).write_text(completed.stdout + completed.stderr)
    workspace.get(f"{name}.json", directory / RESULT_FILE)
    workspace.get(f"{name}_outputs", directory / "outputs")
    if pass_kind in TRACED_PASSES:
        workspace.get(f"{name}.etdump", directory / TRACE_FILE)
    if pass_kind == "kernels":
        workspace.get(f"{name}.samples.json", directory / SAMPLES_FILE)
    result = read_result(directory / RESULT_FILE)
    _believe(result, arm, session, pass_kind, iterations)
    arm.results.append(result)
    arm.processes.append(
        Process(
            round=round_index,
            order=order_index,
            pass_kind=pass_kind,
            directory=str(relative),
            command=completed.command,
            environment=environ,
            exit_code=completed.returncode,
            seconds=round(completed.seconds, 4),
        )
    )
    return result


def _believe(result: RunnerResult, arm: _Arm, session: _Session, pass_kind: str, iterations: int) -> None:
    """The result must be of this arm and this plan: SME2 really on, or really taken away."""
    plan = session.plan
    if session.cpus and result.cpus != parse_cpu_list(session.cpus):
        raise RunnerError(
            f"The runner was to run on CPUs {session.cpus}, but reports {result.cpus}.",
            "Choose CPUs that the device lets a program have, or leave `cpus` empty.",
        )
    if result.cpu.sme2_usable != (arm.spec.sme2 == "on"):
        raise RunnerError(
            f"The runner was to run with SME2 {arm.spec.sme2}, but reports SME2 usable: "
            f"{result.cpu.sme2_usable}.",
            "Run `sme2 doctor`; on a CPU without SME2 only sme2_off can be measured.",
        )
    if plan.qos and result.qos != plan.qos:
        raise RunnerError(
            f"The runner was to run with the quality of service {plan.qos}, but reports {result.qos}.",
            "Leave `qos` empty.",
        )
    asked = (pass_kind, plan.threads, iterations, arm.spec.slowdown_percent)
    given = (result.pass_kind, result.threads, len(result.iteration_ns), result.slowdown_percent)
    least, most = plan.warmup_of(pass_kind)
    if asked != given or not least <= len(result.warmup_ns) <= most:
        raise RunnerError(
            f"The runner was asked for {asked} and reports {given} after {len(result.warmup_ns)} warm-ups.",
            "Rebuild the runner.",
        )


def _failure(
    completed: Completed, model: ExportedModel, arm: _Arm, round_index: int, pass_kind: str
) -> Sme2Error:
    # A kernel that the runner lacks is a matter of the model, and its line can be named.
    cause: Sme2Error = load_failure(completed.stderr, read_operators(model.operators)) or runner_failure(
        completed.returncode, completed.stderr[-2000:]
    )
    return RunnerError(
        f"{model.variant} with SME2 {arm.spec.sme2}, round {round_index + 1}, {pass_kind} pass: {cause.what}",
        cause.remedy,
    )


def _cpu_of(arm: _Arm) -> dict[str, object]:
    """The CPU facts of the arm, which every process of it must report alike."""
    facts = {json.dumps(asdict(result.cpu), sort_keys=True) for result in arm.results}
    if len(facts) != 1:
        raise RunnerError(
            f"The processes of SME2 {arm.spec.sme2} report different CPU facts: {sorted(facts)}.",
            "Pin the measurement to one kind of core.",
        )
    return json.loads(facts.pop())


def _info(
    arm: _Arm,
    model: ExportedModel,
    plan: Plan,
    seed: int,
    started: datetime,
    finished: datetime,
    environment: list[Moment],
    arms_sqnr_db: float | None,
) -> Info:
    outputs = [_outputs(arm.directory / process.directory) for process in arm.processes]
    hashes = {_hash_of(arrays) for arrays in outputs}
    if len(hashes) != 1:
        raise RunnerError(
            f"The outputs with SME2 {arm.spec.sme2} differ from process to process on the same inputs.",
            "The model or a kernel is not deterministic: such a run cannot be compared.",
        )
    exported = read_manifest(model.manifest)
    expected = [np.load(path) for path in model.expected_outputs]
    # A program that came without its model has nothing to be compared with but its own other arm.
    agreements = compare_outputs(expected, outputs[0], classifier=exported.is_classifier) if expected else []
    worst = worst_agreement(agreements)
    return Info(
        started_at=started.isoformat(),
        finished_at=finished.isoformat(),
        seed=seed,
        plan={**asdict(plan), "passes": list(plan.passes)},
        versions={**asdict(arm.results[0].versions), "sme2_assets": sme2_assets.__version__},
        agreements=[asdict(agreement) for agreement in agreements],
        sqnr_db=worst.sqnr_db if worst else None,
        sqnr_threshold_db=exported.tolerance.minimum_db if agreements else min(MINIMUM_SQNR_DB.values()),
        arms_sqnr_db=arms_sqnr_db,
        output_sha256=hashes.pop(),
        steady=_all_steady(arm.results),
        processes=arm.processes,
        environment=environment,
        file_sha256={
            str(path.relative_to(arm.directory)): sha256_of_file(path)
            for path in sorted(arm.directory.rglob("*"))
            if path.is_file()
        },
    )


def _arms_sqnr_db(arms: list[_Arm]) -> float | None:
    """How near the arms' outputs are to each other; None for one arm."""
    if len(arms) < 2:
        return None
    first, second = (_outputs(arm.directory / arm.processes[0].directory) for arm in arms)
    return worst_sqnr_db(first, second)


def _outputs(directory: Path) -> list[np.ndarray]:
    files = sorted(
        (directory / "outputs").glob("output_*.npy"), key=lambda path: int(path.stem.split("_")[1])
    )
    return [np.load(path, allow_pickle=False) for path in files]


def _hash_of(arrays: list[np.ndarray]) -> str:
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.dtype}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def _all_steady(results: list[RunnerResult]) -> bool | None:
    """None when no process was asked to warm up until it is steady."""
    judged = [result.steady for result in results if result.steady is not None]
    return all(judged) if judged else None
