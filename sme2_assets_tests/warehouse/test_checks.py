"""Every check is seen passing on what is true and failing on what was tampered with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from sme2_assets.warehouse import Warehouse
from sme2_assets.warehouse.checks import conservation_faults, sme2_evidence_faults, unknown_operators
from sme2_assets.warehouse.ingest import RunRows, keys_of, rows_of_run
from sme2_assets.warehouse.schema import INFERENCES, RUNS, TIMELINE
from sme2_assets_tests.made.run_folder import MadeRun

Fault = Callable[[RunRows], None]
Check = Callable[[Warehouse, dict[str, Any]], "str | None"]


def where(rows: pd.DataFrame, **wanted: Any) -> pd.Index:
    for column, value in wanted.items():
        rows = rows[rows[column] == value]
    assert len(rows)
    return rows.index


def one_nanosecond_more(rows: RunRows) -> None:
    rows.timeline.loc[where(rows.timeline, kind="operator")[:1], "duration_ns"] += 1


def one_nanosecond_moved_between_rounds(rows: RunRows) -> None:
    for round_index, by in ((0, 1), (1, -1)):
        first = where(rows.timeline, kind="framework_overhead", round=round_index, iteration=1)
        rows.timeline.loc[first, "duration_ns"] += by


def a_lost_row(rows: RunRows) -> None:
    rows.timeline.drop(index=where(rows.timeline, kind="operator")[:1], inplace=True)


def a_doubled_row(rows: RunRows) -> None:
    again = rows.timeline.loc[where(rows.timeline, kind="operator")[:1]]
    object.__setattr__(rows, "timeline", pd.concat([rows.timeline, again]))


def a_lost_inference_of_the_timeline(rows: RunRows) -> None:
    rows.timeline.drop(index=where(rows.timeline, round=1, iteration=2), inplace=True)


def an_inference_too_many_in_the_timeline(rows: RunRows) -> None:
    rows.inferences.drop(
        index=where(rows.inferences, **{"pass": "etdump", "round": 1, "iteration": 2}), inplace=True
    )


def no_traced_inference_at_all(rows: RunRows) -> None:
    rows.inferences.drop(index=where(rows.inferences, **{"pass": "etdump"}), inplace=True)
    rows.timeline.drop(index=rows.timeline.index, inplace=True)


def neither_rows_nor_execution(rows: RunRows) -> None:
    traced = where(rows.inferences, **{"pass": "etdump", "round": 1, "iteration": 2})
    rows.inferences.loc[traced, "execute_ns"] = pd.NA
    rows.timeline.drop(index=where(rows.timeline, round=1, iteration=2), inplace=True)


def an_execution_longer_than_the_runner_saw(rows: RunRows) -> None:
    traced = where(rows.inferences, **{"pass": "etdump", "round": 0, "iteration": 0})
    rows.inferences.loc[traced, "duration_ns"] = rows.inferences.loc[traced, "execute_ns"].astype("int64") - 1


def overhead_that_no_rounding_explains(rows: RunRows) -> None:
    """Time that was counted in an operator twice and taken off the overhead: the sum is still right."""
    of_inference = {"round": 0, "iteration": 0}
    operator = where(rows.timeline, kind="operator", **of_inference)[:1]
    overhead = where(rows.timeline, kind="framework_overhead", **of_inference)
    rows.timeline.loc[operator, "duration_ns"] += 5_000_000
    rows.timeline.loc[overhead, "duration_ns"] -= 5_000_000


def moved(rows: RunRows, by_ns: int, kind: str) -> None:
    """Time of an operator of the first inference that is taken off an overhead: the sum is still right."""
    of_inference = {"round": 0, "iteration": 0}
    operator = where(rows.timeline, kind="operator", **of_inference)[-2:-1]
    overhead = where(rows.timeline, kind=kind, **of_inference)[:1]
    left_ns = rows.timeline.loc[overhead, "duration_ns"].iloc[0]
    rows.timeline.loc[operator, "duration_ns"] += left_ns + by_ns
    rows.timeline.loc[overhead, "duration_ns"] = -by_ns


def a_delegate_overhead_beyond_one_tick(rows: RunRows) -> None:
    """Within a microsecond for each of its rows, but flooring never adds any."""
    moved(rows, 1001, "delegate_overhead")


def a_framework_overhead_below_nothing(rows: RunRows) -> None:
    moved(rows, 1, "framework_overhead")


def an_operator_that_stands_twice_in_a_longer_execution(rows: RunRows) -> None:
    """The sum is right, and so is every overhead."""
    again = rows.timeline.loc[where(rows.timeline, kind="operator", round=0, iteration=0)[:1]]
    object.__setattr__(rows, "timeline", pd.concat([rows.timeline, again], ignore_index=True))
    traced = where(rows.inferences, **{"pass": "etdump", "round": 0, "iteration": 0})
    rows.inferences.loc[traced, ["execute_ns", "duration_ns"]] += again["duration_ns"].iloc[0]


def operators_that_overlap(rows: RunRows) -> None:
    second = where(rows.timeline, kind="operator", round=0, iteration=0)[1:2]
    rows.timeline.loc[second, "start_ns"] -= 1001


def an_operator_outside_of_the_execution(rows: RunRows) -> None:
    rows.timeline.loc[where(rows.timeline, backend="portable", round=0, iteration=0), "start_ns"] += 10**9


def a_nanosecond_of_a_certain_inference(rows: RunRows) -> None:
    rows.timeline.loc[where(rows.timeline, kind="operator", round=1, iteration=2)[:1], "duration_ns"] += 7


def evidence_for_convolutions(rows: RunRows) -> None:
    is_convolution = rows.timeline["name"].astype(str).str.startswith("Conv")
    rows.timeline["sme2_evidence"] = is_convolution.map({True: "name", False: "none"})


def no_evidence(rows: RunRows) -> None:
    rows.timeline["sme2_evidence"] = "none"


def unknown_portable_operators(rows: RunRows) -> None:
    rows.timeline.loc[where(rows.timeline, backend="portable"), "known"] = False


def nothing(rows: RunRows) -> None:
    """The rows stay true."""


LOST_TIME = [
    one_nanosecond_more,
    one_nanosecond_moved_between_rounds,
    a_lost_row,
    a_doubled_row,
    a_lost_inference_of_the_timeline,
    an_inference_too_many_in_the_timeline,
    no_traced_inference_at_all,
    neither_rows_nor_execution,
    an_execution_longer_than_the_runner_saw,
    overhead_that_no_rounding_explains,
    a_delegate_overhead_beyond_one_tick,
    a_framework_overhead_below_nothing,
    an_operator_that_stands_twice_in_a_longer_execution,
    operators_that_overlap,
    an_operator_outside_of_the_execution,
]
FAULTS = [
    nothing,
    *LOST_TIME,
    a_nanosecond_of_a_certain_inference,
    evidence_for_convolutions,
    no_evidence,
    unknown_portable_operators,
]


class Tampered:
    """A warehouse in which every fault has a run of its own, with SME2 off and with SME2 on."""

    def __init__(self, folder: Path) -> None:
        self.warehouse = Warehouse(folder / "warehouse")
        parts, run_ids = [], []
        for sme2 in ("off", "on"):
            made = MadeRun(sme2=sme2, rounds=2, warmup=1, iterations=2).write(folder)
            for fault in FAULTS if sme2 == "off" else (nothing, no_evidence):
                rows = rows_of_run(made)
                fault(rows)
                keys = {**keys_of(rows.manifest), "run_id": f"{fault.__name__}-{sme2}"}
                tables = ((TIMELINE, rows.timeline), (INFERENCES, rows.inferences), (RUNS, rows.runs))
                parts += [(table, frame, keys) for table, frame in tables]
                run_ids.append(keys["run_id"])
        self.warehouse.write_together(parts, run_ids)
        self.warehouse.publish()

    def what_finds(self, check: Check, fault: Fault, sme2: str = "off") -> str | None:
        [run] = self.warehouse.query("FROM runs WHERE run_id = ?", [f"{fault.__name__}-{sme2}"]).to_dict(
            "records"
        )
        return check(self.warehouse, run)


@pytest.fixture(scope="module")
def tampered(tmp_path_factory: pytest.TempPathFactory) -> Tampered:
    return Tampered(tmp_path_factory.mktemp("tampered"))


def test_true_rows_are_conserved(tampered: Tampered):
    assert tampered.what_finds(conservation_faults, nothing) is None


@pytest.mark.parametrize("fault", LOST_TIME, ids=lambda fault: fault.__name__)
def test_a_nanosecond_that_is_not_accounted_for_is_found(tampered: Tampered, fault: Fault):
    assert tampered.what_finds(conservation_faults, fault) is not None


def test_the_fault_says_where(tampered: Tampered):
    found = tampered.what_finds(conservation_faults, a_nanosecond_of_a_certain_inference)
    assert found is not None
    assert "1 inferences do not add up" in found
    assert "'round': 1" in found
    assert "'iteration': 2" in found


def test_a_measured_run_is_conserved_and_shows_no_sme2(real_warehouse: Warehouse):
    run = dict(real_warehouse.query("FROM runs").iloc[0])
    assert conservation_faults(real_warehouse, run) is None
    assert sme2_evidence_faults(real_warehouse, run) is None
    assert unknown_operators(real_warehouse, run) is None


@pytest.mark.parametrize("sme2", ["off", "on"])
def test_true_evidence_passes(tampered: Tampered, sme2: str):
    assert tampered.what_finds(sme2_evidence_faults, nothing, sme2) is None


def test_sme2_kernels_with_sme2_off_are_named(tampered: Tampered):
    found = tampered.what_finds(sme2_evidence_faults, evidence_for_convolutions)
    assert found == "SME2 is off, but these operators have SME2 kernels: Convolution (NHWC, F32) IGEMM #1"


def test_no_sme2_kernel_with_sme2_on_is_a_fault(tampered: Tampered):
    found = tampered.what_finds(sme2_evidence_faults, no_evidence, "on")
    assert found == (
        "SME2 is on, but nothing shows an SME2 kernel, not even in Convolution (NHWC, PF32) IGEMM #1, "
        "Fully Connected (NC, F32) GEMM #1, Fully Connected (NC, PF32) GEMM #1"
    )


def test_known_operators_are_no_fault(tampered: Tampered):
    assert tampered.what_finds(unknown_operators, nothing) is None


def test_unknown_operators_are_named(tampered: Tampered):
    found = tampered.what_finds(unknown_operators, unknown_portable_operators)
    assert found == "unknown operators, counted as Other: native_call_mean.out"
