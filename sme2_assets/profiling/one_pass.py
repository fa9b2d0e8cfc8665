"""One pass: one fresh runner process of one arm, whose results are rejected unless they fit the request."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median

import pandas as pd

from sme2_assets.analysis.samples import kernel_sample_rows
from sme2_assets.analysis.timeline import timeline_rows
from sme2_assets.analysis.unit import ENOUGH_SAMPLES, unsettled
from sme2_assets.errors import ConnectionLost, Refused, RunnerError, Sme2Error, TargetUnavailable
from sme2_assets.evidence.folder import LOG_FILE, TRACE_FILE, RunProcess
from sme2_assets.evidence.manifest import Process
from sme2_assets.evidence.operators import ProgramOperators
from sme2_assets.evidence.result import RESULT_FILE, TRACED_PASSES, RunnerResult
from sme2_assets.evidence.roofs import ROOFS_FILE, Roofs
from sme2_assets.evidence.samples import SAMPLES_FILE
from sme2_assets.evidence.work import WORK_FILE
from sme2_assets.heartbeat import duration_text, heartbeat
from sme2_assets.models.failures import kernel_failure
from sme2_assets.profiling.arms import Arm, round_name
from sme2_assets.profiling.plan import Lengths, Pace, Plan
from sme2_assets.runner.failures import runner_failure
from sme2_assets.runner.recording import write_samples
from sme2_assets.targets.base import Completed, Target, Workspace
from sme2_assets.targets.clusters import parse_cpu_list
from sme2_assets.work.counting import run_counted
from sme2_assets.work.counts import write_work

Log = Callable[[str], None]

# Counting what a program executes takes up to so many times as long as running it.
COUNTING_TAKES = 6


@dataclass
class Bench:
    """Where passes run, and how; its workspace is reopened after the device was away."""

    target: Target
    plan: Plan
    log: Log
    # The program that counts what a run executes, where the target shows it.
    counter: Path | None = None
    _open: ExitStack = field(default_factory=ExitStack)
    _workspace: Workspace | None = None

    def __enter__(self) -> Bench:
        self._workspace = self._open.enter_context(self.target.workspace())
        return self

    def __exit__(self, *failure: object) -> None:
        self._open.close()

    @property
    def is_open(self) -> bool:
        """Whether there is a workspace, on a device that is ours or was when it went away."""
        return self._workspace is not None

    @property
    def workspace(self) -> Workspace:
        if self._workspace is None:
            # Nothing may run on a device that somebody else holds.
            raise ConnectionLost(f"{self.target.device} is not held any more.", "Measure again.")
        return self._workspace

    def reconnect(self) -> None:
        """Waits for the device and opens a fresh workspace on it.

        ConnectionLost if it stays away, or if somebody else has taken it meanwhile and keeps it.
        """
        self.target.recover(self.plan.reconnect_patience_s, self.log)
        with suppress(Sme2Error):
            self._open.close()
        self._open, self._workspace = ExitStack(), None
        try:
            self.__enter__()
        except Refused:
            raise
        except TargetUnavailable as taken:
            raise ConnectionLost(taken.what, taken.remedy) from taken

    def run(
        self, doing: str, command: list[str], environ: dict[str, str], counted: str | None = None
    ) -> Completed:
        """A runner process. Under emulation, where it can take minutes, its beginning is said as well.

        `counted`: what the files of its work begin with, if that is counted.
        """
        workspace, timeout_s = self.workspace, self.plan.timeout_s
        if self.target.fidelity == "emulated":
            self.log(doing)
        with heartbeat(self.log, doing):
            if counted is None or self.counter is None:
                return workspace.run(command, environ, timeout_s)
            return run_counted(
                lambda log: workspace.run_logged(command, environ, timeout_s, log),
                counter=self.counter,
                modules=Path(workspace.path(f"{counted}.modules")),
                counts=Path(workspace.path(f"{counted}.counts")),
            )


def runner_command(bench: Bench, arm: Arm, program: Path) -> list[str]:
    """The arm's runner with a program and its model's inputs, placed as its plan asks."""
    return _placed(bench, arm, *arm.model.runner_flags(bench.workspace.put, program))


def _placed(bench: Bench, arm: Arm, *flags: str) -> list[str]:
    program = bench.workspace.install(arm.runner.program)
    command = [*program, *flags, "--threads", str(arm.plan.threads)]
    if arm.cpus:
        command += ["--cpus", arm.cpus]
    if arm.plan.qos:
        command += ["--qos", arm.plan.qos]
    return command


def measure_roofs(bench: Bench, arm: Arm) -> None:
    """Keeps what plain code reaches on the device, with the arm's threads and CPUs.

    No number of the run depends on it, so a failure only leaves it out.
    """
    name, kept = f"{arm.spec.label}_roofs.json", arm.directory / ROOFS_FILE
    try:
        command = _placed(bench, arm, "--roofs", bench.workspace.path(name))
        completed = bench.run(
            "measuring what plain code reaches", command, {"SME2_RUNNER_SME2": arm.spec.sme2}
        )
        if completed.returncode != 0:
            raise runner_failure(completed.returncode, completed.stderr)
        bench.workspace.get(name, kept)
        Roofs.read(kept)
    except Sme2Error as error:
        kept.unlink(missing_ok=True)
        bench.log(f"What plain code reaches here was not measured: {error.what}")


def run_pass(
    bench: Bench, arm: Arm, round_index: int, order_index: int, pass_kind: str, pace: Pace
) -> RunnerResult:
    """One pass of a round. The last sampling pass is repeated until it has settled all it can.

    With SME2 on, each convolution and matrix product should be seen on the SME unit or off it. Where samples
    and name leave that open, the pass is repeated with more inferences, up to the plan's limit.
    """
    plan = bench.plan
    lengths = plan.lengths_of(pass_kind, arm.inference_ns(), pace)
    while True:
        result = _run_process(bench, arm, round_index, order_index, pass_kind, lengths)
        if pass_kind != "kernels" or arm.spec.sme2 != "on" or round_index + 1 < plan.kernel_rounds:
            return result
        open_ones = _unsettled(arm)
        if open_ones.empty:
            return result
        # Samples of all rounds add up, but only this round can still be made longer.
        iterations = lengths.iterations
        made = sum(each.iterations for each in arm.results if each.pass_kind == "kernels")
        factor = ENOUGH_SAMPLES / max(int(open_ones["telling_samples"].min()), 1) * made / iterations
        more = plan.more_iterations(iterations, median(result.iteration_ns), factor)
        what = f"Operators with too few samples to tell whether they run on the SME unit: {len(open_ones)}"
        if more is None or more <= iterations:
            bench.log(f"{what}. They stay unknown after {iterations} sampled inferences, the limit.")
            return result
        bench.log(f"{what}. Sampling {more} inferences instead of {iterations}.")
        arm.forget_last_pass()
        lengths = replace(lengths, iterations=more, iterations_cap=max(more, lengths.iterations_cap))


def _unsettled(arm: Arm) -> pd.DataFrame:
    """The operators of the arm whose samples do not show yet where they run."""
    sampled = [
        RunProcess(arm.directory / process.directory, process)
        for process in arm.processes
        if process.pass_kind == "kernels"
    ]
    samples = [kernel_sample_rows(each.samples, each.events, each.result.traced_warmup) for each in sampled]
    return unsettled(timeline_rows(sampled[-1].events, 0), pd.concat(samples))


def _run_process(
    bench: Bench, arm: Arm, round_index: int, order_index: int, pass_kind: str, lengths: Lengths
) -> RunnerResult:
    """One runner process: run it, reject a result that does not fit, keep its files."""
    workspace, model, plan = bench.workspace, arm.model, bench.plan
    environ = {"SME2_RUNNER_SME2": arm.spec.sme2}
    name = f"{arm.spec.label}_{round_index:02d}_{pass_kind}"
    command = [*runner_command(bench, arm, model.pte), "--pass", pass_kind, *lengths.flags()]
    command += ["--result", workspace.path(f"{name}.json"), "--outputs", workspace.path(f"{name}_outputs")]
    if pass_kind in TRACED_PASSES:
        command += ["--etdump", workspace.path(f"{name}.etdump")]
    if pass_kind == "kernels":
        command += ["--samples", workspace.path(f"{name}.recording.json")]
    if pass_kind == "work":
        command += ["--modules", workspace.path(f"{name}.modules")]
    if arm.spec.slowdown_percent:
        command += ["--slowdown-percent", str(arm.spec.slowdown_percent)]
    passes = plan.passes_of_round(round_index)
    place = f"pass {passes.index(pass_kind) + 1} of {len(passes)}, round {round_index + 1}"
    place += _known_duration(arm, pass_kind)
    counted = name if pass_kind == "work" else None
    completed = bench.run(f"{arm.doing(pass_kind)} ({place})", command, environ, counted)
    if completed.returncode != 0:
        raise _failure(completed, arm, round_index, pass_kind)

    relative = Path(round_name(round_index)) / pass_kind
    directory = arm.directory / relative
    directory.mkdir(parents=True)
    (directory / LOG_FILE).write_text(completed.stdout + completed.stderr)
    workspace.get(f"{name}.json", directory / RESULT_FILE)
    workspace.get(f"{name}_outputs", directory / "outputs")
    if pass_kind in TRACED_PASSES:
        workspace.get(f"{name}.etdump", directory / TRACE_FILE)
    if pass_kind == "kernels":
        _keep_samples(bench, arm, f"{name}.recording.json", directory)
    if pass_kind == "work":
        _keep_work(bench, arm, name, directory)
    result = RunnerResult.read(directory / RESULT_FILE)
    _believe(result, arm, pass_kind, lengths)
    arm.results.append(result)
    arm.processes.append(
        Process(
            round=round_index,
            order=order_index,
            pass_kind=result.pass_kind,
            directory=str(relative),
            command=completed.command,
            environment=environ,
            exit_code=completed.returncode,
            seconds=round(completed.seconds, 4),
        )
    )
    return result


def _known_duration(arm: Arm, pass_kind: str) -> str:
    """How long a pass takes, by that of the last round or by the plain one before it; empty if not known."""
    seconds = {process.pass_kind: process.seconds for process in arm.processes}
    if pass_kind in seconds:
        return f", about {duration_text(seconds[pass_kind])}"
    if "latency" not in seconds or pass_kind == "kernels":
        return ""
    if pass_kind == "work":
        return f", at most about {duration_text(COUNTING_TAKES * seconds['latency'])}"
    return f", about {duration_text(seconds['latency'])}"


def _keep_samples(bench: Bench, arm: Arm, name: str, directory: Path) -> None:
    """Keeps the samples of a kernels pass, with function names taken from the files that ran."""
    runner = arm.runner
    with tempfile.TemporaryDirectory(prefix="sme2-") as folder:
        recording = Path(folder) / "recording.json"
        bench.workspace.get(name, recording)
        write_samples(
            recording, directory / SAMPLES_FILE, (runner.program.folder, runner.library_dir), bench.log
        )


def _keep_work(bench: Bench, arm: Arm, name: str, directory: Path) -> None:
    """Keeps what a work pass executed, with function names taken from the files that ran."""
    runner = arm.runner
    with tempfile.TemporaryDirectory(prefix="sme2-") as folder:
        counts, modules = Path(folder) / "counts", Path(folder) / "modules"
        bench.workspace.get(f"{name}.counts", counts)
        bench.workspace.get(f"{name}.modules", modules)
        folders = (runner.program.folder, runner.library_dir)
        write_work(counts, modules, directory / WORK_FILE, folders, bench.log)


def _believe(result: RunnerResult, arm: Arm, pass_kind: str, lengths: Lengths) -> None:
    """Checks that the result is of this arm and its plan: SME2 really on, or really hidden."""
    plan = arm.plan
    if arm.cpus and result.cpus != parse_cpu_list(arm.cpus):
        raise RunnerError(
            f"The runner should have run on CPUs {arm.cpus}, but reports {result.cpus}.",
            "Choose CPUs that the device lets a program have, or leave `cpus` empty.",
        )
    if result.cpu.sme2_usable != (arm.spec.sme2 == "on"):
        raise RunnerError(
            f"The runner should have run with SME2 {arm.spec.sme2}, but reports SME2 usable: "
            f"{result.cpu.sme2_usable}.",
            "Run `sme2 doctor`; on a CPU without SME2 only sme2_off can be measured.",
        )
    if plan.qos and result.qos != plan.qos:
        raise RunnerError(
            f"The runner should have run with the quality of service {plan.qos}, but reports {result.qos}.",
            "Leave `qos` empty.",
        )
    asked = (pass_kind, plan.threads, arm.spec.slowdown_percent)
    given = (result.pass_kind, result.threads, result.slowdown_percent)
    if asked != given or not lengths.fit(result):
        raise RunnerError(
            f"The runner was asked for {asked} and {lengths}, and reports {given} with "
            f"{result.warmup_iterations} warm-ups in {result.warmup_wall_ns} ns and {result.iterations} "
            f"timed inferences in {result.timed_wall_ns} ns.",
            "Rebuild the runner.",
        )


def _failure(completed: Completed, arm: Arm, round_index: int, pass_kind: str) -> Sme2Error:
    # A kernel that is missing or refuses its arguments is a problem of the model, and its line can be named.
    operators = ProgramOperators.read(arm.model.operators)
    cause: Sme2Error = kernel_failure(completed.stderr, operators) or runner_failure(
        completed.returncode, completed.stderr
    )
    version, remedy = "", cause.remedy or ""
    if arm.spec.runner is not None:
        version = f" and ExecuTorch {arm.runner.executorch_version}"
        remedy += " The program was exported by the installed ExecuTorch: another version may not run it."
    return RunnerError(
        f"{arm.model.variant} with SME2 {arm.spec.sme2}{version}, round {round_index + 1}, {pass_kind} pass: "
        f"{cause.what}",
        remedy,
    )
