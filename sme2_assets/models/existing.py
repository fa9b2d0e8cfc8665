"""A .pte that was exported elsewhere: profiled as it is, on inputs made from its own description.

There is no eager model, so there is nothing to compare the outputs with; the arms are still compared with
each other.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sme2_assets.errors import ExportError
from sme2_assets.evidence.operators import ProgramOperators
from sme2_assets.models.artifact import OperatorCounts
from sme2_assets.models.attribution import XNNPACK_BACKEND, weights_of_delegate
from sme2_assets.models.lowering import called_operators
from sme2_assets.models.reference import STEPS
from sme2_assets.models.sources.pte import PROGRAM_REMEDY, weights_in
from sme2_assets.models.spec import SEED

# ExecuTorch's scalar types, by name, and the types they have in files: NumPy has no bfloat16, and float32
# holds all its values.
_DTYPES = {
    "BYTE": "uint8",
    "CHAR": "int8",
    "SHORT": "int16",
    "INT": "int32",
    "LONG": "int64",
    "HALF": "float16",
    "FLOAT": "float32",
    "DOUBLE": "float64",
    "BOOL": "bool",
    "BFLOAT16": "float32",
    "UINT16": "uint16",
    "UINT32": "uint32",
    "UINT64": "uint64",
}
# All inputs together. They are made in pieces, because the generator's numbers are wider than most types.
_LARGEST_INPUTS_BYTES = 1 << 30
_PIECE = 1 << 20


@dataclass(frozen=True)
class ProgramFacts:
    """What a program says about itself."""

    inputs: list[npt.NDArray]
    outputs: list[tuple[str, list[int]]]
    """Type and shape of each output; upper bounds where a dimension is dynamic."""
    delegates: int
    portable: dict[str, int]
    at_bounds: bool
    """Whether every input is as large as the program allows; if so, it runs at the sizes it states."""
    steps: int
    """Inferences in a row to compare: more than one where the method has state."""


def read_program(pte: Path, method: str, input_files: tuple[Path, ...] = ()) -> ProgramFacts:
    """The facts about a method and inputs for it: the given ones, or seeded ones that fit."""
    plan = next(plan for plan in _deserialised(pte).program.execution_plan if plan.name == method)
    wanted = [plan.values[index].val for index in plan.inputs]
    delegates, portable = called_operators(plan)
    inputs = _inputs_in_files(pte, wanted, input_files) if input_files else _seeded_inputs(pte, wanted)
    return ProgramFacts(
        inputs=inputs,
        outputs=[_type_and_shape(plan.values[index].val) for index in plan.outputs],
        delegates=delegates,
        portable=portable,
        at_bounds=all(
            list(array.shape) == list(value.sizes)
            for array, value in zip(inputs, wanted, strict=True)
            if type(value).__name__ == "Tensor"
        ),
        steps=STEPS if _has_state(plan) else 1,
    )


def require_weights(pte: Path, method: str, data: Path | None) -> None:
    """An error that names what is missing, if the method's weights are neither in the program nor in `data`:
    ExecuTorch crashes without them."""
    file = _deserialised(pte)
    plan = next(plan for plan in file.program.execution_plan if plan.name == method)
    tensors = [entry.val for entry in plan.values if type(entry.val).__name__ == "Tensor"]
    extra = [tensor.extra_tensor_info for tensor in tensors if tensor.extra_tensor_info is not None]
    needed = {info.fully_qualified_name for info in extra if info.location.name == "EXTERNAL"}
    for delegate in plan.delegates:
        if delegate.id == XNNPACK_BACKEND:
            needed |= weights_of_delegate(
                bytes(file.program.backend_delegate_data[delegate.processed.index].data)
            )
    inside = set(file.named_data.pte_data) if file.named_data is not None else set()
    missing = sorted(needed - inside - set(weights_in(data) if data is not None else ()))
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        where = f"{data.name} lacks" if data is not None else f"there is no {pte.stem}.ptd next to it with"
        raise ExportError(
            f"{pte.name} has weights in another file, and {where} {missing[0]}{more}",
            f"copy the .ptd that was exported with it next to it, as {pte.stem}.ptd",
        )


def _has_state(plan: Any) -> bool:
    """Whether an inference reads what an earlier one left: mutable buffers, initialised or not."""
    inputs, written = set(plan.inputs), set[int]()
    for chain in plan.chains:
        for instruction in chain.instructions:
            call = instruction.instr_args
            arguments = list(getattr(call, "args", None) or [])
            kernel = type(call).__name__ == "KernelCall"
            name = plan.operators[call.op_index].name if kernel else ""
            results = set()
            if kernel and not name.endswith("_"):
                last = plan.values[arguments[-1]].val
                results = {arguments[-1], *getattr(last, "items", [])}
            for index in arguments if kernel else []:
                value = plan.values[index].val
                planned = type(value).__name__ == "Tensor" and value.allocation_info is not None
                if planned and index not in inputs | written | results:
                    return True
            written |= set(arguments)
    return any(
        type(entry.val).__name__ == "Tensor" and entry.val.data_buffer_idx > 0 and entry.val.allocation_info
        for entry in plan.values
    )


def operator_counts(facts: ProgramFacts, program: ProgramOperators) -> OperatorCounts:
    """The counts of a program whose delegates are known by their serialised nodes."""
    delegated: dict[str, int] = {}
    for delegate in program.delegates:
        for node in delegate.nodes:
            delegated[node.kind] = delegated.get(node.kind, 0) + 1
    return OperatorCounts(facts.delegates, dict(sorted(delegated.items())), facts.portable)


def _deserialised(pte: Path) -> Any:
    from executorch.exir._serialize._program import deserialize_pte_binary

    try:
        content = pte.read_bytes()
    except OSError as error:
        raise ExportError(f"{pte.name} cannot be read ({error.strerror})", "check the file") from error
    # The offset of the root, then the identifier of a program.
    if content[4:6] != b"ET":
        raise ExportError(f"{pte.name} is not an ExecuTorch program", "give a .pte that ExecuTorch wrote")
    try:
        return deserialize_pte_binary(content)
    except Exception as error:
        raise ExportError(f"{pte.name} is broken: it cannot be read as a program", PROGRAM_REMEDY) from error


def _seeded_inputs(pte: Path, wanted: list[Any]) -> list[npt.NDArray]:
    total = sum(
        math.prod(max(size, 0) for size in value.sizes) * dtype.itemsize
        for value in wanted
        if (dtype := _dtype(value)) is not None
    )
    if total > _LARGEST_INPUTS_BYTES:
        raise ExportError(
            f"{pte.name} takes inputs of {total:,} bytes, and at most {_LARGEST_INPUTS_BYTES:,} are made",
            f"put your own next to it ({pte.stem}.input_0.npy, ...), or export it with smaller bounds",
        )
    generator = np.random.default_rng(SEED)
    return [_value(pte, index, value, generator) for index, value in enumerate(wanted)]


def _value(pte: Path, index: int, value: Any, generator: np.random.Generator) -> npt.NDArray:
    kind = type(value).__name__
    # Numbers are constants that the program was specialised for: it takes no others.
    if kind == "Int":
        return np.array(value.int_val, dtype=np.int64)
    if kind == "Double":
        return np.array(float(value.double_val), dtype=np.float64)
    if kind == "Bool":
        return np.array(value.bool_val, dtype=np.bool_)
    dtype = _dtype(value)
    if dtype is None:
        what = value.scalar_type.name.lower() if kind == "Tensor" else kind
        raise ExportError(
            f"Input {index} of {pte.name} is {what}, which no .npy file holds",
            "export it with another type for that input, and let the model convert it",
        )
    shape = tuple(value.sizes)
    if min(shape, default=0) < 0:
        raise ExportError(
            f"Input {index} of {pte.name} is said to be {list(shape)}, which is not a possible shape",
            PROGRAM_REMEDY,
        )
    # Wide integers are indices or masks, and 0 and 1 are both in almost every range; narrow ones are data.
    narrow = dtype in (np.dtype(np.int8), np.dtype(np.uint8))
    low, high = (np.iinfo(dtype).min, np.iinfo(dtype).max + 1) if narrow else (0, 2)
    values = np.empty(math.prod(shape), dtype)
    for start in range(0, values.size, _PIECE):
        piece = values[start : start + _PIECE]
        if np.issubdtype(dtype, np.floating):
            piece[:] = generator.standard_normal(piece.size)
        else:
            piece[:] = generator.integers(low, high, piece.size)
    return values.reshape(shape)


def _inputs_in_files(pte: Path, wanted: list[Any], files: tuple[Path, ...]) -> list[npt.NDArray]:
    if len(files) != len(wanted):
        raise ExportError(
            f"{pte.name} takes {len(wanted)} input(s) and {len(files)} file(s) are given",
            "give one .npy file for each input, in order",
        )
    arrays = []
    for index, (file, value) in enumerate(zip(files, wanted, strict=True)):
        try:
            array = np.load(file, allow_pickle=False)
        except (OSError, ValueError) as error:
            raise ExportError(
                f"{file.name} is not a .npy file ({error})",
                "give a NumPy file of one array: np.save(file, array), without Python objects",
            ) from error
        dtype = _dtype(value)
        if dtype is not None and (array.dtype != dtype or array.ndim != len(value.sizes)):
            raise ExportError(
                f"Input {index} of {pte.name} is {dtype} {list(value.sizes)}, {file.name} has {array.dtype} "
                f"{list(array.shape)}",
                "give values of that type and shape",
            )
        if dtype is not None and any(
            size > bound for size, bound in zip(array.shape, value.sizes, strict=True)
        ):
            raise ExportError(
                f"Input {index} of {pte.name} is {list(value.sizes)} at most, {file.name} has "
                f"{list(array.shape)}",
                "give values of that shape; the program was exported with it as the upper bound",
            )
        arrays.append(array)
    return arrays


def _dtype(value: Any) -> np.dtype | None:
    name = getattr(getattr(value, "scalar_type", None), "name", None)
    return np.dtype(_DTYPES[name]) if name in _DTYPES else None


def _type_and_shape(value: Any) -> tuple[str, list[int]]:
    dtype = _dtype(value)
    if dtype is None:
        return type(value).__name__.lower(), []
    return str(dtype), list(value.sizes)
