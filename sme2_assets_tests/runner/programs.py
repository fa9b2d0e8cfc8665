"""Tiny programs for the runner's tests: `python -m sme2_assets_tests.runner.programs FOLDER` exports them.

A process of its own because torch takes seconds to import and the export-time quantised kernels stay loaded.
Each program gets `<name>.pte`, `<name>.input_<i>.npy` and `<name>.expected_<i>.npy` (eager outputs), but for
`delegates.pte`, which is run for its trace alone.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from sme2_assets_tests.made.real_trace import exported_program


def main(folder: Path) -> None:
    import torch
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import ExecutorchBackendConfig, to_edge_transform_and_lower
    from executorch.exir.passes import MemoryPlanningPass
    from torch import nn

    class TwoInputs(nn.Module):
        """A convolution and a linear layer, all of it for XNNPACK; both inputs matter."""

        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 16, 3, padding=1)
            self.linear = nn.Linear(16, 10)

        def forward(self, image: torch.Tensor, offset: torch.Tensor) -> torch.Tensor:
            features = torch.relu(self.conv(image)).mean(dim=(2, 3))
            return self.linear(features) + offset

    class Portable(nn.Module):
        """Operators that XNNPACK does not take, in planned memory that is reused within an inference."""

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            summed = torch.cumsum(x, dim=1)
            return torch.cumsum(summed * 2 + 1, dim=0), torch.argmax(summed, dim=1)

    class Small(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 8, 3)
            self.linear = nn.Linear(8, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(torch.relu(self.conv(x)).mean(dim=(2, 3)))

    class Logarithm(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.log(x)

    class Lookup(nn.Module):
        """Fails while it runs when an index lies outside the table."""

        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(8, 4)

        def forward(self, index: torch.Tensor) -> torch.Tensor:
            return self.table(index)

    class ChannelsLast(nn.Module):
        """Returns a tensor whose memory is not in C order."""

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x + 1).to(memory_format=torch.channels_last)

    class InPlace(nn.Module):
        """Changes its input: with one that is not in planned memory, the very bytes that it was given."""

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.add_(1.0) * 2

    def export(
        name: str,
        module: nn.Module,
        inputs: Sequence[torch.Tensor],
        *,
        delegate: bool = True,
        planned_inputs: bool = True,
    ) -> None:
        partitioner = [XnnpackPartitioner()] if delegate else []
        program = torch.export.export(module.eval(), tuple(inputs))
        lowered = to_edge_transform_and_lower(program, partitioner=partitioner)
        planning = MemoryPlanningPass(alloc_graph_input=planned_inputs)
        config = ExecutorchBackendConfig(memory_planning_pass=planning)
        (folder / f"{name}.pte").write_bytes(lowered.to_executorch(config).buffer)
        with torch.no_grad():
            expected = module(*inputs)
        outputs = [expected] if isinstance(expected, torch.Tensor) else list(expected)
        for kind, tensors in (("input", inputs), ("expected", outputs)):
            for i, tensor in enumerate(tensors):
                np.save(folder / f"{name}.{kind}_{i}.npy", np.ascontiguousarray(tensor.numpy()))

    def export_int8(name: str, *, delegate: bool) -> None:
        from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import (
            XNNPACKQuantizer,
            get_symmetric_quantization_config,
        )
        from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

        inputs = (torch.randn(1, 3, 16, 16),)
        quantizer = XNNPACKQuantizer().set_global(get_symmetric_quantization_config(is_per_channel=True))
        prepared = prepare_pt2e(torch.export.export(Small().eval(), inputs).module(), quantizer)
        prepared(*inputs)
        converted = convert_pt2e(prepared)
        converted.eval = lambda: converted
        if not delegate:
            # Registers the .out variants, so that to_executorch() finds them.
            import executorch.kernels.quantized  # noqa: F401
        export(name, converted, inputs, delegate=delegate)

    torch.manual_seed(7)
    export("two_inputs", TwoInputs(), (torch.randn(1, 3, 16, 16), torch.randn(1, 10)))
    export(
        "two_inputs_fp16", TwoInputs().half(), (torch.randn(1, 3, 16, 16).half(), torch.randn(1, 10).half())
    )
    export("portable", Portable(), (torch.randn(4, 6),))
    export("in_place", InPlace(), (torch.randn(4, 6),))
    export("in_place_unplanned", InPlace(), (torch.randn(4, 6),), planned_inputs=False)
    export("logarithm", Logarithm(), (torch.rand(2, 3) + 0.5,))
    export("logarithm_fp16", Logarithm(), ((torch.rand(2, 3) + 0.5).half(),), delegate=False)
    export("lookup", Lookup(), (torch.tensor([1, 7, 3]),))
    export("channels_last", ChannelsLast(), (torch.randn(1, 3, 4, 5),), delegate=False)
    export_int8("int8", delegate=True)
    export_int8("int8_portable", delegate=False)
    (folder / "delegates.pte").write_bytes(exported_program())
    np.save(folder / "delegates.input_0.npy", np.ones((1, 3, 8, 8), np.float32))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
