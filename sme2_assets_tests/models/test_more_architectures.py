"""The larger built-in models are what they say they are: sizes, shapes, folding, checkpoints, caches.

Nothing is exported here. Full sizes are counted on the meta device, which computes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from sme2_assets.errors import ExportError
from sme2_assets.models import edgetam_image_encoder as edgetam
from sme2_assets.models import squeeze_sam, tiny_lm
from sme2_assets.models.seeding import seeded, seeded_images, settle_batch_norm

SMALL_EDGETAM = 64
SMALL_SQUEEZE_SAM = 64
FACTORIES: dict[str, Callable[[], Any]] = {
    "edgetam_image_encoder": lambda: edgetam.EdgeTamImageEncoder(size=SMALL_EDGETAM),
    "squeeze_sam": lambda: squeeze_sam.SqueezeSam(size=SMALL_SQUEEZE_SAM),
    "tiny_lm_prefill": lambda: tiny_lm.TinyLmPrefill(prompt=6, context=9),
    "tiny_lm_decode": lambda: tiny_lm.TinyLmDecode(prompt=6, context=9),
}
EVERY_MODEL = pytest.mark.parametrize("name", list(FACTORIES))


@pytest.fixture(scope="module")
def built() -> dict[str, tuple[Any, nn.Module]]:
    """Each model once, at a small size."""
    factories = {name: factory() for name, factory in FACTORIES.items()}
    return {name: (factory, factory.get_eager_model()) for name, factory in factories.items()}


def parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def macs(model: nn.Module, *shape: int) -> int:
    """Multiply-adds of one inference, without computing it: the model must be on the meta device."""
    counter = FlopCounterMode(display=False)
    with counter, torch.no_grad():
        model(torch.empty(shape, device="meta"))
    return counter.get_total_flops() // 2


# The whole family: what is published is about classifiers of 1000 classes at 224x224.


@pytest.mark.parametrize(
    ("widths", "training_parameters", "inference_parameters", "published_macs"),
    [
        pytest.param((48, 96, 192, 384), 5.5e6, 5.1e6, 0.8e9, id="M0.9, first called M1"),
        pytest.param((56, 112, 224, 448), 7.3e6, 6.8e6, 1.1e9, id="M1.0"),
    ],
)
def test_the_backbone_has_the_published_size(
    widths: tuple[int, ...], training_parameters: float, inference_parameters: float, published_macs: float
) -> None:
    with torch.device("meta"):
        backbone = edgetam.RepViT(widths).eval()
    head = widths[-1] * 1000 + 1000
    # In training there are two heads, each with a batch norm before it.
    assert parameters(backbone) + 2 * (head + 2 * widths[-1]) == pytest.approx(training_parameters, rel=0.01)
    folded = edgetam.fused(backbone)
    assert parameters(folded) + head == pytest.approx(inference_parameters, rel=0.01)
    assert macs(folded, 1, 3, 224, 224) + head == pytest.approx(published_macs, rel=0.03)


def test_the_edgetam_encoder_has_its_size_at_1024_pixels() -> None:
    with torch.device("meta"):
        encoder = edgetam.fused(edgetam.EdgeTamImageEncoderModule().eval())
    assert parameters(encoder) == 4_892_072
    assert macs(encoder, 1, 3, 1024, 1024) == pytest.approx(19.35e9, rel=0.001)


def test_squeeze_sam_has_the_size_its_text_states() -> None:
    with torch.device("meta"):
        model = squeeze_sam.SqueezeSamModule().eval()
    assert parameters(model) == 3_836_748
    assert macs(model, 1, 5, 512, 512) == pytest.approx(29.75e9, rel=0.001)


def test_tiny_lm_has_the_size_its_text_states() -> None:
    with torch.device("meta"):
        weights = tiny_lm.Weights()
    assert parameters(weights) == pytest.approx(5.5e6, rel=0.01)


# Shapes and data.


def test_the_edgetam_encoder_gives_maps_of_stride_4_8_and_16(built: dict[str, tuple[Any, nn.Module]]) -> None:
    factory, model = built["edgetam_image_encoder"]
    with torch.no_grad():
        maps = model(*factory.get_example_inputs())
    assert [tuple(x.shape) for x in maps] == [(1, 32, 16, 16), (1, 64, 8, 8), (1, 256, 4, 4)]


def test_the_edgetam_encoder_can_give_plain_maps_and_position_encodings() -> None:
    module = edgetam.EdgeTamImageEncoderModule(position_size=64, high_resolution_convs=False).eval()
    with torch.no_grad():
        outputs = module(torch.zeros(1, 3, 64, 64))
    assert [tuple(x.shape[1:]) for x in outputs] == 2 * [(256, 16, 16), (256, 8, 8), (256, 4, 4)]


def test_position_encodings_turn_with_rows_and_columns() -> None:
    encoding = edgetam.sine_position_encoding(8, 4)[0]
    full_turn = 2 * torch.pi
    assert encoding[0, :, 0] == pytest.approx(torch.sin(torch.tensor([1, 2, 3, 4]) / 4 * full_turn), abs=1e-5)
    assert encoding[1, :, 0] == pytest.approx(torch.cos(torch.tensor([1, 2, 3, 4]) / 4 * full_turn), abs=1e-5)
    assert torch.equal(encoding[:4], encoding[4:].transpose(1, 2))


def test_squeeze_sam_gives_three_masks_of_half_the_size_and_their_qualities(
    built: dict[str, tuple[Any, nn.Module]],
) -> None:
    factory, model = built["squeeze_sam"]
    with torch.no_grad():
        masks, qualities = model(*factory.get_example_inputs())
    assert tuple(masks.shape) == (1, 3, 32, 32)
    assert tuple(qualities.shape) == (1, 3)


def test_a_click_changes_the_masks(built: dict[str, tuple[Any, nn.Module]]) -> None:
    factory, model = built["squeeze_sam"]
    (image,) = factory.get_example_inputs()
    assert 0 < image[0, 3].sum() < image[0, 4].sum() < image[0, 4].numel()
    without = image.clone()
    without[:, 3] = 0
    with torch.no_grad():
        assert not torch.allclose(model(image)[0], model(without)[0], atol=1e-3)


@EVERY_MODEL
def test_weights_and_inputs_are_the_same_every_time(
    name: str, built: dict[str, tuple[Any, nn.Module]]
) -> None:
    factory, model = built[name]
    weights = model.state_dict()
    state = torch.random.get_rng_state()
    again = FACTORIES[name]()
    other = again.get_eager_model().state_dict()
    inputs = again.get_example_inputs()
    assert torch.equal(torch.random.get_rng_state(), state), "the caller's random state was moved"
    assert all(torch.equal(weights[key], other[key]) for key in weights)
    for left, right in zip(factory.get_example_inputs(), inputs, strict=True):
        assert torch.equal(left, right)


@EVERY_MODEL
def test_calibration_data_differ_from_each_other_and_from_the_example(
    name: str, built: dict[str, tuple[Any, nn.Module]]
) -> None:
    factory, _ = built[name]
    data = [factory.get_example_inputs(), *factory.get_calibration_inputs(3)]
    assert len({batch[0].numpy().tobytes() + batch[-1].numpy().tobytes() for batch in data}) == 4


@EVERY_MODEL
def test_activations_neither_vanish_nor_explode(name: str, built: dict[str, tuple[Any, nn.Module]]) -> None:
    factory, model = built[name]
    spreads: list[float] = []
    hooks = [
        module.register_forward_hook(lambda _m, _i, out: spreads.append(float(out.std())))
        for module in model.modules()
        if isinstance(module, nn.Conv2d | nn.Linear)
    ]
    with torch.no_grad():
        model(*factory.get_example_inputs())
    for hook in hooks:
        hook.remove()
    assert not model.training
    assert spreads
    assert min(spreads) > 0.02
    assert max(spreads) < 10.0


@pytest.mark.parametrize(
    "make",
    [
        lambda: edgetam.EdgeTamImageEncoder(size=100),
        lambda: squeeze_sam.SqueezeSam(size=0),
        lambda: tiny_lm.TinyLmPrefill(prompt=8, context=8),
        lambda: tiny_lm.TinyLmDecode(prompt=0),
    ],
)
def test_a_size_that_cannot_be_is_refused_with_one_that_can(make: Callable[[], Any]) -> None:
    with pytest.raises(ExportError, match="cannot have") as refused:
        make()
    assert refused.value.remedy


# Folding and checkpoints of EdgeTAM.


@pytest.fixture(scope="module")
def trained() -> edgetam.EdgeTamImageEncoderModule:
    """An encoder in the form that is trained, with statistics of its own in every batch norm."""
    module = seeded(edgetam.EdgeTamImageEncoderModule, seed=7)
    settle_batch_norm(module, [seeded_images(2, SMALL_EDGETAM, seed=8)])
    generator = torch.Generator().manual_seed(9)
    for norm in module.modules():
        if isinstance(norm, nn.BatchNorm2d):
            norm.bias.data.normal_(std=0.1, generator=generator)
    return module


@pytest.fixture(scope="module")
def checkpoint(trained: edgetam.EdgeTamImageEncoderModule, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As EdgeTAM saves it: under 'model', with prefixes, beside what is not of the encoder."""
    path = tmp_path_factory.mktemp("checkpoints") / "edgetam.pt"
    torch.save({"model": as_edgetam_saves(trained)}, path)
    return path


