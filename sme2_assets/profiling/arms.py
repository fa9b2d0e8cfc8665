"""The arms of a session: how they were requested, and what has been measured of them so far."""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from sme2_assets.evidence.manifest import Process
from sme2_assets.evidence.result import RunnerResult
from sme2_assets.models.artifact import ExportedModel
from sme2_assets.profiling.plan import Plan
from sme2_assets.runner.build import RunnerBinary
from sme2_assets.targets.keys import SME2_STATES


@dataclass(frozen=True)
class ArmSpec:
    """One arm of an experiment: its name, the SME2 state it runs in, and whatever else is specific to it."""

    label: str
    sme2: str
    # A deliberate, known slow-down, to see whether it is found. Such runs never reach the warehouse.
    slowdown_percent: float = 0.0
    # None: that of the session.
    model: ExportedModel | None = None
    # None: that of the session for its SME2 state.
    runner: RunnerBinary | None = None
    # What this arm overrides in the plan of the session: threads, cpus or power.
    settings: Mapping[str, Any] = field(default_factory=dict)


def sme2_arms(states: Sequence[str]) -> list[ArmSpec]:
    """Arms that differ in SME2, named by their state."""
    return [ArmSpec(sme2, sme2) for sme2 in states]


def aa_arms(sme2: str, slowdown_percent: float = 0.0) -> list[ArmSpec]:
    """Two identical arms: any difference between them is noise, or the slow-down put into the second."""
    return [ArmSpec("a", sme2), ArmSpec("b", sme2, slowdown_percent)]


def same_runner(runner: RunnerBinary) -> dict[str, RunnerBinary]:
    """One binary for both states."""
    return dict.fromkeys(SME2_STATES, runner)


@dataclass
class Arm:
    """One arm while it is being measured."""

    spec: ArmSpec
    model: ExportedModel
    runner: RunnerBinary
    # That of the session, with this arm's settings.
    plan: Plan
    run_id: str
    directory: Path
    # The plan's CPUs on this device, in the runner's notation; empty for any.
    cpus: str = ""
    # What the power mode set, and whether it took effect.
    power: dict[str, Any] = field(default_factory=dict)
    processes: list[Process] = field(default_factory=list)
    results: list[RunnerResult] = field(default_factory=list)

    def doing(self, what: str) -> str:
        """What is being run, in words."""
        arm = "" if self.spec.label == self.spec.sme2 else f", arm {self.spec.label}"
        return f"running {self.model.variant} with SME2 {self.spec.sme2}{arm}: {what}"

    def latency_medians_ns(self) -> list[float]:
        """The observation of each round so far."""
        return [median(result.iteration_ns) for result in self.results if result.pass_kind == "latency"]

    def inference_ns(self) -> float:
        """Roughly how long one inference takes, from what has been measured; infinite before that."""
        return min((median(result.iteration_ns) for result in self.results), default=math.inf)

    def forget_last_pass(self) -> None:
        """Drops the last process, which is about to be repeated."""
        self.results.pop()
        shutil.rmtree(self.directory / self.processes.pop().directory)

    def forget_round(self, index: int) -> None:
        """Drops what was measured of a round that was not finished."""
        whole = sum(process.round < index for process in self.processes)
        del self.processes[whole:], self.results[whole:]
        shutil.rmtree(self.directory / round_name(index), ignore_errors=True)


def round_name(index: int) -> str:
    return f"round_{index:02d}"
