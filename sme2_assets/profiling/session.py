"""A session: the interleaved measurement of one or more arms on one platform.

Each runner process is fresh and does one pass. Any failure fails the whole session before anything is renamed
into place: there are no rows from a crashed run. A device that goes away does not invalidate the rounds it
finished: the session waits for it and repeats the round in which it disappeared.
"""

from __future__ import annotations

import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

from sme2_assets.analysis.factors import SME2
from sme2_assets.analysis.statistics import paired_speedup
from sme2_assets.errors import ConnectionLost, Sme2Error
from sme2_assets.evidence.arms import ARMS_FILE
from sme2_assets.evidence.delegation import DELEGATION_FILE
from sme2_assets.evidence.manifest import Context, Identity, Manifest, Moment
from sme2_assets.evidence.operators import OPERATORS_FILE
from sme2_assets.evidence.result import RunnerResult
from sme2_assets.evidence.sequence import next_number
from sme2_assets.heartbeat import duration_text
from sme2_assets.models.artifact import ExportedModel
from sme2_assets.profiling.arms import Arm, ArmSpec
from sme2_assets.profiling.between_arms import compare_with_first
from sme2_assets.profiling.one_pass import Bench, measure_roofs, run_pass
from sme2_assets.profiling.plan import Plan, arm_orders
from sme2_assets.profiling.record import cpu_of, info_of
from sme2_assets.runner.build import RunnerBinary
from sme2_assets.store import Store, new_directories
from sme2_assets.targets.base import Target
from sme2_assets.targets.clusters import Cluster, cpu_list
from sme2_assets.targets.contained import side_by_side
from sme2_assets.targets.environment.quiet import (
    busy_flags,
    disturbances_between,
    heat_flags,
    wait_until_quiet,
)
from sme2_assets.targets.environment.snapshot import Snapshot
from sme2_assets.targets.heat import throttling_flags
from sme2_assets.work.counting import build_counter

Log = Callable[[str], None]

# How much CPU other processes may use when a round begins, in cores.
QUIET_CORES = 0.3
# A connection that is lost more often than this within one round will never get through it.
MOST_LOSSES = 3


def measure_session(
    store: Store,
    target: Target,
    model: ExportedModel,
    runners: Mapping[str, RunnerBinary],
    arm_specs: Sequence[ArmSpec],
    plan: Plan,
    log: Log,
    factor: str = SME2.name,
) -> list[Manifest]:
    """Measures the arms interleaved in one session; returns a manifest per arm.

    `model`, `runners` and `plan` apply to every arm that has none of its own. `runners` has that of each SME2
    state: the same one, or the two of a pair that was built alike. `factor` is what the arms differ in.
    """
    for spec in arm_specs:
        target.require(spec.sme2)
    experiment = "arms" if factor != SME2.name else "sme2"
    if experiment == "sme2" and len({spec.sme2 for spec in arm_specs}) < len(arm_specs):
        experiment = "aa"
    seed = secrets.randbelow(2**31)
    started = datetime.now(UTC)
    session_id = f"{started:%Y%m%dT%H%M%S}-{secrets.token_hex(3)}"
    with ExitStack() as pending:
        target = pending.enter_context(target.leased(store.leases, log, f"a session of {model.variant}"))
        machine = target.facts()
        plan = plan.showing_kernels_by(target.kernel_pass)
        counter = build_counter(store.artifacts, log=log) if "work" in plan.passes else None
        bench = Bench(target, plan, log, counter)
        arms = {}
        run_ids = [_run_id(session_id, spec.model or model, target, spec, experiment) for spec in arm_specs]
        directories = pending.enter_context(new_directories([store.run_dir(run_id) for run_id in run_ids]))
        for spec, run_id, directory in zip(arm_specs, run_ids, directories, strict=True):
            arm = Arm(
                spec,
                spec.model or model,
                spec.runner or runners[spec.sme2],
                replace(plan, **spec.settings),
                run_id,
                directory,
            )
            arm.cpus = _cpus(target, arm.plan)
            # The run folder is complete evidence: it lists the operators without needing the model's folder.
            shutil.copyfile(arm.model.operators, directory / OPERATORS_FILE)
            shutil.copyfile(arm.model.delegation, directory / DELEGATION_FILE)
            arms[spec.label] = arm
        powers = {arm.plan.power for arm in arms.values()}
        switch = partial(target.power, leases=store.leases, log=log)
        if len(powers) == 1:
            power = pending.enter_context(switch(powers.pop()))
            for arm in arms.values():
                arm.power = power
        rounds = _Rounds(bench, arms, machine.clusters, plan.quiet_patience_s, plan.cool_patience_s)
        if powers:
            rounds.switch = switch
        with bench:
            environment = rounds.measure(seed)
            between = compare_with_first(bench, list(arms.values()))
            # Emulated ones would mean nothing; and after the session a device is in no arm's power mode.
            if target.fidelity != "emulated" and rounds.switch is None:
                for arm in arms.values():
                    measure_roofs(bench, arm)
        finished = datetime.now(UTC)
        sequence = next_number(store.runs)
        manifests = []
        for arm in arms.values():
            near = between.get(arm.spec.label)
            if near is not None:
                (arm.directory / ARMS_FILE).write_text(near.to_json(), encoding="utf-8")
            manifest = Manifest(
                run_id=arm.run_id,
                session_id=session_id,
                sequence=sequence,
                experiment=experiment,
                factor=factor if experiment != "aa" and len(arms) > 1 else None,
                arm=arm.spec.label,
                arms=len(arms),
                identity=Identity(
                    variant=arm.model.variant,
                    model=arm.model.model,
                    precision=arm.model.precision,
                    platform=target.platform,
                    sme2=arm.spec.sme2,
                    threads=arm.plan.threads,
                    pte_sha256=arm.model.pte_sha256,
                    runner_sha256=arm.runner.sha256,
                    runner_pair=arm.runner.pair,
                    cpus=", ".join(part for part in (arm.cpus, arm.plan.qos) if part),
                    power_mode=arm.plan.power,
                    method=arm.results[0].method,
                ),
                context=Context(
                    fidelity=target.fidelity,
                    device=target.device,
                    machine=machine.as_json(),
                    cpu=cpu_of(arm),
                    power=arm.power,
                    load_before=environment[0].snapshot["load_1m"],
                    load_after=environment[-1].snapshot["load_1m"],
                ),
                info=info_of(arm, seed, started, finished, environment, near),
            )
            manifest.write(arm.directory)
            manifests.append(manifest)
    return manifests


