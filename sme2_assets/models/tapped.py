"""The lowered program once more, with values from inside its delegates as further outputs.

Nothing is lowered again. In a copy of the program, such a value becomes one more result of its delegate's
call, so operators are partitioned and fused as in the program that is measured. Operators outside of
delegates are not shown: they run the same code with SME2 on and off. Belongs here: where a delegate has the
value of an operator, and how that becomes an output. Does not: which values are wanted and how they are
compared, see `taps`.
"""

from __future__ import annotations

import contextlib
import copy
from collections import defaultdict
from collections.abc import Iterator, Sequence, Set
from dataclasses import replace
from typing import Any
from unittest import mock

from sme2_assets.models.attribution import Origins
from sme2_assets.models.provenance import names_in
from sme2_assets.models.spec import FORWARD
from sme2_assets.models.taps import Layer

DelegateGraphs = dict[bytes, Any]
_MATRIX_KINDS = frozenset(
    {
        "XNNBatchMatrixMultiply",
        "XNNConv2d",
        "XNNConvTranspose2d",
        "XNNDepthwiseConv2d",
        "XNNFullyConnected",
        "XNNScaledDotProductAttention",
    }
)
# The memory that ExecuTorch plans for values, among those of the program.
_PLANNED = 1


@contextlib.contextmanager
def delegate_graphs() -> Iterator[DelegateGraphs]:
    """Collects, by the bytes of each delegate, the graph that they are written from while the block runs."""
    from executorch.backends.xnnpack import xnnpack_preprocess

    graphs: DelegateGraphs = {}
    write = xnnpack_preprocess.serialize_xnnpack_binary

    def written(graph: Any, weights: bytearray) -> bytes:
        payload = write(graph, weights)
        graphs[payload] = graph, weights
        return payload

    with mock.patch.object(xnnpack_preprocess, "serialize_xnnpack_binary", written):
        yield graphs


def with_outputs(
    executorch: Any, graphs: DelegateGraphs, exported_graph: Any, layers: Sequence[Layer]
) -> tuple[Any, list[Layer]]:
    """The program with the values of layers as its last outputs, to be written, and which it has."""
    from executorch.backends.xnnpack.serialization.xnnpack_graph_serialize import serialize_xnnpack_binary
    from executorch.exir import ExecutorchBackendConfig
    from executorch.exir._serialize._serialize import serialize_for_executorch

    program = copy.deepcopy(executorch.executorch_program)
    plan = program.execution_plan[0]
    layer_of = {layer.node.name: layer for layer in layers}
    results = dict[str, int]()
    for place, lowered in Origins(executorch, FORWARD).lowered.items():
        call = plan.chains[0].instructions[place].instr_args
        graph, weights = copy.deepcopy(graphs[lowered.processed_bytes])
        for name, value in _matrix_values(graph, lowered, exported_graph, layer_of.keys()).items():
            results[name] = _add_result(plan, call, graph, value)
        data = program.backend_delegate_data[plan.delegates[call.delegate_index].processed.index]
        data.data = serialize_xnnpack_binary(graph, weights)
    shown = [layer for layer in layers if layer.node.name in results]
    plan.outputs += [results[layer.node.name] for layer in shown]
    emitted = replace(executorch._emitter_output, program=program)
    written, _ = serialize_for_executorch(
        emitted, ExecutorchBackendConfig(), executorch._data_serializer, executorch._named_data
    )
    return written, shown


def _matrix_values(graph: Any, lowered: Any, exported_graph: Any, names: Set[str]) -> dict[str, Any]:
    """What a delegate computes for operators of these names, by its last matrix operator for each."""
    values = {_tensor(value).id_out: value for value in graph.xvalues}
    computed = defaultdict[int | None, list[Any]](list)
    for node in graph.xnodes:
        if type(node.xnode_union).__name__ in _MATRIX_KINDS:
            computed[node.debug_handle].append(values[node.xnode_union.output_id])
    asked = defaultdict[int | None, dict[str, None]](dict)
    for node in lowered.original_module.graph.nodes:
        asked[node.meta.get("debug_handle")] |= dict.fromkeys(names & names_in(node, exported_graph))
    found = dict[str, Any]()
    for handle, operators in asked.items():
        # One operator of the model may be several here. Several that share a handle are told apart by order.
        if len(operators) in (1, len(computed[handle])):
            found.update(zip(operators, computed[handle][-len(operators) :], strict=False))
    return found


def _add_result(plan: Any, call: Any, graph: Any, value: Any) -> int:
    """The value of the plan that gets this value of a delegate, as one more result of its call."""
    import torch
    from executorch.backends.xnnpack.serialization import xnnpack_graph_schema as schema
    from executorch.backends.xnnpack.utils import xnnpack_constants as constants
    from executorch.exir.schema import EValue, TensorShapeDynamism
    from executorch.exir.tensor import TensorSpec, make_allocation_info, make_tensor_value

    tensor = _tensor(value)
    if tensor.external_id != constants.XNN_INVALID_VALUE_ID:
        # It is a result already, in memory that is used again later.
        taken, value = tensor.id_out, copy.deepcopy(value)
        tensor = _tensor(value)
        tensor.id_out = 1 + max(_tensor(each).id_out for each in graph.xvalues)
        graph.xvalues.append(value)
        copied = schema.XNNCopy(input_id=taken, output_id=tensor.id_out, flags=0)
        graph.xnodes.append(schema.XNode(xnode_union=copied, debug_handle=0))
    tensor.external_id, tensor.flags = len(call.args), constants.XNN_VALUE_FLAG_EXTERNAL_OUTPUT
    graph.num_externs += 1
    graph.output_ids.append(tensor.id_out)
    types = {
        schema.XNNDatatype.xnn_datatype_fp32: torch.float32,
        schema.XNNDatatype.xnn_datatype_fp16: torch.float16,
        schema.XNNDatatype.xnn_datatype_qint8: torch.int8,
    }
    spec = TensorSpec(types[tensor.datatype], torch.Size(tensor.dims))
    place = make_allocation_info(_PLANNED, plan.non_const_buffer_sizes[_PLANNED])
    plan.non_const_buffer_sizes[_PLANNED] += spec.allocated_memory
    shown = make_tensor_value(0, place, spec)
    # If the program's own sizes vary, these are upper bounds, as in the delegate.
    if any(getattr(each.val, "shape_dynamism", 0) for each in plan.values):
        shown.shape_dynamism = TensorShapeDynamism.DYNAMIC_BOUND
    call.args.append(len(plan.values))
    plan.values.append(EValue(shown))
    return int(call.args[-1])


def _tensor(value: Any) -> Any:
    """The tensor of a value, which may be quantised."""
    return getattr(value.xvalue_union, "tensor_value", value.xvalue_union)
