"""Bringing a model: a template to start from, and a check that goes through every step it will take.

Belongs here: the template, the order of the steps, and what each failure means for the person who brings
the model. Does not: the steps themselves (export, runner, numerics), and how they are printed.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np

from sme2_assets.errors import ExportError, Sme2Error
from sme2_assets.evidence.numerics import compare_outputs, worst_agreement
from sme2_assets.evidence.operators import ProgramOperators
from sme2_assets.evidence.result import RunnerResult
from sme2_assets.models.artifact import ExportedModel, read_manifest
from sme2_assets.models.failures import load_failure
from sme2_assets.models.progress import Stage
from sme2_assets.models.registry import ModelSpec, Variant, catalogue, model_spec
from sme2_assets.models.sources.folder import RESERVED, default_folder
from sme2_assets.models.spec import check_name
from sme2_assets.runner.build import RunnerBinary
from sme2_assets.runner.bundle import runner_for
from sme2_assets.runner.failures import runner_failure
from sme2_assets.steps import FAILED, PASSED, Step, taken
from sme2_assets.store import Store, write_text_atomically
from sme2_assets.targets import Target, open_target
from sme2_assets.targets.host import host_platform

Log = Callable[[str], None]

STEPS = ("find", "import", "eager run", "export", "lowering", "run", "numerics")
# A program that is taken as it is has neither model nor export.
STEPS_OF_A_PROGRAM = ("find", "read", "run", "numerics")
# The stages of an export as steps of the check; loading comes before all of them.
_STEP_OF_STAGE = {"build": "eager run", "export": "export", "lower": "lowering", "read": "read"}
_TIMED_INFERENCES = 3
_RUN_TIMEOUT_S = 900.0


@dataclass
class ModelCheck:
    """All steps of one variant, in order."""

    variant: str
    steps: list[Step] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return all(step.status == PASSED for step in self.steps)


def write_template(name: str, folder: Path | None = None) -> Path:
    """A working model file of that name; what is there already is not touched."""
    check_name(name)
    if name in RESERVED:
        raise ExportError(f"{name!r} is the name of a source of models", "choose another name")
    found = catalogue()
    taken = {spec.name: f"{spec.source} ({spec.place})" for spec in found.specs}
    taken |= {problem.name: f"{problem.source} ({problem.place})" for problem in found.problems}
    if name in taken:
        raise ExportError(f"There is a model {name!r} already: {taken[name]}", "choose another name")
    path = (folder or default_folder()) / f"{name}.py"
    if path.exists():
        raise ExportError(f"{path} is there already", "choose another name, or edit that file")
    write_text_atomically(path, template(name))
    return path


def template(name: str) -> str:
    """The text of a model file: it works as it is, and says what to replace."""
    words = [word for word in re.split(r"[^A-Za-z0-9]", name) if word]
    cls = "".join(word[:1].upper() + word[1:] for word in words)
    if not cls[0].isalpha():
        cls = f"Model{cls}"
    return _TEMPLATE.replace("@NAME@", name).replace("@CLASS@", cls)


def check_variant(
    variant: Variant, store: Store, *, log: Log, told: Callable[[Step], None] = lambda step: None
) -> ModelCheck:
    """Take a variant through every step up to its first failure; `told` hears of each step as it ends."""
    checking = _Checking(variant, told)
    try:
        with checking.step("find") as step:
            spec = model_spec(variant.model)
            step.detail = f"{spec.source}: {spec.place}"
        checking.expect(STEPS_OF_A_PROGRAM if spec.pte else STEPS)
        exported = _export(checking, spec, variant, store.artifacts, log)
        outputs = _run(checking, exported, store, log)
        _compare(checking, spec, exported, outputs, log)
    except _Stop:
        pass
    return checking.check


class _Stop(Exception):
    """A step failed: those after it have no meaning."""


class _Checking:
    """Keeps the steps and their times."""

    def __init__(self, variant: Variant, told: Callable[[Step], None]) -> None:
        self.check = ModelCheck(variant.key, [Step("find")])
        self._told = told

    def expect(self, names: tuple[str, ...]) -> None:
        self.check.steps += [Step(name) for name in names[len(self.check.steps) :]]

    def get(self, name: str) -> Step:
        return next(step for step in self.check.steps if step.name == name)

    @contextmanager
    def step(self, name: str) -> Iterator[Step]:
        step = self.get(name)
        with taken(step):
            yield step
        self._told(step)
        if step.status == FAILED:
            raise _Stop

    def passed(self, step: Step, seconds: float, detail: str | None = None) -> None:
        step.status, step.seconds = PASSED, round(seconds, 3)
        step.detail = step.detail if detail is None else detail
        self._told(step)

    def fail(self, step: Step, seconds: float, problem: str, remedy: str | None) -> None:
        step.status, step.seconds = FAILED, round(seconds, 3)
        step.problem, step.remedy = problem, remedy
        self._told(step)
        raise _Stop


def write_program(variant: Variant, store: Store, folder: Path) -> list[Path]:
    """Puts the program of a variant, and its ETRecord, into a folder of the user's."""
    from sme2_assets.models.export import export_variant

    exported = export_variant(variant.key, store.artifacts, log=lambda _: None)
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / f"{variant.model}_xnnpack_{variant.precision}.pte"
    copies = {program: exported.pte}
    if exported.etrecord is not None:
        copies[program.with_name(f"{program.name}.etrecord")] = exported.etrecord
    for copy, original in copies.items():
        staged = copy.with_name(f".{copy.name}.part")
        shutil.copyfile(original, staged)
        staged.replace(copy)
    return list(copies)


