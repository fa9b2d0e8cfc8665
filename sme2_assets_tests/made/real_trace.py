"""Makes a real ETDump: exports a small model and runs it by ExecuTorch's Python bindings, tracer attached.

The model has three XNNPACK delegates with portable operators between them, so every kind of event appears.
Run as a program, so that torch and ExecuTorch stay out of the process that tests or measures the reader:

    python -m sme2_assets_tests.made.real_trace OUT.etdump --inferences 5 (or --events 260000)

`small.etdump` of the tests was made by this, with `--inferences 2`, ExecuTorch 1.5.1 on aarch64.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

from sme2_assets.etdump import read_etdump


def exported_program() -> bytes:
    import torch
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import to_edge_transform_and_lower

    class DelegatesAndPortableOperators(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = torch.nn.Conv2d(3, 4, 3, padding=1)
            self.second = torch.nn.Conv2d(4, 4, 3, padding=1)
            self.head = torch.nn.Linear(4, 5)

        def forward(self, image: Any) -> Any:
            # XNNPACK has no cumulative sum, so each one ends a delegate.
            hidden = torch.cumsum(torch.relu(self.first(image)), 2)
            hidden = torch.cumsum(self.second(hidden) + 1, 3)
            return self.head(hidden.mean((2, 3)))

    torch.manual_seed(0)
    exported = torch.export.export(DelegatesAndPortableOperators().eval(), (torch.randn(1, 3, 8, 8),))
    lowered = to_edge_transform_and_lower(exported, partitioner=[XnnpackPartitioner()])
    return bytes(lowered.to_executorch().buffer)


def write_real_trace(path: Path, program: bytes, inferences: int) -> None:
    """`program` must live as long as this runs: the loaded module points into it."""
    import torch
    from executorch.extension.pybindings import portable_lib

    module = portable_lib._load_for_executorch_from_buffer(program, enable_etdump=True)
    inputs = [torch.randn(1, 3, 8, 8)]
    for _ in range(inferences):
        module.forward(inputs)
    module.write_etdump_result_to_file(str(path))


def inferences_for(events: int, program: bytes, path: Path) -> int:
    """How many inferences give so many events. XNNPACK's rows differ between CPUs, so one run tells."""
    write_real_trace(path, program, inferences=1)
    trace = read_etdump(path)
    return math.ceil(events / int((trace.block == trace.execute_blocks[0]).sum()))


def main() -> None:
    parser = argparse.ArgumentParser(description="Make a real ETDump of a small model.")
    parser.add_argument("path", type=Path)
    amount = parser.add_mutually_exclusive_group(required=True)
    amount.add_argument("--inferences", type=int)
    amount.add_argument("--events", type=int, help="at least so many events")
    arguments = parser.parse_args()
    program = exported_program()
    inferences = arguments.inferences or inferences_for(arguments.events, program, arguments.path)
    write_real_trace(arguments.path, program, inferences)


if __name__ == "__main__":
    main()
