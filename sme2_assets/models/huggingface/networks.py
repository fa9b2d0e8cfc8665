"""A network of transformers, or one of its parts, with seeded weights and inputs that it runs with."""

from __future__ import annotations

import dataclasses
import inspect
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError
from torch.utils import _pytree

from sme2_assets.errors import ExportError, did_you_mean, first_line
from sme2_assets.models.huggingface.configuration import (
    LARGEST_PARAMETERS,
    Sizes,
    known_names,
    small_configurations,
)
from sme2_assets.models.huggingface.inputs import accepted_inputs
from sme2_assets.models.huggingface.types import WHOLE, ModelType

# What transformers logs while it builds is either in errors or not worth a line.
transformers.logging.set_verbosity(transformers.logging.CRITICAL)
transformers.logging.disable_progress_bar()
# Below this, the runner's flush of denormals to zero shows; above, half precision overflows.
_QUIET, _LOUD = 1e-4, 1e4


@dataclasses.dataclass(frozen=True)
class Network:
    """A network that runs, and the inputs it runs with."""

    module: Any
    inputs: dict[str, Any]
    """Tensors by the names of the arguments."""
    constants: dict[str, Any]
    """Arguments that are not tensors."""


def build_network(kind: ModelType, sizes: Sizes) -> Network:
    """The smallest network of a type that runs."""
    cls = _model_class(kind)
    refusals: list[str] = []
    for configuration in small_configurations(cls.config_class, sizes):
        try:
            return _running(cls, configuration(), kind, sizes)
        except Exception as error:
            refusals.append(first_line(error))
    raise ExportError(
        f"hf:{kind.name} has no small configuration that runs: {refusals[0]}",
        "write a model file that builds it (`sme2 onboard NAME` makes a template)",
    )


def _running(cls: Any, config: Any, kind: ModelType, sizes: Sizes) -> Network:
    if kind.is_classifier:
        # As many classes as ImageNet has.
        config.num_labels = 1000
    with torch.device("meta"):
        parameters = sum(it.numel() for it in cls(config).parameters())
    if parameters > LARGEST_PARAMETERS:
        raise ValueError(f"{parameters / 1e6:,.0f} million parameters are too many")
    module = _exportable(cls(config))
    inputs, outputs = accepted_inputs(module, sizes)
    return Network(_with_plain_scale(module, inputs, outputs), inputs, {})


def network_of_folder(kind: ModelType, folder: Path, sizes: Sizes) -> Network:
    """The network with the weights in a local folder, laid out as by `save_pretrained` and the hub."""
    if not (folder / "config.json").is_file() or not [*folder.glob("*.safetensors")]:
        raise ExportError(
            f"{folder} has no config.json, or no weights (*.safetensors) next to it",
            "name a folder that save_pretrained wrote, or a snapshot of the hub",
        )
    cls = _model_class(kind)
    try:
        config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
    except (ValueError, OSError) as error:
        raise ExportError(
            f"{folder}/config.json: {first_line(error)}", "name a folder of transformers"
        ) from error
    if config.model_type != kind.name:
        raise ExportError(
            f"{folder} has the weights of a {config.model_type}, not of a {kind.name}",
            f"write hf:{config.model_type}@weights=...",
        )
    if hasattr(config, "use_cache"):
        config.use_cache = False
    try:
        module, found = cls.from_pretrained(
            folder,
            config=config,
            local_files_only=True,
            dtype=torch.float32,
            # Those that do not fit are reported below, by name.
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
    except (RuntimeError, ValueError, OSError, SafetensorError) as error:
        raise ExportError(
            f"The weights in {folder} do not fit its configuration: {first_line(error)}",
            "take config.json and weights from the same snapshot",
        ) from error
    for what in ("mismatched_keys", "missing_keys"):
        if found.get(what):
            raise ExportError(
                f"The weights in {folder} do not fit its configuration: {what.replace('_', ' ')} "
                f"{', '.join(sorted(it if isinstance(it, str) else it[0] for it in found[what])[:3])}",
                "take config.json and weights from the same snapshot",
            )
    return Network(_exportable(module), accepted_inputs(module, sizes)[0], {})


def _exportable(module: Any) -> Any:
    """The network in a form that can be exported.

    By default, the tokens of each expert are counted with an operator that ExecuTorch does not have. In this
    form, each token takes the weights of its experts.
    """
    module.set_experts_implementation("batched_mm")
    return module.eval()


def part_of(kind: ModelType, whole: Network, part: str, sizes: Sizes) -> Network:
    """A part of a network with the inputs that the whole passes to it, or else those of its own signature."""
    if part not in kind.parts:
        parts = ", ".join((*kind.parts, WHOLE))
        raise ExportError(
            f"hf:{kind.name} has no part {part!r}{did_you_mean(part, kind.parts)}", f"its parts are {parts}"
        )
    module = whole.module.get_submodule(part)
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
    hook = module.register_forward_pre_hook(
        lambda _, args, kwargs: calls.append((args, kwargs)), with_kwargs=True
    )
    try:
        with torch.no_grad():
            whole.module(**whole.inputs)
    finally:
        hook.remove()
    if not calls:
        return Network(module, accepted_inputs(module, sizes)[0], {})
    return _network_called_with(module, *calls[0])


def _network_called_with(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Network:
    arguments = {**dict(zip(inspect.signature(module.forward).parameters, args, strict=False)), **kwargs}
    inputs = {name: value.clone() for name, value in arguments.items() if isinstance(value, torch.Tensor)}
    plain = (bool, int, float, str)
    constants = {name: value for name, value in arguments.items() if isinstance(value, plain)}
    return Network(module, inputs, constants)


def _model_class(kind: ModelType) -> Any:
    if kind.class_name is None:
        raise ExportError(
            f"hf:{kind.name} is only the configuration of a part: transformers registers no model for it",
            "name the model that it is a part of, with @part=NAME",
        )
    found = getattr(transformers, kind.class_name, None)
    if found is None:
        raise ExportError(
            f"transformers names {kind.class_name} for hf:{kind.name} but does not have it",
            "install another version of transformers",
        )
    return found


def _with_plain_scale(module: Any, inputs: dict[str, Any], outputs: Any) -> Any:
    """The network as it is, or with weights scaled by their input count if outputs vanish or overflow."""
    if _is_plain(outputs):
        return module
    with torch.no_grad():
        for name, weight in module.named_parameters():
            if weight.dim() >= 2 and weight.is_floating_point():
                torch.nn.init.normal_(weight, std=weight[0].numel() ** -0.5)
            elif name.endswith(("weight", "bias")):
                torch.nn.init.constant_(weight, float(name.endswith("weight")))
        if not _is_plain(module(**inputs)):
            raise ValueError("its outputs are not finite, or vanish, whatever the scale of the weights")
    return module


def _is_plain(outputs: Any) -> bool:
    for value in tensors_of(outputs):
        if value.is_floating_point() and value.numel():
            largest = value.abs().max()
            if not bool(torch.isfinite(largest)) or not _QUIET < float(largest) < _LOUD:
                return False
    return True


def tensors_of(outputs: Any) -> list[Any]:
    """The output that a model is used for; all its tensors if none has a known name."""
    if hasattr(outputs, "keys"):
        preferred = known_names()["outputs"]
        named = [outputs[name] for name in preferred if name in outputs and outputs[name] is not None]
        chosen: Any = named[:1] or list(outputs.values())
    else:
        chosen = outputs
    leaves = _pytree.tree_leaves(chosen)
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
