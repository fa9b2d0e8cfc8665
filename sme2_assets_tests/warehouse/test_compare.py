"""Comparing what is in the warehouse, through the warehouse."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pandas as pd
import pytest

from sme2_assets.errors import Sme2Error, WarehouseError
from sme2_assets.store import Store
from sme2_assets.warehouse import Warehouse
from sme2_assets.warehouse.checks import noise_faults, pair_faults
from sme2_assets.warehouse.comparisons import compare_pair, compare_runs, compare_session, device_noise_floor
from sme2_assets.warehouse.read import (
    comparison_of_session,
    latest_runs,
    latest_sessions,
    rows_of_view,
    runs_of_session,
)
from sme2_assets.warehouse.rebuild import sync
from sme2_assets.warehouse.schema import COMPARISONS
from sme2_assets_tests.made.run_folder import MadeRun, ingest
from sme2_assets_tests.warehouse.newest import compare_newest, newest_run

VARIANT = "toy_cnn-fp32"
OFF = MadeRun(sme2="off", rounds=6)
ON = replace(OFF, sme2="on")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "data")


def write(warehouse: Warehouse, tmp_path: Path, *runs: MadeRun) -> None:
    ingest(warehouse, *(run.write(tmp_path) for run in runs))
    warehouse.publish()


def test_a_pair_in_the_wrong_order_is_refused_with_the_right_one(paired: Warehouse):
    off, on = (MadeRun(sme2=sme2).run_id for sme2 in ("off", "on"))
    with pytest.raises(Sme2Error, match="cannot be compared") as refused:
        compare_runs(paired, on, off)
    assert refused.value.remedy == f"Swap them: `sme2 compare {off} {on}`."


def test_a_hardware_pair_is_compared_with_interval_and_verdict(paired: Warehouse):
    rows = paired.query("FROM sme2_comparison WHERE platform = 'linux'")
    model = rows[rows["level"] == "model"].iloc[0]
    assert model["verdict"] == "faster"
    assert 1.5 < model["speedup_low"] <= model["speedup"] <= model["speedup_high"] < 2
    assert (model["n"], model["operators"]) == (6, 8)
    assert (model["sme2_operators_off"], model["sme2_operators_on"]) == (0, 2)
    convolution = rows[rows["op_type"] == "Convolution"].iloc[0]
    assert convolution["speedup"] == pytest.approx(2, rel=0.05)
    assert (convolution["off_name"], convolution["on_name"]) == (
        "Convolution (NHWC, F32) IGEMM #1",
        "Convolution (NHWC, PF32) IGEMM #1",
    )
    pooling = rows[rows["op_type"] == "Max Pooling"].iloc[0]
    assert pooling["verdict"] in ("no difference", "insufficient data")
    assert set(rows[rows["level"] == "category"]["category"]) == {
        "CONV",
        "GEMM",
        "Data Movement",
        "Elementwise",
        "Other",
        "Overhead",
    }


def test_an_emulated_pair_has_kernels_and_no_times(paired: Warehouse):
    rows = paired.query("FROM sme2_comparison WHERE platform = 'emulated'")
    assert (rows["verdict"] == "not comparable").all()
    for column in ("off_ns", "on_ns", "speedup", "speedup_low", "speedup_high"):
        assert rows[column].isna().all()
    assert rows[rows["level"] == "model"]["sme2_operators_on"].tolist() == [2]


def test_counts_add_up_in_the_table(paired: Warehouse):
    sums = paired.query(
        "SELECT platform, level, sum(operators), sum(sme2_operators_b) FROM comparisons GROUP BY ALL"
    )
    for platform in ("linux", "emulated"):
        counts = sums[sums["platform"] == platform].iloc[:, 2:].drop_duplicates()
        assert counts.to_numpy().tolist() == [[8, 2]]


def test_a_mixed_pair_is_refused_and_leaves_no_rows(warehouse, tmp_path):
    differences = {
        "different sessions": {"session_id": "20260101T000001-bbbbbb"},
        "different runners": {"runner_sha256": "d" * 64},
        "different model files": {"pte_sha256": "d" * 64},
        "different thread counts": {"threads": 4},
        "different devices": {"device": "another"},
        "different fidelities": {"fidelity": "emulated"},
    }
    pairs = {reason: f"m{number}-fp32" for number, reason in enumerate(differences)}
    short = {"rounds": 1, "warmup": 0, "iterations": 1}
    for reason, variant in pairs.items():
        arms = (
            replace(OFF, variant=variant, **short),
            replace(ON, variant=variant, **{**short, **differences[reason]}),
        )
        ingest(warehouse, *(arm.write(tmp_path) for arm in arms))
    warehouse.publish()
    for reason, variant in pairs.items():
        with pytest.raises(Sme2Error, match=reason):
            compare_newest(warehouse, variant, "linux")
    warehouse.publish()
    assert warehouse.query("FROM comparisons").empty


def test_a_new_run_of_one_arm_is_not_compared_with_the_old_of_the_other(warehouse, tmp_path):
    write(warehouse, tmp_path, OFF, ON)
    compare_newest(warehouse, VARIANT, "linux")
    later = OFF.started_at + timedelta(days=1)
    alone = replace(OFF, session_id="20260102T000000-bbbbbb", started_at=later, pte_sha256="b" * 64)
    write(warehouse, tmp_path, replace(alone, paired=False))
    with pytest.raises(Sme2Error, match="different sessions"):
        compare_newest(warehouse, VARIANT, "linux")


@pytest.mark.parametrize(("program", "shown"), [(ON.pte_sha256, "pair"), ("b" * 64, "alone")])
def test_a_state_measured_alone_displaces_a_pair_of_another_program_only(warehouse, tmp_path, program, shown):
    later = ON.started_at + timedelta(days=1)
    alone = replace(ON, session_id="20260102T000000-bbbbbb", started_at=later, paired=False)
    alone = replace(alone, pte_sha256=program)
    write(warehouse, tmp_path, OFF, ON)
    write(warehouse, tmp_path, alone)
    expected = {"pair": ON, "alone": alone}[shown]
    assert [run["run_id"] for run in latest_runs(warehouse, sme2="on")] == [expected.run_id]
    assert [run["session_id"] for run in latest_sessions(warehouse)] == [expected.session_id]


def test_wrong_outputs_are_stored_as_not_comparable(warehouse, tmp_path):
    write(warehouse, tmp_path, OFF, replace(ON, sqnr_db=12.0))
    compare_newest(warehouse, VARIANT, "linux")
    warehouse.publish()
    rows = warehouse.query("FROM comparisons")
    assert (rows["verdict"] == "not comparable").all()
    assert rows["speedup"].isna().all()
    assert "With SME2 on the outputs are wrong: 12.0 dB" in rows["reason"].iloc[0]


def test_an_arm_that_was_never_measured_is_named(warehouse, tmp_path):
    write(warehouse, tmp_path, OFF)
    with pytest.raises(WarehouseError, match=f"no run '{ON.run_id}'"):
        compare_pair(warehouse, OFF.run_id, ON.run_id)
    with pytest.raises(Sme2Error, match=f"has one arm, {OFF.run_id}"):
        compare_session(warehouse, OFF.session_id)


def test_a_newer_session_is_the_comparison_and_the_older_stays_in_the_table(warehouse, tmp_path):
    later = OFF.started_at + timedelta(days=1)
    newer = [replace(run, session_id="20260102T000000-bbbbbb", started_at=later) for run in (OFF, ON)]
    write(warehouse, tmp_path, OFF, ON)
    compare_newest(warehouse, VARIANT, "linux")
    write(warehouse, tmp_path, *newer)
    compare_newest(warehouse, VARIANT, "linux")
    compare_newest(warehouse, VARIANT, "linux")
    warehouse.publish()
    assert warehouse.query("SELECT count(*) AS n FROM comparisons WHERE level = 'model'")["n"].tolist() == [2]
    assert set(warehouse.query("FROM sme2_comparison")["session_id"]) == {newer[0].session_id}
    assert [run["session_id"] for run in latest_sessions(warehouse, VARIANT, "linux")] == [
        newer[0].session_id
    ]
    assert [run["sme2"] for run in runs_of_session(warehouse, OFF.session_id)] == ["off", "on"]
    assert set(comparison_of_session(warehouse, OFF.session_id)["session_id"]) == {OFF.session_id}


def test_a_comparison_with_columns_of_another_release_is_made_again(store: Store):
    for run in (OFF, ON):
        run.write(store.runs)
    sync(store, print)
    warehouse = Warehouse(store.warehouse)
    rows = comparison_of_session(warehouse, OFF.session_id)
    keys = {key.name: str(rows[key.name].iloc[0]) for key in COMPARISONS.keys}
    first, *others = COMPARISONS.columns
    earlier = replace(COMPARISONS, columns=(*others, replace(first, name="formerly")))
    warehouse.write(earlier, rows.drop(columns=list(keys)).rename(columns={first.name: "formerly"}), keys)
    warehouse.publish()
    assert comparison_of_session(warehouse, OFF.session_id).empty
    assert sync(store, print).compared == [OFF.session_id]
    pd.testing.assert_frame_equal(comparison_of_session(warehouse, OFF.session_id), rows)


def test_what_was_never_measured_has_no_comparison(warehouse):
    assert comparison_of_session(warehouse, OFF.session_id).empty
    assert latest_sessions(warehouse, VARIANT, "linux") == []


def test_only_views_of_runs_are_read_by_run(paired: Warehouse):
    with pytest.raises(ValueError, match="duckdb_settings"):
        rows_of_view(paired, "duckdb_settings()", "x")


def test_a_true_pair_passes_and_one_that_was_tampered_with_does_not(warehouse: Warehouse, tmp_path: Path):
    write(warehouse, tmp_path, OFF, ON)
    compare_newest(warehouse, VARIANT, "linux")
    warehouse.publish()
    assert pair_faults(warehouse, OFF.run_id, ON.run_id) is None
    another_runner = replace(ON, runner_sha256="d" * 64)
    ingest(warehouse, another_runner.write(tmp_path / "tampered"))
    warehouse.publish()
    assert "different runners" in str(pair_faults(warehouse, OFF.run_id, ON.run_id))


def test_two_named_runs_are_compared_without_storing_anything(warehouse: Warehouse, tmp_path: Path):
    write(warehouse, tmp_path, OFF, ON)
    rows = compare_runs(warehouse, OFF.run_id, ON.run_id)
    assert rows[rows["level"] == "model"]["verdict"].item() == "faster"
    assert comparison_of_session(warehouse, OFF.session_id).empty
    with pytest.raises(Sme2Error, match="not off and on"):
        compare_runs(warehouse, ON.run_id, OFF.run_id)


def test_rounds_that_scatter_are_noise_on_hardware_and_nothing_under_emulation(
    warehouse: Warehouse, tmp_path: Path
):
    write(warehouse, tmp_path, OFF, replace(OFF, platform="emulated", fidelity="emulated"))
    run = newest_run(warehouse, VARIANT, "linux", "off")
    assert noise_faults(warehouse, run) is None
    assert "busy" in str(noise_faults(warehouse, {**run, "flags": ["busy: make used 1.0 cores"]}))
    emulated = newest_run(warehouse, VARIANT, "emulated", "off")
    assert noise_faults(warehouse, {**emulated, "flags": ["busy: make used 1.0 cores"]}) is None


def test_a_device_without_enough_identical_sessions_has_no_noise_floor(warehouse: Warehouse, tmp_path: Path):
    write(warehouse, tmp_path, OFF, ON)
    compare_newest(warehouse, VARIANT, "linux")
    warehouse.publish()
    run = newest_run(warehouse, VARIANT, "linux", "off")
    assert device_noise_floor(warehouse, run) is None
    assert device_noise_floor(warehouse, {**run, "fidelity": "emulated"}) is None
