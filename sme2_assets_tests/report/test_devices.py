"""One model on several emulated devices, side by side, and differences that somebody planted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from sme2_assets.report.devices import devices_table, operators_that_differ
from sme2_assets.warehouse import Warehouse
from sme2_assets.warehouse.ingest import RunRows, rows_of_run, write_runs
from sme2_assets_tests.archive import archived_run


@pytest.fixture(scope="module")
def run() -> RunRows:
    return rows_of_run(archived_run("emulated", "on"))


def on_device(run: RunRows, device: str, **columns: object) -> RunRows:
    """The same run, as if another device had made it, with other values in these columns of `runs`."""
    run_id = f"{run.manifest.run_id}-{device}"
    manifest = run.manifest.model_copy(update={"run_id": run_id})
    return replace(run, manifest=manifest, runs=run.runs.assign(device=device, **columns))


def stored(folder: Path, *runs: RunRows) -> tuple[Warehouse, dict[str, str | None]]:
    warehouse = Warehouse(folder / "warehouse")
    write_runs(warehouse, *runs)
    warehouse.publish()
    return warehouse, {str(run.runs["device"].iloc[0]): run.manifest.run_id for run in runs}


def test_devices_that_do_the_same_are_told_to(run: RunRows, tmp_path: Path) -> None:
    warehouse, run_ids = stored(tmp_path, on_device(run, "m4"), on_device(run, "max"))
    assert operators_that_differ(warehouse, run_ids).rows == []
    first, second = devices_table(warehouse, run_ids).rows
    assert first[0] == second[2] == "m4"
    assert first[2] == second[0] == "max"
    assert first[1].startswith("right")


def test_a_device_that_failed_or_computes_something_else_says_so(run: RunRows, tmp_path: Path) -> None:
    wrong = on_device(run, "c1", output_sha256="0" * 64, eager_fault="output 0 is off")
    warehouse, run_ids = stored(tmp_path, wrong, on_device(run, "max"))
    rows = {row[0]: row[1:] for row in devices_table(warehouse, {"m4": None, **run_ids}).rows}
    assert rows["m4"] == ["FAILED", "-", "-", "-"]
    assert rows["c1"][:2] == [rows["c1"][0], "-"]
    assert rows["c1"][0].startswith("WRONG")
    assert rows["max"][:2] == [rows["max"][0], "-"]


def test_an_operator_that_lost_its_kernel_is_named_and_no_other(run: RunRows, tmp_path: Path) -> None:
    """On `m4` the last operator does its work with vectors alone."""
    work = run.operator_work
    places = work.loc[work["class"] == "outer product", ["delegate", "position"]].drop_duplicates()
    lost = (work[["delegate", "position"]] == places.iloc[-1]).all(axis=1)
    to_vectors = work["class"].mask(lost & (work["unit"] == "SME"), "SIMD multiply-add")
    planted = replace(on_device(run, "m4"), operator_work=work.assign(**{"class": to_vectors}))
    warehouse, run_ids = stored(tmp_path, planted, on_device(run, "c1"), on_device(run, "max"))
    [row] = operators_that_differ(warehouse, run_ids).rows
    expected = warehouse.query(
        "SELECT * FROM operator_facts WHERE run_id = ? AND delegate = ? AND position = ?",
        [run_ids["max"], *map(int, places.iloc[-1])],
    ).iloc[0]
    assert isinstance(expected, pd.Series)
    name = expected["name"].rpartition(" #")[0]
    assert row == ["m4", expected["module"], name, "off", name, "on"]
