"""What a change did to a model, from the facts before and after it. Pure functions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from sme2_assets.analysis.percent import percent_text
from sme2_assets.analysis.statistics import unpaired_ratio
from sme2_assets.evidence.digits import beside, interval_beside
from sme2_assets.gate.baseline import ModelFacts, Operator, Outside, Sketch, Times
from sme2_assets.gate.sketches import distance_db
from sme2_assets.gate.work import model_change, operator_change, stricter

# Below this, outputs differ because the inputs do. Two machines may round a seeded number differently.
SAME_INPUTS_DB = 80.0
_PORTABLE = "portable"


@dataclass(frozen=True)
class Tolerances:
    """What may change without counting as a loss, as shares of the value before."""

    size: float = 0.01
    macs: float = 0.01
    work: float = 0.01
    time: float = 0.10


@dataclass(frozen=True)
class Finding:
    """One difference. Losses fail the gate; gains and notes do not."""

    kind: Literal["loss", "gain", "note"]
    where: str
    what: str


class Matched(NamedTuple):
    """Operators of two programs: those in both, and those in only one of them."""

    pairs: list[tuple[Operator, Operator]]
    gone: list[Operator]
    added: list[Operator]


def judge(
    before: ModelFacts,
    after: ModelFacts,
    tolerances: Tolerances,
    because: Mapping[tuple[str, str], str] | None = None,
) -> list[Finding]:
    """Every difference that matters, losses first.

    `because` says why operators are off the unit now, by module and line.
    """
    matched = match(before.operators, after.operators)
    findings = [
        *_kernels(matched, because or {}),
        *_share(before, after, tolerances.macs),
        *_work(matched, before, after, tolerances.work),
        *_delegation(before.outside, after.outside),
        *_outputs(before, after),
        *_size(before.program_bytes, after.program_bytes, tolerances.size),
        *(finding for times in before.times for finding in _times(times, after.times, tolerances.time)),
    ]
    order = ("loss", "gain", "note")
    return sorted(findings, key=lambda finding: order.index(finding.kind))


def updated(before: ModelFacts, after: ModelFacts, tolerances: Tolerances) -> ModelFacts:
    """What to record where nothing was lost: what was gained, and otherwise the stricter of the two.

    So small steps, each within its tolerance, cannot add up to a loss that the gate never sees.
    """
    old_of = {id(new): old for old, new in match(before.operators, after.operators).pairs}
    kept: dict[str, object] = {
        "program_bytes": min(before.program_bytes, after.program_bytes),
        "instructions": min(filter(None, (before.instructions, after.instructions)), default=None),
        "operators": [stricter(old_of.get(id(each), each), each) for each in after.operators],
        "times": [_faster(each, after.times, tolerances.time) for each in before.times],
    }
    if _same_inputs(before.inputs, after.inputs):
        kept |= {"inputs": before.inputs, "outputs": before.outputs}
    return after.model_copy(update=kept)


def _faster(before: Times, measured: Sequence[Times], tolerance: float) -> Times:
    """The new times if they are a gain, else those of the baseline."""
    gained = any(finding.kind == "gain" for finding in _times(before, measured, tolerance))
    return next(each for each in measured if _series(each) == _series(before)) if gained else before


def match(before: Sequence[Operator], after: Sequence[Operator]) -> Matched:
    """By module, line and shape, or by fewer of these where a change touched one. Ties pair in order."""
    keys: tuple[Callable[[Operator], Hashable | None], ...] = (
        lambda it: (it.category, it.module, it.code, it.shape) if it.module or it.code else None,
        lambda it: (it.category, it.module, it.code) if it.module or it.code else None,
        lambda it: (it.category, it.module, it.shape) if it.module else None,
        lambda it: (it.category, it.module) if it.module else None,
        # The library treats a 1x1 convolution as a matrix product, but not one with another kernel.
        lambda it: (it.module, it.code) if it.module else None,
        lambda it: (it.module,) if it.module else None,
        # A program without its source has only shapes.
        lambda it: None if it.module or it.code else (it.category, it.shape),
    )
    pairs: list[tuple[int, int]] = []
    left, right = dict(enumerate(before)), dict(enumerate(after))
    for key in keys:
        places = defaultdict(list)
        for index, operator in right.items():
            places[key(operator)].append(index)
        for index, operator in list(left.items()):
            wanted = key(operator)
            if wanted is not None and places[wanted]:
                other = places[wanted].pop(0)
                pairs.append((index, other))
                del left[index], right[other]
    return Matched(
        [(before[old], after[new]) for old, new in sorted(pairs)], list(left.values()), list(right.values())
    )


def place_of(operator: Operator) -> str:
    """`features.3.conv (model.py:41)`, or as much of it as is known."""
    module, source = operator.module, operator.source
    if module and source:
        return f"{module} ({source})"
    return module or source or f"{operator.kernel}, {operator.shape}"


def _kernels(matched: Matched, because: Mapping[tuple[str, str], str]) -> Iterator[Finding]:
    for old, new in matched.pairs:
        where = place_of(new)
        why = because.get((new.module, new.source))
        reason = f" ({why})" if why else ""
        if new.backend == _PORTABLE != old.backend:
            yield Finding(
                "loss", where, f"left the delegate: {old.kernel} ran there, now it is {new.kernel}{reason}"
            )
        elif (old.unit, new.unit) == ("on", "off"):
            yield Finding("loss", where, f"lost its SME2 kernel: {old.kernel}, now {new.kernel}{reason}")
        elif (old.unit, new.unit) == ("off", "on"):
            yield Finding("gain", where, f"runs on the SME unit: {new.kernel}, was {old.kernel}")
        elif old.kernel != new.kernel:
            yield Finding("note", where, f"has another kernel: {new.kernel} (SME unit: {new.unit})")
    yield from (Finding("note", place_of(each), "is no longer in the program") for each in matched.gone)
    for each in matched.added:
        yield Finding("note", place_of(each), f"is new: {each.kernel} (SME unit: {each.unit})")


def _share(before: ModelFacts, after: ModelFacts, tolerance: float) -> Iterator[Finding]:
    old, new = before.macs_share(), after.macs_share()
    if old is not None and new is not None and new < old - tolerance:
        what = f"{percent_text(new, 1)} of its MACs on the SME unit, {percent_text(old, 1)} before"
        yield Finding("loss", "the model", what)


def _work(matched: Matched, before: ModelFacts, after: ModelFacts, tolerance: float) -> Iterator[Finding]:
    """Instructions and what they do. They are counted, so any difference is one of the program."""
    for old, new in matched.pairs:
        if change := operator_change(old, new, tolerance):
            yield Finding(change.kind, place_of(new), change.what)
    if change := model_change(before, after, tolerance):
        yield Finding(change.kind, "the model", change.what)
    states = (("in the baseline", before), ("now", after))
    if uncounted := [when for when, facts in states if facts.instructions is None]:
        what = f"instructions are not counted {' and '.join(uncounted)}, so work is not judged"
        yield Finding("note", "the model", what)


def _delegation(before: Iterable[Outside], after: Iterable[Outside]) -> Iterator[Finding]:
    old = {(each.operator, each.module): each for each in before}
    new = {(each.operator, each.module): each for each in after}
    for key, each in new.items():
        more = each.count - (old[key].count if key in old else 0)
        if more > 0:
            reason = f": {each.reason}" if each.reason else ""
            what = f"{more} more of {each.operator} outside the delegate than before{reason}"
            yield Finding("loss", each.module or "the model", what)
    for key, each in old.items():
        fewer = each.count - (new[key].count if key in new else 0)
        if fewer > 0:
            what = f"{fewer} fewer of {each.operator} outside the delegate than before"
            yield Finding("gain", each.module or "the model", what)


def _outputs(before: ModelFacts, after: ModelFacts) -> Iterator[Finding]:
    if not _same_inputs(before.inputs, after.inputs):
        yield Finding("note", "inputs", "are not those of the baseline, so the outputs cannot be compared")
        return
    if len(before.outputs) != len(after.outputs):
        yield Finding("loss", "outputs", f"there are {len(after.outputs)}, {len(before.outputs)} before")
        return
    for index, (old, new) in enumerate(zip(before.outputs, after.outputs, strict=True)):
        where = f"output {index}"
        if (old.dtype, old.shape) != (new.dtype, new.shape):
            yield Finding("loss", where, f"is {_type_of(new)}, was {_type_of(old)}")
        elif (distance := distance_db(old, new)) < before.least_db:
            near = beside(distance, before.least_db, 0)
            what = f"moved: about {near} dB from the baseline's, {before.least_db:g} dB needed"
            yield Finding("loss", where, what)


def _same_inputs(before: Sequence[Sketch], after: Sequence[Sketch]) -> bool:
    return len(before) == len(after) and all(
        distance_db(old, new) >= SAME_INPUTS_DB for old, new in zip(before, after, strict=True)
    )


def _type_of(sketch: Sketch) -> str:
    return f"{sketch.dtype} {'x'.join(map(str, sketch.shape)) or 'scalar'}"


def _size(before: int, after: int, tolerance: float) -> Iterator[Finding]:
    ratio = after / before if before else 1.0
    what = f"{after:,} bytes, {before:,} before ({ratio - 1:+.1%})"
    if ratio > 1 + tolerance:
        yield Finding("loss", "the program", f"grew: {what}")
    elif ratio < 1 - tolerance:
        yield Finding("gain", "the program", f"shrank: {what}")


def _times(before: Times, measured: Sequence[Times], tolerance: float) -> Iterator[Finding]:
    same = [each for each in measured if _series(each) == _series(before)]
    where = before.where
    if not same:
        yield Finding("note", where, "was not measured this time, so its time is not judged")
        return
    ratio, low, high = unpaired_ratio(before.rounds_ns, same[0].rounds_ns)
    n = f"n = {len(before.rounds_ns)} and {len(same[0].rounds_ns)} rounds"
    if low is None or high is None:
        yield Finding("note", where, f"too few rounds to tell whether the time changed ({n})")
        return
    least, most = 1 - tolerance, 1 + tolerance
    # Both ends keep their side of the limit that decides.
    ends = interval_beside(low, high, least if high < least else most, 2)
    told = f"{ratio:.2f} times the time before ({ends}), {n}"
    if low > most:
        yield Finding("loss", where, f"slower: {told}")
    elif high < least:
        yield Finding("gain", where, f"faster: {told}")
    elif high > most:
        yield Finding("note", where, f"cannot tell whether it is slower by {tolerance:.0%}: {told}")


def _series(times: Times) -> tuple[str, str, str, int, str]:
    return (times.platform, times.device, times.sme2, times.threads, times.cpus)
