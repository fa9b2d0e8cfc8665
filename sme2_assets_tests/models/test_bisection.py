"""A fault that only the lowered program has is traced to its operator: faults are planted while lowering."""

from __future__ import annotations

import functools
import re
import subprocess
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sme2_assets.errors import ExportError
from sme2_assets.models import lowering
from sme2_assets.models.differences import in_runner
from sme2_assets.models.differences.in_runner import Run, wrong_in_the_runner
from sme2_assets.models.inputs import tensor_array
from sme2_assets.models.spec import ModelSpec
from sme2_assets.runner.build import RunnerBinary
from sme2_assets_tests.models.faults import (
    Change,
    no_weights,
    other_dimension,
    other_operator,
    plant_fault,
    weights_of,
)
from sme2_assets_tests.models.small import spec, thorough, values

IN_ALL, IN_OFF = ["off", "on"], ["off"]


class Chained(nn.Module):
    """Three delegates, with operators between them that XNNPACK does not have, and a branch."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(16, 16)
        self.middle = nn.Linear(16, 16)
        self.side = nn.Linear(16, 16)
        self.head = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x))
        x = torch.cumsum(x, -1) / 16
        side = torch.sigmoid(self.side(x))
        x = torch.tanh(self.middle(x))
        x = x * side
        x = torch.cumsum(x, -1)
        return self.head(x)


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        widths = [3, *[8] * 6]
        self.layers = nn.Sequential(
            *(
                nn.Sequential(nn.Conv2d(a, b, 3, bias=False), nn.ReLU(inplace=True))
                for a, b in pairwise(widths)
            )
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class Attending(nn.Module):
    """torch's attention gives its values in another order in memory, on which the `view` after it relies."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(16, 16)
        self.second = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        heads = self.first(x).view(2, 4, 2, 8).transpose(1, 2)
        x = nn.functional.scaled_dot_product_attention(heads, heads, heads)
        return self.second(x.transpose(1, 2).view(2, 4, 16))


