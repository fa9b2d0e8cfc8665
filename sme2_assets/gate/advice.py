"""What changes to a model gain, from the facts of each, and in which order. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from sme2_assets.evidence.advice import AS_IT_IS, LEAST_GAIN, Advice, TriedChange
from sme2_assets.gate.baseline import ModelFacts, Operator
from sme2_assets.gate.judge import match, place_of

# How much larger a program may be that gains only fewer calls or operators.
MOST_GROWTH = 0.05


class Change(NamedTuple):
    """Its name as people type it, a description, the code to write, and the variant that is measured."""

    name: str
    what: str
    code: str | None
    key: str
    rewrites: tuple[str, ...] = ()
    # Names of modules that stay in fp32.
    kept: tuple[str, ...] = ()
    precision: str = ""

    def is_rewrite_of(self, precision: str) -> bool:
        """Whether it is another way to write the model, and nothing else."""
        return bool(self.rewrites) and not self.kept and self.precision == precision


@dataclass(frozen=True)
class Candidate:
    """A change that was tried, and what became of it."""

    change: Change
    facts: ModelFacts | None
    problem: str | None = None
    run_id: str | None = None

    def share(self, base: ModelFacts) -> float | None:
        """The share of the unchanged model's work that is on the unit now.

        Work that the change itself adds, such as on a frame of zeros, does not count.
        """
        if self.facts is None:
            return None
        pairs = match(base.operators, self.facts.operators).pairs
        on = sum(old.macs for old, new in pairs if old.macs is not None and new.unit == "on")
        total = sum(operator.macs for operator in base.operators if operator.macs is not None)
        return on / total if total else None

    def gain(self, base: ModelFacts) -> float | None:
        """By how much that share grows; None where nothing is counted."""
        before, after = base.macs_share(), self.share(base)
        return None if before is None or after is None else after - before


def ranked(base: ModelFacts, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Largest gain first, ties by fewest calls, then operators; the unmeasured come last."""

    def order(candidate: Candidate) -> tuple[bool, float, tuple[int, int]]:
        gain = candidate.gain(base)
        effort = _effort(candidate.facts) if candidate.facts else (0, 0)
        return (candidate.facts is None, -round(gain or 0.0, 2), effort)

    return sorted(candidates, key=order)


def is_gain(base: ModelFacts, candidate: Candidate) -> bool:
    """More on the unit; or as much in fewer calls, or in as many with fewer operators."""
    return brings_work(base, candidate) or spares_calls(base, candidate)


def brings_work(base: ModelFacts, candidate: Candidate) -> bool:
    return (candidate.gain(base) or 0.0) > LEAST_GAIN


def spares_calls(base: ModelFacts, candidate: Candidate) -> bool:
    """Whether no less of the work is on the unit, with fewer calls or operators, and no larger a program."""
    facts = candidate.facts
    return (
        facts is not None
        and (candidate.share(base) or 0.0) >= (base.macs_share() or 0.0)
        and facts.program_bytes <= base.program_bytes * (1 + MOST_GROWTH)
        and _effort(facts) < _effort(base)
    )


def _effort(facts: ModelFacts) -> tuple[int, int]:
    """What the runtime calls in one inference, delegates and operators outside of them; and all operators."""
    return facts.delegate_calls + _outside(facts), facts.steps


def _outside(facts: ModelFacts) -> int:
    return sum(each.count for each in facts.outside)


def moved(base: ModelFacts, candidate: Candidate) -> list[Operator]:
    """The operators of the unchanged model that move onto the unit."""
    if candidate.facts is None:
        return []
    pairs = match(base.operators, candidate.facts.operators).pairs
    return [old for old, new in pairs if old.unit != "on" and new.unit == "on"]


def advice_of(variant: str, base: ModelFacts, run_id: str, candidates: Sequence[Candidate]) -> Advice:
    """The record of everything that was tried."""
    as_it_is = Candidate(Change(AS_IT_IS, "", None, variant), base, run_id=run_id)
    return Advice(
        variant=variant, changes=[_tried(base, each) for each in (as_it_is, *ranked(base, candidates))]
    )


def _tried(base: ModelFacts, candidate: Candidate) -> TriedChange:
    facts, measured = candidate.facts, dict[str, Any]()
    if facts is not None:
        measured = {
            "matrix_operators": len(facts.operators),
            "on_unit": sum(operator.unit == "on" for operator in facts.operators),
            "operators": facts.steps,
            "delegate_calls": facts.delegate_calls,
            "outside": _outside(facts),
            "program_bytes": facts.program_bytes,
            "worst_db": min(facts.sqnr_db) if facts.sqnr_db else None,
        }
    return TriedChange(
        change=candidate.change.name,
        what=candidate.change.what,
        code=candidate.change.code,
        problem=candidate.problem,
        run_id=candidate.run_id,
        share=candidate.share(base),
        gain=candidate.gain(base),
        recommended=is_gain(base, candidate),
        onto_unit=[place_of(operator) for operator in moved(base, candidate)],
        **measured,
    )
