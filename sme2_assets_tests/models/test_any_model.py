"""Models that do more than compute: shapes that vary, state, branches, inputs they change, tiny values."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from sme2_assets.errors import ExportError
from sme2_assets.evidence.numerics import compare_outputs, first_fault
from sme2_assets.evidence.operators import ProgramOperators
from sme2_assets.models.artifact import ExportedModel, read_manifest
from sme2_assets.models.export import export_model
from sme2_assets.models.lowering import build_model, export_program, lower_program
from sme2_assets.models.progress import Progress
from sme2_assets.models.reference import STEPS
from sme2_assets.models.spec import ModelSpec
from sme2_assets.models.user_files import store_inputs
from sme2_assets.runner.build import RunnerBinary
from sme2_assets_tests.models import small
from sme2_assets_tests.models.run import outputs_of

Exporter = Callable[..., ExportedModel]


@pytest.fixture
def export(own_artifacts: Path) -> Exporter:
    def make(spec: ModelSpec, precision: str = "fp32", said: list[str] | None = None) -> ExportedModel:
        variant = small.variant(spec.key, precision)
        return export_model(spec, variant, own_artifacts, log=print if said is None else said.append)

    return make


def _seeded(model: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        torch.manual_seed(5)
        return model()

    return build


def _fault(model: ExportedModel, runner: RunnerBinary, folder: Path) -> str | None:
    manifest = read_manifest(model.manifest)
    agreements = compare_outputs(
        [np.load(path) for path in model.expected_outputs],
        outputs_of(model, runner, folder),
        rankings=model.rankings,
    )
    return first_fault(agreements, manifest.tolerance.minimum_db, exact=True)


def _growing(name: str = "growing") -> ModelSpec:
    def shapes(_: Any) -> Any:
        return ({1: torch.export.Dim("seq", min=4, max=512)},)

    return small.spec(name, _seeded(small.Growing), small.values(1, 10, 8), get_dynamic_shapes=shapes)


def _grown() -> ModelSpec:
    return _growing().with_options({"size_seq": "64"})


def _macs_by_hand(length: int) -> list[int]:
    return [length * 8 * 4 * 9, length * 8 * 16, length * 16 * 4]


@pytest.mark.parametrize("length", [64, *small.thorough(10)])
def test_shapes_and_multiply_accumulates_are_those_of_the_size_that_runs(
    length: int, export: Exporter, runner_binary: RunnerBinary, tmp_path: Path
) -> None:
    model = export(_grown() if length == 64 else _growing())
    nodes = [node for part in ProgramOperators.read(model.operators).delegates for node in part.nodes]
    assert [node.macs for node in nodes if node.macs is not None] == _macs_by_hand(length)
    assert read_manifest(model.manifest).macs == sum(_macs_by_hand(length))
    assert not [node for node in nodes for shape in node.input_shapes if 512 in shape]
    assert outputs_of(model, runner_binary, tmp_path)[0].shape == (1, length - 1, 4)
    assert _fault(model, runner_binary, tmp_path) is None


@pytest.mark.thorough
def test_the_program_is_the_same_at_every_size(export: Exporter) -> None:
    sizes = [export(_growing()), export(_grown())]
    assert len({model.pte_sha256 for model in sizes}) == 1


def test_what_export_asked_for_is_not_said_to_be_a_line_of_the_model(export: Exporter) -> None:
    portable = ProgramOperators.read(export(_grown()).operators).portable
    asked = [node for node in portable if "sym_size" in node.kind]
    assert asked
    assert all(node.inserted and node.source is None for node in asked)
    assert all(node.source is None or not node.source.startswith("torch/") for node in portable)


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [("size_seq", "513", r"seq=513 .* bounds, 4 to 512"), ("size_sek", "8", "no dimension 'sek'.*seq")],
)
def test_a_size_that_cannot_be_is_refused_by_name(
    option: str, value: str, said: str, export: Exporter
) -> None:
    with pytest.raises(ExportError, match=said):
        export(_growing().with_options({option: value}))


def test_a_foreign_program_at_less_than_its_bounds_has_no_multiply_accumulates(
    export: Exporter, tmp_path: Path
) -> None:
    from sme2_assets.models.sources.pte import program_at

    (tmp_path / "foreign.pte").write_bytes(export(_grown()).pte.read_bytes())
    spec = program_at(tmp_path / "foreign.pte")
    largest = ProgramOperators.read(export(spec, "as_is").operators)
    assert largest.macs == sum(_macs_by_hand(512))
    np.save(tmp_path / "foreign.input_0.npy", small.values(1, 10, 8).numpy())
    smaller = ProgramOperators.read(export(program_at(tmp_path / "foreign.pte"), "as_is").operators)
    nodes = [*smaller.portable, *(node for part in smaller.delegates for node in part.nodes)]
    assert {node.macs for node in nodes} == {None}
    assert all(not node.output_shapes for node in nodes)


def test_values_too_small_for_the_kernels_are_compared_as_zero_and_told(
    export: Exporter, runner_binary: RunnerBinary, tmp_path: Path
) -> None:
    said: list[str] = []
    model = export(small.spec("tiny_values", _seeded(small.Tiny), small.values(2, 8)), said=said)
    assert any("below the smallest normal number" in line for line in said)
    assert _fault(model, runner_binary, tmp_path) is None


class Extremes(nn.Module):
    """Of all integers, or of all values but with the dimensions left in."""

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        whole = (x * 100).to(torch.int64)
        return whole.max(), whole.min(), x.argmax(keepdim=True), x.argmin(), x.max(1).indices


def test_values_are_not_taken_for_indices_and_indices_into_all_values_are_judged(
    export: Exporter, runner_binary: RunnerBinary, tmp_path: Path
) -> None:
    model = export(small.spec("extremes", Extremes, small.values(4, 8)))
    assert list(model.rankings) == [2, 3, 4]
    assert _fault(model, runner_binary, tmp_path) is None
    expected = [np.load(path) for path in model.expected_outputs]
    for place in model.rankings:
        wrong = [(array + 1) % 8 if index == place else array for index, array in enumerate(expected)]
        agreements = compare_outputs(expected, wrong, rankings=model.rankings)
        assert f"output {place}" in str(first_fault(agreements, 80, exact=True))


@pytest.mark.parametrize("precision", ["fp16", *small.thorough("fp32", "int8")])
def test_indices_are_judged_by_what_they_point_at(
    precision: str, export: Exporter, runner_binary: RunnerBinary, tmp_path: Path
) -> None:
    model = export(small.spec("ranking", _seeded(small.Ranking), small.values(4, 8)), precision)
    assert list(model.rankings) == [1]
    assert _fault(model, runner_binary, tmp_path) is None
    # Planted: indices of the smallest instead of the largest.
    expected = [np.load(path) for path in model.expected_outputs]
    wrong = [expected[0], np.argsort(model.rankings[1].values, axis=-1)[:, :5]]
    agreements = compare_outputs(expected, wrong, rankings=model.rankings)
    assert first_fault(agreements, 12.0, exact=True)


def test_an_input_that_is_changed_in_place_is_given_as_it_was(
    export: Exporter, runner_binary: RunnerBinary, tmp_path: Path
) -> None:
    given = small.values(2, 8)
    model = export(small.spec("scaling", _seeded(small.Scaling), given.clone()))
    assert np.array_equal(np.load(model.inputs[0]), given.numpy())
    changed, made = outputs_of(model, runner_binary, tmp_path)
    assert np.allclose(changed, 2 * given.numpy())
    assert np.allclose(made, _seeded(small.Scaling)()(given.clone()).detach().numpy(), atol=1e-5)
    assert _fault(model, runner_binary, tmp_path) is None
    assert read_manifest(model.manifest).changed_inputs == 1


@pytest.mark.parametrize("precision", ["fp32", *small.thorough("fp16", "int8_dynamic")])
def test_state_starts_at_its_initial_values_and_goes_on_as_in_eager(
    precision: str, export: Exporter, runner_binary: RunnerBinary, tmp_path: Path
) -> None:
    model = export(small.spec("remembering", _seeded(small.Remembering), small.values(2, 8)), precision)
    assert model.steps == STEPS
    eager, x = _seeded(small.Remembering)().eval(), small.values(2, 8)
    with torch.no_grad():
        by_hand = [eager(x).numpy() for _ in range(STEPS)]
    for path, step in zip(model.expected_outputs, by_hand, strict=True):
        assert np.allclose(np.load(path), step, rtol=1e-3)
    # However many inferences a process runs before: warm-up here is one.
    given = outputs_of(model, runner_binary, tmp_path)
    assert len(given) == STEPS
    assert not np.allclose(given[0], given[1])
    assert _fault(model, runner_binary, tmp_path) is None


def test_state_of_a_program_from_elsewhere_is_found(
    export: Exporter, runner_binary: RunnerBinary, tmp_path: Path
) -> None:
    from sme2_assets.models.sources.pte import program_at

    remembering = export(small.spec("remembering", _seeded(small.Remembering), small.values(2, 8)))
    (tmp_path / "foreign.pte").write_bytes(remembering.pte.read_bytes())
    foreign = export(program_at(tmp_path / "foreign.pte"), "as_is")
    assert foreign.steps == STEPS
    assert len(outputs_of(foreign, runner_binary, tmp_path)) == STEPS
    (tmp_path / "plain.pte").write_bytes(export(_grown()).pte.read_bytes())
    assert export(program_at(tmp_path / "plain.pte"), "as_is").steps == 1


@pytest.mark.parametrize("sign", [1, *small.thorough(-1)])
def test_branches_are_exported_and_run(
    sign: int, export: Exporter, runner_binary: RunnerBinary, tmp_path: Path
) -> None:
    model = export(small.spec(f"choosing_{sign + 1}", _seeded(small.Choosing), sign * torch.ones(2, 8)))
    assert _fault(model, runner_binary, tmp_path) is None
    # ExecuTorch cannot write an ETRecord with branches: what it had written of it is not kept.
    assert model.etrecord is None
    assert not list(model.directory.glob("*etrecord*"))


def test_an_operator_that_xnnpack_wants_whole_and_cannot_take_is_decomposed_and_that_is_told(
    export: Exporter, runner_binary: RunnerBinary, tmp_path: Path
) -> None:
    said: list[str] = []
    exported = export(small.spec("bent", _seeded(small.Bent), small.values(3, 8)), said=said)
    assert [line for line in said if "a linear layer is an `addmm`" in line]
    assert _fault(exported, runner_binary, tmp_path) is None
    operators = read_manifest(exported.manifest).operators
    assert operators.delegated["aten.addmm.default"] == 2


def _weight_norm(layer: nn.Module) -> nn.Module:
    return nn.utils.parametrizations.weight_norm(layer)


@pytest.mark.parametrize("norm", [_weight_norm, nn.utils.weight_norm, nn.utils.spectral_norm])
def test_weights_that_are_computed_from_others_are_constants_of_the_program(
    export: Exporter, norm: Callable[[nn.Module], nn.Module]
) -> None:
    def build() -> nn.Module:
        torch.manual_seed(5)
        return nn.Sequential(norm(nn.Conv1d(4, 8, 3)), nn.ReLU(), nn.Conv1d(8, 4, 3)).eval()

    said: list[str] = []
    image = small.values(1, 4, 16)
    model = export(small.spec(f"normed_{norm.__name__}", build, image), said=said)
    operators = read_manifest(model.manifest).operators
    assert operators.delegated["aten.convolution.default"] == 2
    assert not operators.portable
    assert model.cached or any("0.weight" in line for line in said)
    with torch.no_grad():
        assert np.array_equal(np.load(model.expected_outputs[0]), build()(image).numpy())


class Products(nn.Module):
    """Products of every kind that CPUs without instructions for halves are slow at."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.up, self.linear = nn.Conv2d(4, 8, 3), nn.ConvTranspose2d(8, 8, 2, 2), nn.Linear(12, 8)

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(self.up(self.conv(x)))
        return torch.addmm(y[0, 0], (y @ y.transpose(2, 3))[0, 0], y[0, 0])


