"""ExecuTorch's llama as prefill and decode, against the same network without a cache."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from executorch.examples.models.llama.llama_transformer import construct_transformer
from executorch.examples.models.llama.model_args import ModelArgs

from sme2_assets.errors import ExportError
from sme2_assets.models.executorch_llama import Llama
from sme2_assets.models.lowering import build_model, export_program, lower_program
from sme2_assets.models.progress import Progress
from sme2_assets.models.registry import model_spec, requested

SIZES = {"layers": 1, "hidden": 32, "heads": 2, "sequence": 8, "context": 16, "vocabulary": 50}


def made(part: str) -> Any:
    torch.manual_seed(2)
    return Llama(part=part, **SIZES)


@torch.no_grad()
def without_cache(model: Any, tokens: torch.Tensor) -> torch.Tensor:
    """Logits of the last token, from the whole text at once."""
    arguments = ModelArgs(
        dim=32, n_layers=1, n_heads=2, vocab_size=50, max_seq_len=16, max_context_len=16, use_kv_cache=False
    )
    plain = construct_transformer(arguments).eval()
    left = plain.load_state_dict(model.network.state_dict(), strict=False)
    assert not left.missing_keys
    logits: torch.Tensor = plain(tokens)
    return logits.reshape(1, -1)


@torch.no_grad()
def test_prefill_and_decode_give_the_tokens_of_the_network_without_a_cache() -> None:
    builder = made("decode")
    prompts: list[torch.Tensor] = []
    tokens = builder._tokens
    builder._tokens = lambda count: prompts.append(tokens(count)) or prompts[-1]
    decode = builder.get_eager_model()
    [text] = prompts
    for token in (7, 3, 11):
        text = torch.cat([text, torch.tensor([[token]])], dim=1)
        torch.testing.assert_close(decode(torch.tensor([[token]])), without_cache(decode, text))

    builder = made("prefill")
    prefill, [prompt] = builder.get_eager_model(), builder.get_example_inputs()
    torch.testing.assert_close(prefill(prompt), without_cache(prefill, prompt))


def test_both_phases_are_profiled_unless_one_is_chosen() -> None:
    assert [variant.key for variant in requested("executorch:llama-int4")] == [
        "executorch.llama.part_prefill-int4",
        "executorch.llama.part_decode-int4",
    ]
    with pytest.raises(ExportError, match="has no part 'encode'"):
        requested("executorch:llama@part=encode-fp32")


@pytest.mark.thorough
def test_the_program_keeps_its_cache_and_its_position() -> None:
    options = {**{name: str(size) for name, size in SIZES.items()}, "part": "decode"}
    progress = Progress("llama", print)
    built = build_model(model_spec("executorch:llama").with_options(options), "fp32", progress)
    assert len(built.reference.outputs) == 3
    assert not torch.equal(built.reference.outputs[0][0], built.reference.outputs[1][0])
    program = lower_program(*export_program(built, "fp32", progress), progress)
    keys_and_values, position = 2 * 16 * 32 * 4, 8
    assert program.state_bytes == keys_and_values + position


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"hidden": 20, "heads": 4}, "cannot have these sizes"),
        ({"sequence": 62, "context": 64}, "a prompt of 62 tokens in a context of 64"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(sizes: dict[str, int], message: str) -> None:
    with pytest.raises(ExportError, match=message):
        Llama(**{**SIZES, **sizes})
