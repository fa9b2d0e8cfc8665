"""How close the two arms of a pair must be to each other, value by value, and how close they were.

The arms run the same program on the same inputs: they differ by rounding alone, which is far less than either
differs from the eager model. So they have bounds of their own, which docs/numerics.md derives. An average
hides a fault in one place: there are bounds for the whole value, for each channel, for each row (all channels
at one position), for each row and column of a tile, which is what a kernel writes at once, and for each
element.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field, StrictStr

from sme2_assets.evidence.documents import Count, Document, Flag, Number, Part, Text
from sme2_assets.evidence.numerics import as_matrix, below_normal

ARMS_FILE = "arms.json"
TAPS_FILE = "taps.json"

# fp32, fp16: computed in that type. static: 8-bit values, or what follows them. dynamic: fp32 values after
# activations that were quantised at run time. unknown: from a finished program, which does not say.
Kind = Literal["fp32", "fp16", "static", "dynamic", "unknown"]

# Half the distance between two numbers around 1: the most that one rounding changes, relatively.
UNIT = {"fp32": 2.0**-24, "fp16": 2.0**-11}
# One of 127 steps: how far an activation moves if it is rounded the other way.
STEP = 1 / 127
# Rows and columns of a tile of 32-bit accumulators with 512-bit vectors.
TILE = 16
# Rounding n times is a random walk of sqrt(n) units. These are multiples of that.
WHOLE, PART, LANES, ELEMENT = 2.0, 4.0, 5.0, 16.0
# The same in steps, and TELLING in steps. An unknown program may also be fp16.
IN_STEPS = {"dynamic": (0.5, 1.0, 2.0, 4.0, 4.0), "unknown": (8.0, 16.0, 20.0, 64.0, 16.0)}
# In a part that exceeds the rounding by this much, the error may be at most half of the signal.
TELLING, HALF = 4.0, 0.5
# How many 8-bit values may be one step apart: a few, in case of ties, plus this share.
TIES, TIE_SHARE = 2, 0.01
# The ratio reported for an error where nothing may differ at all: finite, because JSON has no infinity.
_BEYOND = 1e9


class ComparedValue(Part):
    """A value in which the arms are compared: an output of the model or of an operator."""

    name: Text
    operator: StrictStr
    module: StrictStr | None
    kind: Kind
    # Products summed on the way to one element, by this operator and all before it.
    terms: Count
    channel_axis: Annotated[int, Field(strict=True)]
    # How large it would be if the products of its operator had signs by chance; 0 if that is not known. More
    # than its size where they cancel: rounding goes by the products, not by what is left of them.
    magnitude: Annotated[Number, Field(ge=0)] = 0.0


class Taps(Document):
    """The outputs of the program with taps: those of the model first, then intermediate values."""

    VERSION: ClassVar[int] = 1
    REMEDY: ClassVar[str] = "Export the model again."

    outputs: Count
    values: list[ComparedValue]
    # Operators whose values are not among the outputs: they are too large, or no delegate computes them.
    left_out: list[Text]
    # Why there are no intermediate values, if there are none.
    only_outputs: StrictStr | None = None

    def without_taps(self, why: str) -> Taps:
        """The outputs alone."""
        between = [value.name for value in self.values[self.outputs :]]
        return Taps(
            outputs=self.outputs,
            values=self.values[: self.outputs],
            left_out=[*self.left_out, *between],
            only_outputs=why,
        )


class ArmsAgreement(Part):
    """How close the arms are in one value."""

    name: Text
    operator: StrictStr
    module: StrictStr | None
    kind: Kind
    elements: Count
    equal_share: Number
    # The largest difference between elements; in steps for 8-bit values.
    largest_error: Number | None
    # The error as a share of its bound, where that is largest. Above 1 the arms differ.
    of_bound: Number
    fault: StrictStr | None


class ArmsNumerics(Document):
    """Everything that the arms of a pair were compared in."""

    VERSION: ClassVar[int] = 1
    REMEDY: ClassVar[str] = "Restore the folder from a copy, or measure again."

    # Of the worst output.
    sqnr_db: Number
    values: list[ArmsAgreement]
    left_out: list[Text]
    # Whether the program with taps gave exactly the measured program's outputs; None without taps.
    same_outputs: Flag | None
    # Why only the outputs were compared, if so.
    only_outputs: StrictStr | None

    @property
    def fault(self) -> str | None:
        """The first value in which the arms differ, and how many more there are."""
        faults = [value.fault for value in self.values if value.fault]
        more = f" ({len(faults) - 1} more of {len(self.values)} values differ)" if len(faults) > 1 else ""
        return f"{faults[0]}{more}" if faults else None


def compare_arms(
    values: Sequence[ComparedValue], off: Sequence[npt.NDArray], on: Sequence[npt.NDArray]
) -> list[ArmsAgreement]:
    """One agreement per value; a value that an arm lacks is a fault."""
    made = []
    for index, value in enumerate(values):
        pair = [arm[index] if index < len(arm) else None for arm in (off, on)]
        made.append(compare_value(value, *pair))
    return made


def compare_value(value: ComparedValue, off: npt.NDArray | None, on: npt.NDArray | None) -> ArmsAgreement:
    if off is None or on is None or off.shape != on.shape or off.dtype != on.dtype:
        return _agreement(value, 0, 0.0, None, _BEYOND, "is not of the same type and shape in both arms")
    # One arm may keep what the other flushes to zero.
    lost = ((off == 0) & below_normal(on)) | ((on == 0) & below_normal(off))
    if lost.any():
        off, on = (np.where(lost, array.dtype.type(0), array) for array in (off, on))
    equal = float(np.mean(off == on)) if off.size else 1.0
    if equal == 1.0:
        return _agreement(value, off.size, 1.0, 0.0, 0.0, None)
    left, right = (array.astype(np.float64) for array in (off, on))
    if not (np.isfinite(left).all() and np.isfinite(right).all()):
        return _agreement(value, off.size, equal, None, _BEYOND, "is not finite")
    error = np.abs(right - left)
    findings = list(_findings(value, off, left, error))
    of_bound, where = max(findings, key=lambda finding: finding[0])
    of_bound = min(of_bound, _BEYOND)
    fault = f"differs: {where}, {of_bound:.3g} times what is allowed" if of_bound > 1 else None
    return _agreement(value, off.size, equal, float(error.max()), of_bound, fault)


def _findings(
    value: ComparedValue, off: npt.NDArray, left: npt.NDArray, error: npt.NDArray
) -> Iterator[tuple[float, str]]:
    """Errors as ratios to their bounds, and where they are."""
    if not np.issubdtype(off.dtype, np.floating):
        if value.kind == "static" and off.dtype == np.int8:
            yield float(error.max()), "more than a step apart"
            yield from _shares(as_matrix(error != 0, value.channel_axis))
        else:
            yield _BEYOND, "integers and booleans must be equal"
        return
    bound = _bound(value, left)
    signal, noise = (as_matrix(array, value.channel_axis) for array in (left, error))
    # Where no product is, none is rounded: the rest must not count as smaller for it.
    there = (left != 0) | (error != 0)
    cancelled = value.magnitude > _rms(left[there])
    whole = value.magnitude if cancelled else _rms(left)
    yield _ratio(_rms(error[there] if cancelled else error), bound.whole * whole), "on average"
    yield (
        float(np.max(_ratios(noise, bound.element * np.maximum(np.abs(signal), whole)))),
        "in one element",
    )
    for along in (signal.T, noise.T), (signal, noise):
        lanes, errors = (_rms(_lanes(array), 1) for array in along)
        ratios = _ratios(errors, bound.lanes * np.maximum(lanes, whole))
        yield float(np.max(ratios, initial=0.0)), "in a row or column of a tile"
    # A constant is not an approximation, even of a value with a large mean.
    spread = float(np.std(left))
    if spread > bound.telling * whole:
        yield _ratio(_rms(error), HALF * spread), "in what varies"
    for axis, name in ((0, "channel"), (1, "row")):
        signals, noises = _rms(signal, axis), _rms(noise, axis)
        ratios = _ratios(noises, bound.part * np.maximum(signals, whole))
        telling = signals > bound.telling * whole
        ratios = np.where(telling, np.maximum(ratios, _ratios(noises, HALF * signals)), ratios)
        at = int(np.argmax(ratios))
        yield float(ratios[at]), f"in {name} {at}"


@dataclass(frozen=True)
class _Bound:
    """The allowed error, relative to the root mean square of the whole value, or of the part if larger."""

    whole: float
    part: float
    lanes: float
    element: float
    telling: float


def _bound(value: ComparedValue, left: npt.NDArray) -> _Bound:
    if value.kind in UNIT:
        unit = UNIT[value.kind] * float(np.sqrt(value.terms))
        return _Bound(*(times * unit for times in (WHOLE, PART, LANES, ELEMENT, TELLING)))
    if value.kind == "static":
        # One step of a range that just fits the value.
        whole = _rms(left)
        step = STEP * float(np.max(np.abs(left))) / whole if whole else 0.0
        return _Bound(step, step, step, step, TELLING * step)
    return _Bound(*(STEP * steps for steps in IN_STEPS[value.kind]))


def _shares(differing: npt.NDArray) -> Iterator[tuple[float, str]]:
    yield float(differing.sum() / (TIES + TIE_SHARE * differing.size)), "too many elements a step apart"
    for axis, name in ((0, "channel"), (1, "row")):
        counts = differing.sum(axis=axis) / (TIES + TIE_SHARE * differing.shape[axis])
        at = int(np.argmax(counts))
        yield float(counts[at]), f"too many elements a step apart in {name} {at}"


def _lanes(matrix: npt.NDArray) -> npt.NDArray:
    """Every TILE neighbours of a row, as one row each; the rest at its end does not fill a tile."""
    whole_tiles = matrix.shape[1] // TILE * TILE
    return matrix[:, :whole_tiles].reshape(-1, TILE)


def _rms(array: npt.NDArray, axis: int | None = None) -> Any:
    return np.sqrt(np.mean(np.square(array), axis=axis))


def _ratio(error: float, allowed: float) -> float:
    return float(_ratios(np.asarray(error), np.asarray(allowed)))


def _ratios(errors: npt.NDArray, allowed: npt.NDArray) -> npt.NDArray:
    """Zero error is never too much, and any error is where none is allowed."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(errors == 0, 0.0, np.where(allowed == 0, _BEYOND, errors / allowed))


def _agreement(
    value: ComparedValue,
    elements: int,
    equal: float,
    error: float | None,
    of_bound: float,
    fault: str | None,
) -> ArmsAgreement:
    place = value.module or value.operator
    who = f"{value.name} ({place})" if place else value.name
    return ArmsAgreement(
        name=value.name,
        operator=value.operator,
        module=value.module,
        kind=value.kind,
        elements=elements,
        equal_share=equal,
        largest_error=error,
        of_bound=of_bound,
        fault=None if fault is None else f"{who} {fault}",
    )