class Multiplied(TorchDispatchMode):
    """The types of what is multiplied while it is active, without what is only traced."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.types: set[torch.dtype] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        products = ("convolution", "mm", "addmm", "bmm", "baddbmm", "linear")
        if getattr(func, "_opname", "") in products and type(made) is Tensor:
            self.types.add(made.dtype)
        return made


def test_no_products_of_halves_are_computed_where_the_cpu_may_be_slow_at_them() -> None:
    spec, progress = small.spec("products", Products, small.values(1, 4, 8, 8)), Progress("products", print)
    with torch.no_grad(), Multiplied() as multiplied:
        program, inputs = export_program(build_model(spec, "fp16", progress), "fp16", progress)
        lowered = lower_program(program, inputs, progress)
    assert multiplied.types == {torch.float32}
    [output] = lowered.outputs
    assert output.dtype == torch.float16
    assert torch.allclose(output, program.module()(*inputs.args), rtol=0.01, atol=0.01)


@pytest.mark.parametrize(("dtype", "told"), [(torch.bfloat16, True), (torch.float32, False)])
def test_a_model_that_is_not_in_float32_is_told_that_it_is_converted(dtype: torch.dtype, told: bool) -> None:
    said: list[str] = []
    of_type = small.spec("of_type", lambda: nn.Linear(8, 4, dtype=dtype), small.values(2, 8).to(dtype))
    build_model(of_type, "fp32", Progress("of_type", said.append))
    assert any("bfloat16" in line and "float32" in line for line in said) is told


class _Fused(nn.Module):
    """What torch computes in one step, and a program in many: a recurrent layer, and attention."""

    def __init__(self) -> None:
        super().__init__()
        self.recurrent = nn.GRU(8, 4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.recurrent(x)
        return nn.functional.scaled_dot_product_attention(states, states, states)


def test_multiply_accumulates_of_a_model_are_those_of_its_operators(export: Exporter) -> None:
    """Of 2 steps: three gates that each read the input and the state, and two products of 2 x 4 x 2."""
    fused = export(small.spec("fused", _seeded(_Fused), small.values(1, 2, 8)))
    assert read_manifest(fused.manifest).macs == 2 * 3 * 4 * (8 + 4) + 2 * 2 * 4 * 2


def test_nan_in_the_reference_is_told_with_its_line_before_anything_is_exported(export: Exporter) -> None:
    said: list[str] = []
    with pytest.raises(ExportError, match=r"output 0 has NaN in 16 of 16 .*aten\.div.*\(y - y\) / \(y - y\)"):
        export(small.spec("dividing", small.Dividing, small.values(2, 8)), said=said)
    assert not any("exporting" in line for line in said)


@pytest.mark.thorough
def test_nothing_between_inputs_goes_with_calibration_inputs(
    export: Exporter, runner_binary: RunnerBinary, tmp_path: Path
) -> None:
    def calibration(_: Any, count: int) -> list[tuple[Any, Tensor]]:
        return [(None, small.values(2, 8, seed=seed)) for seed in range(count)]

    spec = small.spec(
        "optional", _seeded(small.Optional), None, small.values(2, 8), get_calibration_inputs=calibration
    )
    assert _fault(export(spec, "int8"), runner_binary, tmp_path) is None


def test_a_model_that_wants_halves_is_told_what_to_take_out(export: Exporter) -> None:
    with pytest.raises(ExportError) as caught:
        export(small.spec("halving", small.Halving, small.values(2, 8)))
    assert "take the conversion to half out" in (caught.value.remedy or "")


def test_inputs_of_ones_own_are_taken_by_number_and_by_name(
    export: Exporter, runner_binary: RunnerBinary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SME2_DATA", str(tmp_path / "data"))
    spec = small.spec("optional", _seeded(small.Optional), None, small.values(2, 8))

    def given(name: str, array: Any) -> ModelSpec:
        np.savez(tmp_path / "inputs.npz", **{name: array})
        return spec.with_options({"inputs": store_inputs(tmp_path / "inputs.npz")})

    own = small.values(3, 8, seed=9).numpy()
    for name in ("input_0", "x"):
        model = export(given(name, own))
        assert np.array_equal(np.load(model.inputs[0]), own)
        folder = tmp_path / name
        folder.mkdir()
        assert _fault(model, runner_binary, folder) is None
    with pytest.raises(ExportError, match="inputs are x, the given ones y"):
        export(given("y", own))
    with pytest.raises(ExportError, match=r"Input 0 is float32 \[2, 8\], input_0\.npy has int64"):
        export(given("input_0", own.astype(np.int64)))
    np.savez(tmp_path / "inputs.npz", own, own)
    two = spec.with_options({"inputs": store_inputs(tmp_path / "inputs.npz")})
    with pytest.raises(ExportError, match="takes 1 input"):
        export(two)
