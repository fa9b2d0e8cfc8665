"""Series of times over many runs."""

from __future__ import annotations

from pathlib import Path

from benchmarks.made.run_folder import MadeRun
from sme2_assets.warehouse import Warehouse
from sme2_assets.warehouse.history import find_regressions, series_of
from sme2_assets.warehouse.schema import TIMELINE
from sme2_assets_tests.warehouse.test_compare import write


def test_a_category_below_the_resolution_of_the_trace_has_no_time_to_compare(
    warehouse: Warehouse, tmp_path: Path
):
    write(warehouse, tmp_path, MadeRun())
    rows = warehouse.query("SELECT * FROM timeline")
    keys = {key.name: rows[key.name].iloc[0] for key in TIMELINE.keys}
    rows.loc[rows["category"] == "Elementwise", "duration_ns"] = 0
    warehouse.write(TIMELINE, rows.drop(columns=list(keys)), keys)
    warehouse.publish()
    series = {key[-1]: times["median_ns"] for key, times in series_of(warehouse).items()}
    assert series["Elementwise"].isna().all()
    assert (series["CONV"] > 0).all()
    assert find_regressions(warehouse, tmp_path / "acknowledged.txt").empty
