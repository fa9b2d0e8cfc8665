"""Which node of the exported program a row of a run is, and so which line of the model it comes from.

A trace names XNNPACK's rows by type and number only. They are in the order of the delegate's nodes, except
that XNNPACK drops nodes that it fuses into others and inserts conversions of its own. So the two
sequences are aligned: of all alignments of rows with nodes only the cheapest count, and a row gets a node
only if every cheapest alignment gives it the same one. Where they differ the row is `ambiguous`.

The costs are whole numbers, so that equally good alignments are exactly equal. They reflect what XNNPACK
is known to do: it never drops a convolution, but fuses activations; it inserts conversions and packing
steps, but never a softmax. Parsimony decides the rest: a transpose in the run is matched with a transpose
of the program rather than assumed to be an inserted one in place of one that was dropped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from sme2_assets.analysis.categories import classify
from sme2_assets.evidence.operators import Node, ProgramOperators

EXACT, ALIGNED, INSERTED, AMBIGUOUS, NONE = STATES = ("exact", "aligned", "inserted", "ambiguous", "none")
KEYS = ("backend", "delegate", "position")
COLUMNS = (
    *KEYS,
    "attribution",
    "node_kind",
    "edge_ops",
    "module",
    "module_type",
    "source",
    "code",
    "input_shape",
    "output_shape",
    "macs",
    "groups",
    "kernel_size",
    "reads",
    "writes",
    "candidates",
)
MAXIMUM_CANDIDATES = 8

# Costs of aligning rows with nodes. The lowest sum wins; only their order and sums matter.
_UNLIKELY = 2  # an operator type that the node can run as, but usually does not
_HINT = 1  # a detail of the name does not fit the node
_FUSED = 3  # a node without a row, of a kind that XNNPACK fuses or elides
_INSERTED = 4  # a row without a node, of a type that XNNPACK inserts
# An unmatched node or row that should have had a partner: costs more than any number of fusions and
# insertions, so that convolutions, matrix products and the like are matched first, and the rest between them.
_IMPROBABLE = 1_000_000
_IMPOSSIBLE = 1 << 40
_MAXIMUM_CELLS = 30_000_000

_UNARY = {
    "XNNAbs": "Abs",
    "XNNCeiling": "Ceiling",
    "XNNClamp": "Clamp",
    "XNNCos": "Cosine",
    "XNNELU": "ELU",
    "XNNExp": "Exp",
    "XNNFloor": "Floor",
    "XNNGelu": "GELU",
    "XNNHardswish": "HardSwish",
    "XNNLeakyReLU": "LeakyReLU",
    "XNNLog": "Log",
    "XNNNegate": "Negate",
    "XNNReciprocalSquareRoot": "Reciprocal Square Root",
    "XNNSigmoid": "Sigmoid",
    "XNNSin": "Sine",
    "XNNSquare": "Square",
    "XNNSquareRoot": "Square Root",
    "XNNTanh": "TanH",
}
_BINARY = {
    "XNNAdd": "Add",
    "XNNDiv": "Divide",
    "XNNMaximum": "Maximum",
    "XNNMinimum": "Minimum",
    "XNNMultiply": "Multiply",
    "XNNPReLU": "PReLU",
    "XNNSubtract": "Subtract",
}
# The types that are expected, then those that are possible.
_OTHERS: Mapping[str, tuple[frozenset[str], frozenset[str]]] = {
    kind: (frozenset(expected), frozenset(possible))
    for kind, expected, possible in (
        ("XNNArgMaxPooling2d", ["ArgMax Pooling"], []),
        ("XNNAvgPooling2d", ["Average Pooling"], ["Global Average Pooling", "Mean"]),
        ("XNNBatchMatrixMultiply", ["Batch Matrix Multiply"], ["Fully Connected"]),
        ("XNNConvTranspose2d", ["Deconvolution"], []),
        ("XNNConvert", ["Convert"], ["Copy", "Invalid Unary Op", "Unary Elementwise"]),
        ("XNNCopy", ["Copy"], []),
        ("XNNDepthwiseConv2d", ["Convolution"], []),
        ("XNNFullyConnected", ["Fully Connected", "Dynamic Fully Connected"], []),
        ("XNNGlobalAvgPooling2d", ["Mean", "Global Average Pooling"], ["Average Pooling"]),
        ("XNNMaxPooling2d", ["Max Pooling"], []),
        ("XNNScaledDotProductAttention", ["Scaled Dot-Product Attention"], []),
        ("XNNSoftmax", ["Softmax"], []),
        ("XNNStaticConstantPad", ["Constant Pad"], []),
        ("XNNStaticReshape", ["Static Reshape"], ["Copy"]),
        ("XNNStaticResizeBilinear2D", ["Resize Bilinear"], []),
        ("XNNStaticSlice", ["Slice"], []),
        ("XNNStaticTranspose", ["Transpose"], ["Copy"]),
    )
}
# A concatenation runs as one copy per part, and is reported as one or several copies.
_CONCATENATION = "XNNConcatenate"
_BY_TABLE = frozenset({"Invalid Unary Op", "Unary Elementwise"})
_FUSABLE = frozenset(
    {
        *_UNARY,
        *_BINARY,
        "XNNConvert",
        "XNNCopy",
        "XNNStaticConstantPad",
        "XNNStaticReshape",
        "XNNStaticTranspose",
    }
)
# Packing the left-hand side is never a node of the program, so having no node for it costs nothing.
_INSERTION_COST = {
    "Pack LH": 0,
    "Convert": _INSERTED,
    "Copy": _INSERTED,
    "Transpose": _INSERTED,
}
_BITS = {"fp32": 32, "int32": 32, "fp16": 16, "bf16": 16, "qint8": 8, "quint8": 8}


def align(program: ProgramOperators, rows: pd.DataFrame) -> pd.DataFrame:
    """One row per operator of the run, in the order given, with what is known about its origin.

    `rows` are the distinct operators: backend, delegate, position, name and op_type as in the timeline.
    A field of an ambiguous row is filled in if all its candidates agree on it.
    """
    if rows.duplicated(list(KEYS)).any():
        raise ValueError("rows must be distinct operators: a backend, delegate and position occur twice")
    findings: dict[int, _Finding] = {}
    given = rows.reset_index(drop=True)
    backends = given["backend"].astype("object")
    portable = given[backends == "portable"].sort_values("position")
    findings.update(_align_portable(program.portable, portable))
    inside = given[(backends != "portable") & given["delegate"].notna()]
    for delegate, group in inside.groupby("delegate", sort=False):
        number = int(delegate)
        nodes = program.delegates[number].nodes if number < len(program.delegates) else []
        findings.update(_align_delegate(nodes, group.sort_values("position")))
    crowded = _crowded(list(findings.values()))
    records = [_record(findings.get(index, _Finding(NONE)), crowded) for index in range(len(given))]
    rowed = {id(slot.node) for finding in findings.values() for slot in finding.candidates}
    passed_on = {
        tensor: node.reads for node in program.nodes if id(node) not in rowed for tensor in node.writes
    }
    for record in records:
        record["reads"] = _through(record.get("reads") or [], passed_on)
    columns: dict[str, Any] = {key: given[key] for key in KEYS}
    for column in COLUMNS[len(KEYS) :]:
        # As objects: a missing text is None, not NaN.
        dtype = "Int64" if column in ("macs", "groups") else "object"
        columns[column] = pd.Series([record.get(column) for record in records], dtype=dtype)
    return pd.DataFrame(columns)


def _through(tensors: Sequence[str], passed_on: Mapping[str, Sequence[str]]) -> list[str]:
    """The tensors, with each one that a node without a row writes replaced by those that the node reads."""
    found: dict[str, None] = {}
    waiting = list(reversed(tensors))
    while waiting:
        tensor = waiting.pop()
        if tensor not in found:
            found[tensor] = None
            waiting += reversed(passed_on.get(tensor, ()))
    return [tensor for tensor in found if tensor not in passed_on]


@dataclass(frozen=True)
class _Slot:
    """A place in the sequence where one row of the node is expected."""

    node: Node
    # One of several rows of its node: if it is missing, the node is still there.
    extra: bool = False


@dataclass(frozen=True)
class _Finding:
    """What a row was found to be; several candidates if that is not settled."""

    state: str
    candidates: tuple[_Slot, ...] = ()

    @property
    def nodes(self) -> frozenset[int]:
        return frozenset(id(slot.node) for slot in self.candidates)


def _align_delegate(nodes: Sequence[Node], rows: pd.DataFrame) -> dict[int, _Finding]:
    slots = [slot for node in nodes for slot in _slots(node)]
    names = [str(name) for name in rows["name"]]
    partners = _partners(
        slots,
        names,
        _match_cost,
        [_drop_cost(slot) for slot in slots],
        [_INSERTION_COST.get(classify(name, "xnnpack").op_type, _IMPROBABLE) for name in names],
    )
    if partners is None:
        return {}
    insertable = [classify(name, "xnnpack").op_type in _INSERTION_COST for name in names]
    return {
        int(index): _finding([slots[slot] for slot in found], alone, inserts, settled=ALIGNED)
        for index, (found, alone), inserts in zip(rows.index, partners, insertable, strict=True)
    }


def _finding(candidates: list[_Slot], alone: bool, insertable: bool, settled: str) -> _Finding:
    """`alone`: some cheapest alignment leaves the row without a node."""
    if not candidates:
        return _Finding(INSERTED if insertable else NONE)
    distinct = tuple({id(slot.node): slot for slot in candidates}.values())
    if all(slot.node.inserted for slot in distinct) and (insertable or not alone):
        return _Finding(INSERTED, distinct)
    if len(distinct) == 1 and not alone:
        return _Finding(settled, distinct)
    return _Finding(AMBIGUOUS, distinct)


def _slots(node: Node) -> list[_Slot]:
    if node.kind.startswith(_CONCATENATION):
        return [_Slot(node), *(_Slot(node, extra=True) for _ in node.input_shapes[1:])]
    return [_Slot(node)]


def _drop_cost(slot: _Slot) -> int:
    if slot.extra:
        return _HINT
    return _FUSED if slot.node.kind in _FUSABLE else _IMPROBABLE


def _match_cost(slot: _Slot, name: str) -> int:
    node, row = slot.node, classify(name, "xnnpack")
    if node.kind == "XNNConv2d":
        return _convolution_cost(node, row.op_type)
    if node.kind.startswith(_CONCATENATION):
        return {"Copy": 0, "Concatenate": _UNLIKELY}.get(row.op_type, _IMPOSSIBLE)
    if own := _UNARY.get(node.kind) or _BINARY.get(node.kind):
        general = "Unary Elementwise" if node.kind in _UNARY else "Binary Elementwise"
        # A quantised activation runs by table lookup, alone or with its neighbours, and loses its name.
        fits = row.op_type in {own, f"Approx{own}", general, "Invalid Binary Op", *_BY_TABLE}
        return 0 if fits else _IMPOSSIBLE
    expected, possible = _OTHERS.get(node.kind, (frozenset(), frozenset()))
    if row.op_type in expected:
        return _hints(node, row.op_type, row.dtype, row.ukernel)
    return _UNLIKELY if row.op_type in possible else _IMPOSSIBLE


def _convolution_cost(node: Node, op_type: str) -> int:
    pointwise = node.kernel == [1, 1] and node.stride == [1, 1] and node.groups == 1
    if op_type == "Fully Connected":
        return 0 if pointwise else _IMPOSSIBLE
    if op_type == "Convolution":
        return _UNLIKELY if pointwise else 0
    return _IMPOSSIBLE


def _hints(node: Node, op_type: str, data_type: str | None, ukernel: str | None) -> int:
    if node.kind == "XNNDepthwiseConv2d":
        return 0 if ukernel == "DWConv" else _HINT
    if op_type == "Transpose" and node.data_types and data_type:
        bits = _BITS.get(node.data_types[0])
        return 0 if bits is None or data_type == f"X{bits}" else _HINT
    return 0


def _align_portable(nodes: Sequence[Node], rows: pd.DataFrame) -> dict[int, _Finding]:
    """Kernel calls are traced one by one: order and name settle them, unless control flow intervened."""
    slots = [_Slot(node) for node in nodes]
    names = [str(name) for name in rows["name"]]
    if len(slots) == len(names) and all(
        _kernel_cost(slot, name) < _IMPOSSIBLE for slot, name in zip(slots, names, strict=True)
    ):
        return {
            int(index): _Finding(INSERTED if slot.node.inserted else EXACT, (slot,))
            for index, slot in zip(rows.index, slots, strict=True)
        }
    partners = _partners(slots, names, _kernel_cost, [_INSERTED] * len(slots), [_INSERTED] * len(names))
    if partners is None:
        return {}
    return {
        int(index): _finding([slots[slot] for slot in found], alone, insertable=False, settled=ALIGNED)
        for index, (found, alone) in zip(rows.index, partners, strict=True)
    }


def _kernel_cost(slot: _Slot, name: str) -> int:
    namespace, _, kernel = slot.node.kind.rpartition("::")
    if name == "OPERATOR_CALL":
        # The runtime's own small operators (views, arithmetic on sizes) name no kernel in the trace.
        return 0 if namespace == "executorch_prim" else _HINT
    called = name.removeprefix("native_call_").rpartition("::")[2]
    if called == kernel:
        return 0
    return _HINT if called.partition(".")[0] == kernel.partition(".")[0] else _IMPOSSIBLE


def _partners(
    slots: Sequence[_Slot],
    names: Sequence[str],
    cost: Callable[[_Slot, str], int],
    drop: Sequence[int],
    insert: Sequence[int],
) -> list[tuple[list[int], bool]] | None:
    """For each row, the slots that any cheapest alignment gives it, and whether any leaves it without one.

    None if there are too many pairs to weigh in reasonable time and memory.
    """
    if len(slots) * len(names) > _MAXIMUM_CELLS:
        return None
    costs = _cost_matrix(slots, names, cost)
    drops, inserts = np.asarray(drop, dtype=np.int64), np.asarray(insert, dtype=np.int64)
    before = _cheapest(costs, drops, inserts)
    after = _cheapest(costs[::-1, ::-1], drops[::-1], inserts[::-1])[::-1, ::-1]
    best = before[-1, -1]
    paired = (before[:-1, :-1] + costs + after[1:, 1:] == best) & (costs < _IMPOSSIBLE)
    alone = (before[:, :-1] + inserts + after[:, 1:] == best).any(axis=0)
    return [(np.flatnonzero(paired[:, row]).tolist(), bool(alone[row])) for row in range(len(names))]


def _cost_matrix(
    slots: Sequence[_Slot], names: Sequence[str], cost: Callable[[_Slot, str], int]
) -> npt.NDArray[np.int64]:
    # Types repeat, so without the number at the end there are few distinct names.
    plain = [name.rpartition(" #")[0] or name for name in names]
    distinct = {name: number for number, name in enumerate(dict.fromkeys(plain))}
    by_name = np.array([[cost(slot, name) for name in distinct] for slot in slots], dtype=np.int64)
    return by_name.reshape(len(slots), len(distinct))[:, [distinct[name] for name in plain]]


def _cheapest(
    costs: npt.NDArray[np.int64], drops: npt.NDArray[np.int64], inserts: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Element (i, j): the lowest cost of aligning the first j rows with the first i slots."""
    slots, rows = costs.shape
    inserted = np.concatenate([[0], np.cumsum(inserts)])
    table = np.empty((slots + 1, rows + 1), dtype=np.int64)
    table[0] = inserted
    for slot in range(slots):
        cheapest = table[slot] + drops[slot]
        cheapest[1:] = np.minimum(cheapest[1:], table[slot, :-1] + costs[slot])
        # A row without a slot adds its own cost: a running minimum, once those costs are subtracted.
        table[slot + 1] = np.minimum.accumulate(cheapest - inserted) + inserted
    return table


