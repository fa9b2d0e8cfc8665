"""From an exception of torch or ExecuTorch to the operator, module and line of the model that caused it.

The libraries report it in many ways, often only deep in a traceback. The frames of the traceback say more
than the text: which module's `forward` was running, and which node of the graph was being processed.
"""

from __future__ import annotations

import linecache
import re
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any

from sme2_assets.errors import ExportError, chain, first_line
from sme2_assets.evidence.operators import ProgramOperators
from sme2_assets.models.provenance import Origin, is_library, operator_name, origin_of, short_path

# Frames in these modules are the export's own, not the model's.
_OWN = ("differences", "export", "inputs", "lowering", "quantise", "reference")
# What torch says about two types that should be one, as in "expected m1 and m2 to have the same dtype, but
# got: float != c10::Half". The float is this export's doing.
_OTHER_TYPE = re.compile(r"(?:c10::)?\b(?:Half|BFloat16|half|bfloat16|float16)\b")
_MISSING_KERNEL = re.compile(r"Missing operator: \[\d+\] (?P<name>[\w:.]+)")
_REFUSED_CALL = re.compile(r"KernelCall failed at instruction \d+:\d+ in operator (?P<name>[\w:.]+\w)")
# What the kernel says about it: the innermost check has a reason, those around it have none.
_CHECK = re.compile(r"Check failed \((?P<check>.*)\):(?P<reason>[^\n]*)")
# What a model does that no program can do, by what is said of it, and what to do instead.
_IMPOSSIBLE = (
    (
        re.compile(r"\bCUDA\b|\bMPS\b|NVIDIA driver"),
        "it is built and run on the CPU: take `.cuda()`, `.to('cuda')` and `device='cuda'` out of the "
        "model's code, and make new tensors on the device of an input (`device=x.device`)",
    ),
    (
        re.compile(r"_pack_padded_sequence|PackedSequence"),
        "a program has no packed sequences: give the recurrent layer the padded tensor, without "
        "pack_padded_sequence, and mask or cut its output",
    ),
    (
        re.compile(r"complex64|complex128|Complex(?:Float|Double)"),
        "a program has no complex numbers: compute with real and imaginary parts apart, as a last dimension "
        "of two (what torch.view_as_real returns), or take that part out with a hook `substitute(model)`",
    ),
)
_PICKING = ("aten::nonzero", "aten::masked_select", "aten::unique")


@dataclass(frozen=True)
class Cause:
    """What is at fault, as far as it is known."""

    message: str
    operator: str | None
    origin: Origin
    is_complex: bool = False


def explain(error: BaseException, model: Any = None, graphs: tuple[Any, ...] = ()) -> Cause:
    """The operator, module and line behind an error during export or lowering.

    `graphs` are the graph modules that were being processed; those in the traceback are searched too.
    """
    links = list(chain(error))
    frames = [frame for link in links for frame in _frames(link)]
    text = "\n".join(map(str, links))
    node = _named_node(text, (*_graphs_in(frames), *graphs)) or _node_in(frames)
    if node is not None:
        name = operator_name(node) or str(node.target)
        return Cause(first_line(error), name, origin_of(node), _is_complex(node))
    return Cause(first_line(error), _operator_in(frames), _place_in(frames, model))


def failure(
    doing: str,
    error: BaseException,
    model: Any = None,
    graphs: tuple[Any, ...] = (),
    remedy: str | None = None,
    types_remedy: str | None = None,
) -> ExportError:
    """An error for people: what was being done, what went wrong, and where in the model."""
    # Passes wrap whatever is raised in them, including the end of the time limit.
    for link in chain(error):
        if isinstance(link, ExportError):
            return link
    cause = explain(error, model, graphs)
    where = str(cause.origin)
    parts = [f"{doing} failed", f" at operator {cause.operator}" if cause.operator else ""]
    parts += [f" in {where}" if where else "", f": {cause.message}"]
    of_types = _of_types(error)
    impossible = _impossible("complex64" if cause.is_complex else "\n".join(map(str, chain(error))))
    return ExportError(
        "".join(parts),
        impossible or (of_types and types_remedy) or of_types or remedy or _remedy(error, cause),
    )


def _impossible(text: str) -> str | None:
    return next((remedy for pattern, remedy in _IMPOSSIBLE if pattern.search(text)), None)


