"""A person brings a model: the template works as it is, and the check tells which step fails and why."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner, Result

from sme2_assets.cli import main
from sme2_assets.diagnostics import model
from sme2_assets.diagnostics.model import STEPS, STEPS_OF_A_PROGRAM, check_variant
from sme2_assets.diagnostics.steps import CheckStep
from sme2_assets.errors import ExportError
from sme2_assets.models.artifact import ExportedModel
from sme2_assets.models.brought import template, write_template
from sme2_assets.models.differences import in_runner
from sme2_assets.models.registry import model_spec, parse_variant
from sme2_assets.models.spec import Variant
from sme2_assets.runner.build import RunnerBinary
from sme2_assets.store import CHECKOUT, DAGSTER_YAML, Store
from sme2_assets.targets import Target
from sme2_assets.targets.local import EmulatedTarget
from sme2_assets.toolchain.qemu import Qemu
from sme2_assets_tests.models.faults import other_operator, plant_fault
from sme2_assets_tests.test_docs import bash_commands

NET = """
import torch

MODEL = {{"factory": "Net", "precisions": ["fp32"]}}
{top}

class Layers(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)

    def forward(self, x):
        return {result}


class Net:
    {attribute}

    def get_eager_model(self):
        return Layers()

    def get_example_inputs(self):
        return (torch.randn(1, 4),)
