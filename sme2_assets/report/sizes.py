"""A model at several sizes of a dimension that varies: how work, time and the use of the SME unit grow."""

from __future__ import annotations

import re
from typing import Any

import pandas as pd

from sme2_assets.report.arms import on_unit_cells
from sme2_assets.report.document import Grid, Section, Text
from sme2_assets.report.tables import Record, TextTable, of_sme2
from sme2_assets.report.unit_use import unit_counts
from sme2_assets.warehouse import Warehouse
from sme2_assets.warehouse.read import SERIES

# A size in the key of a variant: `grow.size_seq_128-fp32`.
_SIZE = r"\.size_([A-Za-z0-9_]+?)_([0-9]+)"
# A reference has neither a state nor counted work.
_OF_SME2 = ("SME2", "million MACs", "on the unit", "MACs on the unit")
_SAME = [name for name in SERIES if name != "variant"]


def sizes_section(warehouse: Warehouse, run: dict[str, Any]) -> list[Section]:
    """The newest run of every size, under the same conditions as this one; none for other models."""
    if not re.search(_SIZE, str(run["variant"])):
        return []
    same = " AND ".join(f"runs.{name} IS NOT DISTINCT FROM this.{name}" for name in _SAME)
    rows = warehouse.query(
        "SELECT runs.run_id, runs.variant, runs.sme2, runs.fidelity, latency.median_ns AS latency_ns "
        "FROM latest_runs AS runs "
        f"JOIN (SELECT * FROM runs WHERE run_id = $run_id) AS this ON {same} "
        f"AND regexp_replace(runs.variant, '{_SIZE}', '', 'g') "
        f"= regexp_replace(this.variant, '{_SIZE}', '', 'g') "
        "LEFT JOIN latency_summary AS latency ON latency.run_id = runs.run_id",
        {"run_id": run["run_id"]},
    )
    if rows["variant"].nunique() < 2:
        return []
    rows["sizes"] = [dict(re.findall(_SIZE, variant)) for variant in rows["variant"]]
    names = sorted({name for sizes in rows["sizes"] for name in sizes})
    records = sorted(
        rows.to_dict("records"),
        key=lambda row: ([int(row["sizes"].get(name, 0)) for name in names], row["sme2"]),
    )
    counts = unit_counts(warehouse, rows["run_id"].tolist())
    table = TextTable.of(
        [*names, *_OF_SME2, "median ms"],
        [
            [
                *(row["sizes"].get(name, "as exported") for name in names),
                row["sme2"],
                _million_macs(counts.get(row["run_id"])),
                *on_unit_cells(counts.get(row["run_id"])),
                None if pd.isna(row["latency_ns"]) else f"{row['latency_ns'] / 1e6:.3f}",
            ]
            for row in records
        ],
    )
    note = Text("The newest run of every size. They are from several sessions: their times do not compare.")
    return [Section("At other sizes", [note, Grid(of_sme2(table, rows, *_OF_SME2))])]


def _million_macs(counts: Record | None) -> str | None:
    return None if counts is None or pd.isna(counts["macs"]) else f"{counts['macs'] / 1e6:,.3f}"
