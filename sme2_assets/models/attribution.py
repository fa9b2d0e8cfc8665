"""Describes a program at export: every operator it will run, and the line of the model that asked for it.

XNNPACK's rows in a trace carry no identity. Its nodes do, inside the delegate's payload: each has a debug
handle, which the edge operators of the lowered graph have too, and those know their module and source
line. This module joins the two; `sme2_assets.analysis.attribution` then matches the rows of a run to them.
From a .pte alone, the nodes with their shapes and MACs are known, but not their sources.
"""

from __future__ import annotations

import copy
import importlib.resources
import json
import math
import re
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

from sme2_assets.errors import ExportError
from sme2_assets.evidence.operators import Delegate, Node, ProgramOperators
from sme2_assets.models.provenance import Origin, operator_name, origin_of

XNNPACK_BACKEND = "XnnpackBackend"
# The handle that XNNPACK's serialiser gives to nodes that come from no edge operator.
_NO_HANDLE = 65535
# The external id of a tensor that the delegate's caller does not see.
_NOT_EXTERNAL = 2**32 - 1
_HEADER_MAGIC = b"XH00"
# What the emitter calls for a view without a copy, which is not an operator in the graph.
_VIEW = "executorch_prim::et_view.default"
_WRITE_BACK = "aten::copy_"
# Kinds that passes insert; a node of another kind without a handle still does the model's work.
_REARRANGING = frozenset({"XNNConvert", "XNNCopy", "XNNStaticReshape", "XNNStaticTranspose"})
# Kinds whose kernels can limit their output. For others, XNNPACK adds a step that does.
_LIMITING = frozenset(
    {
        "XNNAvgPooling2d",
        "XNNClamp",
        "XNNConv2d",
        "XNNConvTranspose2d",
        "XNNDepthwiseConv2d",
        "XNNFullyConnected",
        "XNNMaxPooling2d",
    }
)
_QUANTISATION = re.compile(r"\.(?:de)?quantize_|\.choose_qparams")
# One source operator can become several nodes, all with its handle. These words in an edge operator's name
# then identify the one behind a node; for other kinds, the kind's own name does.
_EDGE_WORDS: Mapping[str, tuple[str, ...]] = {
    "XNNBatchMatrixMultiply": ("bmm", "matmul"),
    "XNNConv2d": ("conv",),
    "XNNConvTranspose2d": ("conv",),
    "XNNDepthwiseConv2d": ("conv",),
    "XNNFullyConnected": ("linear", "addmm", "mm"),
    "XNNStaticReshape": ("view", "reshape", "squeeze", "flatten"),
    "XNNStaticSlice": ("slice", "select", "split", "chunk", "narrow"),
    "XNNStaticTranspose": ("permute", "transpose", "dim_order"),
    "XNNClamp": ("clamp", "relu", "hardtanh"),
    "XNNMultiply": ("mul",),
    "XNNSubtract": ("sub",),
    "XNNSquareRoot": ("sqrt",),
    "XNNReciprocalSquareRoot": ("rsqrt",),
    "XNNNegate": ("neg",),
    "XNNSquare": ("pow", "square"),
}


def describe_lowered(executorch: Any) -> ProgramOperators:
    """The operators of a program that was just made, with their sources and at the sizes it is run at."""
    return _described(executorch.executorch_program, executorch)


def describe_program(pte: bytes, *, method: str = "forward", at_bounds: bool = True) -> ProgramOperators:
    """The operators of one method of a program alone, without their sources.

    It has only upper bounds of dimensions that can vary: unless its inputs have those sizes (`at_bounds`),
    shapes and multiply-accumulates are not known.
    """
    from executorch.exir._serialize._program import deserialize_pte_binary

    return _described(deserialize_pte_binary(pte).program, method=method, at_bounds=at_bounds)