"""


@pytest.fixture
def store(tmp_path: Path, own_artifacts: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """A data folder with an empty models folder; what is built and exported in this run is shared."""
    monkeypatch.setenv("SME2_DATA", str(tmp_path))
    monkeypatch.delenv("SME2_MODELS", raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "models").mkdir()
    (tmp_path / "artifacts").symlink_to(own_artifacts)
    (tmp_path / "tools").symlink_to(own_artifacts / "tools")
    yield Store(tmp_path)
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


def sme2(*words: str) -> Result:
    return CliRunner().invoke(main, words)


def write(
    store: Store, name: str, *, result: str = "self.layer(x)", top: str = "", attribute: str = "pass"
) -> None:
    text = NET.format(result=result, top=top, attribute=attribute)
    (store.root / "models" / f"{name}.py").write_text(text)


def checked(store: Store, key: str) -> dict[str, CheckStep]:
    check = check_variant(Variant(*key.rsplit("-", 1)), store, log=print)
    return {step.name: step for step in check.steps}


def test_onboarding_writes_a_model_that_is_listed_and_says_what_comes_next(store: Store) -> None:
    done = sme2("onboard", "my_net")
    assert done.exit_code == 0, done.output
    path = store.root / "models" / "my_net.py"
    assert str(path) in done.output
    assert "sme2 check-model my_net" in done.output
    assert "sme2 profile my_net" in done.output
    spec = model_spec("my_net@size=32")
    assert spec.place == str(path)
    assert "my_net" in sme2("models").output


@pytest.fixture
def own_exports(store: Store, own_artifacts: Path) -> Store:
    """Exports that no other test gets to see."""
    store.artifacts.unlink()
    store.artifacts.mkdir()
    (store.artifacts / "runners").symlink_to(own_artifacts / "runners")
    return store


def test_the_template_passes_every_step_as_it_is(own_exports: Store) -> None:
    store = own_exports
    write_template("my_net")
    steps = checked(store, "my_net-fp32")
    assert list(steps) == list(STEPS)
    assert {step.status for step in steps.values()} == {"passed"}
    assert "parameters" in steps["eager run"].detail
    assert "delegate call" in steps["lowering"].detail
    assert "SQNR" in steps["numerics"].detail
    assert "top-1 agreement 100%" in steps["numerics"].detail
    again = checked(store, "my_net-fp32")
    assert "passed before" in again["export"].detail


@pytest.mark.parametrize("name", ["my_net", "2d-net", "a", "My_Net2"])
def test_the_template_is_python_for_every_name(name: str) -> None:
    compile(template(name), name, "exec")
    assert "@NAME@" not in template(name)
    assert "@CLASS@" not in template(name)


@pytest.mark.parametrize(
    "name", ["", "../evil", "a/b", "a b", "a.b", "-a", "hf", "toy_cnn", "x-fp32", "ä", "a" * 300, "x\n"]
)
def test_a_name_that_cannot_be_or_is_taken_is_refused(store: Store, name: str) -> None:
    with pytest.raises(ExportError):
        write_template(name)
    assert list((store.root / "models").iterdir()) == []


def test_a_file_that_is_there_is_never_overwritten(store: Store) -> None:
    path = store.root / "models" / "mine.py"
    path.write_text("my work")
    done = sme2("onboard", "mine")
    assert done.exit_code == 1
    assert path.read_text() == "my work"


def test_a_template_in_a_folder_that_is_not_looked_at_says_so(store: Store, tmp_path: Path) -> None:
    done = sme2("onboard", "mine", "--folder", str(tmp_path / "elsewhere"))
    assert done.exit_code == 0
    assert (tmp_path / "elsewhere" / "mine.py").is_file()
    assert "SME2_MODELS" in done.output


@pytest.mark.parametrize(
    ("step", "model", "problem"),
    [
        ("import", {"top": "import no_such_package"}, "no_such_package"),
        ("import", {"top": "1 / 0"}, "division by zero (mine.py"),
        ("eager run", {"result": "self.layer(x[:, :2])"}, "mine.py"),
        ("export", {"result": "x if x.sum() > 0 else -x"}, "x if x.sum() > 0"),
        ("lowering", {"result": "torch.linalg.qr(x)[0]"}, "linalg_qr"),
        ("run", {"result": "torch.fft.fft(x).real"}, "fft_r2c"),
        pytest.param(
            *("numerics", {"attribute": "minimum_sqnr_db = {'fp32': 199.0}"}, "at least 199 dB"),
            marks=pytest.mark.thorough,
        ),
    ],
    ids=["missing package", "error in the file", "eager", "export", "lowering", "run", "numerics"],
)
def test_the_step_that_fails_is_named_with_cause_and_remedy(
    store: Store, step: str, model: dict[str, str], problem: str
) -> None:
    write(store, "mine", **model)
    steps = checked(store, "mine-fp32")
    failed = steps[step]
    assert failed.status == "failed", steps
    assert problem in str(failed.problem)
    assert failed.remedy
    order = list(STEPS)
    for name, found in steps.items():
        if order.index(name) != order.index(step):
            earlier = order.index(name) < order.index(step)
            assert found.status == ("passed" if earlier else "not reached")


def test_a_wholly_portable_program_is_told_with_what_keeps_xnnpack_out(store: Store) -> None:
    write(store, "mine", result="torch.fft.fft(x).real")
    detail = checked(store, "mine-fp32")["lowering"].detail
    assert "Nothing is delegated to XNNPACK, so no SME2 kernel can run (" in detail
    assert "aten._fft_r2c.default: XNNPACK has no such operator" in detail


def test_outputs_that_are_too_far_off_are_traced_to_the_first_operator(store: Store) -> None:
    write(store, "mine", attribute="minimum_sqnr_db = {'fp16': 199.0}")
    failed = checked(store, "mine-fp16")["numerics"]
    assert failed.status == "failed"
    assert "The first operator that is: aten.linear" in str(failed.problem)


TWICE = "self.layer(torch.cumsum(torch.tanh(self.layer(x)), -1))"


@pytest.mark.thorough
def test_outputs_that_are_right_in_torch_are_traced_to_the_first_wrong_operator_of_the_program(
    own_exports: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(own_exports, "mine", result=TWICE)
    plant_fault(monkeypatch, other_operator("aten.tanh.default", torch.ops.aten.sigmoid.default))
    lines = (own_exports.root / "models" / "mine.py").read_text().splitlines()
    number = 1 + lines.index(f"        return {TWICE}")
    failed = checked(own_exports, "mine-fp32")["numerics"]
    assert failed.status == "failed"
    assert (
        "The first operator that is wrong in the runner: aten.tanh.default in the model itself (Layers), "
        f"line mine.py:{number}: return {TWICE}: "
    ) in str(failed.problem)
    assert "(in delegate 1 of 2, with SME2 off" in str(failed.problem)
    assert "defect of the kernels" in str(failed.remedy)


@pytest.mark.thorough
def test_a_search_that_fails_does_not_hide_that_the_outputs_are_wrong(
    own_exports: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(own_exports, "mine", result=TWICE)
    plant_fault(monkeypatch, other_operator("aten.tanh.default", torch.ops.aten.sigmoid.default))

    def does_not_lower(*given: object, **more: object) -> bytes:
        raise RuntimeError("it does not lower\nat all")

    monkeypatch.setattr(in_runner, "lower_with_taps", does_not_lower)
    problem = str(checked(own_exports, "mine-fp32")["numerics"].problem)
    assert "The outputs at fp32 are too far from the eager model's: output 0: " in problem
    assert problem.endswith("Where it begins could not be found: it does not lower")


def test_a_fault_with_sme2_on_alone_is_found_where_both_states_can_be_run(
    store: Store, emulator: Qemu, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(store, "mine", result="torch.cumsum(self.layer(x), -1)")
    weights = np.full((4, 4), 0.25, np.float32)
    file = store.root / "models" / "mine.py"
    file.write_text(
        file.read_text().replace("Linear(4, 4)", "Linear(4, 4)\n        self.layer.weight.data.fill_(0.25)")
    )
    run_once = model._run_once

    def faulty_if_on(target: Target, runner: RunnerBinary, exported: ExportedModel, sme2: str) -> Any:
        pte = exported.pte.read_bytes()
        assert pte.count(weights.tobytes()) == 1
        faulty = store.root / "faulty.pte"
        faulty.write_bytes(pte.replace(weights.tobytes(), (-weights).tobytes()))
        return run_once(target, runner, replace(exported, pte=faulty) if sme2 == "on" else exported, sme2)

    monkeypatch.setattr(model, "_run_once", faulty_if_on)
    monkeypatch.setattr(model, "_target", lambda store: EmulatedTarget(store.tools))
    steps = checked(store, "mine-fp32")
    assert "emulated, SME2 off and on, 1 output(s)" in steps["run"].detail
    problem = str(steps["numerics"].problem)
    assert (
        "(with SME2 on only). The first operator that is wrong in the runner: aten.linear.default" in problem
    )
    assert "(in delegate 1 of 1, with SME2 on only)" in problem


def test_a_program_as_it_is_is_read_and_run_and_has_nothing_to_compare_with(
    store: Store, exported: Callable[[str], ExportedModel]
) -> None:
    (store.root / "models" / "given.pte").write_bytes(exported("toy_cnn-fp32").pte.read_bytes())
    steps = checked(store, "given-as_is")
    assert list(steps) == list(STEPS_OF_A_PROGRAM)
    assert {step.status for step in steps.values()} == {"passed"}
    assert "nothing to compare with" in steps["numerics"].detail
    assert "no SME2 kernel" not in steps["read"].detail


def test_the_command_prints_each_step_and_fails_when_one_does(store: Store) -> None:
    write(store, "mine", top="1 / 0")
    done = sme2("check-model", "mine")
    assert done.exit_code == 1
    lines = done.output.splitlines()
    assert any("find" in line and "passed" in line for line in lines)
    assert any("import" in line and "FAILED" in line for line in lines)
    assert any("numerics" in line and "not reached" in line for line in lines)
    assert "What to do:" in done.output


def test_the_command_gives_json_for_programs_and_the_exported_files(store: Store, tmp_path: Path) -> None:
    write_template("my_net")
    done = sme2("check-model", "my_net-fp32", "--json", "--output", str(tmp_path / "mine"))
    assert done.exit_code == 0, done.output
    [check] = json.loads(done.stdout)
    assert (check["what"], check["ok"]) == ("my_net-fp32", True)
    assert [step["name"] for step in check["steps"]] == list(STEPS)
    assert all(step["seconds"] >= 0 for step in check["steps"])
    names = ["my_net_xnnpack_fp32.pte", "my_net_xnnpack_fp32.pte.etrecord"]
    assert sorted(path.name for path in (tmp_path / "mine").iterdir()) == names


def test_a_model_that_is_not_there_is_an_error_of_its_own(store: Store) -> None:
    done = sme2("check-model", "no_such_model_at_all")
    assert done.exit_code == 1
    assert "There is no model" in done.output


def test_models_are_listed_by_source_and_broken_ones_with_their_cause(store: Store) -> None:
    (store.root / "models" / "bad.py").write_text("class (")
    listed = json.loads(sme2("models", "--json").stdout)
    assert listed[0]["model"] == "toy_cnn"
    assert listed[-1]["name"] == "bad"
    assert "cannot be used: bad" in sme2("models").output
    examples = json.loads(sme2("models", "--source", "executorch", "--json").stdout)
    assert "executorch:resnet8" in [model["model"] for model in examples]
    everything = sme2("models", "--all").output
    assert "hf:bert" in everything
    assert sme2("models", "--source", "timm").exit_code == 0
    assert sme2("models", "--source", "nowhere").exit_code == 1


def test_options_and_variants_of_a_brought_model_are_what_the_registry_says(store: Store) -> None:
    write_template("my_net")
    assert parse_variant("my_net@size=32-int8").key == "my_net.size_32-int8"


@pytest.mark.thorough
def test_the_page_about_models_takes_a_real_model_through_as_it_is_written(
    store: Store, emulator: Qemu
) -> None:
    page = CHECKOUT / "docs" / "models.md"
    [network] = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    environment = {**os.environ, "SME2_DATA": str(store.root), "DAGSTER_HOME": str(store.dagster_home)}
    store.dagster_home.mkdir()
    shutil.copy(DAGSTER_YAML, store.dagster_home)
    for command in bash_commands(page):
        words = shlex.split(command)
        assert words[0] == ".venv/bin/sme2"
        done = subprocess.run(
            [sys.executable, "-m", "sme2_assets.cli", *words[1:]],
            env=environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, command + done.stdout + done.stderr
        assert done.stdout.strip()
        if words[1] == "onboard":
            (store.root / "models" / f"{words[2]}.py").write_text(network)
    newest = max(
        (store.artifacts / "models" / "squeezenet-int8").glob("*/manifest.json"),
        key=lambda path: path.stat().st_mtime,
    )
    # As torchvision counts them.
    assert json.loads(newest.read_text())["parameters"] == 1_235_496
