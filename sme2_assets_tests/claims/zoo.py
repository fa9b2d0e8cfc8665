"""Warehouses that were made to provoke a false sentence, and everything that is said about them."""

from __future__ import annotations

import io
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import duckdb
import pytest
from rich.console import Console

from sme2_assets.analysis.claims import Said, heard
from sme2_assets.analysis.joint_steps import LEAST_WATCHED
from sme2_assets.report.answer import session_answer
from sme2_assets.report.content import session_document
from sme2_assets.report.explain import explain
from sme2_assets.report.insights import show_explanation
from sme2_assets.report.night import open_regressions
from sme2_assets.report.overview import overview_document, overview_rows
from sme2_assets.report.terminal import show_session
from sme2_assets.report.unit_use import finding, unit_table, unit_use
from sme2_assets.warehouse import Warehouse
from sme2_assets.warehouse.history import (
    ENOUGH_SESSIONS,
    LEAST_SESSIONS,
    NIGHTS_BEFORE,
    NIGHTS_BEFORE_HUGE,
    no_slow_down_text,
    write_regressions,
)
from sme2_assets.warehouse.schema import TABLES
from sme2_assets.warehouse.summaries import summary_tables
from sme2_assets_tests.archive import archived_store
from sme2_assets_tests.made import MadeOnce
from sme2_assets_tests.made.run_folder import MadeRun, ingest
from sme2_assets_tests.made.traces import Delegate, Portable
from sme2_assets_tests.warehouse.made_operators import Op, OperatorRun, cnn, source, write_runs
from sme2_assets_tests.warehouse.newest import compare_newest

EMULATED = {"platform": "emulated", "fidelity": "emulated", "rounds": 1}


def sentences(warehouse: Warehouse) -> list[Said]:
    """All claims that explanations, reports, the terminal and the overview make about a warehouse.

    Sessions of a series differ in their times alone, so only the newest of each are explained.
    """
    out = Console(file=io.StringIO(), width=200)
    runs = warehouse.query(
        "SELECT run_id, session_id, sme2, seed IS NOT NULL AS manifest, "
        "row_number() OVER (PARTITION BY variant, target ORDER BY started_at DESC, run_id) <= 3 AS is_newest "
        "FROM runs"
    )
    with heard() as said:
        for session_id, arms in runs[runs["is_newest"]].groupby("session_id"):
            for sme2 in (None, *(arms["sme2"] if len(arms) > 1 else ())):
                explanation = explain(warehouse, str(session_id), sme2)
                answer = session_answer(warehouse, explanation)
                show_explanation(out, explanation, answer, everything=True)
                if sme2 is None:
                    show_explanation(out, explanation, answer)
            # Runs that were written straight into the tables lack what a report shows besides.
            if arms["manifest"].all():
                session_document(warehouse, str(session_id))
                show_session(out, warehouse, str(session_id), None, operators=True)
        overview_document(warehouse, overview_rows(warehouse), lambda row: None)
        used = unit_use(warehouse, runs["run_id"].tolist())
        unit_table(used, {})
        finding(used)
        no_slow_down_text(warehouse)
        open_regressions(warehouse)
    return said


def false_sentences(warehouse: Warehouse, said: list[Said]) -> list[str]:
    """The claims whose predicate does not hold, with their values."""
    once = {(each.text, repr(each.values)): each for each in said}.values()
    with _in_memory(warehouse) as connection:
        # A predicate without a row does not hold, nor does one of NULL.
        return [
            f"{each.text!r}: {each.values}"
            for each in once
            if connection.execute(each.claim.holds, each.parameters).fetchall() != [(True,)]
        ]


@contextmanager
def _in_memory(warehouse: Warehouse) -> Iterator[duckdb.DuckDBPyConnection]:
    """What is published, with the rows of its files in tables: for every predicate, of which there are
    hundreds, all files would be looked at again."""
    with warehouse.open_published() as connection:
        connection.execute("ATTACH ':memory:' AS copied")
        connection.execute("COPY FROM DATABASE warehouse TO copied")
        connection.execute("USE copied")
        for table in (*TABLES, *summary_tables()):
            if table.published_as_view:
                connection.execute(f"DROP VIEW {table.name}")
                connection.execute(f"CREATE TABLE {table.name} AS FROM warehouse.{table.name}")
        yield connection


def _pairs(folder: Path, *runs: MadeRun) -> Warehouse:
    warehouse = Warehouse(folder / "warehouse")
    arms = [replace(run, sme2=sme2) for run in runs for sme2 in ("off", "on")]
    ingest(warehouse, *(arm.write(folder / "runs") for arm in arms))
    warehouse.publish()
    for run in runs:
        compare_newest(warehouse, run.variant, run.platform)
    warehouse.publish()
    return warehouse


