"""Configurations that are small in a way each model type accepts.

Types name the same size differently (`hidden_size`, `d_model`, `n_embd`), nest configurations, and tie sizes
to one another in ways that no table lists. So names are translated, and several small configurations are
tried, smallest first, until one gives a network that runs.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

LARGEST_PARAMETERS = 150_000_000


@dataclasses.dataclass(frozen=True)
class Sizes:
    """The sizes that can be given as options, whatever a type calls them."""

    layers: int = 2
    hidden: int = 128
    heads: int = 4
    sequence: int = 32
    context: int = 64
    batch: int = 1
    vocabulary: int = 1000
    image: int = 64


@functools.cache
def known_names() -> dict[str, Any]:
    """What `names.yaml` says."""
    content: dict[str, Any] = yaml.safe_load(
        Path(__file__).with_name("names.yaml").read_text(encoding="utf-8")
    )
    return content


def small_configurations(cls: Any, sizes: Sizes) -> list[Callable[[], Any]]:
    """Ways to make a configuration of a class, smallest first; the last is the type's own."""
    ways = (_all_sizes, _filled_in, _rotated_by_layer, _with_own_heads, _but_widths, _layers_only)
    return [*(functools.partial(_configured, cls, sizes, way) for way in ways), cls]


def _configured(cls: Any, sizes: Sizes, change: Callable[[Any, Sizes], dict[str, Any]]) -> Any:
    own = cls()
    changes = change(own, sizes)
    for name in getattr(cls, "sub_configs", {}):
        inner = getattr(own, name, None)
        if getattr(inner, "model_type", None) == "timm_backbone":
            changes[name] = _residual_backbone(inner)
        elif hasattr(inner, "to_dict"):
            changes[name] = _configured(type(inner), sizes, change)
    if "vocab_size" in changes:
        changes |= _tokens_within(own, sizes.vocabulary)
    config = cls(**{name: value for name, value in changes.items() if _can_be_set(own, name)})
    # A cache would be an output and would differ from call to call.
    if hasattr(config, "use_cache"):
        config.use_cache = False
    return config


def _can_be_set(config: Any, name: str) -> bool:
    computed = getattr(type(config), name, None)
    is_there = _value(config, name, _value) is not _value
    return is_there and not (isinstance(computed, property) and computed.fset is None)


def _residual_backbone(timm: Any) -> Any:
    """transformers' own ResNet in place of one from timm, which is a separate package."""
    from transformers import ResNetConfig

    stages = len(getattr(timm, "out_indices", None) or [0])
    small: dict[str, Any] = {"embedding_size": 32, "hidden_sizes": [64, 128, 256, 512], "depths": [1] * 4}
    small["out_features"] = [f"stage{5 - stages + index}" for index in range(stages)]
    return ResNetConfig(**small)


def _all_sizes(own: Any, sizes: Sizes) -> dict[str, Any]:
    """Every size that has a name we know."""
    width = sizes.hidden // sizes.heads
    widths = _set(
        own, widths=sizes.hidden, heads=sizes.heads, head_widths=width, feed_forwards=4 * sizes.hidden
    )
    return {**_but_widths(own, sizes), **widths}


def _filled_in(own: Any, sizes: Sizes) -> dict[str, Any]:
    """Every size, and what a type leaves open or ties to the width of its heads."""
    width = sizes.hidden // sizes.heads
    left_open = _named(
        own,
        lambda name: _value(own, name, 0) is None,
        vocabularies=sizes.vocabulary,
        head_widths=width,
        experts=4,
        expert_choices=2,
        shared_experts=1,
        padding=1,
    )
    changes = {**_all_sizes(own, sizes), **left_open}
    rotary: Any = _value(own, "rope_parameters")
    if isinstance(rotary, dict):
        # Parts of a head for time, rows and columns.
        rotated = int(width * (rotary.get("partial_rotary_factor") or 1.0)) // 2
        part = 3 * rotated // 8
        changes["rope_parameters"] = {**rotary, "mrope_section": [rotated - 2 * part, part, part]}
    return changes


