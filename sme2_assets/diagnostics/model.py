"""Takes a model through every step of a measurement, up to the first that fails.

Belongs here: the order of the steps, and what each failure means for the model's author. Does
not: the steps themselves (export, runner, numerics).
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from sme2_assets.diagnostics.steps import CheckStep, Checkup
from sme2_assets.errors import ExportError, Sme2Error, first_line
from sme2_assets.evidence.delegation import DelegationReport
from sme2_assets.evidence.numerics import compare_outputs, first_fault, worst_agreement
from sme2_assets.evidence.operators import ProgramOperators
from sme2_assets.evidence.result import RunnerResult
from sme2_assets.models.artifact import ExportedModel, ModelManifest, read_manifest
from sme2_assets.models.delegation import LOWERED_ELSEWHERE
from sme2_assets.models.failures import kernel_failure
from sme2_assets.models.progress import Stage
from sme2_assets.models.registry import model_spec
from sme2_assets.models.spec import ModelSpec, Variant
from sme2_assets.runner.build import RunnerBinary
from sme2_assets.runner.bundle import runner_for
from sme2_assets.runner.failures import runner_failure
from sme2_assets.store import Store
from sme2_assets.targets import Target, open_target
from sme2_assets.targets.host import host_platform

Log = Callable[[str], None]
Outputs = list[np.ndarray]
RunProgram = Callable[[bytes, str], Outputs]

STEPS = ("find", "import", "eager run", "export", "lowering", "run", "numerics")
# A program that is used as it is has neither model nor export.
STEPS_OF_A_PROGRAM = ("find", "read", "run", "numerics")
# The stages of an export as steps of the check; loading comes before all of them.
_STEP_OF_STAGE = {"build": "eager run", "export": "export", "lower": "lowering", "read": "read"}
_PASSED_BEFORE = "passed before: same model, options and versions"
_KERNEL_REMEDY = (
    "report it as a defect of the kernels, with the model; until it is mended, do without the operator or "
    "the precision"
)
_TIMED_INFERENCES = 3
_RUN_TIMEOUT_S = 900.0


def check_variant(
    variant: Variant, store: Store, *, log: Log, watch: Callable[[CheckStep], None] = lambda step: None
) -> Checkup:
    """Takes a variant through every step up to its first failure; `watch` gets each as it ends."""
    made = Checkup(variant.key, "model", watch)
    with made.until_a_failure():
        with made.step("find") as step:
            spec = model_spec(variant.model)
            step.detail = f"{spec.source}: {spec.place}"
        made.expect(*(STEPS_OF_A_PROGRAM if spec.pte else STEPS))
        exported = _export(made, spec, variant, store.artifacts, log)
        outputs, run = _run(made, exported, store, log)
        _compare(made, spec, exported, outputs, run, log)
    return made


def write_program(variant: Variant, store: Store, folder: Path) -> list[Path]:
    """Copies the program of a variant, and its ETRecord, to a folder of the user."""
    from sme2_assets.models.export import export_variant

    exported = export_variant(variant.key, store.artifacts, log=lambda _: None)
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / f"{variant.file_stem}.pte"
    copies = {program: exported.pte}
    if exported.etrecord is not None:
        copies[program.with_name(f"{program.name}.etrecord")] = exported.etrecord
    for copy, original in copies.items():
        staged = copy.with_name(f".{copy.name}.part")
        shutil.copyfile(original, staged)
        staged.replace(copy)
    return list(copies)


def _export(made: Checkup, spec: ModelSpec, variant: Variant, artifacts: Path, log: Log) -> ExportedModel:
    """Import to lowering: one export, which reports its stages. A cached one has passed them before."""
    from sme2_assets.models.export import export_model, is_exported, load_libraries, quiet_libraries

    if spec.pte is None:
        with made.step("import") as step, quiet_libraries():
            if is_exported(spec, variant, artifacts):
                step.detail = _PASSED_BEFORE
            else:
                spec.require_allowed()
                load_libraries()
                spec.build()
                step.detail = f"{spec.title}: {spec.description}"
    names = [step.name for step in made.steps if step.name in _STEP_OF_STAGE.values()]
    begun = {names[0]: time.perf_counter()}

    def on_stage(stage: Stage) -> None:
        # The last stage of a ready-made program is not lowering.
        if (name := _STEP_OF_STAGE.get(stage)) in names:
            begun.setdefault(str(name), time.perf_counter())

    exported, failure = None, None
    try:
        exported = export_model(spec, variant, artifacts, log=log, on_stage=on_stage)
    except Sme2Error as error:
        failure = error
    ends = [*list(begun.values())[1:], time.perf_counter()]
    seconds = {name: end - start for (name, start), end in zip(begun.items(), ends, strict=True)}
    for name in names if exported is not None else begun:
        with made.step(name) as step:
            if exported is None:
                step.seconds = seconds[name]
                if failure is not None and name == list(begun)[-1]:
                    raise failure
            elif exported.cached:
                step.detail = _PASSED_BEFORE
            else:
                step.seconds = seconds.get(name, 0.0)
                step.detail = _found_by(name, exported)
            if exported is not None and name == names[-1]:
                step.detail += _if_portable(exported)
    assert exported is not None
    return exported


def _found_by(step: str, exported: ExportedModel) -> str:
    manifest = read_manifest(exported.manifest)
    operators = manifest.operators
    shapes = ", ".join(f"{tensor.dtype}{tensor.shape}" for tensor in manifest.inputs)
    each = manifest.outputs[: len(manifest.outputs) // manifest.steps]
    outputs = ", ".join(f"{tensor.dtype}{tensor.shape}" for tensor in each)
    if step in ("eager run", "read"):
        size = "" if manifest.macs is None else f", {manifest.macs / 1e6:,.1f} MMAC"
        weights = "" if manifest.parameters is None else f", {manifest.parameters:,} parameters"
        return f"{shapes} -> {outputs}{weights}{size}"
    if step == "lowering":
        return (
            f"{operators.delegated_total} operators in {operators.delegates} delegate call(s), "
            f"{operators.portable_total} portable, {exported.pte.stat().st_size:,} bytes"
        )
    left_out = manifest.options.get("in_floating_point") or {}
    why = "; ".join(f"{path} ({reason})" for path, reason in left_out.items())
    return f"at {manifest.precision}" + (f"; in floating point: {why}" if why else "")


def _if_portable(exported: ExportedModel) -> str:
    """What keeps a program that has nothing for XNNPACK from running SME2 kernels; empty for any other."""
    if read_manifest(exported.manifest).operators.delegates:
        return ""
    left_out = [row for row in DelegationReport.read(exported.delegation).rows if not row.delegated]
    why = "; ".join(dict.fromkeys(f"{row.operator}: {row.reason}" for row in left_out))
    if any(row.reason == LOWERED_ELSEWHERE for row in left_out):
        why = "lower it with XNNPACK's partitioner, or give the model instead of the program"
    return f". Nothing is delegated to XNNPACK, so no SME2 kernel can run ({why or 'it has no operators'})"


def _run(
    made: Checkup, exported: ExportedModel, store: Store, log: Log
) -> tuple[dict[str, Outputs], RunProgram]:
    """The outputs by state of SME2, and what runs another program in the same place."""
    with made.step("run") as step:
        target = _target(store)
        runner = runner_for(target, store, log=log)
        states = [state for state in ("off", "on") if target.availability(state).ok]
        done = {state: _run_once(target, runner, exported, state) for state in states}
        state = target.facts().arch if target.fidelity == "reference" else f"SME2 {' and '.join(states)}"
        result, outputs = done["off"]
        facts = f"{target.platform}, {state}, {len(outputs)} output(s)"
        # A time here is only a hint: `sme2 profile` measures. Emulated times mean nothing.
        hint = f", about {min(result.iteration_ns) / 1e6:,.2f} ms" if target.fidelity != "emulated" else ""
        if hint and len(states) > 1:
            hint += " with SME2 off"
        step.detail = f"{facts}{hint}"

    def run_other(pte: bytes, state: str) -> Outputs:
        with tempfile.TemporaryDirectory(prefix="sme2-") as folder:
            program = Path(folder) / "tapped.pte"
            program.write_bytes(pte)
            return _run_once(target, runner, replace(exported, pte=program, steps=1), state)[1]

    return {state: outputs for state, (_, outputs) in done.items()}, run_other


def _target(store: Store) -> Target:
    """This machine's own CPU, else the emulator."""
    native = host_platform()
    if native is not None and open_target(native, store).availability("off").ok:
        return open_target(native, store)
    emulated = open_target("emulated", store)
    emulated.require("off")
    return emulated


