"""ExecuTorch's own llama as two programs: prefill reads a prompt, decode adds one token after the other.

This is the network that ExecuTorch's `export_llama` builds, with its cache of keys and values in buffers: the
program has state. The wheel brings its code but no weights, so those are random, and sizes are small unless
options say otherwise. Its fused attention (`llama::custom_sdpa`) is left out: the kernel comes in a library
that needs libtorch, which the runner does without.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sme2_assets.errors import ExportError
from sme2_assets.models.seeding import seeded
from sme2_assets.models.spec import SEED

PREFILL, DECODE = "prefill", "decode"


class Prefill(nn.Module):
    """tokens (1, prompt) -> logits of the last one (1, vocabulary); fills the cache from its beginning."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.network(tokens, {"input_pos": torch.arange(tokens.shape[1])})
        return logits


class Decode(nn.Module):
    """token (1, 1) -> logits (1, vocabulary); each inference takes the next place in the cache."""

    position: Tensor

    def __init__(self, network: nn.Module, position: int) -> None:
        super().__init__()
        self.network = network
        self.register_buffer("position", torch.tensor([position]))

    def forward(self, token: Tensor) -> Tensor:
        logits: Tensor = self.network(token, {"input_pos": self.position})
        self.position.add_(1)
        return logits


class Llama:
    """One phase, as `EagerModel`. The cache of `decode` begins with a real prompt in it."""

    def __init__(
        self,
        *,
        part: str = PREFILL,
        layers: int,
        hidden: int,
        heads: int,
        sequence: int,
        context: int,
        vocabulary: int,
    ) -> None:
        if min(layers, hidden, heads, sequence, vocabulary) < 1 or hidden % (2 * heads):
            raise ExportError(
                f"executorch:llama cannot have these sizes: hidden={hidden}, heads={heads}, layers={layers}",
                "sizes are at least 1, and twice the heads divide hidden",
            )
        # Three inferences in a row are compared, and each takes a place in the cache.
        if sequence + 3 > context:
            raise ExportError(
                f"executorch:llama cannot have a prompt of {sequence} tokens in a context of {context}",
                "use sequence=N for the prompt and context=N for the cache, with room for three more tokens",
            )
        self._decode = part == DECODE
        self._sequence = sequence
        self._vocabulary = vocabulary
        self._network = seeded(lambda: _network(layers, hidden, heads, context, vocabulary), seed=SEED)

    def get_eager_model(self) -> nn.Module:
        if not self._decode:
            return Prefill(self._network).eval()
        with torch.no_grad():
            Prefill(self._network).eval()(self._tokens(self._sequence))
        return Decode(self._network, self._sequence).eval()

    def get_example_inputs(self) -> tuple[Tensor]:
        return (self._tokens(1 if self._decode else self._sequence),)

    def get_calibration_inputs(self, count: int) -> list[tuple[Tensor]]:
        return [self.get_example_inputs() for _ in range(count)]

    def _tokens(self, count: int) -> Tensor:
        return torch.randint(0, self._vocabulary, (1, count))


def _network(layers: int, hidden: int, heads: int, context: int, vocabulary: int) -> nn.Module:
    from executorch.examples.models.llama.llama_transformer import construct_transformer
    from executorch.examples.models.llama.model_args import ModelArgs

    network: nn.Module = construct_transformer(
        ModelArgs(
            dim=hidden,
            n_layers=layers,
            n_heads=heads,
            vocab_size=vocabulary,
            max_seq_len=context,
            max_context_len=context,
            use_kv_cache=True,
            generate_full_logits=False,
        )
    )
    return network.eval()
