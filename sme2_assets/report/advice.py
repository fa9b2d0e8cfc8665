"""What changes to a model gained when they were tried: as a table, and as a section of its reports."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pandas as pd

from sme2_assets.analysis.percent import percent_text
from sme2_assets.evidence.advice import LEAST_GAIN
from sme2_assets.report import claims
from sme2_assets.report.arms import verdict_of_arms
from sme2_assets.report.document import Block, Grid, Section, Text
from sme2_assets.report.tables import TextTable, speedup_text
from sme2_assets.warehouse import Warehouse

# The last comparison on hardware of the same two programs, whoever asked for it.
_TIMES = """
    SELECT tried.change, compared.*, second.sme2
    FROM advice AS tried
    JOIN runs AS emulated USING (run_id)
    JOIN runs AS second ON second.pte_sha256 = emulated.pte_sha256
    JOIN comparisons AS compared ON compared.b_run_id = second.run_id
    JOIN runs AS first ON first.run_id = compared.a_run_id
    JOIN advice AS base ON base.variant = tried.variant AND base.rank = 0
    JOIN runs AS as_it_is ON as_it_is.run_id = base.run_id AND as_it_is.pte_sha256 = first.pte_sha256
    WHERE tried.variant = $variant AND tried.rank > 0 AND level = 'model' AND compared.fidelity = 'hardware'
    QUALIFY row_number() OVER (PARTITION BY tried.change ORDER BY second.sequence DESC) = 1
"""


@dataclass(frozen=True)
class Tried:
    """Rows of `advice` for a variant, the model as it is first; and of `comparisons`, by change."""

    rows: pd.DataFrame
    times: dict[str, dict[Any, Any]]

    @property
    def changes(self) -> list[dict[Any, Any]]:
        """Without the model as it is; what is unknown is None."""
        rows = self.rows.iloc[1:].astype(object)
        return rows.where(rows.notna(), None).to_dict("records")

    def table(self) -> TextTable:
        """What was measured."""
        measured = self.rows[self.rows["run_id"].notna()].to_dict("records")
        body = [
            [
                row["change"],
                _share(row),
                f"{row['on_unit']:.0f} of {row['matrix_operators']:.0f}",
                *(_count(row[name]) for name in (*_COUNTS, "program_bytes")),
                "unknown" if pd.isna(row["worst_db"]) else f"{row['worst_db']:.1f} dB",
                _speedup(self.times.get(row["change"])),
            ]
            for row in measured
        ]
        table = TextTable.of(_HEADER, body)
        return table if self.times else table.without(_HEADER[-1])

    def as_json(self) -> dict[str, Any]:
        rows = json.loads(self.rows.to_json(orient="records"))
        times = pd.DataFrame(list(self.times.values()))
        return {"tried": rows, "times": json.loads(times.to_json(orient="records", date_format="iso"))}


_COUNTS = ("operators", "delegate_calls", "outside")
_HEADER = (
    *("change", "the model's MACs on the unit", "matrix operators on it", "operators", "delegate calls"),
    *("outside delegates", "program bytes", "worst output", "speed-up on hardware"),
)


def tried_of(warehouse: Warehouse, variant: str) -> Tried:
    chosen: dict[str, object] = {"variant": variant}
    rows = warehouse.query("FROM advice WHERE variant = $variant ORDER BY rank", chosen)
    times = warehouse.query(_TIMES, chosen).to_dict("records")
    return Tried(rows, {row["change"]: row for row in times})


def advice_section(warehouse: Warehouse, variant: str, pte_sha256: str) -> list[Section]:
    """Empty if nothing was tried, or only with another program: what holds for that one may not hold for
    this one."""
    tried = tried_of(warehouse, variant)
    of_program = "SELECT 1 FROM runs WHERE run_id = $run AND pte_sha256 = $pte"
    base = None if tried.rows.empty else tried.rows.iloc[0]
    if base is None or warehouse.query(of_program, {"run": base["run_id"], "pte": pte_sha256}).empty:
        return []
    blocks: list[Block] = []
    for row in tried.changes:
        if not row["recommended"]:
            continue
        change = {"variant": variant, "change": row["change"], "what": row["what"]}
        if row["gain"] is not None and row["gain"] > LEAST_GAIN:
            said = claims.GAIN.say(**change, share=row["share"], before=base["share"])
        else:
            said = claims.FEWER.say(**change, **_counts(row), **_counts(base, "before_"))
        if row["change"] in tried.times:
            said += f" {verdict_of_arms(tried.times[row['change']])}"
        blocks.append(Text(f"{said} Code: {row['code']}" if row["code"] else said))
    if not blocks:
        measured = sum(row["run_id"] is not None for row in tried.changes)
        blocks.append(Text(claims.NO_GAIN.say(variant=variant, count=measured)))
    blocks.append(Grid(tried.table()))
    failed = [[row["change"], row["problem"]] for row in tried.changes if row["problem"]]
    if failed:
        blocks.append(Grid(TextTable.of(["change", "not measured because"], failed)))
    return [Section("What was tried", blocks)]


def _count(value: Any) -> str:
    """Advice of an earlier version lacks some."""
    return "unknown" if pd.isna(value) else f"{value:,.0f}"


def _counts(row: Any, prefix: str = "") -> dict[str, int]:
    return {f"{prefix}{name}": int(row[name]) for name in _COUNTS}


def _share(row: dict[Any, Any]) -> str:
    """With what is gained."""
    share, gain = row["share"], row["gain"]
    if pd.isna(share) or pd.isna(gain):
        return "not counted"
    gained = f" ({100 * gain:+.1f} pp)" if row["rank"] > 0 else ""
    return f"{percent_text(share, 1)}{gained}"


def _speedup(row: dict[Any, Any] | None) -> str | None:
    """With its interval; or the verdict, where there is none."""
    if row is None:
        return None
    said = row["verdict"] if pd.isna(row["speedup_low"]) else speedup_text(row)
    return f"{said}, SME2 {row['sme2']}"
