"""How a model becomes a quantised one, scheme by scheme. The fp32 model is quantised, never the fp16 one.

`int8`: static, symmetric, weights per channel, ranges from calibration. `int8_dynamic`: linear layers
and the dense convolutions that XNNPACK takes so, activations quantised while it runs. `int4`: linear
layers only, 4-bit weights in groups, 8-bit activations quantised while it runs (ExecuTorch's 8da4w).
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sme2_assets.errors import ExportError
from sme2_assets.models.inputs import ModelInputs, exported_graph
from sme2_assets.models.reference import set_buffers, show_to_observers

CALIBRATION_BATCHES = 16
# XNNPACK takes groups that are a multiple of 32.
INT4_GROUP = 32

SCHEMES: dict[str, dict[str, Any]] = {
    "int8": {
        "quantizer": "XNNPACKQuantizer",
        "scheme": "static symmetric, per channel",
        "calibration_batches": CALIBRATION_BATCHES,
    },
    "int8_dynamic": {
        "quantizer": "XNNPACKQuantizer",
        "scheme": "dynamic activations, symmetric weights per channel",
    },
    "int4": {
        "quantizer": "torchao Int8DynamicActivationIntxWeightConfig",
        "scheme": "8-bit dynamic activations, 4-bit weights per group, linear layers only",
        "group": INT4_GROUP,
    },
}


@dataclass(frozen=True)
class Quantised:
    """The quantised model, and one that computes the same in floating point, operator by operator."""

    model: Any
    reference: Any | None


def quantise(
    model: Any,
    precision: str,
    inputs: ModelInputs,
    calibration: Callable[[], list[ModelInputs]],
    *,
    with_reference: bool = False,
) -> Quantised:
    """The model at that precision. `reference` is for finding where the two part."""
    if precision == "int4":
        reference = copy.deepcopy(model) if with_reference else None
        return Quantised(_int4(model), reference)
    return _by_observers(model, precision, inputs, calibration, with_reference=with_reference)


def _by_observers(
    model: Any,
    precision: str,
    inputs: ModelInputs,
    calibration: Callable[[], list[ModelInputs]],
    *,
    with_reference: bool,
) -> Quantised:
    from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import (
        XNNPACKQuantizer,
        get_symmetric_quantization_config,
    )
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    dynamic = precision == "int8_dynamic"
    graph = exported_graph(model, inputs).module()
    if dynamic and not any(_is_linear(node) for node in graph.graph.nodes):
        raise _nothing_to_quantise(precision, "it has no linear layer")
    _keep_integers(graph)
    config = get_symmetric_quantization_config(is_per_channel=True, is_dynamic=dynamic)
    initial = {name: buffer.clone() for name, buffer in graph.named_buffers()}
    prepared = prepare_pt2e(graph, XNNPACKQuantizer().set_global(config))
    for batch in [inputs] if dynamic else calibration():
        show_to_observers(prepared, batch, initial)
    # The observers pass values on unchanged, and batch norms are folded as they will be when converted.
    reference = copy.deepcopy(prepared) if with_reference else None
    converted = convert_pt2e(prepared)
    # Folding constants runs what changes a buffer, too.
    set_buffers(converted, initial)
    if not any("dequantize" in str(node.target) for node in converted.graph.nodes):
        raise _nothing_to_quantise(precision, "it has no operator that XNNPACK's quantiser knows")
    return Quantised(converted, reference)


def _keep_integers(graph: Any) -> None:
    """Writes scalars of integer arithmetic as integer tensors.

    XNNPACK's quantiser makes every scalar a float tensor; positions and indices would become floats with it.
    """
    import torch

    arithmetic = (torch.ops.aten.add.Tensor, torch.ops.aten.mul.Tensor)
    for node in list(graph.graph.nodes):
        value = node.meta.get("val")
        if node.op != "call_function" or node.target not in arithmetic or not torch.is_tensor(value):
            continue
        if value.dtype.is_floating_point or value.dtype.is_complex:
            continue
        for at, argument in enumerate(node.args):
            if isinstance(argument, int):
                name = f"_integer_{node.name}_{at}"
                scalar = torch.tensor(argument, dtype=value.dtype)
                graph.register_buffer(name, scalar)
                with graph.graph.inserting_before(node):
                    constant = graph.graph.get_attr(name)
                # The quantiser asks every node for its type.
                constant.meta["val"] = value.fake_mode.from_tensor(scalar, static_shapes=True)
                node.update_arg(at, constant)
    graph.recompile()


def _int4(model: Any) -> Any:
    import torch
    from torchao.quantization import Int8DynamicActivationIntxWeightConfig, quantize_
    from torchao.quantization.granularity import PerGroup

    def fits(module: Any, _name: str) -> bool:
        return isinstance(module, torch.nn.Linear) and module.in_features % INT4_GROUP == 0

    if not any(fits(module, name) for name, module in model.named_modules()):
        raise _nothing_to_quantise(
            "int4", f"it has no linear layer whose inputs are a multiple of {INT4_GROUP}, one group"
        )
    config = Int8DynamicActivationIntxWeightConfig(
        weight_dtype=torch.int4, weight_granularity=PerGroup(INT4_GROUP)
    )
    quantize_(model, config, filter_fn=fits)
    return model


def _is_linear(node: Any) -> bool:
    return node.op == "call_function" and str(node.target).startswith(("aten.linear", "aten.addmm"))


def _nothing_to_quantise(precision: str, why: str) -> ExportError:
    wider = "" if precision == "int8" else " (or int8, which quantises convolutions and more)"
    return ExportError(
        f"There is nothing to quantise at {precision}: {why}",
        f"use fp32 or fp16{wider}, or leave this precision out of the model's list",
    )
