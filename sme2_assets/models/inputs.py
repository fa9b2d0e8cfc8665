"""What goes into a model and comes out of it, on the way to a program that takes and gives flat tensors.

Models take nested, keyword and constant inputs; the runner gives a program its inputs one by one, in the
program's own order, each from a file. What a file cannot hold (None, text) is bound to the model before
it is exported; what is no tensor in the outputs is left out of the program or refused.
"""

from __future__ import annotations

import contextlib
import inspect
import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from sme2_assets.errors import ExportError
from sme2_assets.models.spec import SEED, EagerModel

_NUMBERS = (bool, int, float)


@dataclass(frozen=True)
class ModelInputs:
    """The example inputs of a model, and which of their dimensions may change."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    dynamic_shapes: Any = None

    def call(self, model: Callable[..., Any]) -> Any:
        return model(*self.args, **self.kwargs)

    def at(self, precision: str) -> ModelInputs:
        """Floating point values at the precision's own type; integers are indices and stay as they are."""
        import torch
        from torch.utils import _pytree

        dtype = torch.float16 if precision == "fp16" else torch.float32
        args, kwargs = _pytree.tree_map(
            lambda value: value.to(dtype) if is_float(value) else value, (self.args, self.kwargs)
        )
        return replace(self, args=args, kwargs=kwargs)


def example_inputs(eager: EagerModel) -> ModelInputs:
    """The inputs that the model's author gives, whichever way."""
    args = eager.get_example_inputs()
    kwargs = _optional(eager, "get_example_kwarg_inputs") or {}
    if not isinstance(args, (tuple, list)) or not isinstance(kwargs, Mapping):
        raise ExportError(
            "get_example_inputs gives no tuple, or get_example_kwarg_inputs no dict",
            "return `(tensor,)` for a single input",
        )
    return ModelInputs(tuple(args), dict(kwargs), _optional(eager, "get_dynamic_shapes"))


def calibration_inputs(eager: EagerModel, inputs: ModelInputs, count: int) -> list[ModelInputs]:
    """The author's own data where there are such, else seeded noise like the example inputs."""
    import torch
    from torch.utils import _pytree

    own = getattr(eager, "get_calibration_inputs", None)
    if own is not None:
        return [replace(inputs, args=tuple(batch)).at("fp32") for batch in own(count)]
    generator = torch.Generator().manual_seed(SEED)

    def similar(value: Any) -> Any:
        # Integers are indices or masks: random ones would be out of range.
        if not is_float(value):
            return value
        noise = torch.randn(value.shape, generator=generator, dtype=value.dtype)
        if value.numel() < 2 or not bool(value.std() > 0):
            return noise
        return (noise * value.std() + value.mean()).clamp(value.min(), value.max())

    # The example itself first: what it is judged by must lie within the ranges.
    batches = [inputs]
    for _ in range(count - 1):
        args, kwargs = _pytree.tree_map(similar, (inputs.args, inputs.kwargs))
        batches.append(replace(inputs, args=args, kwargs=kwargs))
    return batches


def bind_constants(model: Any, inputs: ModelInputs) -> ModelInputs:
    """Take None and text out of the inputs: the model then gets them by itself.

    `forward` is replaced on the instance and not wrapped in another module, so that the paths of the
    modules stay those the author knows.
    """
    signature = inspect.signature(model.forward)
    positional = list(signature.parameters)[: len(inputs.args)]
    names = {name for name, value in zip(positional, inputs.args, strict=False) if _is_constant(value)}
    names |= {name for name, value in inputs.kwargs.items() if _is_constant(value)}
    if not names:
        _refuse_nested_constants(inputs)
        return inputs
    given = {**dict(zip(positional, inputs.args, strict=False)), **inputs.kwargs}
    bound = {name: given.pop(name) for name in names}
    original = model.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        named = dict(zip(given, args, strict=False))
        return original(**named, **kwargs, **bound)

    rest = [parameter for name, parameter in signature.parameters.items() if name in given]
    by_name = [parameter.replace(kind=inspect.Parameter.POSITIONAL_OR_KEYWORD) for parameter in rest]
    forward.__signature__ = signature.replace(parameters=by_name)  # type: ignore[attr-defined]
    model.forward = forward
    # Everything by name now: what stood after a bound argument has moved up.
    remaining = ModelInputs((), given, _without(inputs.dynamic_shapes, positional, names))
    _refuse_nested_constants(remaining)
    return remaining


