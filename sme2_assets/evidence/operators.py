"""`operators.json`: the operators of an exported program, and which line of the model asked for each.

Read without torch: a run is attributed long after the export, on a machine that may have no torch.
`models.attribution` writes it at export; `analysis.attribution` matches the rows of a run with it.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field, StrictStr

from sme2_assets.evidence.documents import Count, Document, Flag, Part, RelativePath

OPERATORS_FILE = "operators.json"


class Node(Part):
    """One step of a program, as serialised: a node of a delegate's graph, or a kernel call.

    An activation that the exporter fused into a node but XNNPACK runs as a separate step is also a node.
    Module, source and code are None where no line of the model asked for the step, or the line is unknown.
    """

    kind: StrictStr
    """`XNNConv2d` inside XNNPACK; the kernel's name, such as `aten::mean.out`, outside delegates."""
    edge_ops: list[StrictStr]
    """Edge operators that became this node, such as `aten.convolution.default`; several when fused."""
    module: StrictStr | None
    """Path of the PyTorch module, `features.3.conv`; empty for the model itself."""
    module_type: StrictStr | None
    source: RelativePath | None
    """`package/file.py:41`, the innermost line that is not PyTorch's own. Never an absolute path."""
    code: StrictStr | None
    """That line."""
    input_shapes: list[list[Count]]
    """Includes weights and biases. XNNPACK's convolutions and poolings have channels last. A dimension that
    can vary has its size for the inputs that are run; if that is unknown there are no shapes."""
    output_shapes: list[list[Count]]
    data_types: list[StrictStr]
    """Of the inputs, then of the outputs: one for each shape."""
    macs: Count | None
    """Multiply-accumulates of one inference; None for what is neither convolution nor matrix product."""
    groups: Count | None
    kernel: list[Count] | None
    """Height and width of a convolution's or pooling's window."""
    stride: list[Count] | None
    inserted: Flag
    """A transpose or conversion that no line of the model asked for: layout, quantisation."""
    debug_handle: Count | None
    reads: list[StrictStr] = Field(default_factory=list)
    """Tensors that it reads and that other nodes or the caller wrote, by names that are the same throughout
    the program. Constants are not included."""
    writes: list[StrictStr] = Field(default_factory=list)
    """Tensors that it writes. Empty for programs of earlier releases, which did not record them."""


class Delegate(Part):
    """What one delegate call runs. Has no nodes if the backend's format is unknown here."""

    backend: StrictStr
    nodes: list[Node]


class ProgramOperators(Document):
    """Delegates are in the order of the plan's delegate calls, portable nodes in that of its kernel calls."""

    VERSION: ClassVar[int] = 2
    UPGRADES: ClassVar = {1: lambda v1: v1}
    REMEDY: ClassVar[str] = "Export the model again, and measure it again."

    delegates: list[Delegate]
    portable: list[Node]

    @property
    def macs(self) -> int | None:
        """Multiply-accumulates of all nodes that have a count; None if none has."""
        counts = [node.macs for node in self.nodes if node.macs is not None]
        return sum(counts) if counts else None

    @property
    def nodes(self) -> list[Node]:
        return [node for delegate in self.delegates for node in delegate.nodes] + self.portable