def _is_complex(node: Any) -> bool:
    import torch

    values = [each.meta.get("val") for each in (node, *node.all_input_nodes)]
    return any(isinstance(value, torch.Tensor) and value.is_complex() for value in values)


def kernel_failure(log: str, operators: ProgramOperators) -> ExportError | None:
    """What a runner's log says about kernels that are missing or refuse what they are given; None if nothing.

    Core ATen has operators that ExecuTorch's kernel library lacks: they export and lower, but do not load. Of
    others it has only some cases, and a kernel finds out when it is called.
    """
    if names := [found["name"] for found in _MISSING_KERNEL.finditer(log)]:
        return _no_kernels(names, operators)
    refused = _REFUSED_CALL.search(log)
    if refused is None:
        return None
    checks = list(_CHECK.finditer(log[: refused.start()]))
    reasons = [found["reason"].strip() for found in checks] or ["its log says no more"]
    why = next(filter(None, reversed(reasons)), None) or f"{checks[0]['check']} does not hold"
    return ExportError(
        f"The runner's kernel {_with_places(refused['name'], operators)} refused what it was given: {why}",
        _remedy_of_refusal(why, operators),
    )


def _remedy_of_refusal(why: str, operators: ProgramOperators) -> str:
    if any(node.kind.startswith(_PICKING) for node in operators.portable):
        return (
            "the model picks elements by their values, as a mixture of experts does, so that shapes depend "
            "on them: compute all and choose with torch.where or a product, or take that part out with a "
            "hook `substitute(model)` or `wrap(model)`"
        )
    if "dim_order" in why or "dim order" in why:
        return "the kernel takes this order of dimensions in memory only without channels_last: write " + (
            "`.contiguous()` before the operator in the model, or leave `memory_format` out of it"
        )
    case = (
        "ExecuTorch's kernel does not have this case: compute it another way, or replace it with a hook "
        "`substitute(model)` or `wrap(model)`"
    )
    if re.search(r"\bind(ex|ices)\b|range|bounds", why):
        return (
            "an input may be out of range, above all one that was not given but made here: give inputs of "
            f"your own (--inputs FILE); if they are right, {case}"
        )
    return case


def missing_kernels(operators: ProgramOperators) -> ExportError | None:
    """What ExecuTorch's own kernels lack of a program, known before a runner is asked to load it."""
    try:
        from executorch.extension.pybindings.portable_lib import _get_operator_names
    except ImportError:
        return None
    known = set(_get_operator_names())
    # Kernels of other namespaces come with libraries of their own.
    kinds = [node.kind for node in operators.portable if node.kind.startswith("aten::")]
    names = [kind for kind in kinds if kind not in known]
    return _no_kernels(names, operators) if names else None


def _no_kernels(names: list[str], operators: ProgramOperators) -> ExportError:
    return ExportError(
        "The runner has no kernel for "
        f"{', '.join(_with_places(name, operators) for name in dict.fromkeys(names))}",
        "compute it another way, remove it with a hook `substitute(model)` or `wrap(model)`, or give a "
        "library that has it: --op-library FILE",
    )


def _with_places(kernel: str, operators: ProgramOperators) -> str:
    """The kernel's name, with the places in the model that call it."""
    nodes = [node for node in operators.portable if node.kind == kernel]
    places = dict.fromkeys(
        str(Origin(node.module, node.module_type, node.source, node.code)) for node in nodes
    )
    where = "; ".join(filter(None, places))
    return f"{kernel} (in {where})" if where else kernel


def _of_types(error: BaseException) -> str | None:
    """What to do about a model whose own code uses another floating point type than the rest of it."""
    found = _OTHER_TYPE.search(str(error))
    if found is None:
        return None
    return (
        "the model is built, run and compared in float32, and its weights and inputs are converted to it: "
        f"take the conversion to {found[0].lower().removeprefix('c10::')} out of its code (`.half()`, "
        "`dtype=`); fp16 is a precision to export it at"
    )


