"""Models of transformers: what is registered, small ones and their parts, language models, local weights."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from sme2_assets.errors import ExportError
from sme2_assets.models.lowering import build_model, export_program, lower_program
from sme2_assets.models.progress import Progress
from sme2_assets.models.registry import model_spec, requested

if importlib.util.find_spec("transformers") is None:
    pytest.skip("transformers is not installed", allow_module_level=True)

from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM
from transformers.models.auto import modeling_auto
from transformers.models.auto.auto_mappings import CONFIG_MAPPING_NAMES

from sme2_assets.models.huggingface.networks import _with_plain_scale
from sme2_assets.models.huggingface.types import class_of, model_type, type_names
from sme2_assets_tests.models.small import thorough


def built(name: str) -> Any:
    torch.manual_seed(2)
    return model_spec(name).build()


@torch.no_grad()
def output_of(name: str) -> Any:
    made = built(name)
    return made.get_eager_model()(*made.get_example_inputs())


def test_the_types_are_those_that_transformers_registers() -> None:
    assert set(CONFIG_MAPPING_NAMES) >= set(type_names()) > {"bert", "t5", "whisper"}
    mapped = {name for table in vars(modeling_auto) if table.startswith("MODEL") and table.endswith("_NAMES")
              for name in getattr(modeling_auto, table)}  # fmt: skip
    assert all((class_of(name) is not None) == (name in mapped) for name in type_names())


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("t5", {"encoder", "decoder"}),
        ("whisper", {"encoder", "decoder"}),
        ("clip", {"text_model", "vision_model"}),
        ("detr", {"backbone", "encoder", "decoder"}),
        ("llama", {"prefill", "decode"}),
        ("bert", set()),
    ],
)
def test_the_parts_of_a_type_are_found_in_its_code(name: str, parts: set[str]) -> None:
    assert set(model_type(name).parts) == parts


def test_a_model_of_parts_is_asked_for_part_by_part_unless_one_is_chosen() -> None:
    assert [variant.key for variant in requested("hf:t5-fp32")] == [
        "hf.t5.part_encoder-fp32",
        "hf.t5.part_decoder-fp32",
    ]
    assert [variant.key for variant in requested("hf:t5@part=whole-fp32")] == ["hf.t5.part_whole-fp32"]
    assert [variant.key for variant in requested("hf:bert-fp32")] == ["hf.bert-fp32"]


def test_a_part_computes_what_it_computes_inside_the_whole() -> None:
    whole = built("hf:t5@layers=1")
    network = whole.get_eager_model().network
    with torch.no_grad():
        inside = network(
            **dict(zip(("input_ids", "decoder_input_ids"), whole.get_example_inputs(), strict=True))
        )
    assert torch.equal(output_of("hf:t5@layers=1,part=encoder"), inside.encoder_last_hidden_state)
    assert torch.equal(output_of("hf:t5@layers=1,part=decoder"), inside.last_hidden_state)


@pytest.mark.parametrize(
    "name",
    ["wav2vec2@layers=1", "clip@part=text_model", "detr@part=decoder", "whisper@part=encoder", "falcon",
     *thorough("resnet", "clip@part=vision_model", "detr@part=backbone", "whisper@part=decoder", "convnext"),
     # What they leave open, or tie to the number of layers or the width of a head.
     "deepseek_v2@part=whole", "gpt_neo@part=whole",
     *thorough("esm", "hunyuan_v1_dense@part=whole", "glm4v_text@part=whole", "audioflamingo3_encoder",
               "cohere_compass_text@part=whole", "gemma4_text@part=whole", "dots1@part=whole")],
)  # fmt: skip
def test_types_with_lists_towers_sounds_and_computed_sizes_are_built(name: str) -> None:
    outputs = output_of(f"hf:{name}")
    first = outputs[0] if isinstance(outputs, tuple) else outputs
    assert 1e-4 < float(first.abs().max()) < 1e4


def test_how_near_the_outputs_must_be_can_be_chosen() -> None:
    sizes = "layers=1,hidden=32,heads=2,sequence=4,vocabulary=50"
    made = build_model(model_spec(f"hf:bert@{sizes},minimum_sqnr_db=75"), "fp32", Progress("bert", print))
    assert (made.minimum_sqnr_db, made.has_own_bound) == (75.0, True)


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("hf:vit@sequence=64", "option sequence has no effect on hf:vit"),
        ("hf:vit@context=16", "option context has no effect on hf:vit"),
        ("hf:resnet@vocabulary=50", "option vocabulary has no effect on hf:resnet"),
        ("hf:t5@part=encodr", "no part 'encodr' .did you mean 'encoder'"),
        ("hf:sam_prompt_encoder", "only the configuration of a part"),
        ("hf:llama@part=decode,sequence=9,context=9", "prompt of 9 tokens in a context of 9"),
        ("hf:mamba@part=decode", "no prefill and decode with a cache of keys and values"),
        ("hf:llama@weights=/nowhere", "/nowhere has no config.json"),
    ],
)
def test_what_has_no_effect_or_cannot_be_is_refused_by_name(name: str, complaint: str) -> None:
    with pytest.raises(ExportError, match=complaint):
        model_spec(name).build()


@pytest.mark.thorough
def test_a_mixture_of_experts_lowers_and_computes_what_its_own_loop_over_experts_does() -> None:
    made = built("hf:mixtral@layers=1")
    network, inputs = made.get_eager_model(), made.get_example_inputs()
    with torch.no_grad():
        exported = network(*inputs)
        network.network.set_experts_implementation("eager")
        looped = network(*inputs)
    torch.testing.assert_close(exported, looped)
    progress = Progress("mixtral", lambda _: None)
    program, flat = export_program(
        build_model(model_spec("hf:mixtral@layers=1"), "fp32", progress), "fp32", progress
    )
    assert lower_program(program, flat, progress).operators.delegated


def test_faded_and_exploding_weights_are_scaled_by_what_goes_into_them() -> None:
    for factor in (0.0, 1e-12, 1e12):
        network = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8)).eval()
        with torch.no_grad():
            for parameter in network.parameters():
                parameter.mul_(factor)
            given = {"input": torch.randn(2, 64)}
            scaled = _with_plain_scale(network, given, network(**given))
            assert 1e-4 < float(scaled(**given).abs().max()) < 1e4


@pytest.mark.parametrize("kind", ["qwen3", *thorough("llama", "gpt2")])
def test_prefill_and_decode_generate_what_transformers_generates(kind: str) -> None:
    options = "layers=1,hidden=64,batch=2,sequence=6,context=12,vocabulary=100"
    prefill, decode = built(f"hf:{kind}@part=prefill,{options}"), built(f"hf:{kind}@part=decode,{options}")
    prompt = prefill.get_example_inputs()[0]
    network = prefill.get_eager_model().network
    with torch.no_grad():
        wanted = network.generate(prompt, max_new_tokens=5, min_new_tokens=5, do_sample=False, pad_token_id=0)
        logits, *cache = prefill.get_eager_model()(prompt)
        text = prompt
        for position in range(6, 11):
            text = torch.cat([text, logits.argmax(-1, keepdim=True)], dim=1)
            if position < 10:
                logits, *cache = decode.get_eager_model()(text[:, -1:], torch.tensor([position]), *cache)
    assert text.tolist() == wanted.tolist()


@pytest.fixture
def weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """By a relative path: that of a test may be too long for a key."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(5)
    config = LlamaConfig(
        hidden_size=64, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1,
        intermediate_size=96, vocab_size=80, max_position_embeddings=32,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained("w")
    return Path("w")


def test_weights_of_a_local_folder_are_the_ones_that_run(weights: Path) -> None:
    prefill = built(f"hf:llama@part=prefill,sequence=8,context=16,weights={weights}")
    [tokens] = prefill.get_example_inputs()
    with torch.no_grad():
        found = prefill.get_eager_model()(tokens)
        wanted = AutoModelForCausalLM.from_pretrained(weights).eval()(tokens).logits[:, -1]
    assert torch.allclose(found[0], wanted, atol=1e-5)
    assert found[1].shape == (1, 1, 16, 32)


def test_other_weights_in_the_folder_are_another_export(weights: Path) -> None:
    before = model_spec(f"hf:llama@weights={weights}").identity()
    LlamaForCausalLM.from_pretrained(weights).half().save_pretrained(weights)
    assert model_spec(f"hf:llama@weights={weights}").identity() != before


def test_weights_that_do_not_fit_are_refused_by_the_names_of_the_tensors(weights: Path) -> None:
    config = json.loads((weights / "config.json").read_text())
    (weights / "config.json").write_text(json.dumps({**config, "intermediate_size": 128}))
    with pytest.raises(ExportError, match=r"do not fit .*mismatched keys model\.layers\.0\.mlp\.down_proj"):
        model_spec(f"hf:llama@weights={weights}").build()
    with pytest.raises(ExportError, match="the weights of a llama, not of a qwen3"):
        model_spec(f"hf:qwen3@weights={weights}").build()
    with pytest.raises(ExportError, match=r"option layers .* has no effect with weights"):
        model_spec(f"hf:llama@layers=3,weights={weights}").build()


@pytest.mark.thorough
def test_layers_that_share_a_dynamically_quantised_input_are_lowered() -> None:
    progress = Progress("qwen3", lambda _: None)
    spec = model_spec("hf:qwen3@layers=1,hidden=32,heads=2,sequence=4,vocabulary=50")
    built_model = build_model(spec, "int8_dynamic", progress)
    program = lower_program(*export_program(built_model, "int8_dynamic", progress), progress)
    assert program.partitioners == "XnnpackDynamicallyQuantizedPartitioner, XnnpackPartitioner"
    assert program.operators.delegated["aten.linear.default"] == 8
