"""A language model of transformers as two programs: prefill reads a prompt, decode adds one token to it.

As in `tiny_lm`, the cache has a fixed size and is passed in and out, keys then values, layer by layer, each
(batch, heads, context, width of a head). The model's own code runs; only its cache is replaced, by one that
puts keys and values at the given position.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache, CacheLayerMixin

from sme2_assets.errors import ExportError
from sme2_assets.models.huggingface.configuration import SPECIAL_TOKENS, Sizes

# Large enough that softmax gives an exact zero, small enough for half precision.
MASKED = -30000.0


class PrefillLayer(CacheLayerMixin):
    """Keeps the keys and values of the prompt."""

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        self.keys, self.values = key_states, value_states
        return key_states, value_states

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return query_length, 0

    def get_seq_length(self) -> int:
        return 0

    def get_max_length(self) -> int:
        return -1


class DecodeLayer(PrefillLayer):
    """Holds keys and values of the whole context, and puts those of one token in place."""

    def __init__(self, keys: Tensor, values: Tensor, position: Tensor) -> None:
        super().__init__()
        self.keys, self.values, self.position = keys, values, position

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        assert self.keys is not None
        assert self.values is not None
        self.keys = self.keys.index_copy(2, self.position, key_states)
        self.values = self.values.index_copy(2, self.position, value_states)
        return self.keys, self.values

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        assert self.keys is not None
        return self.keys.shape[2], 0


class Phase(nn.Module):
    """A network with the mask of its context; positions alone decide which tokens may be looked at."""

    mask: Tensor

    def __init__(self, network: nn.Module, sizes: Sizes) -> None:
        super().__init__()
        self.network = network
        self.sizes = sizes
        later = torch.ones(sizes.context, sizes.context, dtype=torch.bool).triu(1)
        mask = torch.zeros(sizes.context, sizes.context).masked_fill(later, MASKED)
        # A buffer, so that it follows the precision of the model.
        self.register_buffer("mask", mask, persistent=False)

    def run(
        self, tokens: Tensor, positions: Tensor, mask: Tensor, layers: list[PrefillLayer]
    ) -> tuple[Tensor, ...]:
        cache = Cache(layers=[*layers])
        outputs = self.network(
            input_ids=tokens,
            attention_mask=mask[None, None],
            position_ids=positions[None].expand(tokens.shape[0], -1),
            past_key_values=cache,
            use_cache=True,
        )
        kept = [tensor for layer in layers for tensor in (layer.keys, layer.values)]
        return outputs.logits[:, -1], *kept


class Prefill(Phase):
    """tokens (batch, prompt) -> logits of the last token (batch, vocabulary), then the cache."""

    def forward(self, tokens: Tensor) -> tuple[Tensor, ...]:
        prompt = tokens.shape[1]
        layers = [PrefillLayer() for _ in range(layer_count(self.network))]
        mask = self.mask[:prompt, :prompt]
        logits, *cache = self.run(tokens, torch.arange(prompt), mask, layers)
        return logits, *(self._padded(tensor) for tensor in cache)

    def _padded(self, tensor: Tensor) -> Tensor:
        # Joined by `cat`: XNNPACK in ExecuTorch 1.5 lowers a statically quantised `pad` but cannot load it.
        shape = (*tensor.shape[:2], self.sizes.context - tensor.shape[2], tensor.shape[3])
        return torch.cat([tensor, tensor.new_zeros(shape)], dim=2)


class Decode(Phase):
    """token (batch, 1), position (1,), cache -> logits (batch, vocabulary), then the cache with the token."""

    def forward(self, token: Tensor, position: Tensor, *cache: Tensor) -> tuple[Tensor, ...]:
        pairs = zip(cache[::2], cache[1::2], strict=True)
        layers: list[PrefillLayer] = [DecodeLayer(keys, values, position) for keys, values in pairs]
        return self.run(token, position, self.mask.index_select(0, position), layers)


def layer_count(network: Any) -> int:
    return int(network.config.get_text_config().num_hidden_layers)


class LanguageModel:
    """One phase of a language model, as `EagerModel`; decode's example is a step after a real prompt."""

    def __init__(self, name: str, network: Any, sizes: Sizes, *, decode: bool) -> None:
        _require_fitting(name, network, sizes)
        keep_rotations_exact(network)
        self._network = network
        self._sizes = sizes
        self._decode = decode
        try:
            self._require_same_as_without_cache()
        except Exception as error:
            raise ExportError(
                f"{name} has no prefill and decode with a cache of keys and values: {error}",
                f"profile it without a cache, {name}@part=whole",
            ) from error

    def get_eager_model(self) -> nn.Module:
        return (Decode if self._decode else Prefill)(self._network, self._sizes).eval()

    def get_example_inputs(self) -> tuple[Tensor, ...]:
        return self._prompts(1)[0]

    def get_calibration_inputs(self, count: int) -> list[tuple[Tensor, ...]]:
        return self._prompts(count)

    def _require_same_as_without_cache(self) -> None:
        """Prefill and one step must give the same as the network gives for the whole text at once."""
        text = self._tokens()
        with torch.no_grad():
            _, *cache = Prefill(self._network, self._sizes).eval()(text[:, :-1])
            position = torch.tensor([self._sizes.sequence])
            found = Decode(self._network, self._sizes).eval()(text[:, -1:], position, *cache)[0]
            wanted = self._network(input_ids=text, use_cache=False).logits[:, -1]
        if not torch.allclose(found, wanted, rtol=1e-3, atol=1e-3 * float(wanted.abs().max())):
            raise ValueError("with one it gives a different token than without")

    def _tokens(self) -> Tensor:
        vocabulary: Any = self._network.config.get_text_config().vocab_size
        sizes = self._sizes
        return torch.randint(0, max(1, vocabulary - SPECIAL_TOKENS), (sizes.batch, sizes.sequence + 1))

    def _prompts(self, count: int) -> list[tuple[Tensor, ...]]:
        sizes = self._sizes
        prefill = Prefill(self._network, sizes).eval()
        found: list[tuple[Tensor, ...]] = []
        for _ in range(count):
            tokens = self._tokens()
            prompt, next_token = tokens[:, :-1], tokens[:, -1:]
            with torch.no_grad():
                _, *cache = prefill(prompt)
            found.append((next_token, torch.tensor([sizes.sequence]), *cache) if self._decode else (prompt,))
        return found


def keep_rotations_exact(network: nn.Module) -> None:
    """Rotary frequencies as constants: casting them to half would shift rotations by whole degrees."""
    for module in network.modules():
        for name in [name for name in module._buffers if "inv_freq" in name]:
            setattr(module, name, module._buffers.pop(name))


def _require_fitting(name: str, network: Any, sizes: Sizes) -> None:
    if not 1 <= sizes.sequence < sizes.context:
        raise ExportError(
            f"{name} cannot have a prompt of {sizes.sequence} tokens in a context of {sizes.context}",
            "use sequence=N for the prompt and context=N for the cache, with room for one more token",
        )
    config = network.config.get_text_config()
    longest = getattr(config, "max_position_embeddings", None)
    window = getattr(config, "sliding_window", None)
    for limit, what in ((longest, "positions"), (window, "tokens in its sliding window")):
        if isinstance(limit, int) and limit < sizes.context:
            raise ExportError(
                f"{name} has {limit} {what}, fewer than the context of {sizes.context}",
                f"use context={limit} or less",
            )
