"""The inputs and outputs of a model, on the way to a program that takes and returns flat tensors.

Models take nested, keyword and constant inputs; the runner gives a program its inputs one by one, in the
program's own order, each from a file. Values that a file cannot hold (None, text) are bound to the model
before it is exported; outputs that are not tensors are left out of the program or refused.
"""

from __future__ import annotations

import contextlib
import inspect
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sme2_assets.errors import ExportError
from sme2_assets.models.spec import SEED, EagerModel, require_sizes
from sme2_assets.models.user_files import is_numbered

_NUMBERS = (bool, int, float)


@dataclass(frozen=True)
class ModelInputs:
    """The example inputs of a model, and which of their dimensions may change."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    dynamic_shapes: Any = None
    positional: tuple[str, ...] = ()
    """Names of inputs that were positional before constants were bound; those that remain are in `kwargs`."""

    def call(self, model: Callable[..., Any]) -> Any:
        """The model's outputs for copies of the inputs: it may change them in place."""
        copied = self.copied()
        return model(*copied.args, **copied.kwargs)

    def copied(self) -> ModelInputs:
        import torch

        return self._mapped(lambda value: value.clone() if isinstance(value, torch.Tensor) else value)

    def flat(self) -> list[Any]:
        """In the order in which a program takes them."""
        from torch.utils import _pytree

        return _pytree.tree_leaves((self.args, self.kwargs))

    def like(self, batch: Sequence[Any]) -> ModelInputs:
        """The same inputs, with other values for those that the author gives by position."""
        if not self.positional:
            return replace(self, args=tuple(batch))
        named = {
            name: value for name, value in zip(self.positional, batch, strict=False) if name in self.kwargs
        }
        return replace(self, kwargs={**self.kwargs, **named})

    def at(self, precision: str) -> ModelInputs:
        """Floating point values in the precision's own type; integers are indices and stay as they are."""
        import torch

        dtype = torch.float16 if precision == "fp16" else torch.float32
        return self._mapped(lambda value: value.to(dtype) if is_float(value) else value)

    def _mapped(self, change: Callable[[Any], Any]) -> ModelInputs:
        from torch.utils import _pytree

        args, kwargs = _pytree.tree_map(change, (self.args, self.kwargs))
        return replace(self, args=args, kwargs=kwargs)


def example_inputs(eager: EagerModel) -> ModelInputs:
    """The inputs that the model's author gives, by position, by keyword or both."""
    args = eager.get_example_inputs()
    kwargs = _optional(eager, "get_example_kwarg_inputs") or {}
    if not isinstance(args, (tuple, list)) or not isinstance(kwargs, Mapping):
        raise ExportError(
            "get_example_inputs must return a tuple, and get_example_kwarg_inputs a dict",
            "return `(tensor,)` for a single input",
        )
    return ModelInputs(tuple(args), dict(kwargs), _optional(eager, "get_dynamic_shapes"))


