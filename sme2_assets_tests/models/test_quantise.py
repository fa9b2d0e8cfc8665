"""Quantised programs hold what their scheme says, and what a scheme cannot do is told."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sme2_assets.errors import ExportError
from sme2_assets.evidence.numerics import MINIMUM_SQNR_DB, worst_sqnr_db
from sme2_assets.models.artifact import ExportedModel, read_manifest
from sme2_assets.models.export import export_model
from sme2_assets.models.lowering import build_model, export_program, kept_in_float
from sme2_assets.models.progress import Progress
from sme2_assets.models.quantise import halved, left_out
from sme2_assets.models.registry import model_spec, parse_variant
from sme2_assets.runner.build import RunnerBinary
from sme2_assets_tests.models.run import operator_names, outputs_of
from sme2_assets_tests.models.small import spec, values, variant

SCHEMES = ["int8", "int8_dynamic", "int4"]


class Sine(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(x)


def _layers() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 40), nn.Linear(40, 8))


@pytest.fixture(scope="session")
def quantised(own_artifacts: Path) -> Callable[[str], ExportedModel]:
    layers = spec("layers", _layers, values(4, 64))
    return lambda precision: export_model(layers, variant("layers", precision), own_artifacts, log=print)


class Positions(nn.Module):
    """Looks its rows up by integer arithmetic, as language models do with positions."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.layer = nn.Embedding(16, 32), nn.Linear(32, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x + self.table(torch.arange(4) * 2 + 3))


@pytest.mark.thorough
def test_integer_arithmetic_stays_integer(tmp_path: Path, runner_binary: RunnerBinary):
    positions = spec("positions", Positions, values(4, 32))
    model = export_model(positions, variant("positions", "int8"), tmp_path, log=print)
    expected = [np.load(path) for path in model.expected_outputs]
    assert worst_sqnr_db(expected, outputs_of(model, runner_binary, tmp_path)) >= MINIMUM_SQNR_DB["int8"]


@pytest.mark.parametrize("precision", SCHEMES)
def test_the_runner_gives_what_eager_gives(
    quantised: Callable[[str], ExportedModel], runner_binary: RunnerBinary, tmp_path: Path, precision: str
) -> None:
    model = quantised(precision)
    expected = [np.load(path) for path in model.expected_outputs]
    assert worst_sqnr_db(expected, outputs_of(model, runner_binary, tmp_path)) >= MINIMUM_SQNR_DB[precision]
    assert read_manifest(model.manifest).operators.portable == {}


@pytest.mark.parametrize(
    ("precision", "types", "count"),
    [("int8", "QS8, QC8W", 3), ("int8_dynamic", "F32, QC8W", 3), ("int4", "F32, QB4W", 2)],
)
def test_the_kernels_are_of_the_scheme(
    quantised: Callable[[str], ExportedModel],
    runner_binary: RunnerBinary,
    tmp_path: Path,
    precision: str,
    types: str,
    count: int,
) -> None:
    # The last layer takes 40 values, which is no multiple of a group of 4-bit weights.
    names = operator_names(quantised(precision), runner_binary, tmp_path)
    layers = {name for name in names if name.startswith("Fully Connected")}
    assert len({name for name in layers if types in name}) == count
    assert len(layers) == 3


def test_four_bits_take_less_room_than_eight(quantised: Callable[[str], ExportedModel]) -> None:
    sizes = {precision: quantised(precision).pte.stat().st_size for precision in ("int8_dynamic", "int4")}
    assert sizes["int4"] < sizes["int8_dynamic"]


@pytest.mark.parametrize("precision", ["int8_dynamic", "int4"])
def test_a_model_without_linear_layers_is_told_what_to_use(tmp_path: Path, precision: str) -> None:
    convolution = spec("convolution", lambda: nn.Conv2d(3, 4, 3), values(1, 3, 8, 8))
    with pytest.raises(ExportError, match="nothing to quantise") as error:
        export_model(convolution, variant("convolution", precision), tmp_path, log=print)
    assert "or int8" in str(error.value)


