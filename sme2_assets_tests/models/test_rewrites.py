"""Rewrites give the numbers that the network gave, by other modules."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from sme2_assets.errors import ExportError
from sme2_assets.models.inputs import ModelInputs
from sme2_assets.models.registry import model_spec, parse_variant
from sme2_assets.models.rewrites import NOTHING, REWRITES, apply


def settled(*modules: nn.Module) -> nn.Module:
    """With batch norms that do something."""
    torch.manual_seed(3)
    network = nn.Sequential(*modules)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.uniform_(-1, 1)
            module.running_var.uniform_(0.5, 2)
            nn.init.uniform_(module.weight, 0.5, 2)
            nn.init.uniform_(module.bias, -1, 1)
    return network.eval()


def given(*args: torch.Tensor, **kwargs: torch.Tensor) -> ModelInputs:
    return ModelInputs(args, kwargs)


def block(inputs: int, outputs: int, **options: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, bias=False, **options), nn.BatchNorm2d(outputs), nn.ReLU()
    )


NETWORKS = {
    "linear": (settled(block(3, 8, kernel_size=1), nn.Conv2d(8, 5, 1)), (2, 3, 7, 9), ["0.0", "1"]),
    "framed": (settled(nn.Conv2d(3, 8, 1), block(8, 5, kernel_size=1)), (2, 3, 7, 9), ["0", "1.0"]),
    "two_channels": (
        settled(block(1, 8, kernel_size=3, stride=2, padding=1), nn.Conv2d(8, 5, 3)),
        (2, 1, 9, 9),
        ["0.0"],
    ),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_a_rewritten_network_gives_what_it_gave(name: str):
    network, shape, places = NETWORKS[name]
    other = copy.deepcopy(network)
    x = torch.randn(shape)
    assert apply(REWRITES[name].one, other, given(x)) == places
    assert not any(isinstance(module, nn.BatchNorm2d) for module in other.modules())
    with torch.no_grad():
        torch.testing.assert_close(other(x), network(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("options", [{"stride": 2}, {"padding": 1}, {"groups": 4}])
def test_only_plain_1x1_convolutions_are_matrix_products(options: dict[str, int]):
    network = settled(nn.Conv2d(4, 4, 1, **options))
    assert apply(REWRITES["linear"].one, network, given(torch.randn(1, 4, 3, 3))) == []


class Shared(nn.Module):
    """One batch norm that runs twice: it belongs to neither convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 1)
        self.norm = nn.BatchNorm2d(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.second(self.norm(self.first(x))))


def test_a_batch_norm_of_two_convolutions_stays():
    network = settled(Shared())
    other, x = copy.deepcopy(network), torch.randn(1, 3, 4, 4)
    apply(REWRITES["linear"].one, other, given(x))
    with torch.no_grad():
        torch.testing.assert_close(other(x), network(x), rtol=1e-5, atol=1e-5)
    assert any(isinstance(module, nn.BatchNorm2d) for module in other.modules())


def test_a_name_with_a_rewrite_leads_to_its_key_and_back():
    variant = parse_variant("toy_cnn@rewrite=two_channels-fp16")
    assert parse_variant(variant.key) == variant
    assert model_spec(variant.model).title == "toy_cnn@rewrite=two_channels"
    assert model_spec(variant.model).identity() != model_spec("toy_cnn").identity()
    with_options = model_spec("squeeze_sam@size=64,rewrite=linear")
    assert model_spec(with_options.key).title == "squeeze_sam@rewrite=linear,size=64"


def test_a_rewrite_that_does_not_exist_or_does_nothing_is_refused():
    with pytest.raises(ExportError, match=r"no rewrite 'linaer' .did you mean 'linear'"):
        model_spec("toy_cnn@rewrite=linaer")
    eager = model_spec("toy_cnn@rewrite=two_channels").build()
    with pytest.raises(ExportError, match=NOTHING):
        eager.substitute(eager.get_eager_model().eval())  # type: ignore[attr-defined]


class Counting(nn.Module):
    """Has state, and an input by name."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Conv2d(4, 4, 1)
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x: torch.Tensor, *, scale: torch.Tensor) -> torch.Tensor:
        self.count.add_(1)
        return self.inner(x) * self.count * scale


def test_looking_for_batch_norms_runs_the_model_as_it_is_called_and_leaves_its_state():
    network = Counting().eval()
    inputs = given(torch.randn(1, 4, 3, 3), scale=torch.ones(1))
    assert apply(REWRITES["linear"].one, network, inputs) == ["inner"]
    assert network.count.item() == 0
