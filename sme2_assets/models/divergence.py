"""Where a variant departs from its fp32 model: the first operator whose value is no longer close enough.

Both models are run in torch, node by node, on the example inputs: the one at the precision as it is
exported, and one that computes the same in fp32. Nodes are matched by module and operator. So this finds
effects of the precision (overflow, ranges, rounding), not faults in the runner's kernels: these are found
by `models.bisection`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sme2_assets.evidence.numerics import IDENTICAL_SQNR_DB, sqnr_db
from sme2_assets.models.export import load_libraries, quiet_libraries
from sme2_assets.models.inputs import ModelInputs, exported_graph, tensor_array
from sme2_assets.models.lowering import build_model, calibration, kept_in_float, one_thread
from sme2_assets.models.progress import Progress
from sme2_assets.models.provenance import Origin, operator_name, origin_of
from sme2_assets.models.quantise import halved, quantise
from sme2_assets.models.reference import products_of_halves_in_float, state_kept
from sme2_assets.models.registry import ModelSpec, model_spec, parse_variant

Log = Callable[[str], None]

BASIS = "both models run in torch, operator by operator"

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
    basis: str = BASIS

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
            f"(at least {self.minimum_db:.1f} dB is asked for; {self.basis})"
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
    progress = Progress(f"{spec.key}-{precision}", log)
    with quiet_libraries():
        load_libraries()
        import torch

        with one_thread(), torch.no_grad(), progress.step("looking for the first diverging operator"):
            built = build_model(spec, precision, progress)
            bound = built.minimum_sqnr_db if minimum_db is None else minimum_db
            inputs = built.inputs
            kept = kept_in_float(built.eager)
            if precision == "fp16":
                expected = _values(built.model, inputs)
                return _first(expected, halved(built.model, kept), inputs.at("fp16"), bound)
            quantised = quantise(
                built.model, precision, inputs, lambda: calibration(built), kept=kept, with_reference=True
            )
            return _first(_values(quantised.reference, inputs), quantised.model, inputs, bound)


def _values(model: Any, inputs: ModelInputs) -> dict[_Key, Any]:
    """The output of every operator of the model, all in memory at once."""
    values: dict[_Key, Any] = {}

    def keep(key: _Key, _node: Any, value: Any) -> None:
        # Copied: operators that work in place change what was seen before.
        values[key] = value.clone()

    _watch(model, inputs, keep)
    return values


def _first(expected: dict[_Key, Any], model: Any, inputs: ModelInputs, bound: float) -> Divergence | None:
    before, compared = IDENTICAL_SQNR_DB, 0

    def compare(key: _Key, node: Any, value: Any) -> None:
        nonlocal before, compared
        wanted = expected.get(key)
        # Values that are not finite in fp32 either, such as a mask of minus infinity, say nothing.
        if wanted is None or wanted.shape != value.shape or not _is_finite(wanted):
            return
        compared += 1
        ratio = sqnr_db(tensor_array(wanted), tensor_array(value))
        if ratio < bound:
            name = operator_name(node) or str(node.target)
            found = Divergence(name, origin_of(node), ratio, before, bound, _is_finite(value), compared)
            raise _Found(found)
        before = min(before, ratio)

    try:
        _watch(model, inputs, compare)
    except _Found as found:
        return found.divergence
    return None


class _Found(Exception):
    """Ends a run once the rest no longer matters."""

    def __init__(self, divergence: Divergence) -> None:
        super().__init__(str(divergence))
        self.divergence = divergence


def _watch(model: Any, inputs: ModelInputs, see: Callable[[_Key, Any, Any], None]) -> None:
    """Runs the model as it is exported, and passes every floating point value from an operator to `see`."""
    import torch

    counts: Counter[tuple[str, str]] = Counter()

    class Watching(torch.fx.Interpreter):
        def run_node(self, n: Any) -> Any:
            value = super().run_node(n)
            name = operator_name(n)
            # Quantising and dequantising are not in the fp32 graph.
            if name is None or not name.startswith("aten."):
                return value
            place = (origin_of(n).module or "", name)
            key = (*place, counts[place])
            counts[place] += 1
            if isinstance(value, torch.Tensor) and value.is_floating_point():
                see(key, n, value)
            return value

    if not isinstance(model, torch.fx.GraphModule):
        model = exported_graph(model, inputs).module()
    watching = Watching(model)
    # The interpreter would print the graph with every exception, ours included.
    watching.extra_traceback = False
    with state_kept(model), products_of_halves_in_float():
        watching.run(*inputs.copied().flat())


def _is_finite(value: Any) -> bool:
    return bool(value.isfinite().all())