def test_a_model_that_would_stay_as_it_is_is_not_called_int8(tmp_path: Path) -> None:
    sine = spec("sine", Sine, values(1, 8))
    with pytest.raises(ExportError, match="nothing to quantise at int8"):
        export_model(sine, variant("sine", "int8"), tmp_path, log=print)


def test_a_model_is_calibrated_on_the_data_it_is_given(tmp_path: Path) -> None:
    seen: list[float] = []

    class Looking(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 8)

        def forward(self, x):  # type: ignore[no-untyped-def]
            return self.linear(x)

    def own(_self: object, count: int) -> list[tuple[object, ...]]:
        seen.append(count)
        return [(values(2, 8, seed=n) * 5,) for n in range(count)]

    looking = spec("looking", Looking, values(2, 8) * 5, get_calibration_inputs=own)
    export_model(looking, variant("looking", "int8"), tmp_path, log=print)
    assert seen == [16]


class Mixed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.pictures = nn.Conv2d(3, 64, 2)
        self.wide, self.narrow, self.head = nn.Linear(64, 40), nn.Linear(40, 32), nn.Linear(32, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.narrow(self.wide(self.pictures(x).mean(dim=(2, 3)))))


def _left_out(precision: str, *kept: str) -> dict[str, str]:
    mixed = spec("mixed", Mixed, values(1, 3, 4, 4), keep_float=kept)
    progress = Progress("mixed", lambda _: None)
    program, _ = export_program(build_model(mixed, precision, progress), precision, progress)
    return left_out(program, precision, kept)


def test_the_layers_that_a_scheme_leaves_out_are_told_with_the_reason() -> None:
    assert _left_out("int4") == {
        "pictures": "int4 quantises linear layers only",
        "narrow": "its 40 inputs are not a multiple of 32, one group",
    }
    assert _left_out("int8") == {}


@pytest.mark.parametrize("precision", SCHEMES)
def test_modules_that_match_a_pattern_stay_in_floating_point(precision: str) -> None:
    found = _left_out(precision, "hea*")
    assert found["head"] == "kept by 'hea*'"
    assert "wide" not in found


def test_at_fp16_modules_that_match_a_pattern_compute_in_fp32_and_give_fp16() -> None:
    model = Mixed()
    weights = model.head.weight.detach().clone()
    mixed = halved(model, ["hea*"])
    seen = []
    mixed.head.register_forward_hook(lambda module, args, output: seen.append((args[0].dtype, output.dtype)))
    assert mixed(values(1, 3, 4, 4).half()).dtype == mixed.wide.weight.dtype == torch.float16
    # Its own hooks are around this one's output, not around its input.
    assert [given for given, _ in seen] == [torch.float32]
    assert torch.equal(mixed.head.weight, weights), "not rounded to fp16 and back"


def test_every_model_has_the_option_to_keep_modules() -> None:
    variant = parse_variant("toy_cnn@keep=head+expand.0-int8")
    assert parse_variant(variant.key) == variant
    assert kept_in_float(model_spec(variant.model).build()) == ("head", "expand.0")
    both = model_spec("toy_cnn@rewrite=linear,keep=head")
    assert (both.title, kept_in_float(both.build())) == ("toy_cnn@keep=head,rewrite=linear", ("head",))
    with pytest.raises(ExportError, match="'fp32' is not a precision of"):
        parse_variant("toy_cnn@keep=head-fp32")
    with pytest.raises(ExportError, match="too long for the name of a folder"):
        model_spec(f"toy_cnn@keep={'a.' * 80}")


def test_a_pattern_that_matches_no_module_is_refused_with_the_modules() -> None:
    with pytest.raises(ExportError, match=r"No module of the model matches 'haed'.*did you mean 'head'"):
        _left_out("int8", "haed")
