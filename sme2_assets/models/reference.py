"""The outputs of the eager model: the values that a program is judged by.

Belongs here: running the eager model, over several inferences where it has state; what kind of values its
outputs are (indices, numbers too small to compare, not finite). Does not: the outputs of a program.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sme2_assets.evidence.numerics import Ranking, below_normal
from sme2_assets.models.inputs import ModelInputs, flat_tensors, tensor_array

# Inferences to compare for a model with state: wrong initial state shows in the first, state that is lost in
# the second.
STEPS = 3

# Operators that return indices, and the position of the indices among their results.
_RANKING = {"topk": 1, "sort": 1, "argmax": None, "argmin": None, "max": 1, "min": 1}
_PACKING = "_pack_padded_sequence"
# Operators that sum products, as they arrive at a dispatch mode.
_PRODUCTS = ("convolution", "mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "linear")
# Operators that write infinities on purpose, as in masks.
_FILLING = ("full", "fill", "masked_fill", "where", "scalar_tensor", "lift_fresh")


@dataclass(frozen=True)
class Reference:
    """The outputs of every inference, and its side effects."""

    outputs: list[list[Any]]
    inputs_after: list[list[Any]]
    """The inputs as each inference left them, flat."""
    state: tuple[str, ...]
    """Buffers that an inference changes."""
    rankings: dict[int, Ranking]
    """For outputs that are indices: what they point into."""

    def expected(self, changed_inputs: list[int]) -> list[Any]:
        """The outputs of a program over all inferences; each time, the inputs that it writes come first."""
        return [
            value
            for outputs, inputs in zip(self.outputs, self.inputs_after, strict=True)
            for value in (*(inputs[index] for index in changed_inputs), *outputs)
        ]


def run_reference(model: Any, inputs: ModelInputs) -> Reference:
    """Run the model on copies of its inputs, from its initial state, which is restored afterwards."""
    import torch

    first, after = [], []
    with state_kept(model), torch.no_grad():
        before = _versions(model)
        copies = inputs.copied()
        leaves = copies.flat()
        ranked: list[tuple[Any, Ranking]] = []
        with _calling_instead(functools.partial(_call_and_note_ranking, ranked)):
            outputs = flat_tensors(model(*copies.args, **copies.kwargs))
        rankings = _rankings(ranked, outputs)
        state = tuple(name for name, version in _versions(model).items() if before.get(name) != version)
        # Copied: a later inference may change the outputs of an earlier one.
        first.append([value.clone() for value in outputs])
        after.append(leaves)
        for _ in range(STEPS - 1 if state else 0):
            copies = inputs.copied()
            first.append([value.clone() for value in flat_tensors(model(*copies.args, **copies.kwargs))])
            after.append(copies.flat())
    return Reference(first, after, state, {} if state else rankings)


def show_to_observers(prepared: Any, inputs: ModelInputs, initial: Mapping[str, Any]) -> None:
    """Runs a model that is being quantised, from its initial state; several inferences if it has state.

    The observers' own buffers are not in `initial`, so they keep what they have seen.
    """
    set_buffers(prepared, initial)
    before = _versions(prepared)
    inputs.call(prepared)
    after = _versions(prepared)
    for _ in range(STEPS - 1 if any(before.get(name) != after.get(name) for name in initial) else 0):
        inputs.call(prepared)


def set_buffers(model: Any, values: Mapping[str, Any]) -> None:
    """Set the model's buffers to these values; names that it does not have are ignored."""
    import torch

    with torch.no_grad():
        for name, buffer in model.named_buffers():
            if name in values:
                buffer.copy_(values[name])