def _export(
    checking: _Checking, spec: ModelSpec, variant: Variant, artifacts: Path, log: Log
) -> ExportedModel:
    """Import to lowering: one export, which tells where it is. A cached one has passed them before."""
    from sme2_assets.models.export import export_model, load_libraries, quiet_libraries

    if spec.pte is None:
        with checking.step("import") as step, quiet_libraries():
            load_libraries()
            spec.build()
            step.detail = f"{spec.title}: {spec.description}"
    names = ("read", "eager run", "export", "lowering")
    steps = [step for step in checking.check.steps if step.name in names]
    begun = {steps[0].name: time.perf_counter()}

    def on_stage(stage: Stage) -> None:
        name = _STEP_OF_STAGE.get(stage)
        # What a program as it is writes at the end is no lowering.
        if name in {step.name for step in steps}:
            begun.setdefault(name, time.perf_counter())

    try:
        exported = export_model(spec, variant, artifacts, log=log, on_stage=on_stage)
    except Sme2Error as error:
        ended = time.perf_counter()
        reached = [step for step in steps if step.name in begun]
        for step, later in pairwise(reached):
            checking.passed(step, begun[later.name] - begun[step.name])
        last = reached[-1]
        checking.fail(last, ended - begun[last.name], error.what, error.remedy)
    moments = [begun.get(step.name, begun[steps[0].name]) for step in steps] + [time.perf_counter()]
    for step, start, end in zip(steps, moments, moments[1:], strict=False):
        if exported.cached:
            checking.passed(step, 0.0, "passed before: same model, options and versions")
        else:
            checking.passed(step, end - start, _found_by(step.name, exported))
    return exported


def _found_by(step: str, exported: ExportedModel) -> str:
    manifest = read_manifest(exported.manifest)
    operators = manifest.operators
    shapes = ", ".join(f"{tensor.dtype}{tensor.shape}" for tensor in manifest.inputs)
    outputs = ", ".join(f"{tensor.dtype}{tensor.shape}" for tensor in manifest.outputs)
    if step in ("eager run", "read"):
        size = "" if manifest.macs is None else f", {manifest.macs / 1e6:,.1f} MMAC"
        weights = "" if manifest.parameters is None else f", {manifest.parameters:,} parameters"
        return f"{shapes} -> {outputs}{weights}{size}"
    if step == "lowering":
        return (
            f"{operators.delegated_total} operators in {operators.delegates} delegate call(s), "
            f"{operators.portable_total} portable, {exported.pte.stat().st_size:,} bytes"
        )
    return f"at {manifest.precision}"


def _run(checking: _Checking, exported: ExportedModel, store: Store, log: Log) -> list[np.ndarray]:
    with checking.step("run") as step:
        target = _target(store)
        runner = runner_for(target, store, log=log)
        result, outputs = _run_once(target, runner, exported)
        state = target.facts().arch if target.fidelity == "reference" else "SME2 off"
        facts = f"{target.platform}, {state}, {len(outputs)} output(s)"
        # A time here is a hint only: measuring is what `sme2 profile` does. Emulated ones mean nothing.
        hint = f", about {min(result.iteration_ns) / 1e6:,.2f} ms" if target.fidelity != "emulated" else ""
        step.detail = f"{facts}{hint}"
    return outputs


def _target(store: Store) -> Target:
    """This machine's own CPU, else the emulator."""
    native = host_platform()
    if native is not None and open_target(native, store).availability("off").ok:
        return open_target(native, store)
    emulated = open_target("emulated", store)
    emulated.require("off")
    return emulated


def _run_once(
    target: Target, runner: RunnerBinary, exported: ExportedModel
) -> tuple[RunnerResult, list[np.ndarray]]:
    with target.workspace() as workspace:
        command = [*workspace.install(runner.program), "--model", workspace.put(exported.pte)]
        for path in exported.inputs:
            command += ["--input", workspace.put(path)]
        command += ["--pass", "latency", "--threads", "1", "--warmup", "1"]
        command += ["--iterations", str(_TIMED_INFERENCES)]
        command += ["--result", workspace.path("check.json"), "--outputs", workspace.path("check_outputs")]
        done = workspace.run(command, {"SME2_RUNNER_SME2": "off"}, _RUN_TIMEOUT_S)
        if done.returncode != 0:
            lacking = load_failure(done.stderr, ProgramOperators.read(exported.operators))
            raise lacking or runner_failure(done.returncode, done.stderr[-2000:])
        result = RunnerResult.read(Path(workspace.path("check.json")))
        folder = Path(workspace.path("check_outputs"))
        outputs = [np.load(folder / str(fact.file), allow_pickle=False) for fact in result.outputs]
    return result, outputs


