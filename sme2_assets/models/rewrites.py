"""Changes to a model that need no edit of its file, as options of every model; `sme2 advise` tries them.

`toy_cnn@rewrite=linear`: another way to write it that gives the same numbers with other operators. It
replaces modules of the built network, or operators of its exported graph; outputs are still compared with
the original network.
`toy_cnn@keep=head`: mixed precision, by names of modules that stay in fp32 at every other precision.
Nothing is imported from torch before a change is applied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sme2_assets.errors import ExportError, did_you_mean
from sme2_assets.models.inputs import ModelInputs, example_inputs
from sme2_assets.models.reference import state_kept
from sme2_assets.models.spec import EagerModel, ModelSpec, cached_sha256

if TYPE_CHECKING:
    from torch import nn

OPTION, KEEP = "rewrite", "keep"
# Marks the error that is not a failure: the model has nothing that the rewrite applies to.
NOTHING = "changes nothing in this model"


@dataclass(frozen=True)
class Rewrite:
    """What is done, in words and as the code to write.

    `one` returns a replacement for a module, or None. `graph` edits the graph of an exported program, and
    returns it with the code to write, line by line; none: it changed nothing.
    """

    what: str
    code: str = ""
    one: Callable[[Any], Any | None] | None = None
    graph: Callable[[Any], tuple[Any, list[str]]] | None = None


def with_changes(spec: ModelSpec, changes: Mapping[str, str]) -> ModelSpec:
    """The model with these options added; each is a list joined by `+`, as a comma separates options."""
    names, kept = (changes[option].split("+") if option in changes else [] for option in (OPTION, KEEP))
    for name in names:
        if name not in REWRITES:
            raise ExportError(
                f"There is no rewrite {name!r}{did_you_mean(name, list(REWRITES))}",
                f"the rewrites are {', '.join(REWRITES)}",
            )
    if spec.factory is None:
        raise ExportError(
            f"{spec.title} is a finished program: its operators are what they are",
            "change the model that it was exported from",
        )
    factory = spec.factory

    def build(**options: Any) -> EagerModel:
        eager: Any = factory(**{name: it for name, it in options.items() if name not in changes})
        if kept:
            eager.keep_float = (*getattr(eager, "keep_float", ()), *kept)
        return _Rewritten(eager, names) if names else eager

    return replace(
        spec,
        factory=build,
        # At fp32 nothing is left to keep.
        precisions=tuple(it for it in spec.precisions if not kept or it != "fp32"),
        values=tuple(sorted({**dict(spec.values), **changes}.items())),
        identify=lambda: {**spec.identify(), **{it.stem: cached_sha256(it) for it in _CODE}},
    ).of_allowed_length()


# The code that decides what a rewrite makes.
_CODE = (Path(__file__), Path(__file__).with_name("graph_rewrites.py"))


class _Rewritten:
    """What a factory built, with more to substitute; and the code that rewrites of its graph stand for."""

    def __init__(self, eager: EagerModel, names: list[str]) -> None:
        self._eager, self._names = eager, names
        self.rewritten: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._eager, name)

    def substitute(self, model: nn.Module) -> nn.Module:
        own = getattr(self._eager, "substitute", None)
        if own is not None:
            model = own(model) or model
        for name in self._names:
            one = REWRITES[name].one
            if one is not None and not apply(one, model, example_inputs(self._eager)):
                raise _changes_nothing(name)
        return model

    def rewrite_graphs(self) -> Iterator[Callable[[Any], Any]]:
        """For each rewrite of the graph: from an exported program to a module to export in its place."""
        for name in self._names:
            graph = REWRITES[name].graph
            if graph is not None:
                yield partial(self._rewrite_graph, name, graph)

    def _rewrite_graph(self, name: str, graph: Callable[[Any], tuple[Any, list[str]]], program: Any) -> Any:
        module, written = graph(program)
        if not written:
            raise _changes_nothing(name)
        self.rewritten += written
        module.graph.lint()
        module.recompile()
        return module


def _changes_nothing(name: str) -> ExportError:
    return ExportError(f"The rewrite {name!r} {NOTHING}", f"it is for: {REWRITES[name].what}")


def apply(one: Callable[[Any], Any | None], model: nn.Module, inputs: ModelInputs) -> list[str]:
    """Replaces the modules that the rewrite is for; returns their paths."""
    paths = [path for path, module in model.named_modules() if path and one(module) is not None]
    if paths:
        _fold_batch_norms(model, inputs)
    for path in paths:
        other = one(model.get_submodule(path))
        assert other is not None
        _set_module(model, path, other.eval())
    return paths


def _set_module(model: nn.Module, path: str, module: nn.Module) -> None:
    parent, _, name = path.rpartition(".")
    setattr(model.get_submodule(parent), name, module)


def _fold_batch_norms(model: nn.Module, inputs: ModelInputs) -> None:
    """Folds batch norms into the convolutions before them: once replaced, nothing else would fold them.

    Running the model shows which convolution that is. If something else uses the same output, the model's
    outputs change, and the export reports it.
    """
    import torch
    from torch import nn
    from torch.nn.utils.fusion import fuse_conv_bn_eval

    made: dict[int, tuple[str, Any]] = {}
    follows: dict[str, str | None] = {}

    def hook(path: str) -> Callable[..., None]:
        def look(module: Any, given: tuple[Any, ...], output: Any) -> None:
            if isinstance(module, nn.Conv2d):
                # Keep the output, so that no other tensor gets its id.
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
    with state_kept(model), torch.no_grad():
        inputs.call(model)
    for each in hooks:
        each.remove()
    convolutions = list(follows.values())
    for norm, convolution in follows.items():
        if convolution is not None and convolutions.count(convolution) == 1:
            folded = fuse_conv_bn_eval(model.get_submodule(convolution), model.get_submodule(norm))
            _set_module(model, convolution, folded)
            _set_module(model, norm, nn.Identity())


def _is_pointwise(module: Any) -> bool:
    from torch import nn

    return isinstance(module, nn.Conv2d) and (
        module.kernel_size == (1, 1)
        and module.stride == (1, 1)
        and module.padding == (0, 0)
        and module.groups == 1
    )


def _linear(module: Any) -> Any | None:
    """For a 1x1 convolution: the same matrix product as a linear layer, with the channels last."""
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
    """For a 1x1 convolution: the same with a frame of zeros around the image, which is cut off again."""
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
    """For a convolution of one channel: a second channel of zeros, so that it is not taken for depthwise."""
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


def _delegated(program: Any) -> tuple[Any, list[str]]:
    from sme2_assets.models.graph_rewrites import delegate_refused

    return delegate_refused(program)


def _fused(program: Any) -> tuple[Any, list[str]]:
    from sme2_assets.models.graph_rewrites import fuse_transposes

    return fuse_transposes(program)


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
    "delegated": Rewrite(
        "operators that XNNPACK refuses, in a form that it takes or moved to where they split nothing",
        graph=_delegated,
    ),
    "fused": Rewrite("transposes that cancel or merge, fused", graph=_fused),
}
