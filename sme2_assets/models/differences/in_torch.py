"""Where a variant departs from its fp32 model: the first operator whose value is no longer close enough.

Both models are run in torch, node by node, on the example inputs: the one at the precision as it is
exported, and one that computes the same in fp32. Nodes are matched by module and operator. So this finds
effects of the precision (overflow, ranges, rounding), not faults in the runner's kernels: `in_runner`
finds those.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sme2_assets.evidence.numerics import IDENTICAL_SQNR_DB, sqnr_db
from sme2_assets.models.differences import Log, built_to_compare, run_watched
from sme2_assets.models.inputs import ModelInputs, exported_graph, tensor_array
from sme2_assets.models.lowering import calibration, kept_in_float
from sme2_assets.models.provenance import Origin, operator_name, origin_of
from sme2_assets.models.quantise import halved, quantise
from sme2_assets.models.registry import model_spec, parse_variant
from sme2_assets.models.spec import ModelSpec
from sme2_assets.models.time_limit import export_timeout_s, time_limit

# Identifies a node in both graphs: module, operator, and its number among those with the same two.
_Key = tuple[str, str, int]


@dataclass(frozen=True)
class Divergence:
    """The first operator whose value is further from fp32's than the bound allows."""

    operator: str
    origin: Origin
    sqnr_db: float
    before_db: float
    """The smallest ratio among the operators before it."""
    minimum_db: float
    finite: bool
    compared: int
    """Operators that were compared, this one included."""

    @property
    def module(self) -> str | None:
        return self.origin.module

    @property
    def source(self) -> str | None:
        return self.origin.source

    def __str__(self) -> str:
        where = f" in {self.origin}" if str(self.origin) else ""
        what = f"{self.sqnr_db:.1f} dB" if self.finite else "values that are not finite"
        return (
            f"{self.operator}{where}: {what}, after {self.before_db:.1f} dB before it "
            f"(at least {self.minimum_db:.1f} dB is asked for; both models run in torch, operator by "
            "operator)"
        )


def first_divergence(variant_key: str, *, minimum_db: float | None = None, log: Log) -> Divergence | None:
    """Where the variant departs from fp32; None if it does not in torch, so the kernels are at fault."""
    variant = parse_variant(variant_key)
    return divergence_of(model_spec(variant.model), variant.precision, minimum_db=minimum_db, log=log)


def divergence_of(
    spec: ModelSpec, precision: str, *, minimum_db: float | None = None, log: Log
) -> Divergence | None:
    """The same for a model that need not be registered."""
    if precision == "fp32" or spec.pte is not None:
        return None
    with time_limit(export_timeout_s()), built_to_compare(spec, precision, log) as (built, progress):
        bound = built.minimum_sqnr_db if minimum_db is None else minimum_db
        inputs, kept = built.inputs, kept_in_float(built.eager)
        with progress.step("looking for the first diverging operator"):
            if precision == "fp16":
                expected = _values_by_place(built.model, inputs)
                return _first_below(expected, halved(built.model, kept), inputs.at("fp16"), bound)
            quantised = quantise(
                built.model, precision, inputs, lambda: calibration(built), kept=kept, with_reference=True
            )
            return _first_below(_values_by_place(quantised.reference, inputs), quantised.model, inputs, bound)


def _values_by_place(model: Any, inputs: ModelInputs) -> dict[_Key, Any]:
    """The output of every operator of the model, all in memory at once."""
    values: dict[_Key, Any] = {}

    def keep(key: _Key, _node: Any, value: Any) -> None:
        # Copied: operators that work in place change what was seen before.
        values[key] = value.clone()

    _run_by_place(model, inputs, keep)
    return values


def _first_below(
    expected: dict[_Key, Any], model: Any, inputs: ModelInputs, bound: float
) -> Divergence | None:
    found: Divergence | None = None
    before, compared = IDENTICAL_SQNR_DB, 0

    def compare(key: _Key, node: Any, value: Any) -> None:
        nonlocal found, before, compared
        fp32 = expected.get(key)
        # Values that are not finite in fp32 either, such as a mask of minus infinity, say nothing.
        if found or fp32 is None or fp32.shape != value.shape or not _is_finite(fp32):
            return
        compared += 1
        ratio = sqnr_db(tensor_array(fp32), tensor_array(value))
        if ratio < bound:
            name = operator_name(node) or str(node.target)
            found = Divergence(name, origin_of(node), ratio, before, bound, _is_finite(value), compared)
        before = min(before, ratio)

    _run_by_place(model, inputs, compare)
    return found


def _run_by_place(model: Any, inputs: ModelInputs, see: Callable[[_Key, Any, Any], None]) -> None:
    """Runs the model as it is exported, and passes every floating point value from an operator to `see`."""
    import torch

    counts: Counter[tuple[str, str]] = Counter()

    def identified(node: Any, value: Any) -> Any:
        name = operator_name(node)
        # Quantising and dequantising are not in the fp32 graph.
        if name is not None and name.startswith("aten.") and value.is_floating_point():
            place = (origin_of(node).module or "", name)
            see((*place, counts[place]), node, value)
            counts[place] += 1
        return value

    if not isinstance(model, torch.fx.GraphModule):
        model = exported_graph(model, inputs).module()
    run_watched(model, inputs, identified)


def _is_finite(value: Any) -> bool:
    return bool(value.isfinite().all())
