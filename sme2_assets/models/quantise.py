"""How a model gets its precision. The fp32 model is quantised, never the fp16 one.

Modules whose names match a pattern stay in fp32; at fp16 their inputs and outputs are cast.

`int8`: static, symmetric, weights per channel, ranges from calibration. `int8_dynamic`: linear layers and
the dense convolutions that XNNPACK takes in this form, activations quantised at run time. `int4`: linear
layers only, 4-bit weights in groups, 8-bit activations quantised at run time (ExecuTorch's 8da4w).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase as fnmatch
from typing import Any

from sme2_assets.errors import ExportError, did_you_mean
from sme2_assets.models.inputs import ModelInputs, exported_graph
from sme2_assets.models.provenance import origin_of
from sme2_assets.models.reference import set_buffers, show_to_observers

CALIBRATION_BATCHES = 16
# XNNPACK takes groups that are a multiple of 32.
INT4_GROUP = 32
_LAYERS = ("aten.linear", "aten.addmm", "aten.conv")

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
    kept: Sequence[str] = (),
    with_reference: bool = False,
) -> Quantised:
    """The model at that precision, except for modules whose names match one of `kept`.

    `reference` is for finding where the two diverge.
    """
    _require_matches(model, kept)
    if precision == "int4":
        reference = copy.deepcopy(model) if with_reference else None
        return Quantised(_int4(model, kept), reference)
    return _by_observers(model, precision, inputs, calibration, kept, with_reference=with_reference)


def halved(model: Any, kept: Sequence[str] = ()) -> Any:
    """The model at fp16, except for modules whose names match one of `kept`."""
    import torch
    from torch.utils._pytree import tree_map

    def cast(values: Any, dtype: torch.dtype) -> Any:
        floats = (torch.float16, torch.float32)
        return tree_map(lambda it: it.to(dtype) if getattr(it, "dtype", None) in floats else it, values)

    _require_matches(model, kept)
    names = [name for name, _ in model.named_modules() if name and kept_by(name, kept)]
    # Copied before their weights are rounded; a module within a kept one comes along with it.
    outermost = {
        name: copy.deepcopy(model.get_submodule(name))
        for name in names
        if name.rpartition(".")[0] not in names
    }
    model = model.half()
    for name, module in outermost.items():
        module.register_forward_pre_hook(
            lambda _, args, named: cast((args, named), torch.float32), with_kwargs=True
        )
        module.register_forward_hook(lambda _, args, output: cast(output, torch.float16))
        model.set_submodule(name, module)
    return model


def left_out(exported_program: Any, precision: str, kept: Sequence[str]) -> dict[str, str]:
    """The layers with weights that a quantised program computes in floating point, and why."""
    found: dict[str, str] = {}
    for node in exported_program.graph.nodes:
        name = str(node.target)
        if node.op != "call_function" or not name.startswith(_LAYERS):
            continue
        weight = node.args[2 if name.startswith("aten.addmm") else 1]
        if not _is_dequantised(weight):
            path = origin_of(node).module or ""
            found[path] = _why_left_out(name, weight, path, precision, kept)
    return found


def _why_left_out(name: str, weight: Any, path: str, precision: str, kept: Sequence[str]) -> str:
    if pattern := kept_by(path, kept):
        return f"kept by {pattern!r}"
    linear = name.startswith("aten.linear")
    if precision == "int4" and not linear:
        return "int4 quantises linear layers only"
    value = weight.meta.get("val")
    if precision == "int4" and value is not None and value.shape[-1] % INT4_GROUP:
        return f"its {value.shape[-1]} inputs are not a multiple of {INT4_GROUP}, one group"
    if value is not None and weight.op != "placeholder":
        return "its weights are computed while it runs"
    return "XNNPACK's quantiser has no pattern for it"


def _is_dequantised(weight: Any) -> bool:
    """Whether weights come out of a dequantisation, perhaps through a change of shape."""
    for _ in range(4):
        if "dequantize" in str(weight.target):
            return True
        if weight.op != "call_function" or not weight.all_input_nodes:
            return False
        weight = weight.all_input_nodes[0]
    return False


def kept_by(path: str, kept: Sequence[str]) -> str | None:
    """The pattern that a module, or one around it, matches; a pattern may omit the beginning of the name."""
    parts = path.split(".")
    names = [".".join(parts[:end]) for end in range(1, len(parts) + 1)]
    for pattern in kept:
        if any(fnmatch(name, pattern) or fnmatch(name, f"*.{pattern}") for name in names):
            return pattern
    return None


def _require_matches(model: Any, kept: Sequence[str]) -> None:
    names = [name for name, _ in model.named_modules() if name]
    for pattern in kept:
        if not any(kept_by(name, [pattern]) for name in names):
            raise ExportError(
                f"No module of the model matches {pattern!r}, which is to stay in floating point"
                f"{did_you_mean(pattern, names)}",
                f"its modules are {', '.join(names[:8])}{', ...' if len(names) > 8 else ''}",
            )


def _by_observers(
    model: Any,
    precision: str,
    inputs: ModelInputs,
    calibration: Callable[[], list[ModelInputs]],
    kept: Sequence[str],
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
    quantizer = XNNPACKQuantizer().set_global(config)
    if kept:
        quantizer.set_filter_function(lambda node: kept_by(origin_of(node).module or "", kept) is None)
    prepared = prepare_pt2e(graph, quantizer)
    for batch in [inputs] if dynamic else calibration():
        show_to_observers(prepared, batch, initial)
    # The observers pass values on unchanged, and batch norms are folded as they will be after conversion.
    reference = copy.deepcopy(prepared) if with_reference else None
    converted = convert_pt2e(prepared)
    # Constant folding also runs operators that change a buffer.
    set_buffers(converted, initial)
    if not any("dequantize" in str(node.target) for node in converted.graph.nodes):
        raise _nothing_to_quantise(precision, "it has no operator that XNNPACK's quantiser knows")
    return Quantised(converted, reference)


def _keep_integers(graph: Any) -> None:
    """Writes scalars of integer arithmetic as integer tensors.

    XNNPACK's quantiser makes every scalar a float tensor, which would turn positions and indices into floats.
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


def _int4(model: Any, kept: Sequence[str]) -> Any:
    import torch
    from torchao.quantization import Int8DynamicActivationIntxWeightConfig, quantize_
    from torchao.quantization.granularity import PerGroup

    def fits(module: Any, name: str) -> bool:
        linear = isinstance(module, torch.nn.Linear) and module.in_features % INT4_GROUP == 0
        return linear and kept_by(name, kept) is None

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