def as_edgetam_saves(module: nn.Module) -> dict[str, torch.Tensor]:
    state = {
        ("sam_mask_decoder." if key.startswith("conv_s") else "image_encoder.") + key: value
        for key, value in module.state_dict().items()
    }
    return state | {"memory_attention.norm.weight": torch.ones(4)}


def test_names_are_those_of_edgetams_checkpoint(trained: edgetam.EdgeTamImageEncoderModule) -> None:
    assert {
        "image_encoder.trunk.body.stem.conv1.c.weight",
        "image_encoder.trunk.body.stages_0.blocks.0.token_mixer.conv.bn.weight",
        "image_encoder.trunk.body.stages_0.blocks.0.se.fc1.weight",
        "image_encoder.trunk.body.stages_1.downsample.pre_block.channel_mixer.conv1.c.weight",
        "image_encoder.neck.convs.0.conv.weight",
        "sam_mask_decoder.conv_s0.weight",
    } <= as_edgetam_saves(trained).keys()


def test_a_checkpoint_is_loaded_and_folding_changes_no_output(
    trained: edgetam.EdgeTamImageEncoderModule, checkpoint: Path
) -> None:
    factory = edgetam.EdgeTamImageEncoder(size=SMALL_EDGETAM, checkpoint=checkpoint)
    folded = factory.get_eager_model()
    assert not [module for module in folded.modules() if isinstance(module, nn.BatchNorm2d)]
    with torch.no_grad():
        expected = trained(*factory.get_example_inputs())
        given = folded(*factory.get_example_inputs())
    for left, right in zip(expected, given, strict=True):
        assert (left - right).norm() < 1e-3 * left.norm()


