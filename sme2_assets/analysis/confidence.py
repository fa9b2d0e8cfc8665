"""How far a measurement can be trusted, and why: the one place that decides it.

Belongs here: reasons not to rely on the times of an arm. The noise check, the comparison, the insights and
the report repeat what is decided here, and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pandas as pd

from sme2_assets.analysis.factors import arm_label
from sme2_assets.analysis.statistics import MIN_ROUNDS, PRACTICAL_RATIO

# With fewer rounds a measurement is an anecdote.
FEWEST_ROUNDS = 3
# Round medians that scatter more than the first make intervals too wide to be useful; beyond the second,
# every single figure is a matter of luck.
MOST_ROUND_CV = 0.05
LUCK_ROUND_CV = 0.20

Basis = Literal["measured", "emulated", "implied", "predicted", "projection"]


@dataclass(frozen=True)
class Conditions:
    """The conditions that one arm was timed under; None where unknown.

    `rounds` are those of the times in question: of the latency pass for the times of the whole model.
    `round_cv` is for that pass, `traced_cv` and `traced_rounds` for the pass with tracer; `tracer_overhead`
    is the ratio of their times minus 1; `passes_agree` is the verdict of `passes.reconcile` on them. `flags`
    is None where nobody saw what else the machine did.
    """

    arm: str
    fidelity: str
    rounds: int
    round_cv: float | None = None
    traced_cv: float | None = None
    tracer_overhead: float | None = None
    passes_agree: bool | None = None
    traced_rounds: int | None = None
    disturbed_rounds: int = 0
    steady: bool | None = None
    flags: tuple[str, ...] | None = None

    @property
    def spread(self) -> float:
        """How far the rounds scatter, in the pass where they scatter more."""
        return max(self.round_cv or 0.0, self.traced_cv or 0.0)


@dataclass(frozen=True)
class Confidence:
    """`high`, `medium` or `low`, with the reason as a clause."""

    level: str
    why: str

    def __str__(self) -> str:
        return f"{self.level}: {self.why}"


def conditions_of(
    run: Mapping[Any, Any], latency: Mapping[Any, Any], headroom: Mapping[Any, Any]
) -> Conditions:
    """From a run's rows in `runs`, `latency_summary` and `headroom`; the latter two may be empty."""
    flags = run.get("flags")
    return Conditions(
        arm=arm_label(run),
        fidelity=run["fidelity"],
        rounds=int(latency.get("rounds", headroom.get("rounds", 0))),
        round_cv=_known(latency.get("round_cv")),
        traced_cv=_known(headroom.get("round_cv")),
        tracer_overhead=_known(latency.get("tracer_overhead")),
        traced_rounds=int(headroom["rounds"]) if headroom else None,
        disturbed_rounds=int(headroom.get("disturbed_rounds", 0)),
        passes_agree=_told(run.get("passes_agree")),
        steady=_told(run.get("steady")),
        flags=None if flags is None or flags is pd.NA else tuple(map(str, flags)),
    )


def noise(arm: Conditions) -> list[str]:
    """What disturbed the arm: the machine's flags, and rounds that scatter. Nothing for emulated times."""
    if arm.fidelity == "emulated":
        return []
    scatter = f"the round medians scatter by {arm.round_cv or 0:.1%}, more than {MOST_ROUND_CV:.0%}"
    return [*(arm.flags or ()), *([scatter] if (arm.round_cv or 0) > MOST_ROUND_CV else [])]


def confidence(basis: Basis, arms: Sequence[Conditions], against: Sequence[str] = ()) -> Confidence:
    """How far a conclusion from the times of these arms can be trusted; `against` are further grave doubts.

    `low` if a figure is a matter of luck or contradicts another one, `medium` if there is any doubt at all.
    It says nothing about the size of an effect: that is what the interval is for.
    """
    if basis == "projection":
        return Confidence("low", "arithmetic on published rates, no measurement")
    if basis == "predicted":
        return Confidence("medium", "from the operator's type alone; no run with SME2 on shows it")
    if basis == "implied":
        return Confidence("medium", "from operators' names and types; nothing shows which kernels ran")
    if basis == "emulated":
        return Confidence("high", "which kernels run was seen; it says nothing about time")
    grave = list(against)
    slight: list[str] = []
    for arm in arms:
        for is_grave, doubt in _doubts(arm):
            (grave if is_grave else slight).append(doubt if len(arms) == 1 else f"{doubt} ({arm.arm})")
    rounds = min(arm.rounds for arm in arms)
    counted = f"{rounds} round{'' if rounds == 1 else 's'}"
    if rounds < FEWEST_ROUNDS:
        grave.insert(0, f"in {counted} only, where one disturbance decides")
    elif rounds < MIN_ROUNDS:
        slight.insert(0, f"{counted} are few")
    doubts = [*grave, *slight]
    if doubts:
        return Confidence("low" if grave else "medium", f"measured, but {'; '.join(doubts)}")
    spread = max(arm.spread for arm in arms)
    return Confidence("high", f"measured in {counted} that scatter by {spread:.1%}, on a quiet machine")


def _doubts(arm: Conditions) -> list[tuple[bool, str]]:
    """Doubts about the times of an arm, each with whether it is grave."""
    found = []
    if arm.fidelity == "reference":
        found.append((False, "a reference, which says nothing about SME2"))
    if arm.flags is None:
        found.append((False, "whether the machine was quiet is not known"))
    elif arm.flags:
        found.append((False, "the machine was not quiet"))
    if arm.spread > MOST_ROUND_CV:
        found.append((arm.spread > LUCK_ROUND_CV, f"the rounds scatter by {arm.spread:.1%}"))
    if arm.disturbed_rounds:
        found.append((False, f"{arm.disturbed_rounds} of {arm.traced_rounds} rounds were disturbed"))
    if arm.steady is False:
        found.append((False, "the warm-up was never steady"))
    faster = -(arm.tracer_overhead or 0.0)
    if arm.passes_agree is False:
        found.append((True, "the passes contradict one another"))
    elif faster > max(PRACTICAL_RATIO - 1, arm.spread):
        found.append((True, f"inferences took {faster:.1%} less time with tracer than without"))
    return found


def _told(value: Any) -> bool | None:
    return None if value is None or pd.isna(value) else bool(value)


def _known(value: Any) -> float | None:
    return None if value is None or pd.isna(value) else float(value)