def _arms(folder: Path, *runs: OperatorRun) -> Warehouse:
    warehouse = Warehouse(folder / "warehouse")
    write_runs(warehouse, *runs)
    warehouse.publish()
    return warehouse


def hardware_and_emulated_pairs(folder: Path) -> Warehouse:
    return _pairs(folder, MadeRun(), MadeRun(**EMULATED))


def pairs_that_prove_little(folder: Path) -> Warehouse:
    return _pairs(
        folder,
        MadeRun(variant="few-fp32", rounds=2, iterations=1),
        MadeRun(variant="wrong-fp32", sqnr_db=12.0, rounds=2, iterations=1),
        MadeRun(variant="wrong_emulated-fp32", sqnr_db=12.0, iterations=1, **EMULATED),
        MadeRun(variant="slower-fp32", matrix_speedup=0.5),
    )


def pairs_of_a_small_difference(folder: Path) -> Warehouse:
    return _pairs(
        folder,
        MadeRun(variant="same-fp32", matrix_speedup=1.0),
        # The interval spans the smallest difference that counts: neither shown nor ruled out.
        MadeRun(variant="open-fp32", matrix_speedup=1.026),
        MadeRun(variant="short-fp32", slowness=0.01),
    )


def pairs_that_branch(folder: Path) -> Warehouse:
    """An inference of four, or of eight, runs other operators: a long matrix product between transposes."""
    return _pairs(
        folder,
        MadeRun(variant="often-fp32", iterations=7, branch_every=4),
        MadeRun(variant="seldom-fp32", iterations=7, branch_every=8, matrix_speedup=1.0),
        MadeRun(variant="emulated-fp32", iterations=7, branch_every=4, **EMULATED),
        MadeRun(variant="uneven-fp32", iterations=5, branch_every=4, uneven=True),
    )


@dataclass(frozen=True)
class Calls(MadeRun):
    """Whose inferences make these calls, for exactly as long."""

    calls: tuple[Delegate | Portable, ...] = ()

    def _calls(self, noise: random.Random) -> list[Delegate | Portable]:
        return list(self.calls)


def a_call_whose_rows_may_hide_all_of_it(folder: Path) -> Warehouse:
    """Thirty rows of a microsecond, in a call that took half a microsecond less."""
    rows = [(f"Fully Connected (NC, F32) GEMM #{number}", 1_000) for number in range(1, 31)]
    return _pairs(folder, Calls(calls=(Delegate(rows, 29_500),)))


def operators_that_nobody_knows(folder: Path) -> Warehouse:
    """A delegate of somebody else, alone and beside XNNPACK, and a portable kernel of their own."""
    theirs = Delegate([("ethos_matmul_0", 500_000), ("ethos_softmax", 100_000)], 640_000)
    calls = (
        theirs,
        Portable("native_call_fused_attention.out", 400_000, 401_000),
        Delegate(
            [("Fully Connected (NC, F32) GEMM #1", 300_000), ("Transpose (ND, X32) #1", 20_000)], 322_000
        ),
    )
    alone = Calls(variant="theirs-fp32", calls=(theirs, theirs), sampled=False)
    return _pairs(folder, Calls(calls=calls), alone, replace(alone, **EMULATED))


def pairs_of_which_little_was_watched(folder: Path) -> Warehouse:
    """Nobody looked at the machine, or only few rounds have a trace."""
    return _pairs(
        folder,
        MadeRun(variant="alone-fp32", rounds=10, watched=False),
        MadeRun(variant="traced-fp32", rounds=10, traced_rounds=2),
    )


def work_next_to_all_and_nothing(folder: Path) -> Warehouse:
    """Emulated: nearly all of the work on the unit, nearly none, and nearly all with the rest unknown."""
    on = ("Fully Connected (NC, PF32) GEMM #1", 60, 60)
    off = ("Convolution (NHWC, F32) DWConv #1", 60, 0)
    unknown = ("Fully Connected (NC, QP8, F32, QC4W) GEMM #2", 0, 0)
    much, little = 1_000_000_000, 4_000_000
    mixes = {
        "nearly_all": ((on, much), (off, little)),
        "nearly_none": ((on, little), (off, much)),
        "all_perhaps": ((on, much), (unknown, little)),
        "alike_perhaps": ((on, 93_100), (unknown, 200), (off, 6_700)),
        "all": ((on, much),),
        "none": ((off, much),),
    }
    return _arms(
        folder,
        *(
            OperatorRun(
                [
                    Op(name, 50, 0, source("head", "XNNFullyConnected", macs=macs), samples, sme)
                    for (name, samples, sme), macs in mix
                ],
                variant=f"{what}-fp32",
                session_id=what,
                platform="emulated",
                fidelity="emulated",
            )
            for what, mix in mixes.items()
        ),
    )