def _described(
    program: Any, executorch: Any | None = None, *, method: str = "forward", at_bounds: bool = True
) -> ProgramOperators:
    plan = next(plan for plan in program.execution_plan if plan.name == method)
    origins = Origins(executorch, method)
    sized = at_bounds or not any(_is_dynamic(entry.val) for entry in plan.values)
    graphs: dict[int, list[_XnnNode]] = {}
    delegates, portable = [], []
    for chain_index, chain in enumerate(plan.chains):
        for index, instruction in enumerate(chain.instructions):
            call = instruction.instr_args
            # Only the first chain is the method's own graph; the others belong to control flow.
            place = index if chain_index == 0 else None
            if type(call).__name__ == "DelegateCall":
                delegate = plan.delegates[call.delegate_index]
                if delegate.id != XNNPACK_BACKEND:
                    delegates.append(Delegate(backend=delegate.id, nodes=[]))
                    continue
                if call.delegate_index not in graphs:
                    payload = bytes(program.backend_delegate_data[delegate.processed.index].data)
                    graphs[call.delegate_index] = _xnnpack_nodes(payload)
                nodes = origins.sized(place, graphs[call.delegate_index])
                origin = origins.of_delegate(place, {node.handle for node in nodes})
                tensors = _tensor_names(
                    nodes, f"d{len(delegates)}", [_name(plan, index) for index in call.args]
                )
                steps = [step for node in nodes for step in node.described(origin, tensors)]
                delegates.append(Delegate(backend=delegate.id, nodes=steps))
            elif type(call).__name__ == "KernelCall":
                portable.append(_kernel_call(plan, call, origins, place))
    if not sized and executorch is None:
        portable = list(map(_without_sizes, portable))
        delegates = [
            Delegate(backend=delegate.backend, nodes=list(map(_without_sizes, delegate.nodes)))
            for delegate in delegates
        ]
    return ProgramOperators(delegates=delegates, portable=portable)


def _is_dynamic(value: Any) -> bool:
    return type(value).__name__ == "Tensor" and value.shape_dynamism.name != "STATIC"


def _without_sizes(node: Node) -> Node:
    return node.model_copy(update={"input_shapes": [], "output_shapes": [], "data_types": [], "macs": None})


@dataclass(frozen=True)
class _Origin:
    """The edge operators behind a node, and where in the model they come from."""

    edge_ops: list[str]
    module: str | None = None
    module_type: str | None = None
    source: str | None = None
    code: str | None = None


@dataclass(frozen=True)
class _DelegateOrigins:
    """Edge operators of one delegate by debug handle: its own, and those that were fused into it."""

    own: Mapping[int, list[Any]]
    fused: Mapping[int, list[Any]]

    def of(self, handle: int, kind: str, quantisation: str | None) -> tuple[_Origin, bool]:
        """The origin of a node, and whether the node was inserted, that is, not written in the model."""
        own = self.own.get(handle, [])
        if quantisation is not None:
            # It shares its handle with the operator whose output it converts, but is not part of it.
            names = [name for name in map(operator_name, own) if name and quantisation in name]
            return _Origin(list(dict.fromkeys(names))), True
        if handle == _NO_HANDLE:
            return _Origin([]), kind in _REARRANGING
        computing = [node for node in own if not _is_quantisation(node)]
        chosen = computing
        if len(computing) > 1:
            words = _EDGE_WORDS.get(kind, (kind.removeprefix("XNN").lower(),))
            chosen = [node for node in computing if _is_named(node, words)] or computing
        return _origin(chosen or own, [*chosen, *self.fused.get(handle, [])]), False

    def of_limits(self, handle: int) -> tuple[_Origin, int | None]:
        """The activation that was fused into the node as limits on its output, and its own handle."""
        fused = [node for node in self.fused.get(handle, []) if _is_named(node, _EDGE_WORDS["XNNClamp"])]
        return _origin(fused, fused), next((node.meta.get("debug_handle") for node in fused), None)


