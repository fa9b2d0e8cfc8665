"""Models of a few operators, each with one thing that an export must cope with or complain about."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sme2_assets.models.spec import PRECISIONS, ModelSpec, Variant
from sme2_assets.store import sha256_of_file


def spec(name: str, model: Callable[[], nn.Module], *inputs: Any, **more: Any) -> ModelSpec:
    """A model that no source knows; `more` are further attributes of what its factory gives."""

    class Eager:
        def get_eager_model(self) -> nn.Module:
            return model()

        def get_example_inputs(self) -> tuple[Any, ...]:
            return inputs

    for attribute, value in more.items():
        setattr(Eager, attribute, value)
    return ModelSpec(
        name=name,
        description=f"{name} of the tests",
        source="tests",
        place=__name__,
        factory=Eager,
        identify=_code,
        precisions=PRECISIONS,
    )


def _code() -> dict[str, str]:
    """Exports are kept between test runs: one of another model must not be taken for this one's."""
    return {path.name: sha256_of_file(path) for path in sorted(Path(__file__).parent.glob("*.py"))}


def thorough(*values: object) -> list[Any]:
    """Further values of a parameter, for `make test-all` alone."""
    return [pytest.param(value, marks=pytest.mark.thorough) for value in values]


def variant(name: str, precision: str = "fp32") -> Variant:
    return Variant(name, precision)


def values(*shape: int, seed: int = 3) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class Joined(nn.Module):
    """An activation after a sum, which XNNPACK runs by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.side = nn.Conv2d(4, 8, 3, padding=1), nn.Conv2d(4, 8, 1)
        self.head = nn.Linear(8, 3)

    def forward(self, image: Tensor) -> Tensor:
        x = torch.relu(self.stem(image) + self.side(image))
        return self.head(x.mean(dim=(2, 3)))


class Tangled(nn.Module):
    """Integers, nested, keyword and constant inputs; a dict of outputs with None and a number in it."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(16, 8)
        self.linear = nn.Linear(8, 8)

    def forward(
        self,
        tokens: Tensor,
        state: dict[str, Any],
        mode: str,
        scale: float,
        bias: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> dict[str, Any]:
        first, (second, third) = state["first"], state["rest"]
        x = self.linear(self.table(tokens)) * scale + first - second * third
        if bias is not None:
            x = x + bias
        if mode == "sharp":
            x = x * 2
        return {"x": x, "best": x.argmax(dim=-1), "cache": mask, "layers": 3}


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.inner(x)
        if y.sum() > 0:
            return y * 2
        return y


class Decomposing(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.linalg.svd(x)[1]


class Transforming(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.fft.rfft(x).abs()


class Mismatched(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.narrow = nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.narrow(x)


class Custom(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(_doubled(x))


@torch.library.custom_op("sme2_tests::doubled", mutates_args=())
def _doubled(x: Tensor) -> Tensor:
    return x * 2


@_doubled.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


class Sorting(nn.Module):
    """Exports and lowers; the runner has no kernel for it."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.sort(x)[0]


class Outer(nn.Module):
    """Something to be inside of: errors must name the inner module."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.before = nn.ReLU()
        self.block = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.block(self.before(x))


class Loud(nn.Module):
    """Exceeds what a half can hold in one layer, and comes back in the next."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.loud = nn.Linear(8, 8)
        self.last = nn.Linear(8, 4)
        nn.init.constant_(self.loud.weight, 30000.0)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x)) + 1
        x = self.loud(x)
        return self.last(x / 30000)


class Growing(nn.Module):
    """Takes sequences of any length; a batch norm in it is folded when it is lowered."""

    def __init__(self) -> None:
        super().__init__()
        self.before = nn.Conv2d(1, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.up = nn.Linear(8, 16)
        self.down = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.norm(self.before(x[:, None]))).mean(1)
        return self.down(torch.relu(self.up(y)))[:, : x.shape[1] - 1]


class Tiny(nn.Module):
    """Gives numbers below the smallest normal one."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) * 1e-41


class Ranking(nn.Module):
    """Indices of logits that come in pairs, nearly the same."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Any:
        y = self.inner(x)
        return torch.topk(torch.cat([y, y * (1 + 1e-4)], dim=-1), 5)


class Scaling(nn.Module):
    """Changes its input in place."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        x.mul_(2)
        return self.inner(x)


class Remembering(nn.Module):
    """Buffers that change: one that starts at zero, one that does not, one that is assigned."""

    counter: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)
        self.register_buffer("counter", torch.zeros(1))
        self.register_buffer("total", torch.full((8,), 3.0))
        self.register_buffer("last", torch.ones(2, 8))

    def forward(self, x: Tensor) -> Tensor:
        self.counter.add_(1)
        self.total.add_(x.sum(0))
        y = self.inner(x) + self.total * self.counter + self.last
        self.last = y * 0.5
        return y


class Choosing(nn.Module):
    """Branches with matrix products in them."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.second = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return torch.cond(x.sum() > 0, lambda v: self.second(v), lambda v: self.second(v) * 2, (x,))


class Dividing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        y = self.inner(x)
        return (y - y) / (y - y)


class Optional(nn.Module):
    """None between inputs that are given by position."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, mask: Tensor | None, x: Tensor) -> Tensor:
        y = self.inner(x)
        return y if mask is None else y + mask


class Halving(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x.half())


class Prompt(nn.Module):
    """Returns a view of its parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(values(1, 8))

    def forward(self) -> Tensor:
        return self.weight.reshape(1, 8, 1).expand(1, 8, 3)


class Prompted(nn.Module):
    """A module inside it returns a view of its parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.prompt = Prompt()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x + self.prompt().sum(dim=2))


class Bent(nn.Module):
    """XNNPACK's partitioner wants a PReLU whole, and XNNPACK takes only one of four dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.bend, self.second = nn.Linear(8, 8), nn.PReLU(), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.bend(self.first(x)))
