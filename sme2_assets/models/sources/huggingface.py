"""Architectures of Hugging Face transformers, built from a configuration: `hf:bert`, `hf:vit@layers=4`.

Nothing is downloaded: weights are random, and sizes are small unless options say otherwise. Any model type
of transformers that takes tokens or an image, and is no encoder-decoder, can be named; those listed are
the ones that tests build.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import importlib.util
from typing import Any

from sme2_assets.errors import ExportError, did_you_mean
from sme2_assets.models.sources.base import Entries, Listed
from sme2_assets.models.spec import (
    PRECISIONS,
    EagerModel,
    ModelOption,
    ModelSpec,
    how_to_install,
)

LISTED = {
    "bert": "BERT, an encoder of text",
    "vit": "Vision Transformer, an image classifier",
    "gpt2": "GPT-2, a decoder of text, without cache",
    "distilbert": "DistilBERT, a smaller encoder of text",
    "deit": "DeiT, an image classifier",
    "llama": "Llama, a decoder of text, without cache",
    "qwen2": "Qwen2, a decoder of text, without cache",
}
OPTIONS = (
    ModelOption("layers", "int", 2),
    ModelOption("hidden", "int", 128),
    ModelOption("heads", "int", 4),
    ModelOption("sequence", "int", 32),
    ModelOption("vocabulary", "int", 1000),
    ModelOption("image", "int", 64),
)
_SIZES = {option.name: option.default for option in OPTIONS}


class HuggingFace(Listed):
    """Any model type of transformers."""

    name = "Hugging Face transformers"
    prefix = "hf"
    automatic = False

    def list(self) -> Entries:
        return [_spec(name) for name in LISTED]

    def find(self, name: str) -> ModelSpec | None:
        return _spec(name)


def _spec(name: str) -> ModelSpec:
    sizes = f"{_SIZES['layers']} layers of {_SIZES['hidden']} unless options say otherwise"
    return ModelSpec(
        name=f"{HuggingFace.prefix}.{name}",
        description=f"{LISTED.get(name, name)}; {sizes}",
        source=HuggingFace.name,
        place="package transformers",
        factory=functools.partial(_build, name),
        identify=lambda: {"model_type": name, "transformers": _version()},
        # GPT-2's projections are Conv1D modules, which are no linear layers to the 4-bit path.
        precisions=tuple(it for it in PRECISIONS if it != "int4") if name == "gpt2" else PRECISIONS,
        options=OPTIONS,
    )


def _version() -> str:
    try:
        return importlib.metadata.version("transformers")
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _build(
    name: str,
    layers: int = 2,
    hidden: int = 128,
    heads: int = 4,
    sequence: int = 32,
    vocabulary: int = 1000,
    image: int = 64,
) -> EagerModel:
    if importlib.util.find_spec("transformers") is None:
        raise ExportError(
            f"hf:{name} needs the package 'transformers', which is not installed",
            how_to_install("transformers"),
        )
    if min(layers, hidden, heads, sequence, vocabulary, image) < 1 or hidden % heads:
        raise ExportError(
            f"hf:{name} cannot have these sizes: hidden={hidden}, heads={heads}, layers={layers}",
            "sizes are at least 1, and heads divides hidden",
        )
    auto = importlib.import_module("transformers.models.auto")
    mapping = auto.CONFIG_MAPPING
    if name not in mapping:
        raise ExportError(
            f"transformers {_version()} has no model type {name!r}{did_you_mean(name, list(mapping))}",
            "name one of its model types, such as bert, vit, gpt2",
        )
    config = _config(
        mapping[name],
        num_hidden_layers=layers,
        hidden_size=hidden,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        head_dim=hidden // heads,
        intermediate_size=4 * hidden,
        hidden_dim=4 * hidden,
        vocab_size=vocabulary,
        max_position_embeddings=2 * sequence,
        image_size=image,
    )
    if getattr(config, "is_encoder_decoder", False):
        raise ExportError(
            f"hf:{name} is an encoder-decoder: which part of it is wanted cannot be told",
            "write a model file that builds the part (`sme2 onboard NAME` makes a template)",
        )
    vision = not hasattr(config, "vocab_size") and hasattr(config, "image_size")
    network = _network(name, auto, config, vision)
    if vision:
        return _ImageNetwork(network, getattr(config, "num_channels", 3), image)
    return _TokenNetwork(network, vocabulary, sequence)


def _config(cls: Any, **sizes: int) -> Any:
    """The configuration with those of the sizes that it knows; the others belong to other architectures."""
    known = cls()
    config = cls(**{name: size for name, size in sizes.items() if hasattr(known, name)})
    # Ids of special tokens have to be in the vocabulary.
    for token in ("pad_token_id", "bos_token_id", "eos_token_id"):
        value = getattr(config, token, None)
        if isinstance(value, int) and value >= sizes["vocab_size"]:
            setattr(config, token, sizes["vocab_size"] - 1)
    # A cache would be an output, and differ from call to call.
    if hasattr(config, "use_cache"):
        config.use_cache = False
    return config


def _network(name: str, auto: Any, config: Any, vision: bool) -> Any:
    # Read where a type has several heads of one kind; the first is taken.
    config.architectures = []
    causal = name in auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    masked = name in auto.modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES
    classifier = name in auto.modeling_auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES
    if vision and classifier:
        # As many classes as ImageNet has.
        config.num_labels = 1000
        head = auto.AutoModelForImageClassification
    elif causal and not masked:
        head = auto.AutoModelForCausalLM
    else:
        head = auto.AutoModel
    return head.from_config(config).eval()


class _Network:
    """A network whose outputs are plain tensors."""

    def __init__(self, network: Any, argument: str) -> None:
        self._network = network
        self._argument = argument

    def get_eager_model(self) -> Any:
        import torch

        class PlainTensors(torch.nn.Module):
            """Calls the network by keyword and gives its logits, or its last hidden state."""

            def __init__(self, network: Any, argument: str) -> None:
                super().__init__()
                self.network = network
                self.argument = argument

            def forward(self, value: Any) -> Any:
                given = self.network(**{self.argument: value})
                return given.logits if "logits" in given else given.last_hidden_state

        return PlainTensors(self._network, self._argument).eval()


class _TokenNetwork(_Network):
    """Takes token numbers."""

    def __init__(self, network: Any, vocabulary: int, sequence: int) -> None:
        super().__init__(network, "input_ids")
        self._vocabulary = vocabulary
        self._sequence = sequence

    def get_example_inputs(self) -> tuple[Any, ...]:
        import torch

        return (torch.randint(0, self._vocabulary, (1, self._sequence)),)

    def get_calibration_inputs(self, count: int) -> list[tuple[Any, ...]]:
        return [self.get_example_inputs() for _ in range(count)]


class _ImageNetwork(_Network):
    """Takes images."""

    is_classifier = True

    def __init__(self, network: Any, channels: int, size: int) -> None:
        super().__init__(network, "pixel_values")
        self._shape = (1, channels, size, size)

    def get_example_inputs(self) -> tuple[Any, ...]:
        import torch

        return (torch.randn(self._shape),)