def _rotated_by_layer(own: Any, sizes: Sizes) -> dict[str, Any]:
    """The same, with rotary embeddings for each kind of layer."""
    changes = _filled_in(own, sizes)
    kinds: Any = _value(own, "layer_types")
    if "rope_parameters" in changes and kinds:
        known = {name: value for name, value in own.rope_parameters.items() if value is not None}
        plain = {"rope_type": "default", "rope_theta": 10_000.0, **known}
        changes["rope_parameters"] = {kind: dict(plain) for kind in {*kinds}}
    return changes


def _with_own_heads(own: Any, sizes: Sizes) -> dict[str, Any]:
    """Few heads, but of the type's own width: rotary tables and the like depend on it."""
    heads: Any = _value(own, "num_attention_heads")
    hidden: Any = _value(own, "hidden_size")
    if not (_is_size(heads) and _is_size(hidden)):
        return _but_widths(own, sizes)
    width = _value(own, "head_dim") or hidden // heads
    wide = sizes.heads * width
    widths = _set(own, widths=wide, heads=sizes.heads, feed_forwards=2 * wide)
    return {**_but_widths(own, sizes), **widths}


def _but_widths(own: Any, sizes: Sizes) -> dict[str, Any]:
    """All but the widths."""
    positions, image = 2 * max(sizes.sequence, sizes.context), _image(own, sizes.image)
    others = _set(own, vocabularies=sizes.vocabulary, positions=positions, images=image)
    return {**_layers_only(own, sizes), **others}


def _layers_only(own: Any, sizes: Sizes) -> dict[str, Any]:
    # Layers that take keys and values from earlier ones would be more than there are.
    changes = _set(own, layers=sizes.layers, layers_with_earlier_keys=0)
    patterns: Any = _value(own, "attention_types")
    if isinstance(patterns, list) and sizes.layers % len(patterns[0][0]) == 0:
        changes["attention_types"] = [[patterns[0][0], sizes.layers // len(patterns[0][0])]]
    depths = _value(own, "depths")
    if isinstance(depths, list | tuple):
        changes["depths"] = [min(depth, sizes.layers) if _is_size(depth) else depth for depth in depths]
    return {**changes, **_set(own, experts=4, expert_choices=2, expert_groups=1)}


def _set(own: Any, **values: Any) -> dict[str, Any]:
    """By what they mean, values for the names that are sizes in the configuration."""

    def is_size(name: str) -> bool:
        return _is_size(_value(own, name)) or (name == "image_size" and hasattr(own, name))

    return _named(own, is_size, **values)


def _named(own: Any, is_wanted: Callable[[str], bool], **values: Any) -> dict[str, Any]:
    """Values by their names in the configuration, as they were declared in it."""
    aliases = getattr(own, "attribute_map", {})
    return {
        aliases.get(name, name): value
        for meaning, value in values.items()
        for name in known_names()["sizes"][meaning]
        if is_wanted(name)
    }


def _value(own: Any, name: str, default: Any = None) -> Any:
    """An attribute of a configuration; the default for one that differs from layer to layer, too."""
    try:
        return getattr(own, name, default)
    except Exception:
        return default


def _is_size(value: Any) -> bool:
    return type(value) is int and value > 0


def _image(own: Any, image: int) -> Any:
    """The nearest size that is a multiple of the patch size; as many values as the type has."""
    patch: Any = getattr(own, "patch_size", None)
    if _is_size(patch) and image % patch:
        image = patch * max(2, round(image / patch))
    value = getattr(own, "image_size", None)
    return [image] * len(value) if isinstance(value, list | tuple) else image


def _tokens_within(own: Any, vocabulary: int) -> dict[str, Any]:
    """Special token ids, moved to the end of the vocabulary, which inputs do not use."""
    changes: dict[str, Any] = {}
    for name, value in own.to_dict().items():
        token = name.endswith(("_token_id", "_token_index", "_token_type_id", "_start_id", "_end_id"))
        if token and _is_size(value) and value >= vocabulary:
            changes[name] = vocabulary - 1 - len(changes)
    return changes


SPECIAL_TOKENS = 32
