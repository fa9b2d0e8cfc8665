"""The work of real inferences under the emulator: the same every time, and no less than the model's."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pytest

from sme2_assets.analysis.unit import CLASSES_ON_UNIT
from sme2_assets.errors import RunnerError
from sme2_assets.etdump import Events, read_etdump
from sme2_assets.evidence.operators import ProgramOperators
from sme2_assets.evidence.work import WORK_FILE, WorkFile
from sme2_assets.models.artifact import ExportedModel
from sme2_assets.runner.build import RunnerBinary
from sme2_assets.targets.local import LocalWorkspace
from sme2_assets.toolchain.qemu import Qemu
from sme2_assets.work.counting import build_counter, run_counted
from sme2_assets.work.counts import owners, work_of_events, write_work

VECTOR_BITS = 512
MULTIPLIES = (*CLASSES_ON_UNIT, "SVE multiply-add", "SIMD multiply-add")


@dataclass(frozen=True)
class Work:
    file: WorkFile
    events: Events

    @property
    def by_event(self) -> pd.DataFrame:
        return work_of_events(self.file, self.events, None, VECTOR_BITS)

    def of_class(self, *classes: str) -> pd.DataFrame:
        """By event and class, where all threads are one."""
        work = self.by_event
        chosen = work[work["class"].isin(classes)]
        return chosen.groupby(["event", "class", "name"])[["instructions", "multiply_accumulates"]].sum()


@pytest.fixture(scope="session")
def work_of(
    artifacts_dir: Path,
    emulator: Qemu,
    emulated_runner: RunnerBinary,
    exported: Callable[[str], ExportedModel],
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[..., Work]:
    counter = build_counter(artifacts_dir, log=print)

    def work(variant: str, sme2: str, threads: int = 1, emulator_ends: bool = False) -> Work:
        folder, model = tmp_path_factory.mktemp("work"), exported(variant)
        program = emulated_runner.program
        flags = ["--pass", "work", "--warmup", "1", "--iterations", "1", "--threads", str(threads)]
        for flag, name in (
            ("result", "result.json"),
            ("outputs", "outputs"),
            ("etdump", "trace"),
            ("modules", "modules"),
        ):
            flags += [f"--{flag}", str(folder / name)]
        workspace = LocalWorkspace(folder, [str(emulator.path), "-cpu", f"max,sme{VECTOR_BITS}=on"])
        command = [*program.command_in(str(program.folder)), *model.runner_flags(str, model.pte), *flags]
        done = run_counted(
            lambda log: workspace.run_logged(command, {"SME2_RUNNER_SME2": sme2}, 600, log),
            counter=Path(os.devnull) if emulator_ends else counter,
            modules=folder / "modules",
            counts=folder / "counts",
        )
        assert done.returncode == 0, done.stderr
        folders = (program.folder, emulated_runner.library_dir)
        write_work(folder / "counts", folder / "modules", folder / WORK_FILE, folders, print)
        return Work(WorkFile.read(folder / WORK_FILE), read_etdump(folder / "trace"))

    return work


@pytest.fixture(scope="session")
def pair(work_of: Callable[..., Work]) -> dict[str, Work]:
    return {sme2: work_of("toy_cnn-fp32", sme2) for sme2 in ("on", "off")}


def test_every_instruction_is_somebody_s(pair: dict[str, Work]) -> None:
    for work in pair.values():
        by_event, file = work.by_event, work.file
        blocks = zip(file.executions.block, file.executions.times, strict=True)
        executed = sum(len(file.blocks.words[block]) * times for block, times in blocks)
        assert by_event["instructions"].sum() == executed
        # No event without its stretch, and what the runner does between them is little.
        borders = pd.DataFrame({"kind": file.borders.kind, "address": file.borders.address})
        rows = owners(borders, work.events, None)
        inferences = [
            i
            for block in work.events.execute_blocks
            for i in range(*work.events.block_rows(block).indices(len(work.events)))
        ]
        assert set(rows) == {-1, *inferences}
        assert by_event.loc[by_event["event"] == -1, "instructions"].sum() < executed / 100


def test_streaming_mode_is_left_as_often_as_entered(pair: dict[str, Work]) -> None:
    by_class = pair["on"].by_event.groupby("class")["instructions"].sum()
    assert by_class["streaming entry"] == by_class["streaming exit"] > 0
    off = set(pair["off"].by_event["class"])
    assert not off & {*CLASSES_ON_UNIT, "streaming entry", "load of ZA", "store of ZA", "unknown"}


@pytest.mark.parametrize("sme2", ["on", "off"])
@pytest.mark.parametrize("precision", ["fp32", pytest.param("fp16", marks=pytest.mark.thorough), "int8"])
def test_no_operator_multiplies_less_than_the_model_says(
    pair: dict[str, Work],
    work_of: Callable[..., Work],
    exported: Callable[[str], ExportedModel],
    precision: str,
    sme2: str,
) -> None:
    variant = f"toy_cnn-{precision}"
    said = [node.macs for node in ProgramOperators.read(exported(variant).operators).nodes if node.macs]
    work = pair[sme2] if precision == "fp32" else work_of(variant, sme2)
    names = work.events.name_strings()
    matrix = [i for i, name in enumerate(names) if name.startswith(("Convolution", "Fully Connected"))]
    multiplied = work.of_class(*MULTIPLIES)["multiply_accumulates"].groupby(level="event").sum().loc[matrix]
    # Tiles that are not full multiply more.
    assert all(said <= multiplied)
    assert multiplied.sum() < 2 * sum(said)


@pytest.mark.parametrize("threads", [1, 4])
def test_the_work_is_the_same_every_time(
    pair: dict[str, Work], work_of: Callable[..., Work], threads: int
) -> None:
    again = work_of("toy_cnn-fp32", "on", threads)
    # How it is divided among threads changes what is packed for each, but neither products nor the trace.
    exact = (
        MULTIPLIES
        if threads > 1
        else (*MULTIPLIES, "load of ZA", "store of ZA", "move of ZA", "SVE arithmetic")
    )
    pd.testing.assert_frame_equal(again.of_class(*exact), pair["on"].of_class(*exact))
    assert list(again.events.kind) == list(pair["on"].events.kind)


def test_without_a_counter_there_is_an_error_and_no_hanging_emulator(work_of: Callable[..., Work]) -> None:
    with pytest.raises(RunnerError, match="could not be started"):
        work_of("toy_cnn-fp32", "on", emulator_ends=True)
