"""Rewrites of the graph: XNNPACK's own partitioner judges them, and the numbers stay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from sme2_assets.models.export import load_libraries
from sme2_assets.models.graph_rewrites import FORMS, delegate_refused, fuse_transposes, refused_nodes
from sme2_assets.models.provenance import operator_name, origin_of


@pytest.fixture(scope="module", autouse=True)
def libraries() -> None:
    load_libraries()


def exported(model: nn.Module, *inputs: Any) -> Any:
    return torch.export.export(model, inputs, strict=False)


def again(module: Any, *inputs: Any) -> Any:
    module.graph.lint()
    module.recompile()
    return exported(module, *inputs)


def transposes(program: Any) -> int:
    names = ("aten.permute.default", "aten.transpose.int")
    return sum(operator_name(node) in names for node in program.graph.nodes)


def sqnr_db(wanted: torch.Tensor, given: torch.Tensor) -> float:
    wanted, given = wanted.double(), given.double()
    return float(10 * torch.log10(wanted.square().sum() / (wanted - given).square().sum().clamp(1e-20)))


class All(nn.Module):
    """Every operator that has another form, on an image of 8 channels; each by itself is refused at fp16."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        x = self.stem(x)
        first, second = x.chunk(2, 1)
        third, fourth = x.split(4, 2)
        fifth, sixth = x.split([3, 5], 3)
        rows = x.unbind(2)
        return [
            *(torch.add(x, x, alpha=2), torch.sub(x, x, alpha=3), x * 2, x / 3, 1 - x),
            *(x.mean((2, 3)), x.mean(1), x.sum((2, 3)), x.softmax(1), x**3, (x * x) ** 0.5),
            *(F.gelu(x), F.elu(x, 0.7), F.selu(x), F.celu(x, 1.5), F.softplus(x, 2), F.mish(x)),
            *(F.logsigmoid(x), F.hardsigmoid(x), F.glu(x, 1), first * second, third * fourth),
            *(torch.cat([sixth, fifth], 3), rows[0] * rows[1], x[:, -1].relu(), x.unsqueeze(1).relu()),
            *(x[:, :1].squeeze(1).relu(), x[:, :, :1, :1].squeeze((2, 3)).relu()),
            *(x.roll((1, -2), (2, 3)), x @ x.transpose(2, 3), F.scaled_dot_product_attention(x, x, x)),
            *(F.layer_norm(x, (8,)), F.group_norm(x, 2), F.rms_norm(x, (8,), eps=1e-5)),
            F.avg_pool2d(x, 3, 1, 1),
        ]


@pytest.mark.thorough
def test_xnnpack_refuses_every_operator_of_the_table_and_takes_its_other_form():
    torch.manual_seed(5)
    model, x = All().eval().half(), torch.randn(1, 3, 8, 8).half()
    program = exported(model, x)
    refused = refused_nodes(program)
    assert {operator_name(node) for node in program.graph.nodes if node.name in refused} == set(FORMS)
    module, written = delegate_refused(program)
    assert refused_nodes(again(module, x)) == set()
    assert any("test_graph_rewrites.py:" in line for line in written)
    for index, (wanted, given) in enumerate(zip(model(x), module(x), strict=True)):
        assert sqnr_db(wanted, given) > 45, index


class Function(nn.Module):
    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.conv, self.function = nn.Conv2d(4, 4, 3, padding=1), function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


class Camera(Function):
    """Bytes with the channels last; a mask as the result."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sign(self.conv(x.permute(0, 3, 1, 2).float())).permute(0, 2, 3, 1)


def test_an_operator_without_another_form_is_moved_to_where_it_splits_nothing():
    model, x = Camera(torch.relu).eval(), torch.randint(0, 255, (1, 8, 8, 4), dtype=torch.uint8)
    program = exported(model, x)
    # A transpose of bytes is refused too.
    assert len(refused_nodes(program)) == 3
    module, written = delegate_refused(program)
    after = again(module, x)
    refused = refused_nodes(after)
    assert [operator_name(it) for it in after.graph.nodes if it.name in refused] == [
        *("aten.to.dtype", "aten.sign.default")
    ]
    assert [line.split("   #")[0] for line in written] == [
        "move aten.to.dtype before the reshapes and transposes that it follows",
        "move aten.sign.default behind the reshapes and transposes that follow it",
    ]
    torch.testing.assert_close(module(x), model(x))


def test_what_xnnpack_takes_as_it_is_stays_as_it_is():
    """At fp32 it takes a GELU; and what it refuses between two layers has nowhere to go."""
    program = exported(Function(lambda x: torch.erf(F.gelu(x)).relu()), torch.randn(1, 4, 8, 8))
    assert delegate_refused(program)[1] == []


class Pixels(nn.Module):
    """Two linear layers on the channels of each pixel."""

    def __init__(self, normed: bool = False) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 4, bias=False)
        self.scale = nn.Parameter(torch.rand(4))
        self.norm = nn.LayerNorm(4) if normed else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x.permute(0, 2, 3, 1))
        y = self.second(torch.relu(self.first(y)) * 0.5) * self.scale
        return x + y.permute(0, 3, 1, 2)


@pytest.mark.parametrize(
    ("model", "before", "after"),
    [
        (Pixels(), 2, 0),
        (Function(lambda x: (x.permute(0, 2, 3, 1).relu() * 2).permute(0, 3, 1, 2)), 2, 0),
        (Function(lambda x: x.transpose(1, 2).relu().transpose(2, 3).sigmoid()), 2, 1),
        (Function(lambda x: (x.transpose(1, 2) + x.sin().transpose(1, 2)).cos()), 2, 1),
    ],
)
def test_transposes_that_cancel_or_merge_are_fused_and_the_numbers_stay(
    model: nn.Module, before: int, after: int
):
    x = torch.randn(2, 4, 5, 3)
    program = exported(model, x)
    assert transposes(program) == before
    module, written = fuse_transposes(program)
    fused = again(module, x)
    assert (transposes(fused), bool(written)) == (after, True)
    torch.testing.assert_close(module(x), model(x))
    layers = [origin_of(it).module for it in fused.graph.nodes if operator_name(it) == "aten.conv2d.default"]
    assert layers == (["first", "second"] if isinstance(model, Pixels) else [])


@pytest.mark.parametrize(
    ("model", "dtype"),
    [
        # A norm over the channels needs them last; at fp16 1x1 convolutions would be off the unit.
        (Pixels(normed=True), torch.float32),
        (Pixels(), torch.float16),
        (Function(lambda x: x.permute(0, 2, 3, 1).relu()), torch.float32),
        (Function(lambda x: x.transpose(1, 2).relu() + x), torch.float32),
    ],
)
def test_transposes_that_meet_no_other_one_stay(model: nn.Module, dtype: torch.dtype):
    shape = (1, 4, 4, 4)
    program = exported(model.to(dtype), torch.randn(shape, dtype=dtype))
    assert fuse_transposes(program)[1] == []


class Integers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(64, 8)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self.table(ids * 2 + 1) * 2, mask.sum(-1), ids * 2, 1 - ids


def test_arithmetic_with_integers_stays_as_it_is():
    model, inputs = Integers().eval(), (torch.arange(12).reshape(3, 4), torch.ones(3, 4, dtype=torch.int64))
    module, written = delegate_refused(exported(model, *inputs))
    assert written, "the multiplication of floats has another form"
    with torch.no_grad():
        for given, wanted in zip(again(module, *inputs).module()(*inputs), model(*inputs), strict=True):
            assert given.dtype == wanted.dtype
            torch.testing.assert_close(given, wanted)
