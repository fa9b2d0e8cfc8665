"""All models on all platforms at a glance: one row each, with a link to its report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd

from sme2_assets.analysis.insights.values import shown_name
from sme2_assets.report import claims
from sme2_assets.report.answer import KERNEL_EVIDENCE
from sme2_assets.report.document import Document, Grid, Section, Text
from sme2_assets.report.pictures.overview import category_rows, overview_pictures
from sme2_assets.report.tables import TextTable, arm_text, device_cell, setting_text, speedup_text
from sme2_assets.report.unit_use import count_text, operators_not_known, rest_text, unit_counts, work_text
from sme2_assets.warehouse import Warehouse
from sme2_assets.warehouse.read import latest_sessions

HEADER = [
    "model",
    "platform",
    "device",
    "threads",
    "verdict",
    "speedup",
    "on the SME unit",
    "biggest bottleneck",
    "numerics",
    "SME2 off, ms",
    "SME2 on, ms",
    "slowest category",
    "measured",
]
# The columns that a spreadsheet gets; times in milliseconds follow.
CSV_COLUMNS = [
    *("variant", "platform", "device", "arch", "threads", "cpus", "power_mode", "method", "fidelity"),
    *("session_id", "started_at", "arms", "verdict", "speedup", "speedup_low", "speedup_high", "n"),
    *("matrix_operators", "on_unit_operators", "unknown_operators", "macs", "macs_on_unit"),
    *("category", "category_share", "bottleneck", "sqnr_db", "fault"),
]
_TIMES = [f"{arm}_{end}" for arm in ("off", "on") for end in ("median", "p05", "p95")]

# Sessions, each with its comparison if there is one; the numerics are those of the arm closest to failing.
_SESSIONS = """
WITH sessions AS (
    SELECT
        variant, platform, session_id, any_value(fidelity) AS fidelity,
        any_value(device) AS device, any_value(arch) AS arch, any_value(threads) AS threads,
        any_value(cpus) AS cpus, any_value(power_mode) AS power_mode,
        coalesce(any_value(method), 'forward') AS method, any_value(started_at) AS started_at,
        string_agg(sme2, ' and ' ORDER BY sme2) AS arms,
        arg_max(run_id, sme2) AS subject_run_id,
        min(sqnr_db - sqnr_threshold_db) AS margin_db,
        coalesce(any_value(arms_fault), any_value(eager_fault)) AS fault,
        min(sqnr_db) AS sqnr_db,
        any_value(median_ns) FILTER (sme2 = 'off') AS off_median_ns,
        any_value(p05_ns) FILTER (sme2 = 'off') AS off_p05_ns,
        any_value(p95_ns) FILTER (sme2 = 'off') AS off_p95_ns,
        any_value(median_ns) FILTER (sme2 = 'on') AS on_median_ns,
        any_value(p05_ns) FILTER (sme2 = 'on') AS on_p05_ns,
        any_value(p95_ns) FILTER (sme2 = 'on') AS on_p95_ns
    FROM runs
    LEFT JOIN (SELECT run_id, median_ns, p05_ns, p95_ns FROM latency_summary) USING (run_id)
    WHERE list_contains(?, session_id)
    GROUP BY variant, platform, session_id
)
SELECT
    sessions.*, compared.verdict, compared.speedup, compared.speedup_low, compared.speedup_high, compared.n
FROM sessions
LEFT JOIN comparisons AS compared
    ON compared.variant = sessions.variant AND compared.platform = sessions.platform
    AND compared.session_id = sessions.session_id AND compared.level = 'model'
    AND compared.factor = 'sme2'
ORDER BY
    sessions.variant, sessions.platform, sessions.device, sessions.arch, sessions.threads, sessions.cpus,
    sessions.power_mode, sessions.method, sessions.session_id
"""
# What takes the subject of each session longest. Emulated runs have no times: what missed the SME unit.
_SLOWEST = """
SELECT run_id, name, op_type, edge_ops, module, share FROM bottlenecks
WHERE rank = 1 AND list_contains(?, run_id)
"""
_CATEGORIES = """
SELECT run_id, arg_max(category, mean_ns) AS category, max(share) AS category_share
FROM category_summary WHERE list_contains(?, run_id) AND mean_ns IS NOT NULL GROUP BY run_id
"""
_MISSED = """
SELECT run_id, reason, count(*) AS operators FROM missed_sme2 WHERE list_contains(?, run_id)
GROUP BY run_id, reason ORDER BY operators DESC, reason
"""

_COUNTED = {
    "matrix_operators": "matrix_operators",
    "on_unit_operators": "on_unit",
    "unknown_operators": "unknown",
    "macs": "macs",
    "macs_on_unit": "macs_on_unit",
}

Record = Mapping[Any, Any]


def overview_rows(warehouse: Warehouse, sessions: Sequence[str] | None = None) -> pd.DataFrame:
    """One row per series: its newest session, how it ended, and what took longest; or these sessions."""
    if sessions is None:
        sessions = [run["session_id"] for run in latest_sessions(warehouse)]
    rows = warehouse.query(_SESSIONS, [list(sessions)])
    emulated = rows["fidelity"] == "emulated"
    of_time, of_kernels = (rows.loc[these, "subject_run_id"].tolist() for these in (~emulated, emulated))
    said = {
        row["run_id"]: _slowest_text(row) for row in warehouse.query(_SLOWEST, [of_time]).to_dict("records")
    }
    for run_id, missed in warehouse.query(_MISSED, [of_kernels]).groupby("run_id"):
        counted = ", ".join(f"{row['operators']} {row['reason']}" for row in missed.to_dict("records"))
        said[run_id] = claims.NOT_ON_UNIT.say(run_id=run_id, missed=counted)
    for run_id in of_kernels:
        if run_id not in said:
            said[run_id] = claims.NONE_MISSED.say(run_id=run_id)
    subjects = rows["subject_run_id"]
    units = {
        run_id: counts
        for run_id, counts in unit_counts(warehouse, subjects.tolist()).items()
        if counts["sme2"] == "on"
    }
    not_known = operators_not_known(warehouse, list(units))
    on_unit = {
        run_id: ", ".join(filter(None, (count_text(counts), work_text(counts))))
        + rest_text(run_id, not_known[run_id])
        for run_id, counts in units.items()
    }
    slowest = warehouse.query(_CATEGORIES, [subjects.tolist()]).set_index("run_id")
    return rows.assign(
        bottleneck=subjects.map(said),
        on_unit=subjects.map(on_unit),
        **{name: subjects.map(slowest[name]) for name in ("category", "category_share")},
        **{
            column: subjects.map({run_id: counts[name] for run_id, counts in units.items()})
            for column, name in _COUNTED.items()
        },
    )


def overview_table(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows for a spreadsheet: numbers as numbers, times in milliseconds."""
    times = {f"{name}_ms": rows[f"{name}_ns"] / 1e6 for name in _TIMES}
    # A timestamp as text: spreadsheets know no time zones.
    started = rows["started_at"].map(lambda at: at.isoformat())
    return rows.assign(started_at=started)[CSV_COLUMNS].assign(**times)