def test_a_state_dict_of_the_encoder_alone_is_a_checkpoint_too(
    trained: edgetam.EdgeTamImageEncoderModule, tmp_path: Path
) -> None:
    path = tmp_path / "encoder.pt"
    torch.save(trained.state_dict(), path)
    edgetam.load_encoder_checkpoint(edgetam.EdgeTamImageEncoderModule(), path)


def test_the_convolutions_of_the_mask_decoder_are_not_asked_for_when_they_are_off(checkpoint: Path) -> None:
    plain = edgetam.EdgeTamImageEncoderModule(high_resolution_convs=False)
    edgetam.load_encoder_checkpoint(plain, checkpoint)


def test_a_checkpoint_that_does_not_fit_says_what_is_missing_unexpected_and_of_another_shape(
    trained: edgetam.EdgeTamImageEncoderModule, tmp_path: Path
) -> None:
    state = as_edgetam_saves(trained)
    del state["image_encoder.neck.convs.2.conv.bias"]
    state["image_encoder.trunk.body.stages_4.norm.weight"] = torch.ones(1)
    state["sam_mask_decoder.conv_s1.bias"] = torch.ones(3)
    path = tmp_path / "other.pt"
    torch.save({"model": state}, path)
    with pytest.raises(ExportError) as refused:
        edgetam.load_encoder_checkpoint(edgetam.EdgeTamImageEncoderModule(), path)
    assert "missing: neck.convs.2.conv.bias;" in refused.value.what
    assert "unexpected: trunk.body.stages_4.norm.weight;" in refused.value.what
    assert "of another shape: conv_s1.bias (3,) instead of (64,)" in refused.value.what


