"""A model at several sizes of a dimension that varies: how work, time and the use of the SME unit grow."""

from __future__ import annotations

import re
from typing import Any

import pandas as pd

from sme2_assets.report.document import Grid, Section, Text
from sme2_assets.report.tables import TextTable
from sme2_assets.warehouse import Warehouse
from sme2_assets.warehouse.read import SERIES

# A size in the key of a variant: `grow.size_seq_128-fp32`.
_SIZE = r"\.size_([A-Za-z0-9_]+?)_([0-9]+)"
_SAME = [name for name in SERIES if name != "variant"]


def sizes_section(warehouse: Warehouse, run: dict[str, Any]) -> list[Section]:
    """The newest run of every size, under the same conditions as this one; none for other models."""
    if not re.search(_SIZE, str(run["variant"])):
        return []
    same = " AND ".join(f"runs.{name} IS NOT DISTINCT FROM this.{name}" for name in _SAME)
    rows = warehouse.query(
        f"SELECT runs.variant, runs.sme2, runs.session_id, unit.* EXCLUDE (variant, sme2, session_id), "
        "latency.median_ns AS latency_ns "
        "FROM latest_runs AS runs "
        f"JOIN (SELECT * FROM runs WHERE run_id = $run_id) AS this ON {same} "
        f"AND regexp_replace(runs.variant, '{_SIZE}', '', 'g') "
        f"= regexp_replace(this.variant, '{_SIZE}', '', 'g') "
        "LEFT JOIN unit_use AS unit ON unit.run_id = runs.run_id "
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
    table = TextTable.of(
        [*names, "SME2", "million MACs", "on the unit", "MACs on the unit", "median ms"],
        [
            [
                *(row["sizes"].get(name, "as exported") for name in names),
                row["sme2"],
                None if pd.isna(row["macs"]) else f"{row['macs'] / 1e6:,.3f}",
                None
                if pd.isna(row["matrix_operators"])
                else f"{row['on_unit']:.0f} of {row['matrix_operators']:.0f}",
                None if pd.isna(row["macs_on_unit"]) else f"{row['macs_on_unit']:.0%}",
                None if pd.isna(row["latency_ns"]) else f"{row['latency_ns'] / 1e6:.3f}",
            ]
            for row in records
        ],
    )
    note = Text("The newest run of every size. They are from several sessions: their times do not compare.")
    return [Section("At other sizes", [note, Grid(table)])]