def at_sizes(inputs: ModelInputs, sizes: Mapping[str, int]) -> ModelInputs:
    """The inputs resized to these sizes of dimensions, by their names in `get_dynamic_shapes`.

    Values are repeated or cut off, so they stay in range.
    """
    import torch
    from torch.utils import _pytree

    if not sizes:
        return inputs
    names, shapes = list(inputs.kwargs), inputs.dynamic_shapes or ()
    if isinstance(shapes, Mapping):
        shapes = [
            *(shape for name, shape in shapes.items() if name not in names),
            *(shapes.get(name) for name in names),
        ]
    dims = {dim.__name__: dim for dim in _pytree.tree_leaves(shapes) if hasattr(dim, "__name__")}
    require_sizes(sizes, {name: (dim.min, dim.max) for name, dim in dims.items()})

    def resized(value: Any, shape: Any) -> Any:
        axes = dict(enumerate(shape)) if isinstance(shape, (tuple, list)) else dict(shape or {})
        for axis, dim in axes.items():
            root = getattr(dim, "root", dim)
            if getattr(root, "__name__", None) in sizes and isinstance(value, torch.Tensor):
                size = sizes[root.__name__]
                wanted = dim.fn(size) if root is not dim else size
                times = -(-wanted // value.shape[axis])
                value = torch.cat([value] * times, dim=axis).narrow(axis, 0, wanted).contiguous()
        return value

    values = [*inputs.args, *inputs.kwargs.values()]
    values = list(map(resized, values, [*shapes, *[None] * (len(values) - len(shapes))]))
    count = len(inputs.args)
    return replace(inputs, args=tuple(values[:count]), kwargs=dict(zip(names, values[count:], strict=True)))


def given_inputs(inputs: ModelInputs, model: Any, files: Sequence[Path]) -> ModelInputs:
    """The inputs with values from files, matched by number or by parameter name."""
    import numpy as np
    import torch
    from torch.utils import _pytree

    leaves, structure = _pytree.tree_flatten((inputs.args, inputs.kwargs))
    places = [index for index, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    labels = [str(number) for number in range(len(places))]
    if not is_numbered(tuple(files)):
        parameters = list(inspect.signature(model.forward).parameters)
        names = [*parameters[: len(inputs.args)], *inputs.kwargs]
        top = [*inputs.args, *inputs.kwargs.values()]
        labels = [
            next(
                (name for name, value in zip(names, top, strict=False) if value is leaves[index]), str(number)
            )
            for number, index in enumerate(places)
        ]
        by_name = {file.stem: file for file in files}
        if set(by_name) != set(labels):
            raise ExportError(
                f"The model's inputs are {', '.join(labels)}, the given ones {', '.join(by_name)}",
                "give one array for each, with these names, or input_0, input_1, ... in this order",
            )
        files = [by_name[label] for label in labels]
    if len(files) != len(places):
        raise ExportError(
            f"The model takes {len(places)} input(s) and {len(files)} array(s) are given", "give one for each"
        )
    for label, index, file in zip(labels, places, files, strict=True):
        array, example = torch.from_numpy(np.load(file, allow_pickle=False)), leaves[index]
        floats = array.is_floating_point() and example.is_floating_point()
        if array.dim() != example.dim() or not (floats or array.dtype == example.dtype):
            raise ExportError(
                f"Input {label} is {_type_text(example)}, {file.name} has {_type_text(array)}",
                "give values of that type and shape",
            )
        leaves[index] = array
    args, kwargs = _pytree.tree_unflatten(leaves, structure)
    return replace(inputs, args=args, kwargs=kwargs)


def _type_text(tensor: Any) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


def calibration_inputs(eager: EagerModel, inputs: ModelInputs, count: int) -> list[ModelInputs]:
    """The author's own data if there are any, else seeded noise like the example inputs."""
    import torch

    own = getattr(eager, "get_calibration_inputs", None)
    if own is not None:
        return [inputs.like(batch).at("fp32") for batch in own(count)]
    generator = torch.Generator().manual_seed(SEED)

    def similar(value: Any) -> Any:
        # Integers are indices or masks: random ones could be out of range.
        if not is_float(value):
            return value
        noise = torch.randn(value.shape, generator=generator, dtype=value.dtype)
        if value.numel() < 2 or not bool(value.std() > 0):
            return noise
        return (noise * value.std() + value.mean()).clamp(value.min(), value.max())

    # The example itself first: the values it is judged by must be within the ranges.
    return [inputs, *(inputs._mapped(similar) for _ in range(count - 1))]


def bind_constants(model: Any, inputs: ModelInputs) -> ModelInputs:
    """Remove None and text from the inputs; the model then supplies them itself.

    `forward` is replaced on the instance, not wrapped in another module, so that module paths stay those the
    author knows.
    """
    signature = inspect.signature(model.forward)
    positional = list(signature.parameters)[: len(inputs.args)]
    names = {name for name, value in zip(positional, inputs.args, strict=False) if _is_constant(value)}
    names |= {name for name, value in inputs.kwargs.items() if _is_constant(value)}
    if not names:
        _refuse_nested_constants(inputs)
        return inputs
    named = {**dict(zip(positional, inputs.args, strict=False)), **inputs.kwargs}
    bound = {name: named.pop(name) for name in names}
    original = model.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        by_name = dict(zip(named, args, strict=False))
        return original(**by_name, **kwargs, **bound)

    rest = [parameter for name, parameter in signature.parameters.items() if name in named]
    keyword = [parameter.replace(kind=inspect.Parameter.POSITIONAL_OR_KEYWORD) for parameter in rest]
    forward.__signature__ = signature.replace(parameters=keyword)  # type: ignore[attr-defined]
    model.forward = forward
    # Everything by name from here: arguments after a bound one have moved up.
    dynamic_shapes = _without(inputs.dynamic_shapes, positional, names)
    remaining = ModelInputs((), named, dynamic_shapes, tuple(positional))
    _refuse_nested_constants(remaining)
    return remaining


def give_tensors_only(model: Any, outputs: Any, say: Callable[[str], None]) -> Any:
    """Drop None and numbers from the model's outputs; refuse anything else that is not a tensor.

    Returns the outputs as the model returns them from now on.
    """
    import torch
    from torch.utils import _pytree

    leaves = [(_path(path), leaf) for path, leaf in _pytree.tree_leaves_with_path(outputs)]
    for path, leaf in leaves:
        if not isinstance(leaf, (torch.Tensor, type(None), *_NUMBERS)):
            raise ExportError(
                f"The model's output {path} is a {type(leaf).__name__}, and a program returns only tensors",
                "write a hook `wrap(model)` that returns a module with tensor outputs",
            )
    others = [(path, leaf) for path, leaf in leaves if not isinstance(leaf, torch.Tensor)]
    if len(others) == len(leaves):
        found = ", ".join(f"{path}: {type(leaf).__name__}" for path, leaf in others) or "none"
        raise ExportError(
            f"The model returns no tensor (its outputs are {found})",
            "write a hook `wrap(model)` that returns a module with tensor outputs",
        )
    if not others and _is_plain(outputs):
        return outputs
    if others:
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

    # On failure it prints the whole graph, in addition to what it raises.
    with contextlib.redirect_stderr(io.StringIO()):
        return torch.export.export(
            model, inputs.args, inputs.kwargs, dynamic_shapes=inputs.dynamic_shapes, strict=False
        )


def flat_inputs(exported_program: Any, inputs: ModelInputs) -> list[Any]:
    """The inputs in the order in which the program takes them, checked against its own signature."""
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


def _is_plain(outputs: Any) -> bool:
    """Whether a program can describe how its outputs are nested; it cannot for what `torch.topk` returns."""
    from torch.utils import _pytree

    try:
        _pytree.treespec_dumps(_pytree.tree_structure(outputs))
    except NotImplementedError:
        return False
    return True


def _optional(eager: Any, name: str) -> Any:
    method = getattr(eager, name, None)
    return method() if method is not None else None


def _is_constant(value: Any) -> bool:
    return value is None or isinstance(value, str)


def _refuse_nested_constants(inputs: ModelInputs) -> None:
    import torch
    from torch.utils import _pytree

    for path, leaf in _pytree.tree_leaves_with_path((inputs.args, inputs.kwargs)):
        if isinstance(leaf, torch.Tensor) and leaf.is_complex():
            raise ExportError(
                f"The example input {_path(path[1:])} is {_type_text(leaf)}: programs have no such numbers",
                "give real and imaginary parts as a last dimension of two (torch.view_as_real), and compute "
                "with them apart",
            )
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