def arms_alone(folder: Path) -> Warehouse:
    warehouse = Warehouse(folder / "warehouse")
    reference = MadeRun(variant="toy_cnn-int8", fidelity="reference", arch="x86_64")
    ingest(warehouse, MadeRun().write(folder / "runs"), reference.write(folder / "runs"))
    warehouse.publish()
    return warehouse


def a_baseline_with_a_twin_under_emulation(folder: Path) -> Warehouse:
    twin = OperatorRun(cnn("on"), "on", platform="emulated", fidelity="emulated", session_id="e")
    return _arms(folder, OperatorRun(cnn("off"), "off"), twin)


def a_baseline_of_many_small_products(folder: Path) -> Warehouse:
    """Batches of products that fill no tile, as attention has them, beside one large product of a batch."""
    scores = source(
        *("attention", "XNNBatchMatrixMultiply"),
        macs=2 * 12 * 8 * 64 * 8,
        input_shape="2x12x8x64",
        output_shape="2x12x8x8",
    )
    linear = source(
        *("head", "XNNFullyConnected"), macs=12 * 8 * 64 * 64, input_shape="12x8x64", output_shape="12x8x64"
    )
    ops = [
        Op("Batch Matrix Multiply (NC, F32) GEMM #1", 400, 0, scores),
        Op("Fully Connected (NC, F32) GEMM #1", 400, 0, linear),
    ]
    return _arms(folder, OperatorRun(ops, "off"))


def operators_of_which_nothing_tells(folder: Path) -> Warehouse:
    """Dynamic quantisation, whose names do not tell, with few, no, or all samples on the unit."""
    name, linear = (
        "Fully Connected (NC, QP8, F32, QC4W) GEMM",
        source("head", "XNNFullyConnected", macs=1_000),
    )
    counts = [(0, 0), (3, 3), (40, 39), (40, 1), (2, 0)]
    ops = [
        Op(f"{name} #{place}", 50, 0, linear, samples=samples, sme_samples=sme)
        for place, (samples, sme) in enumerate(counts, 1)
    ]
    runs = [
        OperatorRun(ops, "on"),
        OperatorRun(ops, "on", session_id="e", platform="emulated", fidelity="emulated"),
    ]
    return _arms(folder, *runs)


def nothing_but_small_things(folder: Path) -> Warehouse:
    ops = [Op("native_call_add.out", 1, None), Op("Softmax (NC, F32) #1", 1)]
    return _arms(
        folder, OperatorRun(ops, "off"), OperatorRun(ops[:1], "off", session_id="t", variant="b-fp32")
    )


def an_emulated_pair_without_any_matrix_operator(folder: Path) -> Warehouse:
    arm = OperatorRun([Op("Softmax (NC, F32) #1", 9)], platform="emulated", fidelity="emulated")
    return _arms(folder, replace(arm, sme2="off"), arm)


def precisions_apart(folder: Path) -> Warehouse:
    """Emulated: a model on the unit at one precision alone, one on it at both, one at neither."""
    on, off = "Fully Connected (NC, PF32) GEMM #1", "Fully Connected (NC, F32) GEMM #1"
    linear = source("head", "XNNFullyConnected", macs=1_000)
    names = {"apart-fp32": on, "apart-fp16": off, "both-fp32": on, "both-fp16": on, "none-fp32": off}
    return _arms(
        folder,
        *(
            OperatorRun(
                [Op(name, 50, 0, linear, 60, 60 if name == on else 0)],
                variant=variant,
                platform="emulated",
                fidelity="emulated",
                session_id=variant,
            )
            for variant, name in names.items()
        ),
    )


def pairs_whose_passes_or_kernels_tell_nothing(folder: Path) -> Warehouse:
    plain = Op("Fully Connected (NC, F32) GEMM #1", 500, 0, source("head", "XNNFullyConnected", macs=1_000))
    moved = Op("Fully Connected (NC, PF32) GEMM #1", 50, 0, {}, 0, 0)
    slow = Op("Softmax (NC, F32) #1", 200)
    pairs = {"none": [plain, slow], "moved": [moved, slow]}
    return _arms(
        folder,
        *(OperatorRun([plain, slow], "off", session_id=name, variant=f"{name}-fp32") for name in pairs),
        *(OperatorRun(ops, "on", session_id=name, variant=f"{name}-fp32") for name, ops in pairs.items()),
    )