@pytest.mark.parametrize(
    ("content", "complaint"),
    [(None, "There is no checkpoint"), (b"text", "could not be read"), ([1, 2], "holds no state dict")],
)
def test_a_file_that_is_no_checkpoint_is_refused(tmp_path: Path, content: Any, complaint: str) -> None:
    path = tmp_path / "weights.pt"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        torch.save(content, path)
    with pytest.raises(ExportError, match=complaint):
        edgetam.EdgeTamImageEncoder(size=SMALL_EDGETAM, checkpoint=path).get_eager_model()


# Prefill and decode.


def test_tokens_and_positions_are_integers(built: dict[str, tuple[Any, nn.Module]]) -> None:
    token, position, *cache = built["tiny_lm_decode"][0].get_example_inputs()
    (prompt,) = built["tiny_lm_prefill"][0].get_example_inputs()
    assert token.dtype == position.dtype == prompt.dtype == torch.int64
    assert (tuple(prompt.shape), tuple(token.shape), tuple(position.shape)) == ((1, 6), (1, 1), (1,))
    assert [tuple(x.shape) for x in cache] == 8 * [(4, 9, 64)]


def test_decoding_token_by_token_gives_what_reading_them_all_gives() -> None:
    weights = tiny_lm.seeded_weights()
    tokens = tiny_lm.seeded_tokens(9, seed=11)
    decode = tiny_lm.DecodeModule(weights, context=12).eval()
    with torch.no_grad():
        _, *cache = tiny_lm.PrefillModule(weights, prompt=6, context=12)(tokens[:, :6])
        for position in range(6, 9):
            logits, *cache = decode(tokens[:, position : position + 1], torch.tensor([position]), *cache)
            whole, *whole_cache = tiny_lm.PrefillModule(weights, position + 1, context=12)(
                tokens[:, : position + 1]
            )
            torch.testing.assert_close(logits, whole, atol=1e-4, rtol=1e-4)
            torch.testing.assert_close(cache, whole_cache, atol=1e-4, rtol=1e-4)


def test_a_later_token_does_not_change_what_came_before() -> None:
    weights = tiny_lm.seeded_weights()
    tokens = tiny_lm.seeded_tokens(6, seed=11)
    changed = tokens.clone()
    changed[0, 5] = (changed[0, 5] + 1) % tiny_lm.SHAPE.vocabulary
    prefill = tiny_lm.PrefillModule(weights, prompt=6, context=7)
    with torch.no_grad():
        (logits, *cache), (other_logits, *other_cache) = prefill(tokens), prefill(changed)
    assert not torch.allclose(logits, other_logits, atol=1e-2)
    for left, right in zip(cache, other_cache, strict=True):
        assert torch.equal(left[:, :5], right[:, :5])


def test_what_lies_in_the_cache_behind_the_position_is_not_looked_at(
    built: dict[str, tuple[Any, nn.Module]],
) -> None:
    factory, decode = built["tiny_lm_decode"]
    token, position, *cache = factory.get_example_inputs()
    rubbish = [x.clone() for x in cache]
    for x in rubbish:
        x[:, int(position) :] = 100.0
    with torch.no_grad():
        assert torch.allclose(decode(token, position, *cache)[0], decode(token, position, *rubbish)[0])
