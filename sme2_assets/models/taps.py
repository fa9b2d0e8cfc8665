"""The values in which arms are compared: the outputs, and the result of every matrix operator.

A fault in an early layer may be hidden by the layers after it. So the arms are also compared in intermediate
values: those of the operators that can use an SME2 kernel. Inside a delegate the runtime shows none of them;
as outputs of the program it has to: `tapped` makes them that. A value is taken where XNNPACK's fused operator
ends (batch norm, activation, quantisation), so that the kernels stay those of the program that is measured: a
session checks whether the outputs of both programs are identical to the bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sme2_assets.evidence.arms import UNIT, ComparedValue, Kind
from sme2_assets.evidence.numerics import output_channel_axis
from sme2_assets.models.inputs import ModelInputs, exported_graph, flat_tensors
from sme2_assets.models.provenance import operator_name, origin_of
from sme2_assets.models.reference import products_of_halves_in_float, state_kept

# The most that all values of one program may take: they are written, and perhaps pulled from a phone.
MOST_BYTES = 256 << 20

_CONVOLUTION = "aten.conv"
_MATRIX = (_CONVOLUTION, "aten.linear", "aten.addmm", "aten.mm.", "aten.bmm", "aten.baddbmm", "aten.matmul")
_ATTENTION = "aten.scaled_dot_product_attention"
# Operators that XNNPACK fuses into the one before.
_FUSED = ("aten.batch_norm", "aten.relu", "aten.hardtanh", "aten.clamp")
_QUANTISE = "quantized_decomposed.quantize_per_tensor"

# Floating point values in a quantised model are fp32, computed from values that were quantised.
_KINDS: dict[str, Kind] = {
    "fp32": "fp32",
    "fp16": "fp16",
    "int8": "static",
    "int8_dynamic": "dynamic",
    "int4": "dynamic",
}

See = Callable[[Any, Any], Any]


@dataclass(frozen=True)
class Layer:
    """A matrix operator of the graph, and the node where its fused operator ends."""

    node: Any
    end: Any
    """The end of the arithmetic; `tap` is the same node, or its quantisation."""
    tap: Any
    value: ComparedValue


def layers_of(graph_module: Any, precision: str, inputs: Sequence[Any]) -> list[Layer]:
    """All matrix operators, in the order in which they run. Inputs are flat."""
    upstream = _Upstream(graph_module)
    magnitudes = _magnitudes(graph_module, inputs) if _KINDS[precision] in UNIT else {}
    layers = []
    for node in graph_module.graph.nodes:
        if _terms(node) is None:
            continue
        end = fused(node)[-1]
        tap = quantised(end)
        value = ComparedValue(
            name=node.name,
            operator=_name(node),
            module=origin_of(node).module,
            kind=_KINDS[precision],
            terms=upstream.terms(tap),
            channel_axis=_channel_axis(node) if _name(node).startswith(_CONVOLUTION) else -1,
            magnitude=magnitudes.get(node, 0.0),
        )
        layers.append(Layer(node, end, tap, value))
    return layers


def compared_outputs(
    graph_module: Any, precision: str, outputs: list[Any], layers: Sequence[Layer] = ()
) -> list[ComparedValue]:
    """The outputs of the model, as they are compared."""
    import torch

    output = next(iter(graph_module.graph.find_nodes(op="output")))
    magnitudes = {layer.end: layer.value.magnitude for layer in layers}
    # Inputs that are changed in place come before the outputs, and no operator's value is one.
    ends = [None] * len(outputs) + torch.utils._pytree.tree_leaves(output.args)
    terms = _Upstream(graph_module).terms(output)
    return [
        ComparedValue(
            name=f"output {index}",
            operator="",
            module=None,
            kind=_KINDS[precision],
            terms=terms,
            channel_axis=output_channel_axis(value),
            magnitude=magnitudes.get(end, 0.0),
        )
        for index, (value, end) in enumerate(zip(outputs, ends[-len(outputs) :], strict=True))
    ]


def tapped_program(graph_module: Any, taps: Sequence[Any], inputs: ModelInputs) -> Any:
    """The program with the values of those nodes as further outputs, not lowered yet. Inputs are flat."""
    import torch

    class Tapped(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = graph_module

        def forward(self, *values: Any) -> tuple[Any, ...]:
            seen: dict[Any, Any] = {}
            outputs = watched(self.inner, values, lambda node, value: seen.setdefault(node, value))
            return (*flat_tensors(outputs), *(seen[node] for node in taps))

    return exported_graph(Tapped(), ModelInputs(tuple(inputs.flat()), {}))


def watched(graph_module: Any, values: tuple[Any, ...], see: See) -> Any:
    """Runs the graph node by node. The result of `see` for a node and its value replaces the value."""
    import torch

    class Watching(torch.fx.Interpreter):
        def run_node(self, n: Any) -> Any:
            value = super().run_node(n)
            return see(n, value) if isinstance(value, torch.Tensor) else value

    watching = Watching(graph_module)
    # The interpreter would print the graph with every exception.
    watching.extra_traceback = False
    return watching.run(*values)


def _magnitudes(graph_module: Any, inputs: Sequence[Any]) -> dict[Any, float]:
    """By matrix operator, how large its value would be if the signs of its products were by chance.

    This is the sum of their magnitudes over the root of their number. Elements without any do not count.
    """
    import torch

    found: dict[Any, float] = {}

    def magnitude(value: Any) -> Any:
        return value.float().abs() if value.is_floating_point() else value

    class Weighing(torch.fx.Interpreter):
        def run_node(self, n: Any) -> Any:
            terms = _terms(n)
            # Attention weighs values by shares between 0 and 1: they do not cancel as products do.
            if terms and not _name(n).startswith(_ATTENTION):
                args, kwargs = self.fetch_args_kwargs_from_env(n)
                summed = n.target(*torch.utils._pytree.tree_map_only(torch.Tensor, magnitude, args), **kwargs)
                told = summed[summed != 0].double()
                found[n] = float(told.square().mean().div(terms).sqrt()) if told.numel() else 0.0
            return super().run_node(n)

    weighing = Weighing(graph_module)
    # The interpreter would print the graph with every exception.
    weighing.extra_traceback = False
    with torch.no_grad(), state_kept(graph_module), products_of_halves_in_float():
        weighing.run(*(each.clone() if isinstance(each, torch.Tensor) else each for each in inputs))
    return found


def affordable(layers: list[Any]) -> tuple[list[Any], list[Any]]:
    """What has a `tap`: those with the smallest values, as many as fit, in their order, and the rest."""
    kept, total = set(), 0
    for layer in sorted(layers, key=_bytes):
        total += _bytes(layer)
        if total <= MOST_BYTES:
            kept.add(layer.tap)
    return [each for each in layers if each.tap in kept], [each for each in layers if each.tap not in kept]


def _bytes(layer: Any) -> int:
    value = layer.tap.meta["val"]
    return value.numel() * value.element_size()


def fused(node: Any) -> list[Any]:
    """The node, and those after it that XNNPACK fuses into it or that change its value in place."""
    nodes = [node]
    while (after := _only_user(nodes[-1])) is not None and (
        _name(after).startswith(_FUSED) or _name(after).endswith("_.default")
    ):
        nodes.append(after)
    return nodes


def quantised(end: Any) -> Any:
    """The node that quantises a value, if that is all that happens to it; else the node itself."""
    after = _only_user(end)
    return after if after is not None and _name(after).startswith(_QUANTISE) else end


def _only_user(node: Any) -> Any | None:
    return next(iter(node.users)) if len(node.users) == 1 else None


class _Upstream:
    """How often a value was rounded: the products summed for it, including in all operators before it.

    The operators before a node are bits of one number: as sets, those of ten thousand nodes would take
    gigabytes.
    """

    def __init__(self, graph_module: Any) -> None:
        self._own: list[int] = []
        self._before: dict[Any, int] = {}
        for node in graph_module.graph.nodes:
            bits = 0
            for each in node.all_input_nodes:
                bits |= self._before[each]
            if node.op == "call_function":
                bits |= 1 << len(self._own)
                self._own.append(_terms(node) or 1)
            self._before[node] = bits

    def terms(self, node: Any) -> int:
        bits = reversed(f"{self._before[node]:b}")
        return sum(own for bit, own in zip(bits, self._own, strict=False) if bit == "1")


def _terms(node: Any) -> int | None:
    """How many products are summed for one element of a matrix operator's result; None for other nodes."""
    name = _name(node)
    if not name.startswith((*_MATRIX, _ATTENTION)):
        return None
    # Not its input nodes: a value that is given twice, as in attention to itself, is one of these.
    values: list[Any] = [getattr(argument, "meta", {}).get("val") for argument in node.args]
    shapes = [value.shape for value in values if hasattr(value, "shape")]
    if name.startswith(_ATTENTION):
        return int(shapes[0][-1] + shapes[1][-2])
    if name.startswith(_CONVOLUTION):
        outputs = node.meta["val"].shape[_channel_axis(node)]
        return max(1, math.prod(shapes[1]) // outputs)
    # addmm and baddbmm have their bias first.
    return int(shapes[1 if "add" in name else 0][-1])


def _channel_axis(convolution: Any) -> int:
    """1, or 0 without a batch: after the channels there are only the dimensions that the kernel moves in."""
    _, weight = convolution.args[:2]
    return int(convolution.meta["val"].dim() - weight.meta["val"].dim() + 1)


def _name(node: Any) -> str:
    return operator_name(node) or ""
