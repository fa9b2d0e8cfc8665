"""The models are what they say they are."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from sme2_assets.models.artifact import ExportedModel, read_manifest
from sme2_assets.models.registry import model_spec

# Parameters as torchvision counts them; multiply-adds as the paper states them ("56M").
MOBILENET_V3_SMALL_PARAMETERS = 2_542_856
MOBILENET_V3_SMALL_MACS = 56.5e6

# The others, which are larger, are looked at in small in test_more_architectures.py.
CONVOLUTIONAL = ("toy_cnn", "mobilenet_v3_small")


def test_mobilenet_v3_small_has_the_published_size(exported: dict[str, ExportedModel]) -> None:
    manifest = read_manifest(exported["mobilenet_v3_small-fp32"].manifest)
    assert manifest.parameters == MOBILENET_V3_SMALL_PARAMETERS
    assert manifest.macs == pytest.approx(MOBILENET_V3_SMALL_MACS, rel=0.01)


def test_the_toy_is_small_enough_to_emulate(exported: dict[str, ExportedModel]) -> None:
    assert read_manifest(exported["toy_cnn-fp32"].manifest).macs <= 40e6


def test_the_toy_has_work_of_every_kind(exported: dict[str, ExportedModel]) -> None:
    operators = read_manifest(exported["toy_cnn-fp32"].manifest).operators
    kinds = {name.split(".")[1] for name in operators.delegated}
    assert {"convolution", "linear", "add", "hardswish", "max_pool2d", "permute_copy", "_softmax"} <= kinds
    assert operators.portable == {"aten::mean.out": 1}
    assert operators.delegates == 2


@pytest.mark.parametrize("name", CONVOLUTIONAL)
def test_weights_and_inputs_are_the_same_every_time(name: str) -> None:
    first, second = model_spec(name).build(), model_spec(name).build()
    state = torch.random.get_rng_state()
    weights = first.get_eager_model().state_dict()
    assert torch.equal(torch.random.get_rng_state(), state), "the caller's random state was moved"
    torch.manual_seed(12345)
    again = second.get_eager_model().state_dict()
    assert all(torch.equal(weights[key], again[key]) for key in weights)
    for left, right in zip(first.get_example_inputs(), second.get_example_inputs(), strict=True):
        assert torch.equal(left, right)


@pytest.mark.parametrize("name", CONVOLUTIONAL)
def test_activations_neither_vanish_nor_explode(name: str) -> None:
    built = model_spec(name).build()
    model = built.get_eager_model()
    spreads: list[float] = []
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.register_forward_hook(lambda _m, _i, out: spreads.append(float(out.std())))
    with torch.no_grad():
        model(*built.get_example_inputs())
    assert not model.training
    assert spreads
    assert min(spreads) > 0.2
    assert max(spreads) < 5.0


@pytest.mark.parametrize("name", CONVOLUTIONAL)
def test_calibration_data_differ_from_each_other_and_from_the_example(name: str) -> None:
    built = model_spec(name).build()
    images = [built.get_example_inputs(), *built.get_calibration_inputs(4)]  # type: ignore[attr-defined]
    flat = {np.asarray(image[0]).tobytes() for image in images}
    assert len(flat) == 5