def a_pair_that_contradicts_itself(folder: Path) -> Warehouse:
    return _pairs(folder, MadeRun(untraced_slowness=1.5))


def series_of_which_one_became_slower(folder: Path) -> Warehouse:
    steps = [(_of("slower-fp32"), 4.0), (_of("same-fp32"), 1.0)]
    return nights_of(folder, steps, NIGHTS_BEFORE, ENOUGH_SESSIONS + 2)


def series_of_a_device_that_became_slower(folder: Path) -> Warehouse:
    steps = [(_of(f"model{number}-fp32"), 2.0) for number in range(LEAST_WATCHED + 1)]
    return nights_of(folder, steps, NIGHTS_BEFORE_HUGE + 2, LEAST_SESSIONS + 2)


def settings_of_a_model_that_became_slower(folder: Path) -> Warehouse:
    """All series of one model on one device, each by another amount in the same night."""
    settings: list[dict[str, str]] = [{}, {"cpus": "0-3"}, {"power_mode": "app"}, {"method": "decode"}]
    steps = [(_of("slower-fp32", **each), 4.0 - number / 2) for number, each in enumerate(settings)]
    return nights_of(folder, steps, NIGHTS_BEFORE_HUGE + 2, LEAST_SESSIONS + 2)


def precisions_of_a_model_that_became_slower(folder: Path) -> Warehouse:
    """One model at enough precisions to look like a device, were each of them a model."""
    steps = [(_of(f"toy_cnn-{name}"), 2.0) for name in ("fp32", "fp16", "int8", "int4", "int8_dynamic")]
    return nights_of(folder, steps, NIGHTS_BEFORE_HUGE + 2, LEAST_SESSIONS + 2)


def a_counted_pair(folder: Path) -> Warehouse:
    return Warehouse(archived_store(folder, "emulated", published=True).warehouse)


def _of(variant: str, **setting: str) -> OperatorRun:
    return OperatorRun([], "off", variant, device="a-cpu", rounds=1, iterations=1, **setting)


def nights_of(
    folder: Path, steps: Sequence[tuple[OperatorRun, float]], before: int, nights: int
) -> Warehouse:
    """Series that become slower by so much after the first nights."""
    warehouse = Warehouse(folder / "warehouse")
    write_runs(
        warehouse,
        *(
            replace(
                run,
                ops=[Op("Softmax (NC, F32) #1", int(100 * (step if night >= before else 1)) + night % 3)],
                session_id=f"night{night:02}_{number}",
                started_at=datetime(2026, 1, 1, tzinfo=UTC) + timedelta(days=night),
            )
            for night in range(nights)
            for number, (run, step) in enumerate(steps)
        ),
    )
    warehouse.publish()
    write_regressions(warehouse, folder / "acknowledged.txt")
    warehouse.publish()
    return warehouse


def random_warehouse(folder: Path, ops: list[Op], fidelity: str, arms: str) -> Warehouse:
    """These operators in one arm or in both; with SME2 off none has a sample on SME."""
    platform = "emulated" if fidelity == "emulated" else "linux"
    off = [replace(op, sme_samples=0) for op in ops]
    states = {"off": {"off": off}, "on": {"on": ops}, "both": {"off": off, "on": ops}}[arms]
    runs = [OperatorRun(of, sme2, platform=platform, fidelity=fidelity) for sme2, of in states.items()]
    return _arms(folder, *runs)


@pytest.fixture(scope="session")
def zoo(made_once: MadeOnce) -> Callable[[str], Warehouse]:
    """The warehouses of the zoo by their names, made once. Only for reading."""
    return lambda name: Warehouse(made_once(name, ZOO[name]) / "warehouse")


ZOO: dict[str, Callable[[Path], Warehouse]] = {
    make.__name__: make
    for make in (
        hardware_and_emulated_pairs,
        a_counted_pair,
        pairs_that_prove_little,
        pairs_of_a_small_difference,
        pairs_that_branch,
        a_call_whose_rows_may_hide_all_of_it,
        operators_that_nobody_knows,
        pairs_of_which_little_was_watched,
        work_next_to_all_and_nothing,
        arms_alone,
        a_baseline_with_a_twin_under_emulation,
        a_baseline_of_many_small_products,
        operators_of_which_nothing_tells,
        nothing_but_small_things,
        an_emulated_pair_without_any_matrix_operator,
        precisions_apart,
        pairs_whose_passes_or_kernels_tell_nothing,
        a_pair_that_contradicts_itself,
        series_of_which_one_became_slower,
        series_of_a_device_that_became_slower,
        settings_of_a_model_that_became_slower,
        precisions_of_a_model_that_became_slower,
    )
}
