"""A .pte that somebody else exported: profiled as it is, on inputs made from its own description.

There is no eager model, and so nothing to compare the outputs with; the arms are still compared with
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
from sme2_assets.models.lowering import called_operators
from sme2_assets.models.spec import SEED

METHOD = "forward"
# ExecuTorch's scalar types, by name, as NumPy's.
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
}
_LARGEST_INPUT_BYTES = 4 << 30
PROGRAM_REMEDY = "export it again with the installed ExecuTorch, or remove the file"


@dataclass(frozen=True)
class ProgramFacts:
    """What a program says about itself."""

    inputs: list[npt.NDArray]
    outputs: list[tuple[str, list[int]]]
    """Type and shape of each output; upper bounds where a dimension is dynamic."""
    delegates: int
    portable: dict[str, int]


def read_program(pte: Path, input_files: tuple[Path, ...] = ()) -> ProgramFacts:
    """The facts of a .pte and inputs for it: the given ones, or seeded ones that fit."""
    program = _deserialised(pte)
    plans = {plan.name: plan for plan in program.execution_plan}
    if METHOD not in plans:
        raise ExportError(
            f"{pte.name} has no method {METHOD!r}, only {', '.join(sorted(plans)) or 'none at all'}",
            "export the method to profile under that name",
        )
    plan = plans[METHOD]
    wanted = [plan.values[index].val for index in plan.inputs]
    delegates, portable = called_operators(program)
    return ProgramFacts(
        inputs=_given(pte, wanted, input_files) if input_files else _made(pte, wanted),
        outputs=[_described(plan.values[index].val) for index in plan.outputs],
        delegates=delegates,
        portable=portable,
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
    # The size of the table, then the identifier of a program.
    if content[4:6] != b"ET":
        raise ExportError(f"{pte.name} is not an ExecuTorch program", "give a .pte that ExecuTorch wrote")
    try:
        return deserialize_pte_binary(content).program
    except Exception as error:
        raise ExportError(f"{pte.name} is broken: it cannot be read as a program", PROGRAM_REMEDY) from error


def _made(pte: Path, wanted: list[Any]) -> list[npt.NDArray]:
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
        raise ExportError(
            f"Input {index} of {pte.name} is {kind}, for which no values can be made", "export it otherwise"
        )
    shape = tuple(value.sizes)
    if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize > _LARGEST_INPUT_BYTES:
        raise ExportError(
            f"Input {index} of {pte.name} is said to be {list(shape)}, which is no shape of an input",
            PROGRAM_REMEDY,
        )
    if np.issubdtype(dtype, np.floating):
        return generator.standard_normal(shape).astype(dtype)
    # Wide integers are indices or masks, and both 0 and 1 are in almost every range; narrow ones are data.
    narrow = dtype in (np.dtype(np.int8), np.dtype(np.uint8))
    low, high = (np.iinfo(dtype).min, np.iinfo(dtype).max + 1) if narrow else (0, 2)
    return generator.integers(low, high, shape).astype(dtype)


def _given(pte: Path, wanted: list[Any], files: tuple[Path, ...]) -> list[npt.NDArray]:
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
            raise ExportError(f"{file.name} is not a .npy file ({error})", "write it with np.save") from error
        dtype = _dtype(value)
        if dtype is not None and (array.dtype != dtype or array.ndim != len(value.sizes)):
            raise ExportError(
                f"Input {index} of {pte.name} is {dtype} {list(value.sizes)}, {file.name} has {array.dtype} "
                f"{list(array.shape)}",
                "give values of that type and shape",
            )
        arrays.append(array)
    return arrays


def _dtype(value: Any) -> np.dtype | None:
    name = getattr(getattr(value, "scalar_type", None), "name", None)
    return np.dtype(_DTYPES[name]) if name in _DTYPES else None


def _described(value: Any) -> tuple[str, list[int]]:
    dtype = _dtype(value)
    if dtype is None:
        return type(value).__name__.lower(), []
    return str(dtype), list(value.sizes)