def categories_table(warehouse: Warehouse, session_ids: list[str]) -> pd.DataFrame:
    """Every category of these sessions for a spreadsheet, over all models, precisions, platforms and arms."""
    rows = category_rows(warehouse, session_ids)
    return rows.assign(mean_ms=rows.pop("mean_ns") / 1e6)


def overview_document(
    warehouse: Warehouse, rows: pd.DataFrame, link: Callable[[Record], str | None]
) -> Document:
    """The overview; `link` says where the page of a row is, None where there is none."""
    records = rows.to_dict("records")
    if not records:
        return Document("Overview", None, [Section("Models", [Text(overview_sentence(rows))])])
    table = TextTable.of(HEADER, [_cells(row) for row in records])
    links = tuple(link(row) for row in records)
    pictures = overview_pictures(warehouse, rows["session_id"].tolist())
    notes = [
        Text(overview_sentence(rows)),
        Text(
            "Emulated rows are about kernels: their times mean nothing and are not shown. A baseline is one "
            "arm alone, with nothing to compare it with. A reference is native on another instruction set: "
            "its times say nothing about SME2.",
            note=True,
        ),
    ]
    return Document(
        "Overview: every model on every platform",
        None,
        [Section("Models", [*notes, *pictures, Grid(table, True, links)])],
    )


def verdict_text(row: Record) -> str:
    if row["fidelity"] == "reference":
        return arm_text(row)
    if not pd.isna(row["verdict"]):
        verdict = claims.VERDICT.say(session_id=row["session_id"], verdict=row["verdict"])
        return KERNEL_EVIDENCE if row["fidelity"] == "emulated" else verdict
    return f"baseline, SME2 {row['arms']}" if row["arms"] in ("off", "on") else "not compared yet"


def _cells(row: Record) -> list[Any]:
    return [
        row["variant"],
        row["platform"],
        device_cell(row),
        _threads_text(row),
        verdict_text(row),
        "-" if row["fidelity"] == "emulated" else speedup_text(row),
        row["on_unit"],
        row["bottleneck"],
        _numerics_text(row),
        _latency_cell(row, "off"),
        _latency_cell(row, "on"),
        None if pd.isna(row["category"]) else f"{row['category']}, {row['category_share']:.0%}",
        f"{row['started_at']:%Y-%m-%d %H:%M}",
    ]


def _threads_text(row: Record) -> str:
    return ", ".join(filter(None, (str(row["threads"]), setting_text(row))))


def _latency_cell(row: Record, arm: str) -> str | None:
    """The median, and what nine of ten inferences took."""
    if pd.isna(row[f"{arm}_median_ns"]):
        return None
    median, low, high = (row[f"{arm}_{end}_ns"] / 1e6 for end in ("median", "p05", "p95"))
    return f"{median:.3f} ({low:.3f} to {high:.3f})"


def _slowest_text(row: Record) -> str:
    module = "" if pd.isna(row["module"]) else f", {row['module']}"
    return claims.HEAVIEST.say(run_id=row["run_id"], name=shown_name(row), module=module, share=row["share"])


def _numerics_text(row: Record) -> str:
    wrong = not pd.isna(row["fault"]) or row["margin_db"] < 0
    if pd.isna(row["margin_db"]):
        return "WRONG, the arms differ" if wrong else "no eager model"
    return f"{'WRONG' if wrong else 'right'}, {row['sqnr_db']:.0f} dB"


def overview_sentence(rows: pd.DataFrame) -> str:
    """How many models on how many platforms, and how each ended."""
    if rows.empty:
        return "Nothing has been measured yet."
    verdicts = pd.Series([verdict_text(row) for row in rows.to_dict("records")]).value_counts()
    counted = ", ".join(f"{count} {verdict}" for verdict, count in verdicts.items())
    variants, platforms = (rows[name].nunique() for name in ("variant", "platform"))
    models = rows["variant"].str.rpartition("-")[0].nunique()
    return claims.OVERVIEW.say(
        session_ids=rows["session_id"].tolist(),
        models=_counted(models, "model"),
        variants="" if variants == models else f" in {variants} variants",
        platforms=_counted(platforms, "platform"),
        counted=counted,
    )


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