def _crowded(findings: Sequence[_Finding]) -> set[int]:
    """Nodes that more rows compete for than there are places, so that not every one of the rows is one."""
    rows = Counter(finding.nodes for finding in findings if finding.candidates)
    places = {id(slot.node): len(_slots(slot.node)) for finding in findings for slot in finding.candidates}
    crowded: set[int] = set()
    for nodes in {finding.nodes for finding in findings if finding.state == AMBIGUOUS}:
        competing = sum(count for others, count in rows.items() if others <= nodes)
        if competing > sum(places[node] for node in nodes):
            crowded |= nodes
    return crowded


def _record(finding: _Finding, crowded: Set[int]) -> dict[str, Any]:
    facts = [_facts(slot) for slot in finding.candidates]
    record: dict[str, Any] = {"attribution": finding.state}
    for field in facts[0] if facts else ():
        values = [fact[field] for fact in facts]
        record[field] = values[0] if all(value == values[0] for value in values) else None
    if finding.nodes & crowded:
        # The work of a node is done once, however many rows it might be.
        record["macs"] = None
    record["edge_ops"] = record.get("edge_ops") or []
    record["candidates"] = _names(finding.candidates) if finding.state == AMBIGUOUS else []
    return record


def _facts(slot: _Slot) -> dict[str, Any]:
    node = slot.node
    return {
        "node_kind": node.kind,
        "edge_ops": list(node.edge_ops),
        "module": node.module,
        "module_type": node.module_type,
        "source": node.source,
        "code": node.code,
        "input_shape": _shape(node.input_shapes),
        "output_shape": _shape(node.output_shapes),
        "macs": node.macs,
        "groups": node.groups,
        "kernel_size": "x".join(map(str, node.kernel)) if node.kernel else None,
        "reads": node.reads,
        "writes": node.writes,
    }


def _shape(shapes: Sequence[Sequence[int]]) -> str | None:
    if not shapes:
        return None
    return "x".join(map(str, shapes[0])) or "scalar"


def _names(candidates: Sequence[_Slot]) -> list[str]:
    """`XNNHardswish expand.1` for each; none if there are too many to be useful."""
    if len(candidates) > MAXIMUM_CANDIDATES:
        return []
    return [" ".join(filter(None, (slot.node.kind, slot.node.module))) for slot in candidates]
