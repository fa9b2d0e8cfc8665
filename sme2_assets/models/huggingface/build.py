"""From a model type, a part and options to a factory's result; options that have no effect are refused."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sme2_assets.errors import ExportError
from sme2_assets.models.huggingface.configuration import Sizes
from sme2_assets.models.huggingface.language import LanguageModel, keep_rotations_exact
from sme2_assets.models.huggingface.networks import (
    Network,
    build_network,
    network_of_folder,
    part_of,
    tensors_of,
)
from sme2_assets.models.huggingface.types import DECODE, PREFILL, WHOLE, ModelType
from sme2_assets.models.spec import OptionValue

_PHASES = (PREFILL, DECODE)
# Sizes of the inputs, which do not depend on the weights.
_FREE = {"sequence", "context", "batch"}


def eager_model(
    kind: ModelType, part: str, sizes: Sizes, chosen: Mapping[str, OptionValue], weights: str
) -> LanguageModel | PlainModel:
    """A model type, or a part of it, ready to be exported."""
    _refuse_sizes_of_weights(kind, chosen, weights)
    network = network_of_folder(kind, Path(weights), sizes) if weights else build_network(kind, sizes)
    wanted = network if part in (WHOLE, *_PHASES) and part in (WHOLE, *kind.parts) else None
    wanted = wanted or part_of(kind, network, part, sizes)
    if not weights:
        _refuse_options_without_effect(kind, part, sizes, chosen, wanted)
    if part in _PHASES:
        return LanguageModel(f"hf:{kind.name}", network.module, sizes, decode=part == DECODE)
    return PlainModel(wanted, is_classifier=kind.is_classifier)


class PlainTensors(nn.Module):
    """Calls a network by argument names and returns plain tensors."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network.module
        self.names = tuple(network.inputs)
        self.constants = network.constants

    def forward(self, *values: Tensor) -> Any:
        outputs = tensors_of(self.network(**dict(zip(self.names, values, strict=True)), **self.constants))
        return outputs[0] if len(outputs) == 1 else tuple(outputs)


class PlainModel:
    """A network, or a part of one, as `EagerModel`."""

    def __init__(self, network: Network, *, is_classifier: bool) -> None:
        keep_rotations_exact(network.module)
        self._network = network
        self.is_classifier = is_classifier

    def get_eager_model(self) -> nn.Module:
        return PlainTensors(self._network).eval()

    def get_example_inputs(self) -> tuple[Tensor, ...]:
        return tuple(self._network.inputs.values())

    def get_calibration_inputs(self, count: int) -> list[tuple[Tensor, ...]]:
        # The example itself first: the values it is judged by must be within the ranges.
        further = [tuple(_similar(it) for it in self.get_example_inputs()) for _ in range(count - 1)]
        return [self.get_example_inputs(), *further]


def _similar(value: Tensor) -> Tensor:
    """Other values of the same kind: tokens in another order, noise of the same spread."""
    if value.is_floating_point() and value.numel() > 1:
        return torch.randn_like(value) * value.std() + value.mean()
    if value.dtype == torch.int64 and value.dim() > 1:
        return value[..., torch.randperm(value.shape[-1])] if value.dim() == 2 else value
    return value


def _refuse_sizes_of_weights(kind: ModelType, chosen: Mapping[str, OptionValue], weights: str) -> None:
    fixed = sorted(set(chosen) - _FREE)
    if weights and fixed:
        raise ExportError(
            f"The option {fixed[0]} of hf:{kind.name} has no effect with weights=...: they decide it",
            f"leave it out; only these can be chosen: {', '.join(sorted(_FREE))}",
        )


def _refuse_options_without_effect(
    kind: ModelType, part: str, sizes: Sizes, chosen: Mapping[str, OptionValue], made: Network
) -> None:
    """Another value of an option must give another network, or other inputs."""
    for option in sorted(chosen):
        if option == "context" and part in _PHASES:
            continue
        doubled = dataclasses.replace(sizes, **{option: 2 * int(chosen[option])})
        try:
            other = build_network(kind, doubled)
            other = other if part in (WHOLE, *_PHASES) else part_of(kind, other, part, doubled)
        except Exception:
            # It has an effect: the other value cannot be built.
            continue
        if option == "context" or _facts(other) == _facts(made):
            raise ExportError(
                f"The option {option} has no effect on hf:{kind.name}"
                f"{'' if part == WHOLE else f', part {part}'}",
                "leave it out",
            )


def _facts(network: Network) -> dict[str, Any]:
    """Shapes, and the numbers that modules keep: the number of heads, for one, is not a shape."""
    facts: dict[str, Any] = {name: tuple(it.shape) for name, it in network.module.named_parameters()}
    facts |= {f"input {name}": tuple(it.shape) for name, it in network.inputs.items()}
    for name, module in network.module.named_modules():
        facts |= {f"{name}.{key}": value for key, value in vars(module).items() if type(value) is int}
    return facts
