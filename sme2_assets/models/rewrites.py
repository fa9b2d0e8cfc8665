"""Other ways to write a model, which give the same numbers by other operators: `toy_cnn@rewrite=linear`.

A rewrite replaces modules of the built network, so nobody's file is edited, and the network as it was stays
the reference that outputs are compared with. What it brings is measured like any model (`sme2 advise`).
Nothing is imported from torch before a rewrite is applied.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sme2_assets.errors import ExportError, did_you_mean
from sme2_assets.models.spec import EagerModel, ModelSpec, cached_sha256

if TYPE_CHECKING:
    from torch import nn

OPTION = "rewrite"
# By this an error is known that is none: there is nothing in the model that the rewrite is for.
NOTHING = "changes nothing in this model"


@dataclass(frozen=True)
class Rewrite:
    """What is done, in words and as the code to write; `one` gives the module to put in a module's place."""

    what: str
    code: str
    one: Callable[[Any], Any | None]


def rewritten(spec: ModelSpec, text: str) -> ModelSpec:
    """The model with these rewrites, named and joined by `+`, in that order."""
    names = text.split("+")
    for name in names:
        if name not in REWRITES:
            raise ExportError(
                f"There is no rewrite {name!r}{did_you_mean(name, list(REWRITES))}",
                f"the rewrites are {', '.join(REWRITES)}",
            )
    if spec.factory is None:
        raise ExportError(
            f"{spec.title} is a finished program: its operators are what they are",
            "rewrite the model that it was exported from",
        )
    factory = spec.factory

    def build(**options: Any) -> EagerModel:
        del options[OPTION]
        return _Rewritten(factory(**options), names)

    return replace(
        spec,
        factory=build,
        values=tuple(sorted({**dict(spec.values), OPTION: text}.items())),
        identify=lambda: {**spec.identify(), "rewrites": cached_sha256(Path(__file__))},
    )


class _Rewritten:
    """What a factory built, with one more thing to substitute."""

    def __init__(self, eager: EagerModel, names: list[str]) -> None:
        self._eager, self._names = eager, names

    def __getattr__(self, name: str) -> Any:
        return getattr(self._eager, name)

    def substitute(self, model: nn.Module) -> nn.Module:
        own = getattr(self._eager, "substitute", None)
        if own is not None:
            model = own(model) or model
        for name in self._names:
            if not apply(REWRITES[name], model, self._eager.get_example_inputs()):
                raise ExportError(f"The rewrite {name!r} {NOTHING}", f"it is for: {REWRITES[name].what}")
        return model


def apply(rewrite: Rewrite, model: nn.Module, inputs: tuple[Any, ...]) -> list[str]:
    """Replaces what the rewrite is for; gives the paths of what was replaced."""
    paths = [path for path, module in model.named_modules() if path and rewrite.one(module) is not None]
    if paths:
        _fold_batch_norms(model, inputs)
    for path in paths:
        other = rewrite.one(model.get_submodule(path))
        assert other is not None
        _put(model, path, other.eval())
    return paths


def _put(model: nn.Module, path: str, module: nn.Module) -> None:
    parent, _, name = path.rpartition(".")
    setattr(model.get_submodule(parent), name, module)


def _fold_batch_norms(model: nn.Module, inputs: tuple[Any, ...]) -> None:
    """Into the convolution whose output they take: once that is no convolution, nothing else does.

    Which one that is shows when the model runs. Should something else take the same output, the outputs of
    the model are others, and the export tells.
    """
    import torch
    from torch import nn
    from torch.nn.utils.fusion import fuse_conv_bn_eval

    made: dict[int, tuple[str, Any]] = {}
    follows: dict[str, str | None] = {}

    def hook(path: str) -> Callable[..., None]:
        def look(module: Any, given: tuple[Any, ...], output: Any) -> None:
            if isinstance(module, nn.Conv2d):
                # The output is kept, so that no other tensor gets its identity.
                made[id(output)] = (path, output)
            else:
                # A module that runs twice has two uses: neither is folded.
                before = None if path in follows else made.get(id(given[0]), (None,))[0]
                follows[path] = before

        return look

    hooks = [
        module.register_forward_hook(hook(path))
        for path, module in model.named_modules()
        if isinstance(module, nn.Conv2d | nn.BatchNorm2d)
    ]
    with torch.no_grad():
        model(*inputs)
    for each in hooks:
        each.remove()
    taken = list(follows.values())
    for norm, convolution in follows.items():
        if convolution is not None and taken.count(convolution) == 1:
            folded = fuse_conv_bn_eval(model.get_submodule(convolution), model.get_submodule(norm))
            _put(model, convolution, folded)
            _put(model, norm, nn.Identity())


def _is_pointwise(module: Any) -> bool:
    from torch import nn

    return isinstance(module, nn.Conv2d) and (
        module.kernel_size == (1, 1)
        and module.stride == (1, 1)
        and module.padding == (0, 0)
        and module.groups == 1
    )


def _linear(module: Any) -> Any | None:
    """Of a 1x1 convolution: the matrix product that it is, with the channels last."""
    from torch import nn

    if not _is_pointwise(module):
        return None

    class PointwiseLinear(nn.Linear):
        def forward(self, x: Any) -> Any:
            return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)

    linear = PointwiseLinear(module.in_channels, module.out_channels, bias=module.bias is not None)
    linear.weight = nn.Parameter(module.weight.flatten(1))
    linear.bias = module.bias
    return linear


def _framed(module: Any) -> Any | None:
    """Of a 1x1 convolution: the same with a frame of zeros around the image, which is cut off again."""
    from torch import nn

    if not _is_pointwise(module):
        return None

    class FramedConvolution(nn.Conv2d):
        def forward(self, x: Any) -> Any:
            return super().forward(x)[:, :, 1:-1, 1:-1]

    framed = FramedConvolution(
        module.in_channels, module.out_channels, 1, padding=1, bias=module.bias is not None
    )
    framed.weight, framed.bias = module.weight, module.bias
    return framed


def _two_channels(module: Any) -> Any | None:
    """Of a convolution of one channel: a second channel of zeros, so that it is not taken for depthwise."""
    import torch
    from torch import nn

    if not isinstance(module, nn.Conv2d) or module.in_channels != 1:
        return None

    class TwoChannelConvolution(nn.Conv2d):
        def forward(self, x: Any) -> Any:
            return super().forward(torch.cat([x, torch.zeros_like(x)], dim=1))

    wide = TwoChannelConvolution(
        2,
        module.out_channels,
        module.kernel_size,
        stride=module.stride,
        padding=module.padding,
        dilation=module.dilation,
        bias=module.bias is not None,
        padding_mode=module.padding_mode,
    )
    wide.weight = nn.Parameter(torch.cat([module.weight, torch.zeros_like(module.weight)], dim=1))
    wide.bias = module.bias
    return wide


REWRITES = {
    "linear": Rewrite(
        "1x1 convolutions as linear layers over the channels",
        "x = linear(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)   # linear.weight = conv.weight.flatten(1)",
        _linear,
    ),
    "framed": Rewrite(
        "1x1 convolutions with a frame of zeros around the image, cut off again",
        "x = conv(x)[:, :, 1:-1, 1:-1]   # conv has kernel_size=1, padding=1",
        _framed,
    ),
    "two_channels": Rewrite(
        "convolutions of one input channel with a second channel of zeros",
        "x = conv(torch.cat([x, torch.zeros_like(x)], dim=1))   # conv.weight with a second channel of zeros",
        _two_channels,
    ),
}