def products_of_halves_in_float() -> Any:
    """A mode in which torch sums products of halves in float32 and rounds the result, as its own kernels do.

    Where a CPU has no instructions for halves, those take a hundred times as long. Operands of different
    types are left to them: they are refused.
    """
    import torch
    from torch.utils import _pytree

    def call(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        if getattr(func, "_opname", "") in _PRODUCTS:
            tensors = [leaf for leaf in _pytree.tree_leaves(args) if isinstance(leaf, torch.Tensor)]
            if all(tensor.dtype == torch.half for tensor in tensors):
                args = _pytree.tree_map_only(torch.Tensor, torch.Tensor.float, args)
                return func(*args, **kwargs).half()
        return func(*args, **kwargs)

    return _calling_instead(call)


def _calling_instead(call: Callable[[Any, Any, dict[str, Any]], Any]) -> Any:
    """A mode in which torch, instead of an operator, calls this with the operator and its arguments."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Calling(TorchDispatchMode):
        supports_higher_order_operators = True

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return call(func, args, kwargs or {})

    return Calling()


@contextlib.contextmanager
def state_kept(model: Any) -> Iterator[None]:
    """Restores the buffers of a model afterwards."""
    before = dict(model.named_buffers())
    values = {name: buffer.clone() for name, buffer in before.items()}
    try:
        yield
    finally:
        for name, buffer in before.items():
            owner, _, attribute = name.rpartition(".")
            setattr(model.get_submodule(owner), attribute, buffer)
        set_buffers(model, values)


def _versions(model: Any) -> dict[str, tuple[int, int]]:
    """By name, values that differ once a buffer has been changed in place or replaced."""
    return {name: (id(buffer), buffer._version) for name, buffer in model.named_buffers()}


def not_finite(outputs: list[Any]) -> str | None:
    """Which output has NaN or infinity, in words; None if all are finite."""
    for index, value in enumerate(outputs):
        if value.is_floating_point() and (bad := int((~value.isfinite()).sum())):
            what = "NaN" if bool(value.isnan().any()) else "infinity"
            return f"output {index} has {what} in {bad:,} of {value.numel():,} elements"
    return None


def blame_first_not_finite(model: Any, inputs: ModelInputs) -> None:
    """Runs the model and raises at the first operator that turns finite values into ones that are not."""
    import torch
    from torch.utils import _pytree

    def bad(values: Any) -> bool:
        return any(
            isinstance(value, torch.Tensor) and value.is_floating_point() and not bool(value.isfinite().all())
            for value in _pytree.tree_leaves(values)
        )

    def call(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        result = func(*args, **kwargs)
        name = getattr(func, "_opname", "")
        if not name.startswith(_FILLING) and bad(result) and not bad((args, kwargs)):
            raise ArithmeticError("the first value that is not finite comes from here")
        return result

    with state_kept(model), torch.no_grad(), _calling_instead(call):
        inputs.call(model)


def too_small(outputs: list[Any]) -> list[str]:
    """A note on each output with values below the smallest normal number, which kernels flush to zero."""
    notes = []
    for index, value in enumerate(outputs):
        array = tensor_array(value)
        if count := int(np.count_nonzero(below_normal(array))):
            notes.append(
                f"output {index} of the eager model has {count:,} of {array.size:,} values below the "
                f"smallest normal number ({np.finfo(array.dtype).tiny:.2g}): they are compared as zero"
            )
    return notes


def _call_and_note_ranking(
    ranked: list[tuple[Any, Ranking]], func: Any, args: Any, kwargs: dict[str, Any]
) -> Any:
    """Calls an operator; if it ranks values, notes the indices that it returns and what they point into."""
    import torch

    if (name := getattr(func, "_opname", "")) == _PACKING:
        # torch.export would fail somewhere inside the layer that gets it.
        raise NotImplementedError(f"{name} makes a packed sequence, and a program has none")
    result = func(*args, **kwargs)
    if name in _RANKING:
        # The largest value of a whole tensor comes without its index.
        place = _RANKING[name]
        indices = result if place is None else result[place] if isinstance(result, tuple) else None
        if isinstance(indices, torch.Tensor) and indices.dtype == torch.int64:
            named = {it.name: it.default_value for it in func._schema.arguments}
            named |= {**dict(zip(named, args, strict=False)), **kwargs}
            ranked.append((indices, _ranking(named)))
    return result


def _rankings(ranked: list[tuple[Any, Ranking]], outputs: list[Any]) -> dict[int, Ranking]:
    """By output: those with the same memory and shape as indices that were noted."""
    return {
        index: ranking
        for index, value in enumerate(outputs)
        for indices, ranking in ranked
        if value.shape == indices.shape and value.data_ptr() == indices.data_ptr()
    }


def _ranking(named: dict[str, Any]) -> Ranking:
    values, axis = tensor_array(named["self"].clone()), named["dim"]
    if axis is None:
        values, axis = values.ravel(), 0
    return Ranking(values, axis, bool(named.get("sorted", True)))
