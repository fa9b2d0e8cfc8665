"""A small language model as two programs: prefill reads a prompt, decode adds one token to it.

A decoder-only transformer of the common kind: RMS norm, rotary positions, causal attention of several
heads, a gated SiLU feed-forward, no biases. Four layers of width 256 with four heads, a feed-forward of
768 and 4096 tokens: 5.5 M parameters. There is no published model of this size to match; every part is
the usual one, small enough to export in seconds and to emulate.

The two programs share their weights and a cache of fixed size: prefill returns the logits of the last
token and every layer's keys and values, padded to the context; decode takes one token, its position and
that cache, and returns logits and the cache with the token's keys and values in place.

Cache tensors are (heads, context, width of a head), keys then values, layer by layer. They are separate
inputs and outputs: a single stacked tensor would have to be split and joined again in every step.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sme2_assets.errors import ExportError
from sme2_assets.models.registry import SEED
from sme2_assets.models.seeding import seeded

# Large enough that softmax gives an exact zero, small enough for half precision.
MASKED = -30000.0


@dataclass(frozen=True)
class TinyLmShape:
    """The sizes that decide the weights."""

    vocabulary: int = 4096
    width: int = 256
    heads: int = 4
    layers: int = 4
    feed_forward: int = 768

    @property
    def head_width(self) -> int:
        return self.width // self.heads


SHAPE = TinyLmShape()


class TinyLmPrefill:
    """Builds the program that reads a prompt of fixed length."""

    def __init__(self, *, prompt: int = 64, context: int = 128) -> None:
        _check_lengths("tiny_lm_prefill", prompt, context)
        self.prompt = prompt
        self.context = context

    def get_eager_model(self) -> nn.Module:
        return PrefillModule(seeded_weights(), self.prompt, self.context).eval()

    def get_example_inputs(self) -> tuple[Tensor, ...]:
        return (seeded_tokens(self.prompt, seed=SEED),)

    def get_calibration_inputs(self, count: int) -> list[tuple[Tensor, ...]]:
        return [(seeded_tokens(self.prompt, seed=SEED + 200 + n),) for n in range(count)]


class TinyLmDecode:
    """Builds the program for one step; its example is the step after a prompt that was actually read."""

    def __init__(self, *, prompt: int = 64, context: int = 128) -> None:
        _check_lengths("tiny_lm_decode", prompt, context)
        self.prompt = prompt
        self.context = context

    def get_eager_model(self) -> nn.Module:
        return DecodeModule(seeded_weights(), self.context).eval()

    def get_example_inputs(self) -> tuple[Tensor, ...]:
        return self._steps([SEED])[0]

    def get_calibration_inputs(self, count: int) -> list[tuple[Tensor, ...]]:
        return self._steps([SEED + 200 + n for n in range(count)])

    def _steps(self, seeds: list[int]) -> list[tuple[Tensor, ...]]:
        """For each seed: the token after a prompt, its position, and the cache left by reading the prompt."""
        prefill = PrefillModule(seeded_weights(), self.prompt, self.context).eval()
        steps = []
        for seed in seeds:
            tokens = seeded_tokens(self.prompt + 1, seed=seed)
            with torch.no_grad():
                _, *cache = prefill(tokens[:, : self.prompt])
            steps.append((tokens[:, self.prompt :], torch.tensor([self.prompt]), *cache))
        return steps


class PrefillModule(nn.Module):
    """tokens (1, prompt) -> logits of the last token (1, vocabulary), then the cache."""

    padding: Tensor

    def __init__(self, weights: Weights, prompt: int, context: int) -> None:
        super().__init__()
        self.weights = weights
        self.positions = Positions(prompt, weights.shape.head_width)
        shape = weights.shape
        # Joined by `cat`: XNNPACK in ExecuTorch 1.5 lowers a statically quantised `pad` but cannot load it.
        padding = torch.zeros(shape.heads, context - prompt, shape.head_width)
        self.register_buffer("padding", padding, persistent=False)

    def forward(self, tokens: Tensor) -> tuple[Tensor, ...]:
        x = self.weights.embedding(tokens)
        cache = []
        for layer in self.weights.layers:
            queries, keys, values = layer.projections(x, self.positions.cosine, self.positions.sine)
            x = layer.attend(x, queries, keys, values, self.positions.mask)
            cache += [self._padded(keys), self._padded(values)]
        return self.weights.logits(x[:, -1:]), *cache

    def _padded(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.padding], dim=1)


class DecodeModule(nn.Module):
    """token (1, 1), position (1,), cache -> logits (1, vocabulary), then the cache with the token in it."""

    def __init__(self, weights: Weights, context: int) -> None:
        super().__init__()
        self.weights = weights
        self.positions = Positions(context, weights.shape.head_width)

    def forward(self, token: Tensor, position: Tensor, *cache: Tensor) -> tuple[Tensor, ...]:
        x = self.weights.embedding(token)
        cosine, sine, mask = (
            table.index_select(0, position)
            for table in (self.positions.cosine, self.positions.sine, self.positions.mask)
        )
        updated = []
        for index, layer in enumerate(self.weights.layers):
            queries, new_keys, new_values = layer.projections(x, cosine, sine)
            keys = cache[2 * index].index_copy(1, position, new_keys)
            values = cache[2 * index + 1].index_copy(1, position, new_values)
            x = layer.attend(x, queries, keys, values, mask)
            updated += [keys, values]
        return self.weights.logits(x), *updated


class Positions(nn.Module):
    """Tables by position: rotations, and which positions a token may look at.

    Buffers, so that they follow the precision of the model. They depend on sizes alone, so they are
    constants of the program.
    """

    cosine: Tensor
    sine: Tensor
    mask: Tensor

    def __init__(self, length: int, head_width: int, *, base: float = 10000.0) -> None:
        super().__init__()
        frequency = base ** (-torch.arange(0, head_width, 2) / head_width)
        angle = (torch.arange(length)[:, None] * frequency).repeat(1, 2)
        later = torch.ones(length, length, dtype=torch.bool).triu(1)
        self.register_buffer("cosine", angle.cos(), persistent=False)
        self.register_buffer("sine", angle.sin(), persistent=False)
        self.register_buffer("mask", torch.zeros(length, length).masked_fill(later, MASKED), persistent=False)


class Weights(nn.Module):
    """All learnt weights, used by both programs."""

    def __init__(self, shape: TinyLmShape = SHAPE) -> None:
        super().__init__()
        self.shape = shape
        self.embedding = nn.Embedding(shape.vocabulary, shape.width)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = RmsNorm(shape.width)
        self.head = nn.Linear(shape.width, shape.vocabulary, bias=False)
        self.apply(_initialise)
        for layer in self.layers:
            # Two additions per layer, each kept small so that the sum stays near one.
            for linear in (layer.output, layer.down):
                linear.weight.data.mul_((2 * shape.layers) ** -0.5)

    def logits(self, x: Tensor) -> Tensor:
        """(1, vocabulary) of one token (1, 1, width)."""
        return self.head(self.norm(x)).flatten(1)


class Layer(nn.Module):
    """Attention over the tokens so far, then a gated feed-forward; each added to its input."""

    def __init__(self, shape: TinyLmShape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.head_width = shape.head_width
        self.attention_norm = RmsNorm(shape.width)
        self.query = nn.Linear(shape.width, shape.width, bias=False)
        self.key = nn.Linear(shape.width, shape.width, bias=False)
        self.value = nn.Linear(shape.width, shape.width, bias=False)
        self.output = nn.Linear(shape.width, shape.width, bias=False)
        self.feed_forward_norm = RmsNorm(shape.width)
        self.gate = nn.Linear(shape.width, shape.feed_forward, bias=False)
        self.up = nn.Linear(shape.width, shape.feed_forward, bias=False)
        self.down = nn.Linear(shape.feed_forward, shape.width, bias=False)
        # A buffer for the same reason as in `Positions`.
        self.register_buffer("scale", torch.tensor(shape.head_width**-0.5), persistent=False)

    def projections(self, x: Tensor, cosine: Tensor, sine: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of the given tokens, each (heads, tokens, head width)."""
        x = self.attention_norm(x)
        queries = rotated(self._by_head(self.query(x)), cosine, sine) * self.scale
        keys = rotated(self._by_head(self.key(x)), cosine, sine)
        return queries, keys, self._by_head(self.value(x))

    def attend(self, x: Tensor, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        scores = torch.bmm(queries, keys.transpose(1, 2)) + mask
        mixed = torch.bmm(torch.softmax(scores, dim=-1), values)
        x = x + self.output(mixed.transpose(0, 1).reshape(1, -1, self.heads * self.head_width))
        inside = self.feed_forward_norm(x)
        gate = self.gate(inside)
        # SiLU by its formula: `functional.silu` at half precision is lowered with casts outside of XNNPACK.
        return x + self.down(gate * torch.sigmoid(gate) * self.up(inside))

    def _by_head(self, x: Tensor) -> Tensor:
        return x.reshape(-1, self.heads, self.head_width).transpose(0, 1)


class RmsNorm(nn.Module):
    """Divide by the root mean square, then weight each channel."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.register_buffer("epsilon", torch.tensor(1e-5), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + self.epsilon) * self.weight


def rotated(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotate each pair (channel i, channel i + half) by the angle of its position."""
    half = x.shape[-1] // 2
    first, second = x[..., :half], x[..., half:]
    return x * cosine + torch.cat([-second, first], dim=-1) * sine


def seeded_weights() -> Weights:
    """The weights that prefill and decode share."""
    return seeded(Weights, seed=SEED)


def seeded_tokens(count: int, *, seed: int) -> Tensor:
    """(1, count) token numbers, int64."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(SHAPE.vocabulary, (1, count), generator=generator)


def _check_lengths(name: str, prompt: int, context: int) -> None:
    if not 1 <= prompt < context:
        raise ExportError(
            f"{name} cannot have a prompt of {prompt} tokens in a context of {context}",
            "use a prompt of at least one token and a context that has room for one more",
        )


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):
        nn.init.normal_(module.weight, std=module.in_features**-0.5)
    elif isinstance(module, nn.Embedding):
        nn.init.normal_(module.weight)
