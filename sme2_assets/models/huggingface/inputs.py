"""Inputs that a network's own signature asks for, in shapes derived from its configuration.

A signature names inputs and says nothing about shapes; two types that take `input_features` may order their
dimensions differently. So several shapes are tried for such a name, and those that the network runs with are
its inputs.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from sme2_assets.models.huggingface.configuration import SPECIAL_TOKENS, Sizes, known_names

_TEXT = ("input_ids", "bbox")
_IMAGE = ("pixel_values",)
_SOUND = ("input_features", "input_features_mask", "input_values")
_DECODER = ("decoder_input_ids",)
_MAX_TRIALS = 40


def accepted_inputs(network: Any, sizes: Sizes) -> tuple[dict[str, Any], Any]:
    """The first inputs that the network runs with, and its outputs for them."""
    refusal: Exception | None = None
    for inputs in itertools.islice(_candidates(network, sizes), _MAX_TRIALS):
        try:
            with torch.no_grad():
                return inputs, network(**inputs)
        except Exception as error:
            refusal = refusal or error
    if refusal is None:
        raise LookupError(f"no input that its forward{_signature(network)} asks for is known")
    raise refusal


def _signature(network: Any) -> str:
    names = [name for name in _parameters(network) if name not in ("args", "kwargs")]
    return f"({', '.join(names[:6])}{', ...' if len(names) > 6 else ''})"


def _parameters(network: Any) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(network.forward).parameters)


def _candidates(network: Any, sizes: Sizes) -> Iterator[dict[str, Any]]:
    """Sets of inputs, from only the required ones to all that are known."""
    parameters = _parameters(network)
    shapes = {name: makers for name, makers in _makers(network.config, sizes).items() if name in parameters}
    empty = inspect.Parameter.empty
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    required = [name for name, it in parameters.items() if it.default is empty and it.kind in named]
    if any(name not in shapes for name in required):
        return
    main = [name for name in (network.main_input_name,) if name in shapes]
    first = dict.fromkeys([*required, *main]) or dict.fromkeys([*_TEXT, *_IMAGE, *_SOUND, "query_embeds"])
    tried: list[tuple[str, ...]] = []
    for more in ((), _DECODER, _TEXT, _IMAGE, (*_TEXT, *_IMAGE), (*_TEXT, *_IMAGE, *_DECODER), _SOUND,
                 (*_TEXT, *_SOUND), tuple(shapes)):  # fmt: skip
        names = tuple(name for name in dict.fromkeys([*first, *more]) if name in shapes)
        if names and names not in tried:
            tried.append(names)
            for makers in itertools.product(*(shapes[name] for name in names)):
                yield {name: make() for name, make in zip(names, makers, strict=True)}


def _makers(config: Any, sizes: Sizes) -> dict[str, list[Callable[[], Any]]]:
    """How to make the inputs that are known by name, each in the shapes that some type uses."""
    batch, length = sizes.batch, sizes.sequence
    channels = _value_in(config, "channels") or 3
    images = _image_sizes(config, sizes)
    frames = _value_in(config, "frames") or 4
    bands = _value_in(config, "bands") or 80
    steps = 2 * (_value_in(config, "source_positions") or 32)
    steps = _value_in(config, "steps") or steps
    hidden = _value_in(config, "hidden") or sizes.hidden
    vocabulary = max(8, (_value_in(config, "vocabulary") or sizes.vocabulary) - SPECIAL_TOKENS)

    def tokens(*shape: int) -> Callable[[], Any]:
        return lambda: torch.randint(4, vocabulary, shape)

    def values(*shape: int) -> Callable[[], Any]:
        return lambda: torch.randn(shape)

    def boxes() -> Any:
        corner = torch.randint(0, 400, (batch, length, 2))
        return torch.cat([corner, corner + 100], dim=-1)

    patch = _value_in(config, "patch") or 14
    patch = patch if isinstance(patch, int) else patch[0]
    rows = 2 * (_value_in(config, "merged_patches") or 2)
    pixels = channels * (_value_in(config, "frames_of_a_patch") or 1) * patch**2
    patches = values(rows * rows, pixels)
    videos = [values(batch, frames, channels, size, size) for size in images]
    stills = [values(batch, channels, size, size) for size in images]
    ids = [tokens(batch, length)]
    spectra = [
        values(batch, bands, steps), values(batch, steps, bands), values(batch, 1, steps, bands),
        values(batch, steps, 2 * bands),
    ]  # fmt: skip
    codebooks = _value_in(config, "codebooks")
    if codebooks:
        ids = [*ids, tokens(batch, codebooks, length), tokens(batch, length, codebooks),
               tokens(batch * codebooks, length)]  # fmt: skip
    return {
        "input_ids": ids,
        "decoder_input_ids": ids,
        "inputs_embeds": [values(batch, length, hidden)],
        "pixel_values": [*stills, *videos, patches],
        "pixel_values_videos": videos,
        "input_features": spectra,
        "input_features_mask": [lambda: torch.ones(batch, steps, dtype=torch.long)],
        "audio_mel": [values(batch, steps, bands)],
        "audio_mel_mask": [lambda: torch.zeros(batch, steps, dtype=torch.bool)],
        "input_values": [values(batch, 4000), values(batch, 1, 4000), *spectra],
        "audio_values": [values(batch, 1, 4000)],
        "spectrogram": [values(batch, steps, bands)],
        "decoder_input_values": [values(batch, length, bands)],
        "bbox": [boxes],
        "hidden_states": [values(batch, length, hidden), patches, *stills],
        "grid_thw": [lambda: torch.tensor([[1, rows, rows]])],
        "query_embeds": [values(batch, _value_in(config, "queries") or length, hidden)],
        "encoder_hidden_states": [values(batch, length, hidden)],
        "inputs": ids,
        "bool_masked_pos": [lambda: torch.zeros(batch, 1, dtype=torch.bool)],
    }


def _image_sizes(config: Any, sizes: Sizes) -> list[int]:
    own = _value_in(config, "image")
    own = own[0] if isinstance(own, list | tuple) else own
    return [own, 2 * own] if isinstance(own, int) and own > 0 else [sizes.image, 224]


def _value_in(config: Any, meaning: str) -> Any:
    """The value of the first name of that meaning that a configuration, or one inside it, has."""
    inside = [getattr(config, name, None) for name in getattr(config, "sub_configs", {})]
    for level in (config, *inside):
        for name in known_names()["inputs"][meaning]:
            value = getattr(level, name, None)
            if value is not None and not callable(value):
                return value
    return None
