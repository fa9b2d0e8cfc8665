"""Arms that differ in another factor than SME2, or in none: the verdict, and what each arm showed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd
from rich.console import Console

from sme2_assets.analysis.factors import arm_name, arm_names, is_or_are
from sme2_assets.analysis.statistics import threshold_of
from sme2_assets.evidence.digits import beside, ratio_text
from sme2_assets.report import claims
from sme2_assets.report.tables import TextTable, comparison_table, device_cell, of_sme2, real_times
from sme2_assets.report.terminal import print_table
from sme2_assets.report.unit_use import count_text, unit_counts, work_text
from sme2_assets.warehouse import Warehouse
from sme2_assets.warehouse.read import runs_of_session

Row = Mapping[Any, Any]

_TIMES = "SELECT run_id, median_ns, p05_ns, p95_ns FROM latency_summary WHERE list_contains(?, run_id)"


def verdict_of_arms(row: Row) -> str:
    """What a row of `comparisons` for the whole model shows: which arm is faster, by how much, and why."""
    arm = {"b_run_id": row["b_run_id"]}
    a, b = arm_names(row)
    pair = {"first": a, "second": b}
    said = []
    if row["verdict"] in ("faster", "slower"):
        ends = [row["speedup"], row["speedup_low"], row["speedup_high"]]
        faster, slower = b, a
        if row["verdict"] == "slower":
            ends, faster, slower = [1 / ends[0], 1 / ends[2], 1 / ends[1]], a, b
        ratio, low, high = map(float, ends)
        n = int(row["n"])
        figures = {"ratio": ratio, "low": low, "high": high, "n": n, "text": ratio_text(ratio, low, high, n)}
        who = {"faster": faster, "verb": is_or_are(faster), "slower": slower}
        said.append(claims.ARM_FASTER.say(**arm, **figures, **who))
    elif row["verdict"] in ("no difference", "too small to count"):
        floor = None if pd.isna(row["noise_floor"]) else float(row["noise_floor"])
        said.append(claims.ARMS_ALIKE.say(**arm, **pair, share=threshold_of(floor) - 1))
    elif row["verdict"] == "insufficient data":
        said.append(claims.ARMS_OPEN.say(**arm, **pair))
    else:
        said.append(claims.ARMS_UNTIMED.say(**arm, **pair))
    said.append(claims.ARM_REASON.say(**arm, reason=row["reason"]))
    if row["fidelity"] == "reference":
        said.append(claims.ARMS_REFERENCE.say(**arm, arch=row["arch"]))
    return " ".join(said)


def arms_table(warehouse: Warehouse, session_id: str) -> TextTable:
    """What each arm of a session showed: its time, how much of it is on the SME unit, and its outputs."""
    runs = pd.DataFrame(runs_of_session(warehouse, session_id))
    ids = runs["run_id"].tolist()
    times = {row["run_id"]: row for row in warehouse.query(_TIMES, [ids]).to_dict("records")}
    counts = unit_counts(warehouse, ids)
    table = TextTable.of(
        ["arm", "median ms", "5 % to 95 % ms", *_ON_UNIT, "outputs"],
        [
            [
                arm_name(run),
                _milliseconds(times.get(run["run_id"]), "median_ns"),
                " to ".join(_milliseconds(times.get(run["run_id"]), f"p{end}_ns") for end in ("05", "95")),
                *on_unit_cells(counts.get(run["run_id"])),
                outputs_cell(run),
            ]
            for run in runs.to_dict("records")
        ],
    )
    table = of_sme2(real_times(table, runs, "median ms", "5 % to 95 % ms"), runs, *_ON_UNIT)
    # Where SME2 is off in all arms, nothing can be on the unit.
    return table if (runs["sme2"] == "on").any() else table.without(*_ON_UNIT)


_ON_UNIT = ("on the SME unit", "multiply-accumulates on it")


def on_unit_cells(counts: Row | None) -> list[str | None]:
    """How many matrix operators of a run are on the unit, and what share of its work."""
    if counts is None:
        return [None, None]
    return [count_text(counts), work_text(counts).partition(" of ")[0] or None]


def outputs_cell(run: Row) -> str:
    """An arm against its own eager model."""
    if pd.isna(run["sqnr_db"]):
        return "no eager model"
    wrong = isinstance(run["eager_fault"], str) or run["sqnr_db"] < run["sqnr_threshold_db"]
    reached = beside(run["sqnr_db"], run["sqnr_threshold_db"], 0)
    return f"{'WRONG' if wrong else 'right'}, {reached} dB"


def scaling_table(warehouse: Warehouse, session_id: str, rows: pd.DataFrame) -> TextTable:
    """Thread counts of one session: time, speedup over the first, and speedup per thread."""
    compared = {row["b_run_id"]: row for row in rows[rows["level"] == "model"].to_dict("records")}
    runs = runs_of_session(warehouse, session_id)
    shown = arms_table(warehouse, session_id)
    at = 1 + ("median ms" in shown.header)
    body = [
        [*cells[:at], *_scaled(runs[0], run, compared.get(run["run_id"])), *cells[at:]]
        for run, cells in zip(runs, shown.rows, strict=True)
    ]
    header = [*shown.header[:at], "speedup", "efficiency", *shown.header[at:]]
    return real_times(TextTable.of(header, body), rows, "speedup", "efficiency").without("5 % to 95 % ms")


def _scaled(first: Row, run: Row, row: Row | None) -> list[str]:
    """Speedup and efficiency of a thread count, with their intervals; 1 for the first by definition."""
    if row is None:
        return ["1", "1"]
    ends = [row[name] for name in ("speedup", "speedup_low", "speedup_high")]
    if pd.isna(ends).any():
        return [str(row["verdict"])] * 2
    more = run["threads"] / first["threads"]
    shares = [end / more for end in ends]
    return [
        ratio_text(ends[0], ends[1], ends[2], int(row["n"])),
        f"{shares[0]:.0%} ({shares[1]:.0%} to {shares[2]:.0%})",
    ]


def show_arms(
    out: Console, warehouse: Warehouse, rows: pd.DataFrame, table: TextTable, operators: bool = False
) -> None:
    """A session of arms on a terminal: the verdicts, then a table."""
    models = rows[rows["level"] == "model"].to_dict("records")
    first = models[0]
    factor = first["factor"] or "identical arms"
    title = f"== {first['variant']} on {first['platform']}, {device_cell(first)}: {factor} =="
    out.print(title, style="bold", highlight=False, markup=False)
    for row in models:
        out.print(verdict_of_arms(row), markup=False, highlight=False, soft_wrap=True)
        if not pd.isna(row["confidence"]):
            confidence = {"level": row["confidence"], "why": row["confidence_reason"]}
            said = claims.ARM_CONFIDENCE.say(b_run_id=row["b_run_id"], **confidence)
            out.print(f"confidence: {said}", markup=False, highlight=False, soft_wrap=True)
    print_table(out, table)
    for level in ("category", "operator") if operators else ("category",):
        # Only for two arms: with more, each pair would fill a screen.
        if len(models) == 1 and (rows["level"] == level).any():
            shown = comparison_table(rows, level)
            units = [] if _ON_UNIT[0] in table.header else [it for it in shown.header if "SME unit" in it]
            print_table(out, shown.without(*units))


def _milliseconds(times: Row | None, column: str) -> str:
    return "-" if times is None or pd.isna(times[column]) else f"{times[column] / 1e6:.3f}"
