"""What changes of the model brought when they were tried: a section of its reports."""

from __future__ import annotations

import pandas as pd

from sme2_assets.report import claims
from sme2_assets.report.document import Block, Grid, Section, Text
from sme2_assets.report.tables import TextTable
from sme2_assets.warehouse import Warehouse


def advice_section(warehouse: Warehouse, variant: str, pte_sha256: str) -> list[Section]:
    """None where nobody has tried anything, or only with another program: what is said of that may be untrue
    of this one."""
    rows = warehouse.query(
        "FROM advice WHERE variant = $variant AND EXISTS (SELECT 1 FROM advice AS base JOIN runs USING "
        "(run_id) WHERE base.variant = $variant AND base.rank = 0 AND pte_sha256 = $pte) ORDER BY rank",
        {"variant": variant, "pte": pte_sha256},
    )
    if rows.empty:
        return []
    base, tried = rows.iloc[0], rows.iloc[1:]
    gains = tried[tried["recommended"]]
    blocks: list[Block] = []
    if gains.empty:
        blocks.append(Text(claims.NO_GAIN.say(variant=variant, count=int(tried["run_id"].notna().sum()))))
    for row in gains.to_dict("records"):
        said = claims.GAIN.say(
            variant=variant, change=row["change"], what=row["what"], least=row["least"], before=base["most"]
        )
        blocks.append(Text(said if pd.isna(row["code"]) else f"{said} Code: {row['code']}"))
    cells = [
        [
            row["change"],
            None if pd.isna(row["least"]) else f"{row['least']:.1%}",
            None if pd.isna(row["on_unit"]) else f"{row['on_unit']:.0f} of {row['matrix_operators']:.0f}",
            *(None if pd.isna(row[name]) else f"{row[name]:,.0f}" for name in _COUNTS),
            None if pd.isna(row["worst_db"]) else f"{row['worst_db']:.1f} dB",
            row["problem"],
        ]
        for row in rows.to_dict("records")
    ]
    blocks.append(Grid(TextTable.of(_HEADER, cells)))
    return [Section("What was tried", blocks)]


_COUNTS = ("operators", "delegate_calls", "program_bytes")
_HEADER = (
    *("change", "the model's MACs on the unit", "matrix operators on it", "operators", "delegate calls"),
    *("program bytes", "worst output", "not measured because"),
)