def _remedy(error: BaseException, cause: Cause) -> str:
    text = str(error)
    if "data-dependent" in text or type(error).__name__ == "GuardOnDataDependentSymNode":
        return (
            "what the model does must not depend on values, only on shapes: use torch.where or torch.cond, "
            "or replace that part with a hook `wrap(model)` or `substitute(model)`"
        )
    if "Core ATen" in text or "out variants" in text:
        return (
            f"ExecuTorch has no kernel for {cause.operator or 'this operator'}: compute it another way, or "
            "take it out with a hook `substitute(model)` or `wrap(model)`"
        )
    if "constraint" in text.lower() or "dynamic" in text.lower():
        return "correct get_dynamic_shapes: every dynamic dimension needs a bound, as Dim('n', max=...)"
    return (
        "if an operator or a line is named, replace it in the model (hooks `wrap` and `substitute`); else "
        "compare the installed versions with those the project asks for (`sme2 doctor`)"
    )


def _frames(error: BaseException) -> Iterator[tuple[FrameType, int]]:
    traceback = error.__traceback__
    while traceback is not None:
        yield traceback.tb_frame, traceback.tb_lineno
        traceback = traceback.tb_next


def _graphs_in(frames: list[tuple[FrameType, int]]) -> list[Any]:
    """Graph modules that functions in the traceback were processing, innermost first."""
    import torch

    graphs: list[Any] = []
    for frame, _ in reversed(frames):
        for value in list(frame.f_locals.values()):
            graph = getattr(value, "graph_module", None) if _is_program(value) else value
            if isinstance(graph, torch.fx.GraphModule) and not any(graph is known for known in graphs):
                graphs.append(graph)
    return graphs


def _is_program(value: Any) -> bool:
    import torch

    return isinstance(value, torch.export.ExportedProgram)


def _named_node(text: str, graphs: tuple[Any, ...]) -> Any:
    """The first node of the graphs whose operator the text names."""
    for graph in graphs:
        for node in graph.graph.nodes:
            name = operator_name(node)
            if name is None:
                continue
            namespace, operator, overload = name.split(".", 2)
            spellings = (rf"{namespace}\.{operator}\.{overload}", rf"{namespace}::{operator}(?:\.\w+)?")
            if any(re.search(rf"(?<![\w.:]){s}(?![\w.])|torch\._ops\.{s}(?![\w.])", text) for s in spellings):
                return node
    return None


def _node_in(frames: list[tuple[FrameType, int]]) -> Any:
    """The node that the innermost function in the traceback was processing, or was written for."""
    import torch

    for frame, number in reversed(frames):
        written_for = frame.f_locals.get("self")
        if isinstance(written_for, torch.fx.GraphModule):
            # Each line of the code that torch writes for a graph assigns to the name of a node.
            assigned = linecache.getline(frame.f_code.co_filename, number).strip().partition(" = ")[0]
            for node in written_for.graph.nodes:
                if node.name == assigned and node.op == "call_function":
                    return node
        for name in ("node", "n"):
            value = frame.f_locals.get(name)
            if isinstance(value, torch.fx.Node) and value.op == "call_function":
                return value
    return None


def _operator_in(frames: list[tuple[FrameType, int]]) -> str | None:
    """The operator that was being called when the model was traced."""
    import torch

    for frame, _ in reversed(frames):
        for name in ("self", "func", "op"):
            value = frame.f_locals.get(name)
            if isinstance(value, torch._ops.OpOverload):
                return str(value)
        value = frame.f_locals.get("func")
        if callable(value) and getattr(value, "__objclass__", None) is torch._C.TensorBase:
            return f"Tensor.{value.__name__}"
    return None


def _place_in(frames: list[tuple[FrameType, int]], model: Any) -> Origin:
    """The innermost line of the model's own code, and the innermost of its modules that was running."""
    names = {id(module): name for name, module in model.named_modules()} if model is not None else {}
    module = module_type = line = None
    for frame, number in frames:
        this = frame.f_locals.get("self")
        if id(this) in names:
            module, module_type = names[id(this)], type(this).__name__
        file = frame.f_code.co_filename
        if module is not None and not is_library(file) and not _is_own(frame):
            line = (file, number)
    if line is None:
        return Origin(module, module_type)
    code = linecache.getline(*line).strip() or None
    return Origin(module, module_type, f"{short_path(line[0])}:{line[1]}", code)


def _is_own(frame: FrameType) -> bool:
    package, _, module = str(frame.f_globals.get("__name__", "")).partition(f"{__package__}.")
    return not package and module.partition(".")[0] in _OWN
