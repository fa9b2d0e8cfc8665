"""Programs as they are: several methods, external weights, types that NumPy lacks, kernels from elsewhere."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
import torch
from executorch.exir.passes.external_constants_pass import delegate_external_constants_pass_unlifted
from torch import Tensor, nn

from sme2_assets.cli.support import variants_of
from sme2_assets.errors import ExportError
from sme2_assets.evidence.operators import ProgramOperators
from sme2_assets.models.artifact import ExportedModel, read_manifest
from sme2_assets.models.export import export_model
from sme2_assets.models.failures import kernel_failure
from sme2_assets.models.registry import model_spec, models, parse_variant
from sme2_assets.models.sources.pte import method_names, program_at, take_in
from sme2_assets.models.user_files import store_library
from sme2_assets.runner.build import RunnerBinary
from sme2_assets.runner.failures import runner_failure
from sme2_assets_tests.models import small
from sme2_assets_tests.models.run import outputs_of, run

Lowered = Callable[..., Any]

SORT = r"""
#include <algorithm>
#include <numeric>
#include <vector>
#include <executorch/runtime/kernel/kernel_runtime_context.h>
#include <executorch/runtime/kernel/operator_registry.h>
using namespace executorch::runtime;
// sort.values of one row.
void sorted(KernelRuntimeContext&, Span<EValue*> args) {
  auto given = args[0]->toTensor();
  auto values = args[3]->toTensor(), indices = args[4]->toTensor();
  const float* from = given.const_data_ptr<float>();
  std::vector<int64_t> order(given.numel());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return from[a] < from[b]; });
  for (size_t i = 0; i < order.size(); ++i) {
    values.mutable_data_ptr<float>()[i] = from[order[i]];
    indices.mutable_data_ptr<int64_t>()[i] = order[i];
  }
}
const Kernel kernels[] = {Kernel("aten::sort.values", sorted)};
const Error registered = register_kernels(Span<const Kernel>(kernels, 1));
"""


class Parts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)
        self.outer = nn.Linear(8, 4)

    def encode(self, x: Tensor) -> Tensor:
        return torch.relu(self.inner(x))

    def decode(self, x: Tensor) -> Tensor:
        return self.outer(self.inner(x)).cumsum(0)


class Method(nn.Module):
    def __init__(self, owner: nn.Module, name: str) -> None:
        super().__init__()
        self.owner, self.name = owner, name

    def forward(self, x: Tensor) -> Tensor:
        return getattr(self.owner, self.name)(x)


@pytest.fixture(scope="module")
def lowered() -> Lowered:
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import ExecutorchBackendConfig, to_edge_transform_and_lower

    def lower(methods: dict[str, tuple[nn.Module, tuple[Any, ...]]], **config: Any) -> Any:
        programs = {
            name: torch.export.export(module.eval(), inputs, strict=False)
            for name, (module, inputs) in methods.items()
        }
        edge = to_edge_transform_and_lower(programs, partitioner=[XnnpackPartitioner()])
        return edge.to_executorch(ExecutorchBackendConfig(**config))

    return lower


@pytest.fixture(scope="module")
def two_methods(lowered: Lowered, tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(7)
    owner = Parts()
    x = small.values(2, 8)
    made = lowered({name: (Method(owner, name), (x,)) for name in ("encode", "decode")})
    path = tmp_path_factory.mktemp("two") / "my parts.v2.pte"
    path.write_bytes(made.buffer)
    return path


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SME2_DATA", str(tmp_path / "data"))
    return tmp_path / "data"


def _export(name: str, folder: Path) -> ExportedModel:
    variant = parse_variant(f"{name}-as_is")
    return export_model(model_spec(variant.model), variant, folder, log=print)


def test_a_program_from_anywhere_is_taken_in_under_a_name_that_can_be(two_methods: Path, data: Path) -> None:
    assert take_in(two_methods, models()) == "my_parts_v2"
    assert take_in(two_methods, models()) == "my_parts_v2"
    elsewhere = data.parent / two_methods.name
    elsewhere.write_bytes(two_methods.read_bytes() + b"\0" * 64)
    again = take_in(elsewhere, models())
    assert again.startswith("my_parts_v2_")
    assert {path.name for path in (data / "models").glob("*.pte")} == {"my_parts_v2.pte", f"{again}.pte"}


def test_a_program_takes_no_name_of_another_model(
    two_methods: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (data.parent / "toy_cnn.pte").write_bytes(two_methods.read_bytes())
    assert take_in(data.parent / "toy_cnn.pte", models()).startswith("toy_cnn_")
    assert model_spec("toy_cnn").source == "built-in"
    other = data.parent / "more"
    other.mkdir()
    (other / "there.pte").write_bytes(two_methods.read_bytes())
    monkeypatch.setenv("SME2_MODELS", str(other))
    assert take_in(other / "there.pte", models()) == "there"
    assert model_spec("there").place == str(other / "there.pte")


def test_it_is_said_which_of_several_methods_is_profiled(
    two_methods: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    variants_of(f"{two_methods}@method=decode")
    assert "methods" not in capsys.readouterr().err
    (variant,) = variants_of(str(two_methods))
    method = model_spec(variant.removesuffix("-as_is")).method
    told = capsys.readouterr().err
    assert f"encode: {method} is profiled" in told or f"decode: {method} is profiled" in told
    assert "my_parts_v2@method=NAME" in told


def test_methods_are_read_without_executorch_and_listed(two_methods: Path, data: Path) -> None:
    assert sorted(method_names(two_methods)) == ["decode", "encode"]
    take_in(two_methods, models())
    (option,) = model_spec("my_parts_v2").options or ()
    assert str(option) in ("method=encode|decode", "method=decode|encode")
    with pytest.raises(ExportError, match="has no method 'forwards'"):
        model_spec("my_parts_v2@method=forwards")


def test_each_method_runs_and_counts_its_own_delegates(
    two_methods: Path, data: Path, runner_binary: RunnerBinary, tmp_path: Path
) -> None:
    take_in(two_methods, models())
    torch.manual_seed(7)
    owner = Parts()
    for name, calls, portable in (("encode", 1, 0), ("decode", 1, 1)):
        model = _export(f"my_parts_v2@method={name}", tmp_path)
        assert model.method == name
        counts = read_manifest(model.manifest).operators
        assert (counts.delegates, counts.portable_total) == (calls, portable)
        assert len(ProgramOperators.read(model.operators).delegates) == calls
        folder = tmp_path / name
        folder.mkdir()
        (given,) = outputs_of(model, runner_binary, folder)
        with torch.no_grad():
            wanted = getattr(owner, name)(torch.from_numpy(np.load(model.inputs[0])))
        assert np.allclose(given, wanted.numpy(), atol=1e-5)


def test_external_weights_beside_the_program_are_used(
    lowered: Lowered, data: Path, runner_binary: RunnerBinary, tmp_path: Path
) -> None:
    torch.manual_seed(7)

    class Adding(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.offset = nn.Parameter(small.values(2, 8, seed=4))

        def forward(self, x: Tensor) -> Tensor:
            return torch.cumsum(x, 0) * torch.cumsum(self.offset, 0)

    adding = Adding().eval()
    made = lowered({"forward": (adding, (small.values(2, 8),))}, external_constants=True)
    (tmp_path / "adding.pte").write_bytes(made.buffer)
    made.write_tensor_data_to_file(str(tmp_path))
    (weights,) = tmp_path.glob("*.ptd")
    weights.rename(tmp_path / "weights_of_it.ptd")
    name = take_in(tmp_path / "adding.pte", models())
    model = _export(name, tmp_path)
    (given,) = outputs_of(model, runner_binary, tmp_path)
    with torch.no_grad():
        wanted = adding(torch.from_numpy(np.load(model.inputs[0]))).numpy()
    assert np.allclose(given, wanted, atol=1e-5)
    assert model.data is not None
    model.data.write_bytes(b"not weights" * 20)
    damaged = run(model, runner_binary, tmp_path, "--pass", "latency")
    assert damaged.returncode == 3
    assert "not a whole .ptd file" in runner_failure(damaged.returncode, damaged.stderr).what


@pytest.mark.parametrize("delegated", [False, True], ids=["kernel", "delegate"])
def test_weights_that_are_not_there_are_named_and_others_are_not_taken(
    lowered: Lowered, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, delegated: bool
) -> None:
    class Scaling(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 8)
            self.offset = nn.Parameter(small.values(2, 8, seed=4))

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x) if delegated else torch.cumsum(x, 0) * torch.cumsum(self.offset, 0)

    scaling: nn.Module = Scaling().eval()
    if delegated:
        scaling = torch.export.export(scaling, (small.values(2, 8),)).module()
        delegate_external_constants_pass_unlifted(scaling, lambda _: "weights")
        monkeypatch.setattr(scaling, "eval", lambda: scaling)
    made = lowered({"forward": (scaling, (small.values(2, 8),))}, external_constants=not delegated)
    pte = tmp_path / "scaling.pte"
    pte.write_bytes(made.buffer)
    made.write_tensor_data_to_file(str(tmp_path))
    (weights,) = tmp_path.glob("*.ptd")
    assert program_at(pte).data == weights
    elsewhere = weights.rename(tmp_path / "away")
    variant = small.variant("scaling", "as_is")

    def refused(said: str) -> None:
        with pytest.raises(ExportError, match=said) as caught:
            export_model(program_at(pte), variant, tmp_path / "made", log=print)
        assert ".ptd" in str(caught.value.remedy)

    refused(r"there is no scaling\.ptd next to it")
    for name in ("first.ptd", "second.ptd"):
        shutil.copyfile(elsewhere, tmp_path / name)
    # Which of two is meant cannot be known.
    refused(r"there is no scaling\.ptd next to it")
    (tmp_path / "scaling.ptd").write_bytes(b"not weights" * 20)
    refused(r"scaling\.ptd is broken")


def test_brain_floats_are_given_as_floats(
    lowered: Lowered, runner_binary: RunnerBinary, tmp_path: Path
) -> None:
    class Doubling(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.cumsum(0)

    made = lowered({"forward": (Doubling(), (torch.ones(3, 4, dtype=torch.bfloat16),))})
    (tmp_path / "brain.pte").write_bytes(made.buffer)
    variant = small.variant("brain", "as_is")
    model = export_model(program_at(tmp_path / "brain.pte"), variant, tmp_path, log=print)
    (given,) = outputs_of(model, runner_binary, tmp_path)
    x = torch.from_numpy(np.load(model.inputs[0]))
    # To the nearest, ties to even, as torch rounds.
    rounded = x.to(torch.bfloat16)
    assert np.array_equal(given[0], rounded[0].float().numpy())
    assert np.allclose(given, rounded.cumsum(0).float().numpy(), rtol=2e-2)


def test_kernels_of_another_library_are_loaded(
    data: Path, runner_binary: RunnerBinary, own_artifacts: Path, tmp_path: Path
) -> None:
    spec = small.spec("sorting_row", small.Sorting, small.values(1, 9))
    variant = small.variant("sorting_row")
    without = export_model(spec, variant, own_artifacts, log=print)
    failed = run(without, runner_binary, tmp_path, "--pass", "latency")
    cause = kernel_failure(failed.stderr, ProgramOperators.read(without.operators))
    assert cause is not None
    assert "--op-library" in (cause.remedy or "")
    found = importlib.util.find_spec("executorch")
    assert found is not None
    root = Path(str((found.submodule_search_locations or [""])[0]))
    (tmp_path / "sort.cpp").write_text(SORT)
    headers = root / "include"
    c10 = headers / "executorch" / "runtime" / "core" / "portable_type" / "c10"
    command = ["c++", "-std=c++17", "-shared", "-fPIC", "-O1", f"-I{headers}", f"-I{c10}"]
    command += ["-DC10_USING_CUSTOM_GENERATED_MACROS", "sort.cpp", "-o", "libsort.so"]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=600)
    chosen = spec.with_options({"ops": store_library(tmp_path / "libsort.so")})
    model = export_model(chosen, small.variant(chosen.key), tmp_path, log=print)
    (given,) = outputs_of(model, runner_binary, tmp_path)
    assert np.array_equal(given, np.sort(np.load(model.inputs[0])))


def test_a_library_that_needs_python_is_refused_with_the_cause(
    data: Path, runner_binary: RunnerBinary, own_artifacts: Path, tmp_path: Path
) -> None:
    found = importlib.util.find_spec("executorch")
    assert found is not None
    root = Path(str((found.submodule_search_locations or [""])[0]))
    library = root / "extension" / "llm" / "custom_ops" / "libcustom_ops_aot_lib.so"
    if not library.is_file():
        pytest.skip("this wheel brings no custom operators")
    spec = small.spec("sorting_row", small.Sorting, small.values(1, 9))
    without = export_model(spec, small.variant("sorting_row"), own_artifacts, log=print)
    failed = run(without, runner_binary, tmp_path, "--pass", "latency", "--op-library", str(library))
    error = runner_failure(failed.returncode, failed.stderr)
    assert "libcustom_ops_aot_lib.so cannot be loaded: " in error.what
    assert "neither Python nor libtorch" in (error.remedy or "")
    (tmp_path / "text.so").write_text("no library")
    with pytest.raises(ExportError, match="not a library"):
        store_library(tmp_path / "text.so")


def test_the_lines_that_decide_stay_in_the_log() -> None:
    lines = [
        "E 00:00:00.1 executorch:method.cpp:1] There are 1 instructions don't have corresponding operator"
    ]
    lines += [f"E 00:00:00.1 executorch:method.cpp:2] arg {n} with type id 1" for n in range(40)]
    lines += ["sme2_runner: error: method 'forward' cannot be loaded; export it again"]
    shown = runner_failure(3, "\n".join(lines)).what
    assert "corresponding operator" in shown
    assert "type id" not in shown
    many = runner_failure(3, "\n".join(f"E line {n}" for n in range(3000))).what
    assert "E line 0\n" in many
    assert "E line 2999" in many
    assert "more lines" in many


def test_a_path_sizes_and_inputs_become_variants(two_methods: Path, data: Path, tmp_path: Path) -> None:
    assert variants_of(f"{two_methods}@method=decode") == ["my_parts_v2.method_decode-as_is"]
    np.savez(tmp_path / "own.npz", np.zeros((2, 8), dtype=np.float32))
    (variant,) = variants_of(str(two_methods), inputs=tmp_path / "own.npz")
    # The original may go: what was given stays.
    (tmp_path / "own.npz").unlink()
    assert [np.load(file).shape for file in model_spec(variant.removesuffix("-as_is")).input_files] == [
        (2, 8)
    ]
    apart = variants_of("toy_cnn-fp32", sizes=["seq=16", "seq=16,128"])
    assert apart == variants_of("toy_cnn-fp32", sizes=["seq=16,128"])
    assert variants_of("toy_cnn-fp32", sizes=["seq=16,128"]) == [
        "toy_cnn.size_seq_16-fp32",
        "toy_cnn.size_seq_128-fp32",
    ]
    with pytest.raises(click.UsageError, match="seq=16,128,512"):
        variants_of("toy_cnn-fp32", sizes=["seq"])
    with pytest.raises(ExportError, match="finished program") as refused:
        variants_of(str(two_methods), sizes=["seq=16"])
    assert "--inputs" in str(refused.value.remedy)
    with pytest.raises(ExportError, match="There is no file"):
        variants_of("./nowhere.pte")
    with pytest.raises(ExportError, match="cannot be read"):
        variants_of(str(two_methods), inputs=tmp_path / "own.npz")
