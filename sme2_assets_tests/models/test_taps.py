"""The program with taps: it computes what the program does, and shows what is between."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from sme2_assets.evidence.arms import Taps
from sme2_assets.models import lowering, taps
from sme2_assets.models.artifact import ExportedModel
from sme2_assets.models.export import export_model
from sme2_assets.models.inputs import ModelInputs, exported_graph
from sme2_assets.models.pieces import write_restored
from sme2_assets.runner.build import RunnerBinary
from sme2_assets_tests.models.run import outputs_of
from sme2_assets_tests.models.small import spec, values, variant

LAYERS = [
    "stem.0.0",
    "expand.0.0",
    "depthwise.0.0",
    "project.0",
    "grouped.0.0",
    "dense.0.0",
    "mix.0.0",
    "head",
]


@pytest.mark.parametrize("key", ["toy_cnn-fp32", "toy_cnn-fp16", "toy_cnn-int8"])
def test_the_program_with_taps_gives_the_same_outputs_to_the_bit_and_the_values_of_every_matrix_operator(
    exported: Callable[[str], ExportedModel], key: str, runner_binary: RunnerBinary, tmp_path: Path
) -> None:
    model = exported(key)
    assert model.taps is not None
    assert model.tapped is not None
    described = Taps.read(model.taps)
    assert [value.module for value in described.values] == [None, *LAYERS]
    [output] = outputs_of(model, runner_binary, tmp_path)
    program = tmp_path / "tapped.pte"
    write_restored(model.pte, model.tapped, program)
    tapped = outputs_of(replace(model, pte=program), runner_binary, tmp_path)
    np.testing.assert_array_equal(tapped[0], output)
    assert len(tapped) == len(described.values)
    dtype = {"fp32": np.float32, "fp16": np.float16, "int8": np.int8}[model.precision]
    assert {array.dtype for array in tapped[1:]} == {np.dtype(dtype)}


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(4, 8, 3, bias=False)
        self.head = nn.Linear(8, 5)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.convolution(image))
        return self.head(x.mean(dim=(2, 3)))


@pytest.fixture
def graph() -> torch.fx.GraphModule:
    inputs = ModelInputs((torch.ones(1, 4, 6, 6),), {})
    return exported_graph(Residual().eval(), inputs).module()


def test_a_value_is_taken_where_the_fused_operator_ends_and_counts_the_sums_before_it(graph):
    convolution, head = taps.layers_of(graph, "fp32", [torch.ones(1, 4, 6, 6)])
    assert "relu" in convolution.tap.name
    assert (convolution.value.channel_axis, head.value.channel_axis) == (1, -1)
    # 4 x 3 x 3 products and the activation; then the mean, 8 products, and nothing else.
    assert convolution.value.terms == 36 + 1
    assert head.value.terms == 36 + 1 + 1 + 8


def test_values_that_are_too_large_are_left_out_and_named(graph, monkeypatch):
    monkeypatch.setattr(taps, "MOST_BYTES", 100)
    _, described = taps.describe_taps(graph, [torch.ones(1, 4, 6, 6)], [torch.ones(1, 3)], "fp32")
    assert [value.name for value in described.values] == ["output 0", "linear"]
    assert described.left_out == ["conv2d"]


@pytest.mark.parametrize("broken", [(lowering, "tapped_program"), (taps, "_magnitudes")])
def test_an_export_whose_taps_do_not_lower_is_an_export_without_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: tuple[object, str]
) -> None:
    monkeypatch.setattr(*broken, lambda *given: None)
    residual = spec("residual", Residual, values(1, 4, 6, 6))
    made = export_model(residual, variant("residual"), tmp_path, log=print)
    assert made.taps is not None
    described = Taps.read(made.taps)
    assert made.tapped is None
    assert "does not lower" in str(described.only_outputs)
    assert [value.name for value in described.values] == ["output 0"]


def test_an_operator_on_two_ways_to_a_value_is_counted_once():
    class Diamond(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(6, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.first(x)
            return y.exp() + y.sin()

    graph = exported_graph(Diamond(), ModelInputs((torch.zeros(1, 6),), {})).module()
    [output] = taps.compared_outputs(graph, "fp32", [np.zeros((1, 4), np.float32)])
    assert output.terms == 6 + 1 + 1 + 1, "six products, and one rounding for each of the others"


@pytest.mark.parametrize(
    ("layer", "shape", "terms"),
    [
        (nn.Conv1d(64, 32, 9), (64, 100), 576),
        (nn.Conv2d(8, 16, 3, groups=2), (8, 20, 20), 36),
        (nn.ConvTranspose1d(8, 16, 3), (8, 20), 24),
    ],
    ids=["1d", "grouped", "transposed"],
)
def test_a_convolution_sums_as_much_without_a_batch(
    layer: nn.Module, shape: tuple[int, ...], terms: int
) -> None:
    model = nn.Sequential(layer).eval()
    for given, axis in ((shape, 0), ((1, *shape), 1)):
        graph = exported_graph(model, ModelInputs((torch.randn(given),), {})).module()
        [found] = taps.layers_of(graph, "fp32", [torch.randn(given)])
        assert (found.value.terms, found.value.channel_axis) == (terms, axis)


def test_the_magnitude_of_a_value_is_that_of_its_products_where_there_are_any():
    class Cache(nn.Module):
        def forward(self, query: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
            return query @ keys.transpose(0, 1)

    query, keys = torch.randn(1, 64), torch.zeros(32, 64)
    # What is left is a small part of the products.
    keys[3] = torch.randn(64)
    keys[3] -= query[0] * (query[0] @ keys[3] - 0.01) / query[0].square().sum()
    given = (query.half(), keys.half())
    graph = exported_graph(Cache(), ModelInputs(given, {})).module()
    [layer] = taps.layers_of(graph, "fp16", given)
    products = (given[0].float() * given[1].float()[3]).abs().sum()
    assert layer.value.magnitude == pytest.approx(float(products) / 8, rel=1e-3)
    [output] = taps.compared_outputs(graph, "fp16", [np.zeros((1, 32))], [layer])
    assert output.magnitude == layer.value.magnitude