def _run_once(
    target: Target, runner: RunnerBinary, exported: ExportedModel, sme2: str
) -> tuple[RunnerResult, Outputs]:
    with target.workspace() as workspace:
        command = [*workspace.install(runner.program), *exported.runner_flags(workspace.put)]
        command += ["--pass", "latency", "--threads", "1", "--warmup", "1"]
        command += ["--iterations", str(_TIMED_INFERENCES)]
        command += ["--result", workspace.path("check.json"), "--outputs", workspace.path("check_outputs")]
        done = workspace.run(command, {"SME2_RUNNER_SME2": sme2}, _RUN_TIMEOUT_S)
        if done.returncode != 0:
            of_kernel = kernel_failure(done.stderr, ProgramOperators.read(exported.operators))
            raise of_kernel or runner_failure(done.returncode, done.stderr)
        result = RunnerResult.read(Path(workspace.path("check.json")))
        folder = Path(workspace.path("check_outputs"))
        outputs = [np.load(folder / str(fact.file), allow_pickle=False) for fact in result.outputs]
    return result, outputs


def _compare(
    made: Checkup,
    spec: ModelSpec,
    exported: ExportedModel,
    outputs: dict[str, Outputs],
    run: RunProgram,
    log: Log,
) -> None:
    manifest = read_manifest(exported.manifest)
    with made.step("numerics") as step:
        if not exported.expected_outputs:
            step.detail = "the program came without an eager model: there is nothing to compare with"
            return
        expected = [np.load(path, allow_pickle=False) for path in exported.expected_outputs]
        by_state = {
            state: compare_outputs(
                expected, given, classifier=manifest.is_classifier, rankings=exported.rankings
            )
            for state, given in outputs.items()
        }
        agreements = [agreement for each in by_state.values() for agreement in each]
        worst = worst_agreement(agreements)
        if worst is None:
            raise ExportError("The model has no outputs", "return a tensor from its forward()")
        bound = manifest.tolerance.minimum_db
        step.detail = f"SQNR {worst.sqnr_db:.1f} dB (at least {bound:g})"
        if exported.steps > 1:
            step.detail += f", {exported.steps} inferences in a row from the initial state"
        too_small = max(agreement.compared_as_zero for agreement in agreements)
        if too_small:
            step.detail += f", {too_small:.0%} of an output is too small for the kernels and compared as zero"
        if worst.top1_agreement is not None:
            step.detail += f", top-1 agreement {worst.top1_agreement:.0%}"
        faults = {
            state: fault
            for state, each in by_state.items()
            if (fault := first_fault(each, bound, exact=not manifest.tolerance.own))
        }
        if faults:
            wrong = next(iter(faults.values()))
            if len(faults) < len(by_state):
                wrong += f" (with SME2 {', '.join(faults)} only)"
            where, remedy = _where_it_begins(spec, manifest, list(faults), list(by_state), run, log)
            raise ExportError(
                f"The outputs at {manifest.precision} are too far from the eager model's: {wrong}. {where}",
                remedy,
            )