class Origins:
    """Where the instructions of the program come from, in the graph that it was emitted from."""

    def __init__(self, executorch: Any | None, method: str) -> None:
        self.lowered: dict[int, Any] = {}
        self._emitted: dict[int, list[Any]] = defaultdict(list)
        self._order: dict[Any, int] = {}
        self.known = executorch is not None
        if executorch is None:
            return
        from executorch.exir.lowered_backend_module import get_lowered_submodules

        graph_module = executorch.exported_program(method).graph_module
        # The emitter replaced the debug handle of each node it emitted with the index of the instruction.
        for _, lowered, call in get_lowered_submodules(graph_module):
            self.lowered[call.meta.get("debug_handle")] = lowered
            self._emitted[call.meta.get("debug_handle")].append(call)
        for place, node in enumerate(graph_module.graph.nodes):
            self._order[node] = place
            if operator_name(node) is not None and node.meta.get("debug_handle") is not None:
                self._emitted[node.meta["debug_handle"]].append(node)

    def of_delegate(self, instruction: int | None, handles: set[int]) -> _DelegateOrigins:
        lowered = self.lowered.get(instruction) if instruction is not None else None
        own: dict[int, list[Any]] = defaultdict(list)
        if lowered is None:
            return _DelegateOrigins(own, {})
        fused: dict[int, list[Any]] = defaultdict(list)
        owner: dict[Any, int] = {}
        for node in lowered.original_module.graph.nodes:
            if node.op != "call_function":
                continue
            handle = node.meta.get("debug_handle")
            if handle in handles:
                own[handle].append(node)
                owner[node] = handle
                continue
            # An operator whose handle no node has (batch norm, activation) was folded into the one before it.
            into = next((owner[given] for given in node.all_input_nodes if given in owner), None)
            if into is not None:
                owner[node] = into
                if operator_name(node) and not _is_quantisation(node):
                    fused[into].append(node)
        return _DelegateOrigins(own, fused)

    def sized(self, instruction: int | None, nodes: list[_XnnNode]) -> list[_XnnNode]:
        """The nodes of a delegate at the sizes of the example inputs, where they can vary.

        Only upper bounds are serialised, so the delegate is serialised again with the example's sizes, which
        torch.export keeps for every symbol; if the nodes then differ, sizes are not known.
        """
        lowered = self.lowered.get(instruction) if instruction is not None else None
        if lowered is None or not any(map(_symbolic, lowered.original_module.graph.nodes)):
            return nodes
        from executorch.backends.xnnpack.operators import node_visitor
        from executorch.backends.xnnpack.xnnpack_preprocess import XnnpackBackend
        from executorch.exir.sym_util import eval_shape

        def at_example(node: Any) -> list[Any]:
            return list(eval_shape(node.meta["val"].shape))

        try:
            with mock.patch.object(node_visitor, "get_shape", at_example):
                again = XnnpackBackend.preprocess(
                    copy.deepcopy(lowered).original_module, lowered.compile_specs
                ).processed_bytes
            sized = _xnnpack_nodes(bytes(again))
        except Exception:
            sized = []
        same = [(node.kind, node.handle) for node in sized] == [(node.kind, node.handle) for node in nodes]
        return sized if same else [replace(node, inputs=[], outputs=[]) for node in nodes]

    def values(self, instruction: int | None, kernel: str) -> tuple[list[_Value], list[_Value]]:
        """Inputs and outputs of a kernel call at the sizes of the example; empty if it is not found."""
        emitted = [] if instruction is None else self._emitted.get(instruction, [])
        nodes = [node for node in emitted if _kernel_name(node) == kernel]
        if len(nodes) != 1:
            return [], []
        from torch.fx.node import map_arg

        given: list[Any] = []
        map_arg(nodes[0].args, lambda node: given.append(node.meta.get("val")))
        return _values(given), _values([nodes[0].meta.get("val")])

    def of_kernel(self, instruction: int | None, kernel: str) -> _Origin:
        """The origin of the one node that was emitted as this instruction, if it calls the same kernel."""
        if instruction is None:
            return _Origin([])
        nodes = self._emitted.get(instruction, [])
        matching = [node for node in nodes if _kernel_name(node) == kernel]
        if kernel == _VIEW and not matching:
            matching = self._views_around(instruction)
        return _origin(matching, matching) if len(matching) == 1 else _Origin([])

    def _views_around(self, instruction: int) -> list[Any]:
        """The views between the instruction's neighbours: the emitter gives no index to a view."""
        places = [(number, self._order[node]) for number, nodes in self._emitted.items() for node in nodes]
        start = max((place for number, place in places if number < instruction), default=-1)
        end = min((place for number, place in places if number > instruction), default=len(self._order))
        return [node for node, place in self._order.items() if start < place < end and _is_view(node)]


def _symbolic(node: Any) -> bool:
    import torch

    values = node.meta.get("val")
    return any(
        isinstance(size, torch.SymInt)
        for value in (values if isinstance(values, (tuple, list)) else [values])
        if isinstance(value, torch.Tensor)
        for size in value.shape
    )


def _kernel_name(node: Any) -> str | None:
    schema = getattr(node.target, "_schema", None)
    return None if schema is None else f"{schema.name}.{schema.overload_name}".rstrip(".")


