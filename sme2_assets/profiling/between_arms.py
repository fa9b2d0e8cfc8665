"""The arms of one program against the first one: in their outputs, and in the intermediate values."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path

import numpy as np

from sme2_assets.errors import Sme2Error, first_line
from sme2_assets.evidence.arms import ArmsNumerics, ComparedValue, Taps, compare_arms
from sme2_assets.evidence.numerics import output_channel_axis, worst_sqnr_db
from sme2_assets.models.artifact import ExportedModel
from sme2_assets.models.pieces import write_restored
from sme2_assets.profiling.arms import Arm
from sme2_assets.profiling.one_pass import Bench, runner_command
from sme2_assets.targets.contained import side_by_side

_FOREIGN = "the program was exported elsewhere"
Arrays = list[np.ndarray]


def compare_with_first(bench: Bench, arms: list[Arm]) -> dict[str, ArmsNumerics]:
    """By label, how near each arm is to the first, which gets the worst of them; empty for one arm.

    Arms that run different programs compute different things: each is compared only with its own eager model.
    One more process per arm runs the program with taps.
    """
    first, *others = arms
    model = first.model
    if not others or any(arm.model.pte_sha256 != model.pte_sha256 for arm in others):
        return {}
    given = [outputs_of(arm.directory / arm.processes[0].directory / "outputs") for arm in arms]
    taps = _over_steps(Taps.read(model.taps), model.steps) if model.taps else _foreign_taps(given[0])
    tapped: list[Arrays] | None = None
    if model.tapped is not None:
        try:
            with tempfile.TemporaryDirectory(prefix="sme2-") as folder:
                program = Path(folder) / "tapped.pte"
                write_restored(model.pte, model.tapped, program)
                each = taps.outputs // model.steps
                processes = [partial(_tapped, bench, arm, program, each) for arm in arms]
                at_once = bench.target.arms_at_once
                tapped = side_by_side(processes) if at_once else [run() for run in processes]
        except (Sme2Error, OSError) as error:
            # The measurements stand; only this extra comparison failed.
            why = error.what if isinstance(error, Sme2Error) else first_line(error)
            bench.log(f"{model.variant}: the intermediate values are not compared: {why}")
            taps = taps.without_taps(why)
    made = [
        _numerics(model, taps, (given[0], given[at]), (tapped[0], tapped[at]) if tapped else None)
        for at in range(1, len(arms))
    ]
    worst = max(made, key=lambda it: max((value.of_bound for value in it.values), default=0.0))
    return {arm.spec.label: it for arm, it in zip(arms, [worst, *made], strict=True)}


def _numerics(
    model: ExportedModel, taps: Taps, outputs: tuple[Arrays, Arrays], tapped: tuple[Arrays, Arrays] | None
) -> ArmsNumerics:
    off, on = map(list, outputs)
    same_outputs, sqnr_db = None, worst_sqnr_db(off, on)
    if tapped is not None:
        count = taps.outputs
        same_outputs = all(_same(plain, its[:count]) for plain, its in zip(outputs, tapped, strict=True))
        # The outputs that count are those of the program that was measured.
        off, on = ([*plain, *its[count:]] for plain, its in zip(outputs, tapped, strict=True))
    for index, ranking in model.rankings.items():
        # Indices are compared by what they point at: nearly equal values may swap places.
        pointed = [ranking.pointed_at(arm[index]) if index < len(arm) else None for arm in (off, on)]
        if pointed[0] is not None and pointed[1] is not None:
            off[index], on[index] = pointed[0], pointed[1]
    return ArmsNumerics(
        sqnr_db=sqnr_db,
        values=compare_arms(taps.values, off, on),
        left_out=taps.left_out,
        same_outputs=same_outputs,
        only_outputs=taps.only_outputs,
    )


def outputs_of(folder: Path) -> Arrays:
    """The outputs that a runner wrote, in their order."""
    files = sorted(folder.glob("output_*.npy"), key=lambda path: int(path.stem.split("_")[1]))
    return [np.load(path, allow_pickle=False) for path in files]


def _tapped(bench: Bench, arm: Arm, program: Path, outputs: int) -> Arrays:
    workspace, name = bench.workspace, f"{arm.spec.label}_tapped"
    command = runner_command(bench, arm, program)
    command += ["--pass", "latency", "--warmup", "0", "--iterations", "1"]
    command += ["--result", workspace.path(f"{name}.json"), "--outputs", workspace.path(f"{name}_outputs")]
    completed = bench.run(arm.doing("intermediate values"), command, {"SME2_RUNNER_SME2": arm.spec.sme2})
    if completed.returncode != 0:
        raise Sme2Error(f"the program with taps failed: {completed.stderr.strip()[-300:]}", "Report it.")
    with tempfile.TemporaryDirectory(prefix="sme2-") as folder:
        workspace.get(f"{name}_outputs", Path(folder) / "outputs")
        given = outputs_of(Path(folder) / "outputs")
    # Every step gives the outputs of the model, then the intermediate values, of which only the first step's
    # count.
    each, steps = len(given) // arm.model.steps, range(arm.model.steps)
    return [*(array for step in steps for array in given[step * each :][:outputs]), *given[outputs:each]]


def _over_steps(taps: Taps, steps: int) -> Taps:
    """The outputs of every inference that is compared, then the intermediate values."""
    if steps == 1:
        return taps
    outputs = [
        value.model_copy(update={"name": f"{value.name}, step {step + 1}"})
        for step in range(steps)
        for value in taps.values[: taps.outputs]
    ]
    return taps.model_copy(
        update={"outputs": len(outputs), "values": [*outputs, *taps.values[taps.outputs :]]}
    )


def _foreign_taps(outputs: Arrays) -> Taps:
    values = [
        ComparedValue(
            name=f"output {index}",
            operator="",
            module=None,
            kind="unknown",
            terms=0,
            channel_axis=output_channel_axis(array),
        )
        for index, array in enumerate(outputs)
    ]
    return Taps(outputs=len(values), values=values, left_out=[], only_outputs=_FOREIGN)


def _same(left: Arrays, right: Arrays) -> bool:
    return len(left) == len(right) and all(map(np.array_equal, left, right))
