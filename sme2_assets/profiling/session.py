"""A session: the interleaved measurement of one model on one platform, one or both arms.

Each runner process is fresh and does one pass. Whatever fails, fails the whole session before
anything is renamed into place: there are no rows from a crashed run.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path

import numpy as np

import sme2_assets
from sme2_assets.analysis.numerics import worst_sqnr_db
from sme2_assets.errors import RunnerError, Sme2Error
from sme2_assets.models.artifact import ExportedModel, read_manifest
from sme2_assets.profiling.manifest import Context, Identity, Info, Manifest, Process
from sme2_assets.profiling.plan import PASSES, Plan, arm_orders
from sme2_assets.runner.build import RunnerBinary
from sme2_assets.runner.result import RunnerResult, read_result, runner_failure
from sme2_assets.store import Store, new_directory, sha256_of_file
from sme2_assets.targets.base import Completed, Target, Workspace
from sme2_assets.targets.lease import lease

Log = Callable[[str], None]


@dataclass
class _Arm:
    """One arm while it is being measured."""

    sme2: str
    run_id: str
    directory: Path
    processes: list[Process] = field(default_factory=list)
    results: list[RunnerResult] = field(default_factory=list)


def measure_session(
    store: Store,
    target: Target,
    model: ExportedModel,
    runner: RunnerBinary,
    states: Sequence[str],
    plan: Plan,
    log: Log,
) -> list[Manifest]:
    """Measures the given SME2 states of one model in one session; gives a manifest per state."""
    for sme2 in states:
        target.require(sme2)
    seed = secrets.randbelow(2**31)
    started = datetime.now(timezone.utc)
    stamp = started.strftime("%Y%m%dT%H%M%S")
    session_id = f"{stamp}-{secrets.token_hex(3)}"
    with lease(store.leases, target.device, log=log), target.workspace() as workspace, ExitStack() as pending:
        arms = {}
        for sme2 in states:
            run_id = f"{session_id}-{model.variant}-{target.platform}-sme2_{sme2}"
            directory = pending.enter_context(new_directory(store.run_dir(run_id)))
            arms[sme2] = _Arm(sme2, run_id, directory)
        load_before = _load()
        orders = arm_orders(list(states), plan.rounds, seed)
        for round_index, order in enumerate(orders):
            log(f"{model.variant} on {target.platform}: round {round_index + 1} of {plan.rounds}")
            for order_index, sme2 in enumerate(order):
                for pass_kind in PASSES:
                    _run_pass(workspace, model, runner, arms[sme2], plan, round_index, order_index, pass_kind)
        load_after = _load()
        finished = datetime.now(timezone.utc)
        manifests = []
        for arm in arms.values():
            manifest = Manifest(
                run_id=arm.run_id,
                session_id=session_id,
                paired=len(arms) == 2,
                identity=Identity(
                    variant=model.variant,
                    model=model.model,
                    precision=model.precision,
                    platform=target.platform,
                    sme2=arm.sme2,
                    threads=plan.threads,
                    pte_sha256=model.pte_sha256,
                    runner_sha256=runner.sha256,
                ),
                context=Context(
                    fidelity=target.fidelity,
                    device=target.device,
                    machine=asdict(target.facts()),
                    cpu=_cpu_of(arm),
                    load_before=load_before,
                    load_after=load_after,
                ),
                info=_info(arm, model, plan, seed, started, finished),
            )
            manifest.write(arm.directory)
            manifests.append(manifest)
    for manifest in manifests:
        identity = manifest.identity
        store.set_current(
            "run", _partition_name(identity.variant, identity.platform, identity.sme2), manifest.run_id
        )
    return manifests


def current_run_dir(store: Store, variant: str, platform: str, sme2: str) -> Path:
    """The folder of the newest complete run of a partition."""
    run_id = store.require_current("run", _partition_name(variant, platform, sme2), "etdump_traces")
    return store.run_dir(run_id)


def _partition_name(variant: str, platform: str, sme2: str) -> str:
    return f"{variant}.{platform}-sme2_{sme2}"


def _run_pass(
    workspace: Workspace,
    model: ExportedModel,
    runner: RunnerBinary,
    arm: _Arm,
    plan: Plan,
    round_index: int,
    order_index: int,
    pass_kind: str,
) -> None:
    """One runner process: run it, believe nothing that does not fit, keep its files."""
    name = f"{arm.sme2}_{round_index:02d}_{pass_kind}"
    command = [workspace.put(runner.path), "--model", workspace.put(model.pte)]
    for path in model.inputs:
        command += ["--input", workspace.put(path)]
    command += ["--pass", pass_kind, "--threads", str(plan.threads)]
    command += ["--warmup", str(plan.warmup), "--iterations", str(plan.iterations)]
    command += ["--result", workspace.path(f"{name}.json"), "--outputs", workspace.path(f"{name}_outputs")]
    if pass_kind == "etdump":
        command += ["--etdump", workspace.path(f"{name}.etdump")]
    completed = workspace.run(command, {"SME2_RUNNER_SME2": arm.sme2}, plan.timeout_s)
    if completed.returncode != 0:
        raise _failure(completed, model, arm, round_index, pass_kind)

    relative = Path(f"round_{round_index:02d}") / pass_kind
    directory = arm.directory / relative
    directory.mkdir(parents=True)
    (directory / "runner.log").write_text(completed.stdout + completed.stderr)
    workspace.get(f"{name}.json", directory / "result.json")
    workspace.get(f"{name}_outputs", directory / "outputs")
    if pass_kind == "etdump":
        workspace.get(f"{name}.etdump", directory / "trace.etdump")
    result = read_result(directory / "result.json")
    _believe(result, arm, plan, pass_kind)
    arm.results.append(result)
    arm.processes.append(
        Process(
            round=round_index,
            order=order_index,
            pass_kind=pass_kind,
            directory=str(relative),
            command=completed.command,
            exit_code=completed.returncode,
            seconds=round(completed.seconds, 4),
        )
    )


def _believe(result: RunnerResult, arm: _Arm, plan: Plan, pass_kind: str) -> None:
    """The result must be of this arm and this plan: SME2 really on, or really taken away."""
    if result.cpu.sme2_usable != (arm.sme2 == "on"):
        raise RunnerError(
            f"The runner was to run with SME2 {arm.sme2}, but reports SME2 usable: {result.cpu.sme2_usable}.",
            "Run `sme2 doctor`; on a CPU without SME2 only sme2_off can be measured.",
        )
    asked = (pass_kind, plan.threads, plan.warmup, plan.iterations)
    given = (result.pass_kind, result.threads, len(result.warmup_ns), len(result.iteration_ns))
    if asked != given:
        raise RunnerError(f"The runner was asked for {asked} and reports {given}.", "Rebuild the runner.")


def _failure(
    completed: Completed, model: ExportedModel, arm: _Arm, round_index: int, pass_kind: str
) -> Sme2Error:
    cause = runner_failure(completed.returncode, completed.stderr[-2000:])
    return RunnerError(
        f"{model.variant} with SME2 {arm.sme2}, round {round_index + 1}, {pass_kind} pass: {cause.what}",
        cause.remedy,
    )


def _cpu_of(arm: _Arm) -> dict[str, object]:
    """The CPU facts of the arm, which every process of it must report alike."""
    facts = {json.dumps(asdict(result.cpu), sort_keys=True) for result in arm.results}
    if len(facts) != 1:
        raise RunnerError(
            f"The processes of SME2 {arm.sme2} report different CPU facts: {sorted(facts)}.",
            "Pin the measurement to one kind of core.",
        )
    return json.loads(facts.pop())


def _info(
    arm: _Arm, model: ExportedModel, plan: Plan, seed: int, started: datetime, finished: datetime
) -> Info:
    outputs = [_outputs(arm.directory / process.directory) for process in arm.processes]
    hashes = {_hash_of(arrays) for arrays in outputs}
    if len(hashes) != 1:
        raise RunnerError(
            f"The outputs with SME2 {arm.sme2} differ from process to process on the same inputs.",
            "The model or a kernel is not deterministic: such a run cannot be compared.",
        )
    return Info(
        started_at=started.isoformat(),
        finished_at=finished.isoformat(),
        seed=seed,
        plan=asdict(plan),
        versions={**asdict(arm.results[0].versions), "sme2_assets": sme2_assets.__version__},
        sqnr_db=worst_sqnr_db([np.load(path) for path in model.expected_outputs], outputs[0]),
        sqnr_threshold_db=read_manifest(model.manifest).tolerance.minimum_db,
        output_sha256=hashes.pop(),
        processes=arm.processes,
        file_sha256={
            str(path.relative_to(arm.directory)): sha256_of_file(path)
            for path in sorted(arm.directory.rglob("*"))
            if path.is_file()
        },
    )


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


def _load() -> float | None:
    """The machine's one-minute load average, where there is one."""
    try:
        return round(os.getloadavg()[0], 2)
    except OSError:
        return None
