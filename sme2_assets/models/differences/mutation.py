"""Mutation score: what share of the faults that a wrong matrix kernel makes do the arms' bounds catch?

One fault at a time is put into the result of one matrix operator, in torch, on the model's example inputs.
Then the intact and the faulty run are compared as a session compares the arms: in intermediate values and in
outputs, by the same function. A fault that changes nothing at all is equivalent and is not counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from sme2_assets.errors import ExportError
from sme2_assets.evidence.arms import TILE, compare_arms, compare_value
from sme2_assets.evidence.numerics import worst_sqnr_db
from sme2_assets.models.differences import Log, built_to_compare, run_watched
from sme2_assets.models.inputs import ModelInputs, flat_tensors, tensor_array
from sme2_assets.models.lowering import export_program
from sme2_assets.models.registry import model_spec, parse_variant
from sme2_assets.models.taps import Layer, affordable, compared_outputs, layers_of


@dataclass(frozen=True)
class Mutant:
    """A fault in one operator, and its effect."""

    operator: str
    module: str | None
    fault: str
    changed: bool
    """False for an equivalent fault: not one bit is different."""
    caught: bool
    seen_in_outputs: bool | None
    """Whether the outputs alone, by the eager model's bound, would have shown it; None if not asked."""


def mutants(variant_key: str, *, outputs: bool = False, log: Log) -> Iterator[Mutant]:
    """Every fault in every matrix operator of the model, in their order.

    `outputs` also asks what the eager bound alone would see, which runs the whole model for every fault.
    """
    variant = parse_variant(variant_key)
    spec = model_spec(variant.model)
    if spec.pte is not None:
        raise ExportError(f"{variant} is a finished program: faults cannot be put in", "choose another model")
    with built_to_compare(spec, variant.precision, log) as (built, progress):
        exported, inputs = export_program(built, variant.precision, progress)
        intact = _Intact(exported.module(), variant.precision, inputs, built.minimum_sqnr_db)
        for number, layer in enumerate(intact.layers):
            progress.say(f"operator {number + 1} of {len(intact.layers)}")
            for fault, put in FAULTS.items():
                yield intact.mutant(layer, fault, put, outputs=outputs)


class _Intact:
    """The model without a fault, and all its values."""

    def __init__(self, graph_module: Any, precision: str, inputs: ModelInputs, bound_db: float) -> None:
        self.graph_module, self.inputs, self.bound_db = graph_module, inputs, bound_db
        self.layers = layers_of(graph_module, precision, inputs.flat())
        self.seen = {layer.tap for layer in affordable(self.layers)[0]}
        wanted = {node for layer in self.layers for node in (layer.end, layer.tap)}
        self.values: dict[Any, Any] = {}

        def keep(node: Any, value: Any) -> Any:
            if node in wanted:
                # Copied: operators that work in place change what was seen before.
                self.values[node] = value.clone()
            return value

        outputs = flat_tensors(run_watched(graph_module, inputs, keep))
        self.outputs = [tensor_array(value.clone()) for value in outputs]
        self.compared = compared_outputs(graph_module, precision, self.outputs, self.layers)

    def mutant(self, layer: Layer, fault: str, put: _Fault, *, outputs: bool) -> Mutant:
        intact = self.values[layer.end]
        faulty = _with_fault(put, intact, layer.value.channel_axis)
        changed = bool((faulty != intact).any())
        caught, in_outputs = False, None
        if changed:
            tap = faulty if layer.tap is layer.end else self._quantised(layer, faulty)
            changed = bool((tap != self.values[layer.tap]).any())
        if changed and layer.tap in self.seen:
            caught = self._differs(layer, tap)
        if changed and (outputs or not caught):
            later, faulty_outputs = self._run(layer, faulty)
            agreements = compare_arms(self.compared, self.outputs, faulty_outputs)
            caught = caught or later or any(agreement.fault for agreement in agreements)
            in_outputs = worst_sqnr_db(self.outputs, faulty_outputs) < self.bound_db if outputs else None
        value = layer.value
        return Mutant(value.name, value.module, fault, changed, caught, in_outputs)

    def _differs(self, layer: Layer, value: Any) -> bool:
        intact = tensor_array(self.values[layer.tap])
        return compare_value(layer.value, intact, tensor_array(value)).fault is not None

    def _quantised(self, layer: Layer, value: Any) -> Any:
        return layer.tap.target(value, *layer.tap.args[1:], **layer.tap.kwargs)

    def _run(self, faulty_layer: Layer, faulty: Any) -> tuple[bool, list[Any]]:
        """Whether a value after the fault shows it, and the outputs."""
        by_tap = {layer.tap: layer for layer in self.layers if layer.tap in self.seen}
        is_seen = False

        def put(node: Any, value: Any) -> Any:
            nonlocal is_seen
            value = faulty.clone() if node is faulty_layer.end else value
            if not is_seen and node in by_tap:
                is_seen = self._differs(by_tap[node], value)
            return value

        outputs = flat_tensors(run_watched(self.graph_module, self.inputs, put))
        return is_seen, [tensor_array(value) for value in outputs]


_Fault = Callable[[Any], None]


def _with_fault(put: _Fault, intact: Any, channel_axis: int) -> Any:
    """The value with a fault in it, applied to the value as rows of channels."""
    rows = intact.movedim(channel_axis, -1).contiguous().clone()
    put(rows.view(-1, rows.shape[-1]))
    return rows.movedim(-1, channel_axis)


def _tile(rows: Any) -> Any:
    """The last whole tile, or all there is: edges are where kernels go wrong."""
    bottom = max(TILE, rows.shape[0] // TILE * TILE)
    right = max(TILE, rows.shape[1] // TILE * TILE)
    return rows[bottom - TILE : bottom, right - TILE : right]


def _zero_last_row(rows: Any) -> None:
    _tile(rows)[-1] = 0


def _zero_last_column(rows: Any) -> None:
    _tile(rows)[:, -1] = 0


def _zero_channel(rows: Any) -> None:
    rows[:, -1] = 0


def _stale_accumulator(rows: Any) -> None:
    tile = _tile(rows)
    tile += tile.clone()


def _swapped_lanes(rows: Any) -> None:
    tile = _tile(rows)
    # A single channel has no neighbour; swap rows instead.
    tile = tile if tile.shape[1] > 1 else tile.T
    tile[:, :2] = tile[:, :2].flip(1)


FAULTS: dict[str, _Fault] = {
    "last row of a tile zero": _zero_last_row,
    "last column of a tile zero": _zero_last_column,
    "stale accumulator in a tile": _stale_accumulator,
    "two lanes of a tile swapped": _swapped_lanes,
    "last channel zero": _zero_channel,
}
