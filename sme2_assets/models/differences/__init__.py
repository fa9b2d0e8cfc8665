"""Where the outputs of a program begin to differ from the model's, operator by operator.

`in_torch`: which operator at a precision is no longer near enough to fp32's. `in_runner`: which operator of
the lowered program departs from what torch computes from the same values. `mutation`: which faults of kernels
the comparison of the arms would see.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from sme2_assets.models.export import load_libraries, quiet_libraries
from sme2_assets.models.inputs import ModelInputs
from sme2_assets.models.lowering import BuiltModel, build_model, one_thread
from sme2_assets.models.progress import Progress
from sme2_assets.models.reference import products_of_halves_in_float, state_kept
from sme2_assets.models.spec import ModelSpec
from sme2_assets.models.taps import watched

Log = Callable[[str], None]


@contextlib.contextmanager
def built_to_compare(spec: ModelSpec, precision: str, log: Log) -> Iterator[tuple[BuiltModel, Progress]]:
    """The model as an export builds it, and the conditions under which an export computes."""
    progress = Progress(f"{spec.key}-{precision}", log)
    with quiet_libraries(), one_thread():
        load_libraries()
        import torch

        with torch.no_grad():
            with progress.step("building the model"):
                built = build_model(spec, precision, progress)
            yield built, progress


def run_watched(graph_module: Any, inputs: ModelInputs, see: Callable[[Any, Any], Any]) -> Any:
    """Runs a graph from its initial state, on copies of the inputs; `see` gets every node and its value, and
    what it returns replaces the value."""
    with state_kept(graph_module), products_of_halves_in_float():
        return watched(graph_module, tuple(inputs.copied().flat()), see)