def give_tensors_only(model: Any, outputs: Any, say: Callable[[str], None]) -> Any:
    """Leave None and numbers out of what the model gives; refuse what is neither those nor tensors.

    Gives the outputs as the model gives them from now on.
    """
    import torch
    from torch.utils import _pytree

    leaves = [(_path(path), leaf) for path, leaf in _pytree.tree_leaves_with_path(outputs)]
    for path, leaf in leaves:
        if not isinstance(leaf, (torch.Tensor, type(None), *_NUMBERS)):
            raise ExportError(
                f"The model's output {path} is a {type(leaf).__name__}, and a program gives only tensors",
                "write a hook `wrap(model)` that gives a module with tensor outputs",
            )
    others = [(path, leaf) for path, leaf in leaves if not isinstance(leaf, torch.Tensor)]
    if len(others) == len(leaves):
        found = ", ".join(f"{path}: {type(leaf).__name__}" for path, leaf in others) or "none"
        raise ExportError(
            f"The model gives no tensor (its outputs are {found})",
            "write a hook `wrap(model)` that gives a module with tensor outputs",
        )
    if not others:
        return outputs
    say(f"not part of the program: {', '.join(f'output {path} ({leaf!r})' for path, leaf in others)}")
    original = model.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        return tuple(flat_tensors(original(*args, **kwargs)))

    forward.__signature__ = inspect.signature(original)  # type: ignore[attr-defined]
    model.forward = forward
    return tuple(flat_tensors(outputs))


def exported_graph(model: Any, inputs: ModelInputs) -> Any:
    """The model as torch.export sees it with these inputs."""
    import torch

    # Where it fails it prints the whole graph, besides what it raises.
    with contextlib.redirect_stderr(io.StringIO()):
        return torch.export.export(
            model, inputs.args, inputs.kwargs, dynamic_shapes=inputs.dynamic_shapes, strict=False
        )


def flat_inputs(exported_program: Any, inputs: ModelInputs) -> list[Any]:
    """The inputs in the order in which the program takes them, checked against what it says it takes."""
    import torch
    from torch.utils import _pytree

    leaves, structure = _pytree.tree_flatten((inputs.args, inputs.kwargs))
    wanted = exported_program.call_spec.in_spec
    names = exported_program.graph_signature.user_inputs
    if structure != wanted or len(names) != len(leaves):
        raise ExportError(
            f"The program takes its inputs as {wanted}, the example inputs are {structure}",
            "give the keyword inputs in the order of the parameters of `forward`",
        )
    placeholders = {node.name: node for node in exported_program.graph.find_nodes(op="placeholder")}
    for index, (name, leaf) in enumerate(zip(names, leaves, strict=True)):
        value = placeholders[name].meta.get("val") if name in placeholders else None
        if isinstance(value, torch.Tensor) and value.dtype != leaf.dtype:
            raise ExportError(
                f"Input {index} ({name}) of the program is {value.dtype}, the example input is {leaf.dtype}",
                "this is a defect: please report it with the model",
            )
    return leaves


def input_array(value: Any) -> Any:
    """An input as the runner reads it: a tensor's values, or a number as an array without dimensions."""
    import numpy as np
    import torch

    if isinstance(value, torch.Tensor):
        return tensor_array(value)
    types: dict[type, Any] = {bool: np.bool_, int: np.int64, float: np.float64}
    return np.array(value, dtype=types[type(value)])


def tensor_array(tensor: Any) -> Any:
    import torch

    # NumPy has no bfloat16; float32 holds all its values.
    plain = tensor.to(torch.float32) if tensor.dtype == torch.bfloat16 else tensor
    return plain.detach().cpu().contiguous().numpy()


def is_float(value: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor) and value.is_floating_point()


def flat_tensors(outputs: Any) -> list[Any]:
    import torch
    from torch.utils import _pytree

    return [leaf for leaf in _pytree.tree_leaves(outputs) if isinstance(leaf, torch.Tensor)]


def _optional(eager: Any, name: str) -> Any:
    method = getattr(eager, name, None)
    return method() if method is not None else None


def _is_constant(value: Any) -> bool:
    return value is None or isinstance(value, str)


def _refuse_nested_constants(inputs: ModelInputs) -> None:
    import torch
    from torch.utils import _pytree

    for path, leaf in _pytree.tree_leaves_with_path((inputs.args, inputs.kwargs)):
        if not isinstance(leaf, (torch.Tensor, *_NUMBERS)):
            raise ExportError(
                f"The example input {_path(path[1:])} is a {type(leaf).__name__} inside another input",
                "a program takes tensors and numbers: write a hook `wrap(model)` that builds the rest",
            )


def _without(dynamic_shapes: Any, positional: list[str], names: set[str]) -> Any:
    """The dynamic shapes of the inputs that remain, by name."""
    if dynamic_shapes is None:
        return None
    if isinstance(dynamic_shapes, Mapping):
        named = dict(dynamic_shapes)
    else:
        named = dict(zip(positional, dynamic_shapes, strict=False))
    return {name: shape for name, shape in named.items() if name not in names}


def _path(path: tuple[Any, ...]) -> str:
    from torch.utils import _pytree

    return _pytree.keystr(path) or "[0]"
