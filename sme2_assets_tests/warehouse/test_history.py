"""Series of times over many runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import dagster as dg
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
from sme2_assets.warehouse import Warehouse
from sme2_assets.warehouse.history import (
    ENOUGH_SESSIONS,
    LEAST_SESSIONS,
    acknowledged_runs,
    find_regressions,
    no_slow_down_text,
    series_of,
    what_could_be_found,
)
from sme2_assets.warehouse.ingest import rows_of_run, write_runs
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
    assert f"There is no native run of {fast.variant} on android in the warehouse yet." in nowhere.stderr
    assert {path: path.stat().st_mtime_ns for path in data.rglob("*")} == before


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