def _is_view(node: Any) -> bool:
    return node.op == "call_function" and getattr(node.target, "__module__", "") == "executorch.exir.memory"


def _is_named(node: Any, words: Iterable[str]) -> bool:
    name = operator_name(node) or ""
    return any(word in name for word in words)


def _is_quantisation(node: Any) -> bool:
    return bool(_QUANTISATION.search(operator_name(node) or ""))


def _origin(located: list[Any], operators: Iterable[Any]) -> _Origin:
    """The first module and line that are known: some nodes, such as quantisation, lack one or both."""
    names = [name for name in map(operator_name, operators) if name]
    found = [origin_of(node) for node in located]
    module = next((origin for origin in found if origin.module is not None), Origin())
    line = next((origin for origin in found if origin.source is not None), Origin())
    return _Origin(list(dict.fromkeys(names)), module.module, module.module_type, line.source, line.code)


@dataclass(frozen=True)
class _Value:
    """A tensor of the delegate's graph."""

    shape: list[int]
    data_type: str
    # Its number in the graph, and its index among the arguments of the delegate's call.
    number: int = -1
    external: int | None = None


@dataclass(frozen=True)
class _XnnNode:
    """A serialised node of XNNPACK with its tensors."""

    kind: str
    handle: int
    fields: Mapping[str, Any]
    inputs: list[_Value]
    outputs: list[_Value]
    limited: bool
    """Whether the output is kept within limits: an activation that the exporter fused into the node."""

    def described(self, origins: _DelegateOrigins, tensors: Mapping[int, str]) -> list[Node]:
        """The steps that XNNPACK makes of the node: itself, and a clamp if its kernels have no limits."""
        origin, inserted = origins.of(self.handle, self.kind, self._quantisation())
        if not self.limited or self.kind in _LIMITING:
            return [self._described(origin, inserted, tensors)]
        limits, handle = origins.of_limits(self.handle)
        unlimited = [name for name in origin.edge_ops if name not in limits.edge_ops]
        # Between the two is a tensor that the program does not name.
        between = {value.number: f"{tensors.get(value.number, '')} unlimited" for value in self.outputs}
        clamp = replace(
            self,
            kind="XNNClamp",
            handle=_NO_HANDLE if handle is None else handle,
            fields={},
            inputs=self.outputs,
        )
        return [
            self._described(replace(origin, edge_ops=unlimited), inserted, {**tensors, **between}),
            clamp._described(limits, False, tensors).model_copy(update={"reads": list(between.values())}),
        ]

    def _described(self, origin: _Origin, inserted: bool, tensors: Mapping[int, str]) -> Node:
        reads, writes = (
            [tensors[value.number] for value in values if value.number in tensors]
            for values in (self.inputs, self.outputs)
        )
        return Node(
            kind=self.kind,
            edge_ops=origin.edge_ops,
            module=origin.module,
            module_type=origin.module_type,
            source=origin.source,
            code=origin.code,
            input_shapes=[value.shape for value in self.inputs],
            output_shapes=[value.shape for value in self.outputs],
            data_types=[value.data_type for value in (*self.inputs, *self.outputs)],
            macs=self._macs(),
            groups=self.fields.get("groups"),
            kernel=self._pair("kernel") or self._pair("pooling"),
            stride=self._pair("subsampling") or self._pair("stride"),
            inserted=inserted,
            debug_handle=None if self.handle == _NO_HANDLE else self.handle,
            reads=reads,
            writes=writes,
        )

    def _pair(self, what: str) -> list[int] | None:
        if f"{what}_height" not in self.fields:
            return None
        return [self.fields[f"{what}_height"], self.fields[f"{what}_width"]]

    def _quantisation(self) -> str | None:
        """`.quantize_` or `.dequantize_`, as in its edge operator's name, if its types show either."""
        if self.kind != "XNNConvert" or not self.inputs:
            return None
        given, made = (
            value.data_type.startswith(("fp", "bf")) for value in (self.inputs[0], self.outputs[0])
        )
        if given == made:
            return None
        return ".quantize_" if given else ".dequantize_"

    def _macs(self) -> int | None:
        kind, inputs, outputs = self.kind, self.inputs, self.outputs
        if not inputs or not outputs:
            return None
        if kind in ("XNNConv2d", "XNNDepthwiseConv2d", "XNNConvTranspose2d"):
            window = self.fields["kernel_height"] * self.fields["kernel_width"]
            if kind == "XNNConvTranspose2d":
                return math.prod(inputs[0].shape) * window * int(self.fields["group_output_channels"])
            return math.prod(outputs[0].shape) * window * int(self.fields["group_input_channels"])
        if kind == "XNNFullyConnected":
            return math.prod(outputs[0].shape) * inputs[0].shape[-1]
        if kind == "XNNBatchMatrixMultiply":
            return math.prod(outputs[0].shape) * inputs[0].shape[-1]
        if kind == "XNNScaledDotProductAttention":
            query, key, value = (tensor.shape for tensor in inputs[:3])
            return math.prod(query[:-1]) * key[-2] * (query[-1] + value[-1])
        return None