def _run_id(session_id: str, model: ExportedModel, target: Target, spec: ArmSpec, experiment: str) -> str:
    kind = {"sme2": "", "aa": f"-aa_{spec.label}", "arms": f"-arm_{spec.label}"}[experiment]
    arm = f"sme2_{spec.sme2}{kind}"
    return f"{session_id}-{model.variant}-{target.platform}-{arm}"


def _cpus(target: Target, plan: Plan) -> str:
    """The plan's CPUs on this device, in the runner's notation; empty for any."""
    if plan.qos and target.platform != "mac":
        raise Sme2Error(
            f"Threads have no quality of service on {target.platform}.",
            "Leave `qos` empty; `cpus` chooses CPUs on linux and android.",
        )
    return cpu_list(target.cpus(plan.cpus)) if plan.cpus else ""


@dataclass
class _Rounds:
    """The rounds of a session, and how much longer it may wait for a quiet and a cool machine."""

    bench: Bench
    arms: dict[str, Arm]
    clusters: tuple[Cluster, ...]
    quiet_patience_s: float
    cool_patience_s: float
    # The machine after the last round if nothing disturbed it: then the next begins at once.
    undisturbed: Snapshot | None = None
    # Puts the device into a power mode while an arm runs, where the arms differ in that.
    switch: Callable[[str], AbstractContextManager[dict[str, Any]]] | None = None

    def measure(self, seed: int) -> list[Moment]:
        """Round after round until the plan is fulfilled; returns the machine's state around each."""
        plan, log = self.bench.plan, self.bench.log
        environment: list[Moment] = []
        started = time.monotonic()
        for index, order in enumerate(arm_orders(list(self.arms), plan.max_rounds, seed)):
            try:
                environment += self._measured(index, order)
            except ConnectionLost as lost:
                if index == 0:
                    raise
                then = "stayed away" if self.bench.is_open else "could not be had again"
                environment[-1].flags.append(f"lost: the device went away in round {index + 1} and {then}")
                finished = "finished round is" if index == 1 else f"{index} finished rounds are"
                log(f"{lost.what} The {finished} kept.")
                break
            done, why = _enough(list(self.arms.values()), plan, index + 1, time.monotonic() - started)
            log(f"{self.what} on {self.bench.target.platform}: round {index + 1}{why}")
            if done:
                break
        return environment

    @property
    def what(self) -> str:
        return " and ".join(dict.fromkeys(arm.model.variant for arm in self.arms.values()))

    def _measured(self, index: int, order: list[str]) -> list[Moment]:
        """One round of all arms, restarted from its beginning if the device goes away during it."""
        losses: list[str] = []
        while True:
            try:
                before, after = self._try(index, order)
            except ConnectionLost as lost:
                for arm in self.arms.values():
                    arm.forget_round(index)
                if len(losses) == MOST_LOSSES:
                    raise
                self.bench.log(f"{lost.what} Waiting for the device; round {index + 1} is measured again.")
                losses.append("lost: the device went away, and the round was measured again")
                self.bench.reconnect()
            else:
                return [before, after.model_copy(update={"flags": [*after.flags, *losses[:1]]})]

    def _try(self, index: int, order: list[str]) -> tuple[Moment, Moment]:
        target = self.bench.target
        asked = time.monotonic()
        before, flags = wait_until_quiet(
            limit_load=QUIET_CORES,
            patience_s=self.quiet_patience_s,
            cool_patience_s=self.cool_patience_s,
            log=self.bench.log,
            take=self._look,
        )
        if flags:
            waited_s = time.monotonic() - asked
            self.quiet_patience_s = max(0.0, self.quiet_patience_s - waited_s)
            self.cool_patience_s = max(0.0, self.cool_patience_s - waited_s)
        slowed: list[str] = []
        for result in self._results(index, order):
            slowed += throttling_flags(result.conditions, self.clusters)
        # The counters since `before` show what disturbed the round; nothing more needs sampling.
        after = target.snapshot(sample_s=0)
        disturbed = disturbances_between(before, after, limit_load=QUIET_CORES)
        self.undisturbed = None if disturbed or busy_flags(after, QUIET_CORES) or heat_flags(after) else after
        return (
            Moment(round=index, moment="before", snapshot=before.as_json(), flags=flags),
            Moment(
                round=index,
                moment="after",
                snapshot=after.as_json(),
                flags=[*disturbed, *dict.fromkeys(slowed)],
            ),
        )

    def _look(self) -> Snapshot:
        """The machine as it is now, or as it just was if nothing was wrong then."""
        seen, self.undisturbed = self.undisturbed, None
        if seen is not None:
            return seen
        # With no patience to wait, a long sample is wasted time: the counters show everything afterwards.
        patient = self.quiet_patience_s > 0
        return self.bench.target.snapshot() if patient else self.bench.target.snapshot(sample_s=0)

    def _results(self, index: int, order: list[str]) -> Iterator[RunnerResult]:
        """The passes of a round: arm after arm, or pass after pass with all arms at once."""
        passes = self.bench.plan.passes_of_round(index)

        def run(order_index: int, label: str, pass_kind: str) -> RunnerResult:
            pace = self.bench.plan.pace_of([arm.results for arm in self.arms.values()])
            return run_pass(self.bench, self.arms[label], index, order_index, pass_kind, pace)

        if not self.bench.target.arms_at_once:
            for order_index, label in enumerate(order):
                arm = self.arms[label]
                with self.switch(arm.plan.power) if self.switch else nullcontext(arm.power) as arm.power:
                    for pass_kind in passes:
                        yield run(order_index, label, pass_kind)
            return
        for pass_kind in passes:
            yield from side_by_side([partial(run, at, label, pass_kind) for at, label in enumerate(order)])


def _enough(arms: list[Arm], plan: Plan, rounds: int, spent_s: float) -> tuple[bool, str]:
    """Whether the session may stop after this round, and the reason in words."""
    if rounds < plan.rounds:
        or_more = " or more" if plan.max_rounds > plan.rounds else ""
        left = duration_text(spent_s / rounds * (plan.rounds - rounds))
        return False, f" of {plan.rounds}{or_more}, about {left}{or_more} left"
    if rounds == plan.max_rounds:
        return True, f" of {rounds}"
    if len(arms) < 2:
        return True, f" of {rounds}"
    first, *others = (arm.latency_medians_ns() for arm in arms)
    widths = [
        each.high / each.low - 1
        for each in (paired_speedup(first, other) for other in others)
        if each.low is not None and each.high is not None
    ]
    if widths:
        width = max(widths)
        if width <= plan.interval_width:
            return True, f": the interval is {width:.1%} wide, narrow enough"
        if spent_s >= plan.budget_s:
            return True, f": the interval is {width:.1%} wide, the budget of {plan.budget_s:.0f} s is spent"
        return False, f": the interval is {width:.1%} wide, continuing"
    return spent_s >= plan.budget_s, ""
