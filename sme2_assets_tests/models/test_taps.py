"""The program with taps: it computes what the program does, and shows what is between."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
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
from sme2_assets_tests.models.small import spec, thorough, values, variant

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
    described = _described(model)
    assert [value.module for value in described.values] == [None, *LAYERS]
    [output] = outputs_of(model, runner_binary, tmp_path)
    tapped = _outputs_with_taps(model, runner_binary, tmp_path)
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


RESIDUAL = spec("residual", Residual, values(1, 4, 6, 6))


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


def test_values_that_are_too_large_are_left_out_and_named(tmp_path, monkeypatch):
    monkeypatch.setattr(taps, "MOST_BYTES", 100)
    described = _described(export_model(RESIDUAL, variant("residual"), tmp_path, log=print))
    assert [value.name for value in described.values] == ["output 0", "linear"]
    assert described.left_out == ["conv2d"]


@pytest.mark.parametrize("broken", [(lowering, "with_outputs"), (taps, "_magnitudes")])
def test_an_export_whose_values_cannot_be_shown_is_an_export_without_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: tuple[object, str]
) -> None:
    monkeypatch.setattr(*broken, lambda *given: None)
    made = export_model(RESIDUAL, variant("residual"), tmp_path, log=print)
    described = _described(made)
    assert made.tapped is None
    assert "cannot be made" in str(described.only_outputs)
    assert [value.name for value in described.values] == ["output 0"]


class Mixed(nn.Module):
    """Matrix operators whose values leave their delegates, to where memory is used again."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.values(x)[-1]

    def values(self, x: torch.Tensor) -> list[torch.Tensor]:
        first = self.first(x)
        summed = torch.cumsum(first, 1)
        second = self.second(summed)
        product = second @ summed.transpose(1, 2)
        return [first, second, product, torch.cumsum(product, 1).softmax(-1)]


@pytest.mark.parametrize("varying", [False, *thorough(True)])
def test_values_that_leave_a_delegate_are_still_there_at_the_end(
    varying: bool, runner_binary: RunnerBinary, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    model, x = Mixed().eval(), values(2, 6, 8)
    shapes = {"x": {0: torch.export.Dim("batch", min=1, max=4)}} if varying else None
    mixed = spec("mixed", lambda: model, x, get_dynamic_shapes=lambda _: shapes)
    made = export_model(mixed, variant("mixed"), tmp_path, log=print)
    described = _described(made)
    assert [value.name for value in described.values] == ["output 0", "linear", "linear_1", "matmul"]
    assert described.left_out == []
    given = _outputs_with_taps(made, runner_binary, tmp_path)
    expected = [value.detach().numpy() for value in model.values(x)]
    for wanted, value in zip([expected[-1], *expected[:-1]], given, strict=True):
        np.testing.assert_allclose(value, wanted, rtol=1e-4, atol=1e-5)


def test_operators_outside_of_delegates_are_left_out_and_named(tmp_path: Path) -> None:
    portable = RESIDUAL.with_options({"backend": "portable"})
    described = _described(export_model(portable, variant("residual"), tmp_path, log=print))
    assert [value.name for value in described.values] == ["output 0"]
    assert described.left_out == ["conv2d", "linear"]


def _described(model: ExportedModel) -> Taps:
    assert model.taps is not None
    return Taps.read(model.taps)


def _outputs_with_taps(model: ExportedModel, runner: RunnerBinary, folder: Path) -> list[npt.NDArray]:
    assert model.tapped is not None
    program = folder / "tapped.pte"
    write_restored(model.pte, model.tapped, program)
    return outputs_of(replace(model, pte=program), runner, folder)


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