def _tensor_names(nodes: list[_XnnNode], delegate: str, args: list[str | None]) -> dict[int, str]:
    """Names of the tensors that the nodes of a delegate read or write, by number. The arguments and results
    of the call keep the names they have outside it."""
    written = {value.number for node in nodes for value in node.outputs}
    names = {}
    for value in (value for node in nodes for value in (*node.inputs, *node.outputs)):
        if value.external is not None:
            if (name := args[value.external]) is not None:
                names[value.number] = name
        elif value.number in written:
            names[value.number] = f"{delegate}.{value.number}"
    return names


def _name(plan: Any, index: int) -> str | None:
    """The name of a tensor of the plan, from its index among the plan's values; None for a constant."""
    return None if getattr(plan.values[index].val, "data_buffer_idx", 0) else f"v{index}"


def _xnnpack_nodes(payload: bytes) -> list[_XnnNode]:
    graph = _xnnpack_graph(payload)
    values = {}
    for entry in graph["xvalues"]:
        value = entry["xvalue_union"]
        tensor = value.get("tensor_value", value)
        data_type = str(tensor["datatype"]).removeprefix("xnn_datatype_")
        number, external = int(tensor["id_out"]), int(tensor["external_id"])
        values[number] = _Value(
            [int(size) for size in tensor["dims"]],
            data_type,
            number,
            None if external == _NOT_EXTERNAL else external,
        )
    nodes = []
    for entry in graph["xnodes"]:
        fields = entry["xnode_union"]
        ids = [(name, fields[name]) for name in fields if name.endswith("_id")]
        # An absent input, such as a bias, has an identifier that no tensor has.
        inputs = [values[number] for name, number in ids if "output" not in name and number in values]
        outputs = [values[number] for name, number in ids if "output" in name and number in values]
        limits = entry.get("output_min_max") or {}
        limited = any("inf" not in str(limit) for limit in limits.values())
        kind, handle = entry["xnode_union_type"], entry["debug_handle"]
        nodes.append(_XnnNode(kind, handle, fields, inputs, outputs, limited))
    return nodes


def weights_of_delegate(payload: bytes) -> set[str]:
    """The names of weights that are not in the delegate itself."""
    return {
        entry["named_key"] for entry in _xnnpack_graph(payload)["constant_data"] if entry.get("named_key")
    }


def _xnnpack_graph(payload: bytes) -> Any:
    """The delegate's graph as its schema in the wheel describes it."""
    from executorch.backends.xnnpack import serialization
    from executorch.exir._serialize._flatbuffer import _flatc_decompile

    if payload[4:8] != _HEADER_MAGIC:
        raise ExportError(
            "A delegate of the program is not in the format of this XNNPACK backend.",
            "Export the model with the installed version of ExecuTorch.",
        )
    offset, size = (int.from_bytes(payload[at : at + 4], "little") for at in (10, 14))
    schema = importlib.resources.files(serialization).joinpath("schema.fbs").read_bytes()
    with tempfile.TemporaryDirectory(prefix="sme2-") as folder:
        (Path(folder) / "schema.fbs").write_bytes(schema)
        (Path(folder) / "graph.bin").write_bytes(payload[offset : offset + size])
        # The backend may write an older or newer identifier than the schema's; the tables are the same.
        arguments = ["--raw-binary"]
        _flatc_decompile(folder, f"{folder}/schema.fbs", f"{folder}/graph.bin", arguments)
        text = (Path(folder) / "graph.json").read_text(encoding="utf-8")
    # flatc writes unbounded minima and maxima in a way that is not valid JSON.
    return json.loads(re.sub(r":\s*(-?(?:inf|nan))\b", r': "\1"', text))