class InPlace(nn.Module):
    """What reads a value after it was changed does not depend on the change, as the graph has it."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(16, 16)
        self.second = nn.Linear(16, 16)
        self.register_buffer("mask", torch.full((16, 16), float("-inf")).triu(1))

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        y.add_(x)
        z = torch.tanh(y)
        y.mul_(2)
        # As an output, the masked value would be refused.
        return torch.softmax(self.second(z)[0] + self.mask, -1) @ y.t()


CHAINED = spec("chained", Chained, values(4, 16))
CONVOLUTIONS = spec("convolutions", Convolutions, values(1, 3, 24, 24))


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch) -> Callable[[Change], None]:
    return functools.partial(plant_fault, monkeypatch)


@pytest.fixture
def run(runner_binary: RunnerBinary, tmp_path: Path) -> Callable[[ModelSpec, str], Run]:
    def prepared(model: ModelSpec, precision: str) -> Run:
        [value] = model.build().get_example_inputs()
        np.save(tmp_path / "input.npy", tensor_array(value.half() if precision == "fp16" else value))

        def run_program(pte: bytes, _state: str) -> list[np.ndarray]:
            (tmp_path / "program.pte").write_bytes(pte)
            command = [str(runner_binary.path), "--model", str(tmp_path / "program.pte"), "--pass", "latency"]
            command += ["--input", str(tmp_path / "input.npy"), "--warmup", "0", "--iterations", "1"]
            command += ["--threads", "1", "--result", str(tmp_path / "result.json")]
            done = subprocess.run(
                [*command, "--outputs", str(tmp_path / "outputs")], capture_output=True, text=True
            )
            assert done.returncode == 0, done.stderr
            count = len(re.findall('"file": *"output_', (tmp_path / "result.json").read_text()))
            return [np.load(tmp_path / "outputs" / f"output_{index}.npy") for index in range(count)]

        return run_program

    return prepared


def line(code: str) -> str:
    lines = Path(__file__).read_text().splitlines()
    [number] = [at for at, text in enumerate(lines, 1) if text.strip() == code]
    return f"line sme2_assets_tests/models/test_bisection.py:{number}: {code}"


ITSELF = "in the model itself (Chained)"


@pytest.mark.parametrize(
    ("change", "operator", "code", "where"),
    [
        pytest.param(
            weights_of("first"),
            "aten.linear.default with aten.relu.default in module 'first' (Linear)",
            "x = torch.relu(self.first(x))",
            "in delegate 1 of 3",
            marks=pytest.mark.thorough,
        ),
        (
            other_dimension("aten.cumsum.default"),
            f"aten.cumsum.default {ITSELF}",
            "x = torch.cumsum(x, -1) / 16",
            "in no delegate",
        ),
        pytest.param(
            weights_of("middle"),
            "aten.linear.default in module 'middle' (Linear)",
            "x = torch.tanh(self.middle(x))",
            "in delegate 2 of 3",
            marks=pytest.mark.thorough,
        ),
        pytest.param(
            other_operator("aten.tanh.default", torch.ops.aten.sigmoid.default),
            f"aten.tanh.default {ITSELF}",
            "x = torch.tanh(self.middle(x))",
            "in delegate 2 of 3",
            marks=pytest.mark.thorough,
        ),
        pytest.param(
            weights_of("head"),
            "aten.linear.default in module 'head' (Linear)",
            "return self.head(x)",
            "in delegate 3 of 3",
            marks=pytest.mark.thorough,
        ),
    ],
    ids=["first", "between delegates", "middle", "activation", "last"],
)
def test_the_operator_that_is_wrong_once_lowered_is_named_with_its_line(
    plant: Callable[[Change], None],
    run: Callable[[ModelSpec, str], Run],
    change: Change,
    operator: str,
    code: str,
    where: str,
) -> None:
    plant(change)
    said = wrong_in_the_runner(CHAINED, "fp32", run(CHAINED, "fp32"), wrong=IN_OFF, states=IN_OFF, log=print)
    assert said is not None
    assert said.startswith(f"The first operator that is wrong in the runner: {operator}, {line(code)}: ")
    assert f"({where}, with SME2 off, the only state that could be run)" in said


@pytest.mark.parametrize("precision", ["fp16", *thorough("fp32", "int8")])
def test_a_layer_inside_one_delegate_is_named_at_every_precision(
    plant: Callable[[Change], None], run: Callable[[ModelSpec, str], Run], precision: str
) -> None:
    plant(no_weights(3))
    said = wrong_in_the_runner(
        CONVOLUTIONS, precision, run(CONVOLUTIONS, precision), wrong=IN_OFF, states=IN_OFF, log=print
    )
    named = "aten.conv2d.default with aten.relu(_|).default in module 'layers.3.0' \\(Conv2d\\)"
    assert re.match(f"The first operator that is wrong in the runner: {named}", str(said)), said


@pytest.mark.thorough
@pytest.mark.parametrize("module", ["first", "second"])
def test_operators_that_change_values_in_place_and_masks_with_infinities_mislead_nobody(
    plant: Callable[[Change], None], run: Callable[[ModelSpec, str], Run], module: str
) -> None:
    plant(weights_of(module))
    model = spec("in_place", InPlace, values(4, 16))
    said = wrong_in_the_runner(model, "fp32", run(model, "fp32"), wrong=IN_OFF, states=IN_OFF, log=print)
    named = f"aten.linear.default in module '{module}' (Linear)"
    assert said is not None
    assert said.startswith(f"The first operator that is wrong in the runner: {named}")


@pytest.mark.thorough
def test_a_value_keeps_the_order_of_its_elements_in_memory(
    plant: Callable[[Change], None], run: Callable[[ModelSpec, str], Run]
) -> None:
    plant(weights_of("second"))
    model = spec("attending", Attending, values(2, 4, 16))
    said = wrong_in_the_runner(model, "fp32", run(model, "fp32"), wrong=IN_OFF, states=IN_OFF, log=print)
    named = "aten.linear.default in module 'second' (Linear)"
    assert said is not None
    assert said.startswith(f"The first operator that is wrong in the runner: {named}")


@pytest.mark.thorough
@pytest.mark.parametrize("state", ["on", "off"])
def test_a_fault_in_one_state_of_sme2_is_said_to_be_in_that_one_only(
    run: Callable[[ModelSpec, str], Run], state: str
) -> None:
    right = run(CHAINED, "fp32")

    def wrong_in_one(pte: bytes, sme2: str) -> list[np.ndarray]:
        return right(_other_weights(pte) if sme2 == state else pte, sme2)

    said = wrong_in_the_runner(CHAINED, "fp32", wrong_in_one, wrong=[state], states=IN_ALL, log=print)
    assert said is not None
    assert "module 'middle'" in said
    assert f"with SME2 {state} only)" in said


@pytest.mark.thorough
def test_a_fault_in_both_states_is_searched_once(run: Callable[[ModelSpec, str], Run]) -> None:
    right, log = run(CHAINED, "fp32"), list[str]()
    said = wrong_in_the_runner(
        CHAINED,
        "fp32",
        lambda pte, sme2: right(_other_weights(pte), sme2),
        wrong=IN_ALL,
        states=IN_ALL,
        log=log.append,
    )
    assert said is not None
    assert said.count("The first operator that is wrong") == 1
    assert "with SME2 off and on)" in said
    # Between the delegates, then inside one.
    assert sum("lowering with" in each for each in log) == 2


def test_a_fault_that_a_cut_mends_is_not_blamed_on_one_operator(
    run: Callable[[ModelSpec, str], Run],
) -> None:
    right, whole = run(CHAINED, "fp32"), list[bytes]()

    def wrong_uncut(pte: bytes, sme2: str) -> list[np.ndarray]:
        whole.append(pte)
        return right(_other_weights(pte) if pte == whole[0] else pte, sme2)

    said = wrong_in_the_runner(CHAINED, "fp32", wrong_uncut, wrong=IN_OFF, states=IN_OFF, log=print)
    assert said is not None
    assert "The first wrong value in the runner: aten.mul.Tensor" in said
    assert "it is wrong only together with the operators before it: " in said
    others = said.partition("together with")[2]
    assert [name in others for name in ("'side'", "'middle'", "aten.tanh", "'first'")] == [True] * 3 + [False]


@pytest.mark.thorough
def test_a_program_that_cannot_be_cut_keeps_what_was_found_before(
    run: Callable[[ModelSpec, str], Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    right, lower, calls = run(CHAINED, "fp32"), in_runner.lower_with_taps, list[int]()

    def lowers_once(*given: Any, **more: Any) -> bytes:
        calls.append(1)
        if len(calls) > 1:
            raise RuntimeError("it does not lower")
        return lower(*given, **more)

    monkeypatch.setattr(in_runner, "lower_with_taps", lowers_once)
    said = wrong_in_the_runner(
        CHAINED, "fp32", lambda pte, _: right(_other_weights(pte), _), wrong=IN_OFF, states=IN_OFF, log=print
    )
    assert said is not None
    assert "The first wrong value in the runner: aten.mul.Tensor" in said
    assert "It was not told apart from the operators before it: " in said


def test_no_operator_is_named_if_the_runner_is_right(run: Callable[[ModelSpec, str], Run]) -> None:
    said = wrong_in_the_runner(CHAINED, "fp32", run(CHAINED, "fp32"), wrong=IN_OFF, states=IN_OFF, log=print)
    assert said is not None
    assert said.endswith("no operator can be named")


def test_the_kernels_are_not_blamed_for_what_is_wrong_in_torch(run: Callable[[ModelSpec, str], Run]) -> None:
    # Another network than the one that it stands for.
    model = spec("substituted", Chained, values(4, 16), substitute=lambda self, model: Chained())
    assert (
        wrong_in_the_runner(model, "fp32", run(model, "fp32"), wrong=IN_OFF, states=IN_OFF, log=print) is None
    )


def _other_weights(pte: bytes) -> bytes:
    """The program with other weights in the middle layer, wherever XNNPACK has them."""
    with lowering._seeded():
        weight = Chained().middle.weight.detach().numpy()
    assert pte.count(weight.tobytes()) == 1
    return pte.replace(weight.tobytes(), (-weight).tobytes())


class Unmoved(nn.Module):
    """Depends on no input, so there is no value on the way."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.eye(4))

    def forward(self) -> Tensor:
        return self.weight @ self.weight


def test_a_program_with_nothing_between_is_told_so() -> None:
    def zeros(pte: bytes, _state: str) -> list[np.ndarray]:
        return [np.zeros((4, 4), dtype=np.float32)]

    with pytest.raises(ExportError, match="no value between the inputs and the outputs"):
        wrong_in_the_runner(spec("unmoved", Unmoved), "fp32", zeros, wrong=IN_OFF, states=IN_OFF, log=print)