def _where_it_begins(
    spec: ModelSpec,
    manifest: ModelManifest,
    wrong: list[str],
    states: list[str],
    run: RunProgram,
    log: Log,
) -> tuple[str, str]:
    """The first operator that is wrong, in torch or else in the runner, and what to do about it."""
    from sme2_assets.models.differences.in_runner import wrong_in_the_runner
    from sme2_assets.models.differences.in_torch import divergence_of

    precision = manifest.precision
    where = "In torch the exported program is too far off, too: the cause is not in the kernels alone"
    try:
        found = divergence_of(spec, precision, minimum_db=manifest.tolerance.minimum_db, log=log)
        if found is not None:
            where = f"The first operator that is: {found}"
        elif said := wrong_in_the_runner(spec, precision, run, wrong=wrong, states=states, log=log):
            return said, _KERNEL_REMEDY
    except Exception as error:
        # That the outputs are wrong matters more than why this could not be found out.
        where = f"Where it begins could not be found: {first_line(error)}"
    return where, _numerics_remedy(precision)


def _numerics_remedy(precision: str) -> str:
    if precision == "fp32":
        return (
            "fp32 must agree: look at what changes the model (`substitute`, `@rewrite`), and whether it "
            "computes something else while it is exported (`torch.compiler.is_exporting()`). A model that "
            "quantises by itself, or writes a function in another form than the kernels (GELU), may be near "
            "enough: minimum_sqnr_db = {'fp32': ...} of the model, or @minimum_sqnr_db=... of one of `hf:`"
        )
    if precision == "fp16":
        return "look for values beyond 65504; or do not offer fp16 (`precisions` of MODEL)"
    return (
        "give get_calibration_inputs(count) data like the model's own; do not offer the precision, or set "
        f"minimum_sqnr_db = {{'{precision}': ...}} if this is good enough for the model"
    )
