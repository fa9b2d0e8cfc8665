"""Series of times over many runs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import dagster as dg
import pandas as pd
import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from sme2_assets.analysis.claims import heard
from sme2_assets.cli import main
from sme2_assets.defs.assets.history import regressions
from sme2_assets.defs.checks import no_regression
from sme2_assets.defs.resources import Lab
from sme2_assets.errors import Sme2Error
from sme2_assets.report.night import open_regressions
from sme2_assets.warehouse import Warehouse
from sme2_assets.warehouse.history import (
    ENOUGH_SESSIONS,
    LEAST_SESSIONS,
    NO_MORE_WORK,
    acknowledged_runs,
    find_regressions,
    no_slow_down_text,
    series_of,
    what_could_be_found,
)
from sme2_assets.warehouse.ingest import RunRows, rows_of_run, write_runs
from sme2_assets_tests.claims.zoo import false_sentences
from sme2_assets_tests.made.run_folder import MadeRun
from sme2_assets_tests.warehouse.test_compare import write
from sme2_assets_tests.warehouse.test_devices import HERE, nights


def test_a_category_below_the_resolution_of_the_trace_has_no_time_to_compare(
    warehouse: Warehouse, tmp_path: Path
):
    rows = rows_of_run(MadeRun().write(tmp_path))
    rows.timeline.loc[rows.timeline["category"] == "Elementwise", "duration_ns"] = 0
    write_runs(warehouse, rows)
    warehouse.publish()
    series = {key[-1]: times["median_ns"] for key, times in series_of(warehouse).items()}
    assert series["Elementwise"].isna().all()
    assert (series["CONV"] > 0).all()
    assert find_regressions(warehouse, tmp_path / "acknowledged.txt").empty


def test_a_list_of_acknowledged_runs_that_is_no_text_is_named(warehouse: Warehouse, tmp_path: Path):
    listed = tmp_path / "acknowledged.txt"
    listed.write_bytes("gepr\u00fcft".encode("latin-1"))
    with pytest.raises(Sme2Error, match=r"acknowledged.txt is not text in UTF-8"):
        find_regressions(warehouse, listed)
    # Some editors begin a file with a mark of its encoding.
    listed.write_text("first\nsecond  # known\n", encoding="utf-8-sig")
    assert acknowledged_runs(listed) == {"first", "second"}


def test_of_one_run_it_is_not_said_that_nothing_became_slower(warehouse: Warehouse, tmp_path: Path):
    write(warehouse, tmp_path, MadeRun())
    assert find_regressions(warehouse, tmp_path / "acknowledged.txt").empty
    warehouse.publish()
    said = no_slow_down_text(warehouse)
    assert said.startswith("Too few sessions to tell whether a series became slower: the longest of")
    assert (
        "has 1, and a step to 1.4 times or more can be found with at least 8, a smaller one with 33." in said
    )
    done = CliRunner().invoke(main, ["--data", str(warehouse.root.parent), "history", MadeRun().variant])
    assert done.exit_code == 0, done.output
    assert "Too few sessions to tell" in " ".join(done.output.split())
    lab = Lab(data_root=str(warehouse.root.parent))
    result = dg.materialize([dg.AssetSpec("timeline"), regressions, no_regression], resources={"lab": lab})
    (check,) = result.get_asset_check_evaluations()
    assert check.passed
    assert "Too few sessions to tell" in (check.description or "")
    (made,) = result.asset_materializations_for_node("regressions")
    assert "Too few sessions to tell" in str(made.metadata["became slower"].value)


def test_the_command_tells_of_the_platform_asked_for_and_writes_nothing(warehouse: Warehouse, tmp_path: Path):
    fast = replace(HERE, rounds=1)
    runs = [*nights(fast, 6), *nights(replace(fast, slowness=1.5), 6, first=6), replace(fast, platform="mac")]
    write(warehouse, tmp_path, *(replace(run, sequence=number) for number, run in enumerate(runs, 1)))
    data = warehouse.root.parent

    def told(*words: str) -> Result:
        return CliRunner().invoke(main, ["--data", str(data), "history", fast.variant, *words])

    before = {path: path.stat().st_mtime_ns for path in data.rglob("*")}
    assert "since" in told("--platform", "linux").output
    assert "since" in told().output
    with heard() as said:
        on_mac = told("--platform", "mac").output
    assert "Too few sessions to tell" in on_mac
    assert "has 1, and" in on_mac
    assert false_sentences(warehouse, said) == []
    nowhere = told("--platform", "android")
    assert nowhere.exit_code == 1
    assert f"There is no run of {fast.variant} on android in the warehouse that has times" in nowhere.stderr
    assert {path: path.stat().st_mtime_ns for path in data.rglob("*")} == before


COUNTED = replace(HERE, sme2="on", platform="emulated", fidelity="emulated", sampled=False)


def counted(run: MadeRun, folder: Path, extra: int = 0, on_unit: bool = True) -> RunRows:
    """A run each of whose operators executes a thousand instructions, the first some more."""
    rows = rows_of_run(run.write(folder / "runs"))
    operators = rows.timeline[rows.timeline["kind"] == "operator"]
    work = operators[["kind", "backend", "delegate", "position"]].drop_duplicates(ignore_index=True)
    work = work.assign(thread_kind="main", instructions=1_000, multiply_accumulates=10, bytes=0)
    work["class"] = "outer product" if on_unit else "SIMD multiply-add"
    work.loc[0, "instructions"] += extra
    return replace(rows, operator_work=work.reindex(columns=rows.operator_work.columns))


def took(warehouse: Warehouse, folder: Path, *changes: tuple[MadeRun, int, bool]) -> pd.DataFrame:
    """What is found after these runs, one a night."""
    for night, (run, extra, on_unit) in enumerate(changes):
        [at] = nights(run, 1, first=night)
        write_runs(warehouse, counted(at, folder, extra, on_unit))
    warehouse.publish()
    return find_regressions(warehouse, folder / "acknowledged.txt")


SAME, NEW_PROGRAM = (COUNTED, 0, True), replace(COUNTED, pte_sha256="d" * 64)
FOUR_THREADS = replace(COUNTED, threads=4)


@pytest.mark.parametrize(
    "runs",
    [
        [SAME] * 3,
        [SAME, (COUNTED, -1, True)],
        [SAME, (COUNTED, 1, True), SAME],
        [SAME, (replace(COUNTED, device="emulated-c1"), 9, True)],
        [SAME, (FOUR_THREADS, 9, True)],
        [(FOUR_THREADS, 100_000, True), (FOUR_THREADS, 100_008, True)],
    ],
    ids=["the same", "less", "went back", "another device", "more threads", "failed waits"],
)
def test_work_that_did_not_grow_is_no_regression(
    warehouse: Warehouse, tmp_path: Path, runs: list[tuple[MadeRun, int, bool]]
):
    assert took(warehouse, tmp_path, *runs).empty
    with heard() as said:
        told = no_slow_down_text(warehouse)
    several = len({replace(run, session_id="") for run, _, _ in runs}) == 1
    assert ("No operators execute more than before in 1 series" in told) == several
    assert false_sentences(warehouse, said) == []


def test_of_several_threads_one_in_a_thousand_more_is_a_step(warehouse: Warehouse, tmp_path: Path):
    [step] = took(warehouse, tmp_path, (FOUR_THREADS, 100_000, True), (FOUR_THREADS, 100_200, True)).to_dict(
        "records"
    )
    assert step["after_instructions"] == step["before_instructions"] + 200


def test_one_more_instruction_is_a_step_in_the_next_run(warehouse: Warehouse, tmp_path: Path):
    [step] = took(warehouse, tmp_path, SAME, SAME, (NEW_PROGRAM, 1, True)).to_dict("records")
    assert step["after_instructions"] == step["before_instructions"] + 1
    assert (step["category"], step["changed"], step["night"].day) == ("work", "program", 3)
    assert step["before_macs_on_unit"] == step["after_macs_on_unit"] == 1
    assert pd.isna(step["before_ns"])
    with heard() as said:
        NO_MORE_WORK.say(told=1, variants=None, platform=None)
    assert false_sentences(warehouse, said)


def test_work_that_leaves_the_unit_is_a_regression_until_it_is_acknowledged(
    warehouse: Warehouse, tmp_path: Path
):
    [step] = took(warehouse, tmp_path, SAME, (COUNTED, -1, False)).to_dict("records")
    assert (step["before_macs_on_unit"], step["after_macs_on_unit"], step["changed"]) == (1, 0, "")
    data = warehouse.root.parent
    assets = [dg.AssetSpec("timeline"), regressions, no_regression]
    result = dg.materialize(assets, resources={"lab": Lab(data_root=str(data))})
    assert not result.get_asset_check_evaluations()[0].passed
    with heard() as said:
        [text] = open_regressions(warehouse).values()
    assert "100.0% to 0.0% of the multiply-accumulates on the SME unit" in text
    assert "new: nothing that is recorded" in text
    assert false_sentences(warehouse, said) == []
    shown = CliRunner().invoke(main, ["--data", str(data), "history", COUNTED.variant, "--json"])
    rows = json.loads(shown.output)
    assert [(row["category"], row["macs_on_unit"]) for row in rows] == [("work", 1), ("work", 0)]
    assert CliRunner().invoke(main, ["--data", str(data), "history", COUNTED.variant]).exit_code == 0

    (data / "acknowledged.txt").write_text(step["run_id"])
    result = dg.materialize(assets, resources={"lab": Lab(data_root=str(data))})
    assert result.get_asset_check_evaluations()[0].passed
    assert open_regressions(warehouse) == {}


@given(st.lists(st.integers(0, 2 * ENOUGH_SESSIONS), max_size=8))
def test_nothing_is_said_of_series_that_are_too_short(counts: list[int]):
    said = what_could_be_found(counts)
    telling = sum(count >= LEAST_SESSIONS for count in counts)
    assert ("No slow-down was found" in said) == (telling > 0)
    assert ("too few sessions to tell" in said.lower()) == (telling < len(counts) or not counts)
    if telling:
        assert f"found in {telling} series" in said
    if min(counts, default=0) < ENOUGH_SESSIONS:
        assert f"with at least {LEAST_SESSIONS}" in said
        assert f"a smaller one with {ENOUGH_SESSIONS}" in said