def _kernel_call(plan: Any, call: Any, origins: Origins, instruction: int | None) -> Node:
    operator = plan.operators[call.op_index]
    kernel = f"{operator.name}.{operator.overload}".rstrip(".")
    origin = origins.of_kernel(instruction, kernel)
    outputs = set(_returned(call.args))
    given = [_tensors(plan, index) for index in call.args if index not in outputs]
    inputs = [tensor for tensors in given for tensor in tensors]
    results = [tensor for index in sorted(outputs) for tensor in _tensors(plan, index)]
    if any(map(_is_dynamic, (*inputs, *results))) and origins.known:
        taken, made = origins.values(instruction, kernel)
    else:
        taken, made = (
            [_Value(list(each.sizes), _data_type(each)) for each in group] for group in (inputs, results)
        )
    return Node(
        kind=kernel,
        edge_ops=origin.edge_ops,
        module=origin.module,
        module_type=origin.module_type,
        source=origin.source,
        code=origin.code,
        input_shapes=[value.shape for value in taken],
        output_shapes=[value.shape for value in made],
        data_types=[value.data_type for value in (*taken, *made)],
        macs=_kernel_macs(operator.name, taken, made),
        groups=None,
        kernel=None,
        stride=None,
        # Export itself asks for sizes that can vary, and writes buffers and inputs back.
        inserted=origins.known
        and (bool(origin.edge_ops) or kernel == _WRITE_BACK)
        and (origin.module, origin.source) == (None, None),
        debug_handle=None,
        reads=_names(plan, (index for index in call.args if index not in outputs)),
        writes=_names(plan, sorted(outputs)),
    )


def _returned(args: list[int]) -> list[int]:
    """The results among a kernel's arguments: each is listed twice, as out argument and as result."""
    for count in range(1, len(args) // 2 + 1):
        if args[-count:] == args[-2 * count : -count]:
            return args[-count:]
    return args[-1:]


def _tensors(plan: Any, index: int) -> Iterator[Any]:
    return (plan.values[item].val for item in _items(plan, index))


def _names(plan: Any, values: Iterable[int]) -> list[str]:
    return [name for index in values for item in _items(plan, index) if (name := _name(plan, item))]


def _items(plan: Any, index: int) -> Iterator[int]:
    """The tensors that a value is or lists, by their indices among the plan's values."""
    value = plan.values[index].val
    kind = type(value).__name__
    if kind == "Tensor":
        yield index
    elif kind in ("TensorList", "OptionalTensorList"):
        for item in value.items:
            if item >= 0:
                yield from _items(plan, item)


def _data_type(tensor: Any) -> str:
    name = tensor.scalar_type.name.lower()
    return {"float": "fp32", "half": "fp16", "bfloat16": "bf16"}.get(name, name)


def _values(found: list[Any]) -> list[_Value]:
    """Fake tensors, which may be nested, at the sizes of the example inputs."""
    import torch
    from executorch.exir.sym_util import eval_expr

    names = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16", torch.int64: "long"}
    values = []
    for tensor in torch.utils._pytree.tree_leaves(found):
        if isinstance(tensor, torch.Tensor):
            sizes = [eval_expr(size) for size in tensor.shape]
            # A size that depends on values cannot be known before the run.
            if None in sizes:
                return []
            values.append(
                _Value(
                    [int(size) for size in sizes if size is not None],
                    names.get(tensor.dtype, str(tensor.dtype).removeprefix("torch.")),
                )
            )
    return values


def _kernel_macs(name: str, inputs: list[_Value], outputs: list[_Value]) -> int | None:
    operator = name.rpartition("::")[2]
    if not outputs or not inputs:
        return None
    made = math.prod(outputs[0].shape)
    if operator in ("mm", "bmm", "linear"):
        return made * inputs[0].shape[-1]
    if operator == "addmm":
        return made * inputs[1].shape[-1]
    if operator == "convolution":
        # The weight's shape is (outputs, inputs / groups, window...). For a transposed convolution the first
        # two are swapped, and this product is not the count: left out.
        weight = inputs[1].shape
        return made * math.prod(weight[1:]) if weight[0] == outputs[0].shape[1] else None
    return None
