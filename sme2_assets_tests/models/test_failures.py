"""A model that cannot be exported fails with the operator, module and line at fault."""

from __future__ import annotations

import errno
import inspect
import os
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor, nn

from sme2_assets.errors import ExportError
from sme2_assets.evidence.operators import ProgramOperators
from sme2_assets.models import export
from sme2_assets.models.failures import failure, kernel_failure
from sme2_assets.runner.build import RunnerBinary
from sme2_assets_tests.models import small
from sme2_assets_tests.models.run import run
from sme2_assets_tests.models.small import Outer, spec, values, variant


def _failure(model: Callable[[], nn.Module], folder: Path, precision: str = "fp32") -> ExportError:
    failing = spec("failing", model, values(4, 4))
    with pytest.raises(ExportError) as error:
        export.export_model(failing, variant("failing", precision), folder, log=lambda line: None)
    assert error.value.what.startswith(f"failing-{precision} could not be exported: ")
    assert error.value.remedy
    return error.value


def _line(text: str) -> str:
    """File and line of a statement of the small models."""
    lines, first = inspect.getsourcelines(small)
    number = next(index for index, line in enumerate(lines, first or 1) if text in line)
    return f"sme2_assets_tests/models/small.py:{number}"


@pytest.mark.parametrize(
    ("model", "operator", "line", "remedy"),
    [
        (small.Branching, "Tensor.__bool__", "if y.sum() > 0:", "torch.where"),
        (small.Decomposing, "aten._linalg_svd.default", "torch.linalg.svd(x)[1]", ""),
        (small.Transforming, "aten.abs.default", "torch.fft.rfft(x).abs()", ""),
        (small.Mismatched, "Running the eager model", "self.narrow(x)", ""),
        (small.Custom, "sme2_tests.doubled.default", "torch.relu(_doubled(x))", "substitute(model)"),
    ],
    ids=["control flow", "no core operator", "complex numbers", "shapes", "no kernel"],
)
def test_the_offending_operator_module_and_line_are_named(
    tmp_path: Path, model: type[nn.Module], operator: str, line: str, remedy: str
) -> None:
    failure = _failure(lambda: Outer(model()), tmp_path)
    assert operator in failure.what
    assert "module 'block" in failure.what
    assert _line(line) in failure.what
    assert line in failure.what
    assert remedy in str(failure.remedy)


