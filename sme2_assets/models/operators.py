"""The operators of an exported program, and which line of the model asked for each: `operators.json`.

Here belong the file's content and its reading, without torch: a run is attributed long after the export,
on a machine that may have no torch. `sme2_assets.models.attribution` makes it at export. What the rows
of a run have to do with it is `sme2_assets.analysis.attribution`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from sme2_assets.errors import ExportError

SCHEMA = 1


@dataclass(frozen=True)
class Node:
    """One step of a program, as it was serialised: a node of a delegate's graph, or a kernel call.

    An activation that the exporter fused into a node, but XNNPACK runs as a step of its own, is a node too.
    Module, source and code are None where no line of the model asked for the step, or none is known.
    """

    kind: str
    """`XNNConv2d` inside XNNPACK; the kernel's name such as `aten::mean.out` outside of delegates."""
    edge_ops: list[str]
    """Edge operators that became this node, such as `aten.convolution.default`; several when fused."""
    module: str | None
    """Path of the PyTorch module, `features.3.conv`; empty for the model itself."""
    module_type: str | None
    source: str | None
    """`package/file.py:41`, the innermost line that is not PyTorch's own. Never an absolute path."""
    code: str | None
    """That line."""
    input_shapes: list[list[int]]
    """Weights and biases too. XNNPACK's convolutions and poolings have channels last. A dimension that can
    vary has its largest size; the multiply-accumulates then are those of the largest size."""
    output_shapes: list[list[int]]
    data_types: list[str]
    """Of the inputs, then of the outputs: one for each shape."""
    macs: int | None
    """Multiply-accumulates of one inference; None for what is neither convolution nor matrix product."""
    groups: int | None
    kernel: list[int] | None
    """Height and width of a convolution's or pooling's window."""
    stride: list[int] | None
    inserted: bool
    """A transpose or conversion that no line of the model asked for: layout, quantisation."""
    debug_handle: int | None


@dataclass(frozen=True)
class Delegate:
    """What one delegate call runs. Without nodes where the backend's format is not known here."""

    backend: str
    nodes: list[Node]


@dataclass(frozen=True)
class ProgramOperators:
    """Delegates in the order of the plan's delegate calls, portable nodes in that of its kernel calls."""

    delegates: list[Delegate]
    portable: list[Node]
    schema: int = field(default=SCHEMA)

    @property
    def macs(self) -> int:
        """Multiply-accumulates of all the nodes that have a number."""
        nodes = [node for delegate in self.delegates for node in delegate.nodes] + self.portable
        return sum(node.macs or 0 for node in nodes)

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1, sort_keys=True, allow_nan=False) + "\n"


def read_operators(path: Path) -> ProgramOperators:
    """The operators in that file, or an error when it is not a whole one of this schema."""
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(raw, dict) or raw.get("schema") != SCHEMA:
            found = raw.get("schema") if isinstance(raw, dict) else type(raw).__name__
            raise ValueError(f"schema {found!r}, this version reads {SCHEMA}")
        return ProgramOperators(
            delegates=[_delegate(delegate) for delegate in _list(raw["delegates"], "delegates")],
            portable=[_node(node) for node in _list(raw["portable"], "portable")],
        )
    except FileNotFoundError:
        raise _unreadable(path, "it is missing") from None
    except KeyError as error:
        raise _unreadable(path, f"it has no {error.args[0]!r}") from error
    except (OSError, ValueError, TypeError, RecursionError) as error:
        reason = (str(error).splitlines() or [""])[0] or type(error).__name__
        raise _unreadable(path, reason) from error


def _delegate(raw: Any) -> Delegate:
    given = _mapping(raw, "a delegate")
    return Delegate(_text(given, "backend"), [_node(node) for node in _list(given["nodes"], "nodes")])


def _node(raw: Any) -> Node:
    given = _mapping(raw, "a node")
    node = Node(
        kind=_text(given, "kind"),
        edge_ops=_texts(given["edge_ops"], "edge_ops"),
        module=_optional_text(given, "module"),
        module_type=_optional_text(given, "module_type"),
        source=_optional_text(given, "source"),
        code=_optional_text(given, "code"),
        input_shapes=[_numbers(shape, "input_shapes") for shape in _list(given["input_shapes"], "shapes")],
        output_shapes=[_numbers(shape, "output_shapes") for shape in _list(given["output_shapes"], "shapes")],
        data_types=_texts(given["data_types"], "data_types"),
        macs=_optional_number(given, "macs"),
        groups=_optional_number(given, "groups"),
        kernel=None if given["kernel"] is None else _numbers(given["kernel"], "kernel"),
        stride=None if given["stride"] is None else _numbers(given["stride"], "stride"),
        inserted=_flag(given, "inserted"),
        debug_handle=_optional_number(given, "debug_handle"),
    )
    if node.source is not None and _is_absolute(node.source):
        raise ValueError(f"source is an absolute path: {node.source!r}")
    return node


def _is_absolute(path: str) -> bool:
    return PurePosixPath(path).is_absolute() or PureWindowsPath(path).is_absolute()


def _mapping(value: Any, what: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{what} is {type(value).__name__}, not an object")
    return value


def _list(value: Any, what: str) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"{what} is {type(value).__name__}, not a list")
    return value


def _text(given: Mapping[str, Any], key: str) -> str:
    if not isinstance(given[key], str):
        raise ValueError(f"{key} is not text: {given[key]!r}")
    return given[key]


def _optional_text(given: Mapping[str, Any], key: str) -> str | None:
    return None if given[key] is None else _text(given, key)


def _texts(value: Any, what: str) -> list[str]:
    if not all(isinstance(item, str) for item in _list(value, what)):
        raise ValueError(f"{what} is not a list of texts: {value!r}")
    return value


def _is_count(value: Any) -> bool:
    # What does not fit into 64 bits would fail much later, in the warehouse.
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def _numbers(value: Any, what: str) -> list[int]:
    if not all(_is_count(item) for item in _list(value, what)):
        raise ValueError(f"{what} is not a list of whole numbers: {value!r}")
    return value


def _optional_number(given: Mapping[str, Any], key: str) -> int | None:
    value = given[key]
    if value is not None and not _is_count(value):
        raise ValueError(f"{key} is not a whole number: {value!r}")
    return value


def _flag(given: Mapping[str, Any], key: str) -> bool:
    if not isinstance(given[key], bool):
        raise ValueError(f"{key} is neither true nor false: {given[key]!r}")
    return given[key]


def _unreadable(path: Path, reason: str) -> ExportError:
    return ExportError(
        f"The operators of the program in {path} cannot be read: {reason}",
        "export the model again and measure it anew",
    )
