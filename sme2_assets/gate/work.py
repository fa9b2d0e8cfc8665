"""What operators and models execute before and after a change, from counted instructions. Pure functions."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from math import isinf
from typing import Literal, NamedTuple

from sme2_assets.analysis.percent import percent_text
from sme2_assets.evidence.digits import beside
from sme2_assets.gate.baseline import ModelFacts, Operator

# What must not grow, as people read it; then what tells where a difference comes from.
_JUDGED = {
    "instructions": "instructions",
    "macs_executed": "multiply-accumulates executed",
    "streaming_entries": "streaming entries",
}
_TOLD = {
    "packing_instructions": "packing instructions",
    "outer_products": "outer products",
    "macs_on_unit": "multiply-accumulates on the unit",
}


class WorkChange(NamedTuple):
    kind: Literal["loss", "gain"]
    what: str


def operator_change(old: Operator, new: Operator, tolerance: float) -> WorkChange | None:
    """A loss if it executes more of anything that is judged, else a gain if it executes less."""
    if not _computes_alike(old, new):
        return None
    size = _size(old, new)
    kinds, changed = set(), []
    for name, words in _JUDGED.items():
        was, now = getattr(old, name), getattr(new, name)
        if kind := _kind(was, now, size, tolerance):
            kinds.add(kind)
            changed.append(_told(was, now, words, tolerance))
    if not changed:
        return None
    what = "; ".join([", and ".join(changed), *_fill(old, new), *_details(old, new)])
    return WorkChange("loss" if "loss" in kinds else "gain", what)


def model_change(before: ModelFacts, after: ModelFacts, tolerance: float) -> WorkChange | None:
    """All that an inference executes. It may not grow with the model either, as the program may not."""
    was, now = before.instructions, after.instructions
    if was is None or now is None or not (kind := _kind(was, now, Fraction(1), tolerance)):
        return None
    matrix = [sum(each.instructions or 0 for each in facts.operators) for facts in (before, after)]
    parts = (
        f"convolutions and matrix products {_difference(*matrix)}",
        f"everything else {_difference(was - matrix[0], now - matrix[1])}",
    )
    return WorkChange(kind, f"{_told(was, now, 'instructions', tolerance)}: {', '.join(parts)}")


def stricter(old: Operator, new: Operator) -> Operator:
    """The new one with the least that either executed."""
    if not _computes_alike(old, new):
        return new
    size = max(_size(old, new), Fraction(1))
    least = {name: min(getattr(new, name), int(getattr(old, name) * size)) for name in (*_JUDGED, *_TOLD)}
    return new.model_copy(update=least)


def _computes_alike(old: Operator, new: Operator) -> bool:
    """What moved on or off the unit does other work, and is told as that."""
    counts = (getattr(each, name) for each in (old, new) for name in (*_JUDGED, *_TOLD))
    return old.unit == new.unit and None not in counts


def _size(old: Operator, new: Operator) -> Fraction:
    """By how much the operator itself grew in the model."""
    return Fraction(new.macs, old.macs) if old.macs and new.macs else Fraction(1)


def _kind(was: int, now: int, size: Fraction, tolerance: float) -> Literal["loss", "gain"] | None:
    """Fractions are exact, so what is at the tolerance is within it.

    An operator that is larger in the model may execute more in proportion. One that is smaller and executes
    no more than before has lost nothing.
    """
    one = Fraction(1)
    allowed = tolerance if isinf(tolerance) else Fraction(str(tolerance))
    if now > was * max(size, one) * (1 + allowed):
        return "loss"
    return "gain" if now < was * min(size, one) * (1 - allowed) else None


def _told(was: int, now: int, words: str, tolerance: float) -> str:
    told = f"{now:,} {words}, {was:,} before"
    if not was:
        return told
    percent, limit = 100 * (now / was - 1), 100 * tolerance
    return f"{told} ({'+' * (now > was)}{beside(percent, limit if now > was else -limit, 1)}%)"


def _fill(old: Operator, new: Operator) -> Iterator[str]:
    """How much of what is multiplied the model asked for: the rest fills tiles and vectors."""
    shares = [
        percent_text(each.macs / each.macs_executed, 1)
        for each in (old, new)
        if each.macs and each.macs_executed
    ]
    if len(set(shares)) > 1:
        yield f"tile fill {shares[1]}, {shares[0]} before"


def _details(old: Operator, new: Operator) -> Iterator[str]:
    counts = [(words, getattr(old, name), getattr(new, name)) for name, words in _TOLD.items()]
    yield from (f"{words} {now - was:+,}" for words, was, now in counts if was != now)
    if same := [words for words, was, now in counts if was == now > 0]:
        yield f"{' and '.join(same)} unchanged"


def _difference(was: int, now: int) -> str:
    return f"{now - was:+,}" if now != was else "unchanged"
