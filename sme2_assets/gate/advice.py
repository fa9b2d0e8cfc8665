"""What changes of a model bring, from the facts of each: ranked, and in a table. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sme2_assets.analysis.statistics import unpaired_ratio
from sme2_assets.evidence.advice import AS_IT_IS, Advice, Change
from sme2_assets.gate.baseline import ModelFacts
from sme2_assets.gate.judge import match, place_of

# What a person should care about.
LEAST_GAIN = 0.01


@dataclass(frozen=True)
class Candidate:
    """A change that was tried: what it is, the code to write, and what became of it."""

    name: str
    what: str
    code: str | None
    facts: ModelFacts | None
    problem: str | None = None
    run_id: str | None = None

    def share(self, base: ModelFacts, *units: str) -> float | None:
        """Of the work of the model as it is, how much is on these units now.

        A change adds work of its own, such as on a frame of zeros, which nobody wanted: it does not count.
        """
        if self.facts is None:
            return None
        pairs = match(base.operators, self.facts.operators).pairs
        on = sum(old.macs for old, new in pairs if old.macs is not None and new.unit in units)
        total = sum(operator.macs for operator in base.operators if operator.macs is not None)
        return on / total if total else None

    def gain(self, base: ModelFacts) -> float | None:
        """By how much that grows at least, whatever was unknown before; None where nothing is counted."""
        before, after = base.macs_share("on", "unknown"), self.share(base, "on")
        return None if before is None or after is None else after - before


def ranked(base: ModelFacts, candidates: Sequence[Candidate]) -> list[Candidate]:
    """The largest gain first, the fewest operators among equals; what could not be measured last."""

    def order(candidate: Candidate) -> tuple[bool, float, int]:
        gain = candidate.gain(base)
        steps = candidate.facts.steps if candidate.facts else 0
        return (candidate.facts is None, -round(gain or 0.0, 2), steps)

    return sorted(candidates, key=order)


def is_gain(base: ModelFacts, candidate: Candidate) -> bool:
    return (candidate.gain(base) or 0.0) > LEAST_GAIN


def moved(base: ModelFacts, candidate: Candidate) -> list[str]:
    """The operators that come onto the unit."""
    if candidate.facts is None:
        return []
    pairs = match(base.operators, candidate.facts.operators).pairs
    return [place_of(old) for old, new in pairs if old.unit != "on" and new.unit == "on"]


def advice_of(variant: str, base: ModelFacts, run_id: str, candidates: Sequence[Candidate]) -> Advice:
    """What is kept of all that was tried."""
    as_it_is = Candidate(AS_IT_IS, "", None, base, run_id=run_id)
    return Advice(
        variant=variant, changes=[_change(base, each) for each in (as_it_is, *ranked(base, candidates))]
    )


def _change(base: ModelFacts, candidate: Candidate) -> Change:
    facts, measured = candidate.facts, dict[str, Any]()
    if facts is not None:
        measured = {
            "matrix_operators": len(facts.operators),
            "on_unit": sum(operator.unit == "on" for operator in facts.operators),
            "operators": facts.steps,
            "delegate_calls": facts.delegate_calls,
            "program_bytes": facts.program_bytes,
            "worst_db": min(facts.sqnr_db) if facts.sqnr_db else None,
        }
    return Change(
        change=candidate.name,
        what=candidate.what,
        code=candidate.code,
        problem=candidate.problem,
        run_id=candidate.run_id,
        least=candidate.share(base, "on"),
        most=candidate.share(base, "on", "unknown"),
        gain=candidate.gain(base),
        recommended=is_gain(base, candidate),
        onto_unit=moved(base, candidate),
        **measured,
    )


def row_of(base: ModelFacts, candidate: Candidate) -> dict[str, str]:
    """A row of the table; a candidate without facts has its problem in the place of them."""
    facts = candidate.facts
    if facts is None:
        return {"change": candidate.name, "problem": str(candidate.problem)}
    least, most, gain = (
        candidate.share(base, "on"),
        candidate.share(base, "on", "unknown"),
        candidate.gain(base),
    )
    counted = "not counted"
    if least is not None and most is not None and gain is not None:
        effect = f"{100 * gain:+.1f} pp" if least == most else f"{100 * gain:+.1f} pp at least"
        counted = f"{least:.1%} ({effect})"
    return {
        "change": candidate.name,
        "the model's MACs on the unit": base.macs_text() if facts is base else counted,
        "matrix operators on it": facts.units(),
        "operators": str(facts.steps),
        "delegate calls": str(facts.delegate_calls),
        "program": f"{facts.program_bytes:,} B",
        "worst output": f"{min(facts.sqnr_db):.1f} dB" if facts.sqnr_db else "unknown",
        **_times(base, facts),
    }


def _times(base: ModelFacts, facts: ModelFacts) -> dict[str, str]:
    cells = {}
    for old, new in zip(base.times, facts.times, strict=False):
        column = f"time on {new.where}"
        if facts is base:
            cells[column] = f"{sorted(new.rounds_ns)[len(new.rounds_ns) // 2] / 1e6:.3f} ms"
            continue
        ratio, low, high = unpaired_ratio(old.rounds_ns, new.rounds_ns)
        interval = "too few rounds" if low is None else f"[{low:.2f}, {high:.2f}]"
        cells[column] = f"{ratio:.2f} times {interval}"
    return cells
