"""Changes to a model that are worth trying, in stages: each builds on what the ones before it showed.

Other ways to write it, and its other precisions; then mixed precision, for layers that a precision takes off
the unit or gets wrong; then combinations of what gained. Pure functions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import combinations as pairs_of
from typing import NamedTuple

from sme2_assets.errors import ExportError
from sme2_assets.evidence.advice import LEAST_GAIN
from sme2_assets.gate.advice import Candidate, Change, brings_work, is_gain, moved
from sme2_assets.gate.baseline import ModelFacts
from sme2_assets.gate.judge import match
from sme2_assets.models.quantise import kept_by
from sme2_assets.models.registry import model_spec
from sme2_assets.models.rewrites import KEEP, OPTION, REWRITES, with_changes
from sme2_assets.models.spec import Variant

# Combinations that are tried: those that could bring the most.
MOST_COMBINED = 3
# The share of the work that another precision must have on the unit to be tried with layers in fp32.
MOST = 0.5


class Known(NamedTuple):
    """What has been measured so far."""

    variant: Variant
    base: ModelFacts
    tried: Sequence[Candidate]


def first_changes(variant: Variant, *, rewrites: bool = True, precisions: bool = True) -> list[Change]:
    """Other ways to write the model, and its other precisions; a finished program has neither."""
    spec = model_spec(variant.model)
    changes = []
    if rewrites and spec.factory is not None and OPTION not in dict(spec.values):
        changes += [_change(variant, rewrites=(name,)) for name in REWRITES]
    if precisions:
        changes += [_change(variant, precision=it) for it in spec.precisions if it != variant.precision]
    return changes


def try_changes(
    variant: Variant,
    base: ModelFacts,
    first: Sequence[Change],
    attempt: Callable[[Change], Candidate | None],
) -> list[Candidate]:
    """These changes, then those that their results suggest. An attempt without a result is left out."""
    tried: list[Candidate] = []
    for changes in (lambda _: first, mixed_precisions, combinations):
        tried += filter(None, map(attempt, changes(Known(variant, base, tuple(tried)))))
    return tried


def mixed_precisions(known: Known) -> list[Change]:
    """A precision, with the layers in fp32 that it takes off the unit, or where its outputs go wrong."""
    variant, base, tried = known
    spec = model_spec(variant.model)
    if KEEP in dict(spec.values):
        return []
    plain = {it.change.precision: it for it in tried if not it.change.rewrites and not it.change.kept}
    at = {variant.precision: base, **{name: it.facts for name, it in plain.items() if it.facts}}
    found = []
    for precision in spec.precisions:
        patterns: list[str] = []
        if precision == "fp32":
            continue
        if precision in at and "fp32" in at:
            pairs = match(at["fp32"].operators, at[precision].operators).pairs
            lost = {old.module: old.macs or 0 for old, new in pairs if (old.unit, new.unit) == ("on", "off")}
            # With most of its layers in fp32, another precision would be one by name alone.
            if precision != variant.precision and (at[precision].macs_share() or 0.0) < MOST:
                continue
            patterns = patterns_of(lost, {it.module for it in at["fp32"].operators} - lost.keys())
        elif precision in plain and (module := diverging_module(plain[precision].problem or "")):
            # If that is the whole network, nothing would be left.
            patterns = [] if all(kept_by(it.module, [module]) for it in base.operators) else [module]
        found += _fitting(variant, precision, patterns)
    return found


def diverging_module(problem: str) -> str | None:
    """The module where outputs first diverge, as an error names it (models/differences/in_torch.py)."""
    found = re.search(r" in module '([^']+)'", problem)
    return found[1] if found else None


def _fitting(variant: Variant, precision: str, patterns: Sequence[str]) -> list[Change]:
    """With as many of the patterns as a name has room for."""
    for count in range(len(patterns), 0, -1):
        try:
            return [_change(variant, kept=tuple(patterns[:count]), precision=precision)]
        except ExportError:
            continue
    return []


def patterns_of(wanted: Mapping[str, int], others: Collection[str]) -> list[str]:
    """Patterns for these modules, given with their work, and none of the others: the heaviest first.

    Each is for the largest part of the model that contains no other one, so that what follows a layer, such
    as its activation, has the same precision; and as short as possible, as it becomes part of a name.
    """
    found: list[str] = []
    for module in sorted(filter(None, wanted), key=lambda it: -wanted[it]):
        parts = module.split(".")
        for end in range(1, len(parts) + 1):
            suffixes = [".".join(parts[start:end]) for start in reversed(range(end))]
            fits = (it for it in suffixes if not any(kept_by(other, [it]) for other in others))
            # A number alone says nothing to a reader.
            if pattern := next((it for it in fits if not it.isdigit()), None):
                if kept_by(module, found) is None:
                    found.append(pattern)
                break
    return found


def combinations(known: Known) -> list[Change]:
    """Two changes that both gained, where together they could gain more than either: the best of each kind.

    The kinds are two rewrites, and a rewrite with another precision or with a mixed one.
    """
    variant, base, tried = known
    least = LEAST_GAIN * sum(it.macs or 0 for it in base.operators)
    found = []
    # Rewrites were tried first, so that where a pair has one, it is the first.
    for pair in pairs_of([it for it in tried if is_gain(base, it)], 2):
        one, other = (it.change for it in pair)
        work = [{id(it): it.macs or 0 for it in moved(base, each)} for each in pair]
        together, alone = sum((work[0] | work[1]).values()), max(sum(it.values()) for it in work)
        # One brings work onto the unit, the other fewer calls; or both bring work.
        more = together - alone > least or len({brings_work(base, it) for it in pair}) == 2
        if one.is_rewrite_of(variant.precision) and more:
            change = _change(variant, (*one.rewrites, *other.rewrites), other.kept, other.precision)
            found.append((-together, sum(it.facts.steps for it in pair if it.facts), change))
    best: dict[tuple[str, bool], Change] = {}
    for *_, change in sorted(found, key=lambda it: it[:2]):
        best.setdefault((change.precision, bool(change.kept)), change)
    return list(best.values())[:MOST_COMBINED]


def _change(
    variant: Variant,
    rewrites: tuple[str, ...] = (),
    kept: tuple[str, ...] = (),
    precision: str | None = None,
) -> Change:
    precision = precision or variant.precision
    spec = model_spec(variant.model)
    options = {name: "+".join(it) for name, it in ((OPTION, rewrites), (KEEP, kept)) if it}
    spec = with_changes(spec, options) if options else spec
    what = [REWRITES[name].what for name in rewrites]
    code = [REWRITES[name].code for name in rewrites if REWRITES[name].code]
    if kept:
        what.append(f"{', '.join(kept)} at fp32, the rest at {precision}")
        code.append(f"keep_float = {list(kept)}   # an attribute of the class in the model file")
    elif precision != variant.precision:
        what.append(f"at {precision}")
    return Change(
        f"{spec.title}-{precision}",
        "; ".join(what),
        "\n".join(code) or None,
        Variant(spec.key, precision).key,
        rewrites,
        kept,
        precision,
    )