def _compare(
    checking: _Checking, spec: ModelSpec, exported: ExportedModel, outputs: list[np.ndarray], log: Log
) -> None:
    manifest = read_manifest(exported.manifest)
    with checking.step("numerics") as step:
        if not exported.expected_outputs:
            step.detail = "the program came without an eager model: there is nothing to compare with"
            return
        expected = [np.load(path, allow_pickle=False) for path in exported.expected_outputs]
        worst = worst_agreement(compare_outputs(expected, outputs, classifier=manifest.is_classifier))
        if worst is None:
            raise ExportError("The model has no outputs", "return a tensor from its forward()")
        bound = manifest.tolerance.minimum_db
        step.detail = f"SQNR {worst.sqnr_db:.1f} dB (at least {bound:g})"
        if worst.top1_agreement is not None:
            step.detail += f", top-1 agreement {worst.top1_agreement:.0%}"
        if not worst.passes(bound):
            raise ExportError(
                f"Output {worst.output} is too far from the eager model: SQNR {worst.sqnr_db:.1f} dB, "
                f"at least {bound:g} dB is expected at {manifest.precision}"
                f"{_where_it_begins(spec, manifest.precision, bound, log)}",
                _numerics_remedy(manifest.precision),
            )


def _where_it_begins(spec: ModelSpec, precision: str, bound: float, log: Log) -> str:
    from sme2_assets.models.divergence import divergence_of

    if precision == "fp32":
        return ""
    found = divergence_of(spec, precision, minimum_db=bound, log=log)
    if found is None:
        return ". In torch the model at this precision is near enough: the runner's kernels differ"
    return f". The first operator that is: {found}"


def _numerics_remedy(precision: str) -> str:
    if precision == "fp32":
        return "fp32 must agree: look for an operator whose kernel differs, or report it as a defect"
    if precision == "fp16":
        return "look for values beyond 65504; or do not offer fp16 (`precisions` of MODEL)"
    return (
        "give get_calibration_inputs(count) data like the model's own; do not offer the precision, or set "
        f"minimum_sqnr_db = {{'{precision}': ...}} if this is good enough for the model"
    )


_TEMPLATE = '''"""The model @NAME@, for sme2_assets.

This file works as it is: `sme2 check-model @NAME@` passes. Replace the network by yours, then check again.
The file is read, not run, to list the model; it is run when the model is built.
"""

import torch
from torch import nn

# What people see in `sme2 models`. `factory` is the class below. `precisions`: fp32, fp16, int8, and for
# models that are mostly linear layers int8_dynamic and int4. If weights come from a file beside this one,
# name it in "files": ["weights.pt"], so that other weights are another export.
MODEL = {
    "factory": "@CLASS@",
    "description": "What @NAME@ is, in a sentence",
    "precisions": ["fp32", "fp16", "int8"],
}


class Network(nn.Module):
    """Replace this by your network, or import it: `from my_package import Network`."""

    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 16, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1),
            nn.ReLU(),
        )
        self.head = nn.Linear(32, 10)

    def forward(self, image):
        return self.head(self.features(image).mean(dim=(2, 3)))


class @CLASS@:
    """Builds the network and its inputs: ExecuTorch's EagerModelBase.

    Arguments of __init__ are options: `sme2 profile @NAME@@size=128`. Each needs a default.
    """

    # True compares which class wins, besides how near the outputs are.
    is_classifier = True

    def __init__(self, size: int = 64):
        self.size = size

    def get_eager_model(self):
        """The network in fp32. Random weights serve a profiler; load real ones to judge accuracy."""
        return Network().eval()

    def get_example_inputs(self):
        """A tuple with one value per argument of forward(): tensors of any type, nested ones too."""
        return (torch.rand(1, 3, self.size, self.size),)

    # The rest is optional.

    def get_calibration_inputs(self, count):
        """Inputs like the real ones, for int8. Without it int8 is calibrated on noise."""
        return [(torch.rand(1, 3, self.size, self.size),) for _ in range(count)]

    # def get_example_kwarg_inputs(self):
    #     """Keyword arguments of forward()."""
    #     return {"mask": torch.ones(1, 8)}

    # def get_dynamic_shapes(self):
    #     """Dimensions that may change from call to call, as torch.export takes them."""
    #     return ({2: torch.export.Dim("height", max=128)},)

    # def wrap(self, model):
    #     """A module around the network: fix arguments, drop outputs that nobody needs."""
    #     return model

    # def substitute(self, model):
    #     """The network with other operators; its outputs must stay the same."""
    #     return model

    # How near to the eager model outputs must be, in dB, where the default does not suit the model.
    # minimum_sqnr_db = {"int8": 15.0}
'''
