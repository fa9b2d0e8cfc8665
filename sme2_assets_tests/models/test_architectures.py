"""The models are what they say they are."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from sme2_assets.models.lowering import build_model
from sme2_assets.models.progress import Progress
from sme2_assets.models.registry import model_spec

# As torchvision counts them.
MOBILENET_V3_SMALL_PARAMETERS = 2_542_856

# The others, which are larger, are looked at in small in test_more_architectures.py.
CONVOLUTIONAL = ("toy_cnn", "mobilenet_v3_small")


def test_mobilenet_v3_small_has_the_published_size() -> None:
    built = build_model(model_spec("mobilenet_v3_small"), "fp32", Progress("mobilenet_v3_small", print))
    assert built.parameters == MOBILENET_V3_SMALL_PARAMETERS


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