class Packing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.GRU(4, 4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(x[:, None], torch.ones(4), batch_first=True)
        return self.inner(packed)[1]


class Elsewhere(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.zeros(4, device="cuda")


@pytest.mark.parametrize(
    ("model", "line", "remedy"),
    [
        (small.Transforming, "torch.fft.rfft(x).abs()", "no complex numbers"),
        (Packing, "pack_padded_sequence(x[:, None]", "no packed sequences"),
        pytest.param(
            Elsewhere,
            'device="cuda"',
            "device=x.device",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU"),
        ),
    ],
)
def test_what_no_program_can_do_is_named_with_its_line_and_what_to_do_instead(
    tmp_path: Path, model: type[nn.Module], line: str, remedy: str
) -> None:
    failure = _failure(lambda: Outer(model()), tmp_path)
    assert line in failure.what
    assert remedy in str(failure.remedy)


@pytest.mark.parametrize(
    ("model", "what"),
    [
        (lambda: torch.jit.script(nn.Linear(4, 4)), "The model is TorchScript"),
        (lambda: Outer(torch.jit.script(nn.Linear(4, 4))), "Its module 'block' is TorchScript"),
    ],
)
def test_scripted_parts_are_named_before_anything_runs(
    tmp_path: Path, model: Callable[[], nn.Module], what: str
) -> None:
    failure = _failure(model, tmp_path)
    assert what in failure.what
    assert "torch.jit" in str(failure.remedy)


def test_a_complex_input_is_refused_by_name(tmp_path: Path) -> None:
    waves = spec("waves", nn.Identity, values(4, 4).to(torch.complex64))
    with pytest.raises(ExportError, match=r"input \[0\] is complex64 \[4, 4\]"):
        export.export_model(waves, variant("waves"), tmp_path, log=print)


def _refusal(log: str, *kinds: str) -> ExportError:
    nodes = [{**_NODE, "kind": kind} for kind in kinds]
    found = kernel_failure(log, ProgramOperators.model_validate({"delegates": [], "portable": nodes}))
    assert found is not None
    return found


_NODE = {
    "edge_ops": [],
    "input_shapes": [],
    "output_shapes": [],
    "data_types": [],
    "inserted": False,
    **dict.fromkeys(
        ("module", "module_type", "source", "code", "macs", "groups", "kernel", "stride", "debug_handle")
    ),
}
_CALL = "E KernelCall failed at instruction 0:1 in operator {}: 0x12"


def test_the_remedy_for_a_refused_call_fits_what_the_kernel_says() -> None:
    order = "E op.cpp:168] Check failed (tensor_is_default_dim_order(input)): \n"
    norm = _refusal(order + _CALL.format("aten::native_group_norm.out"), "aten::native_group_norm.out")
    assert "tensor_is_default_dim_order(input)" in norm.what
    assert ".contiguous()" in str(norm.remedy)
    picked = _refusal(order + _CALL.format("aten::slice_copy.Tensor_out"), "aten::nonzero.out")
    assert "mixture of experts" in str(picked.remedy)
    index = "E op.cpp:9] Check failed (ok): Index 12 is out of range\n"
    assert "--inputs" in str(
        _refusal(index + _CALL.format("aten::embedding.out"), "aten::embedding.out").remedy
    )
    other = "E op.cpp:9] Check failed (ok): Expect input tensor to be 3-D or 4-D\n"
    assert "inputs" not in str(_refusal(other + _CALL.format("aten::convolution.out")).remedy)


class Texts(nn.Module):
    def forward(self, x: Tensor) -> dict[str, object]:
        return {"x": x, "label": "cat"}


class Numbers(nn.Module):
    def forward(self, x: Tensor) -> int:
        return x.shape[0]


def test_text_in_the_outputs_is_named(tmp_path: Path) -> None:
    failure = _failure(Texts, tmp_path)
    assert "output ['label'] is a str" in failure.what
    assert "wrap(model)" in str(failure)


def test_a_model_without_a_tensor_in_its_outputs_is_told_so(tmp_path: Path) -> None:
    assert "returns no tensor (its outputs are [0]: int)" in _failure(Numbers, tmp_path).what


def test_what_is_no_module_is_told_so(tmp_path: Path) -> None:
    failure = _failure(lambda: "a model", tmp_path)  # type: ignore[arg-type,return-value]
    assert "get_eager_model returns a str, not a torch.nn.Module" in failure.what


def test_text_inside_an_input_is_told_so(tmp_path: Path) -> None:
    nested = spec("nested", nn.Identity, {"a": values(2), "b": "text"})
    with pytest.raises(ExportError, match=r"example input \[0\]\['b'\] is a str"):
        export.export_model(nested, variant("nested"), tmp_path, log=print)


def test_an_operator_that_the_runner_cannot_load_is_traced_to_its_line(
    own_artifacts: Path, runner_binary: RunnerBinary, tmp_path: Path
) -> None:
    sorting = spec("sorting", lambda: Outer(small.Sorting()), values(4, 4))
    model = export.export_model(sorting, variant("sorting"), own_artifacts, log=print)
    done = run(model, runner_binary, tmp_path, "--pass", "latency")
    assert done.returncode != 0
    failure = kernel_failure(done.stderr, ProgramOperators.read(model.operators))
    assert failure is not None
    assert "no kernel for aten::sort.values (in module 'block' (Sorting)" in failure.what
    assert _line("torch.sort(x)") in failure.what
    assert kernel_failure("some other trouble", ProgramOperators.read(model.operators)) is None


def test_a_missing_kernel_is_told_as_soon_as_the_program_is_lowered(tmp_path: Path) -> None:
    said: list[str] = []
    sorting = spec("sorting", lambda: Outer(small.Sorting()), values(4, 4))
    export.export_model(sorting, variant("sorting"), tmp_path, log=said.append)
    [told] = [line for line in said if "no kernel for" in line]
    assert "aten::sort.values (in module 'block' (Sorting)" in told
    assert _line("torch.sort(x)") in told
    assert said.index(told) < next(at for at, line in enumerate(said) if "with taps" in line)
    said.clear()
    export.export_model(
        spec("plain", small.Joined, values(1, 4, 8, 8)), variant("plain"), tmp_path, log=said.append
    )
    assert not [line for line in said if "no kernel for" in line]


def test_a_kernel_that_refuses_its_arguments_is_traced_to_its_line(
    own_artifacts: Path, runner_binary: RunnerBinary, tmp_path: Path
) -> None:
    of_volumes = spec("of_volumes", lambda: Outer(nn.Conv3d(1, 2, 2)), values(1, 1, 3, 3, 3))
    model = export.export_model(of_volumes, variant("of_volumes"), own_artifacts, log=print)
    done = run(model, runner_binary, tmp_path, "--pass", "latency")
    assert done.returncode != 0
    failure = kernel_failure(done.stderr, ProgramOperators.read(model.operators))
    assert failure is not None
    assert "kernel aten::convolution.out (in module 'block' (Conv3d)" in failure.what
    assert "Expect input tensor to be 3-D or 4-D, but got, 5" in failure.what
    assert "export the model again" not in str(failure)


def test_the_end_of_the_time_limit_is_told_as_such_though_a_pass_wraps_it() -> None:
    wrapped = RuntimeError("An error occurred when running the 'SomePass' pass")
    wrapped.__cause__ = ExportError("it did not end within 3 s", "use a smaller model")
    assert failure("Lowering to XNNPACK", wrapped).what == "it did not end within 3 s"


class FloatInHalf(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) @ torch.eye(4, dtype=torch.float32)


def test_a_type_of_its_own_at_fp16_is_named_with_operator_and_remedy(tmp_path: Path):
    failed = _failure(FloatInHalf, tmp_path, "fp16")
    assert "aten.matmul.default" in failed.what
    assert "torch.eye(4, dtype=torch.float32)" in failed.what
    assert ".to(x.dtype)" in str(failed.remedy)


class Remembering(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        self.count.add_(1.0)
        return self.inner(x) * self.count


def test_a_substitute_that_forgets_is_told(tmp_path: Path):
    forgetful = spec("forgetful", Remembering, values(4, 4), substitute=lambda _, model: model.inner)
    with pytest.raises(ExportError, match=r"changes its buffers \(count\) only with or only without"):
        export.export_model(forgetful, variant("forgetful"), tmp_path, log=print)


@pytest.mark.parametrize("file", ["etrecord.bin", "model.pte"])
def test_a_full_disk_is_not_a_fault_of_executorch(file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    place = "save_without_weights" if file == "etrecord.bin" else "PieceIndex"
    monkeypatch.setattr(export, place, Mock(side_effect=full))
    with pytest.raises(ExportError, match="could not be exported: The disk is full") as error:
        export.export_model(spec("full", nn.Identity, values(4, 4)), variant("full"), tmp_path, log=print)
    assert "sme2 gc" in str(error.value.remedy)
