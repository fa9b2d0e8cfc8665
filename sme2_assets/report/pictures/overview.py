"""All models side by side: how much of each is on the SME unit, and how long it takes on hardware."""

from __future__ import annotations

from functools import partial
from typing import Any

import pandas as pd

from sme2_assets.report.document import Picture
from sme2_assets.report.pictures.chart import Spec, coloured, known, lite, named, number, tips
from sme2_assets.report.pictures.status import COLOURS, MISSED, ON_UNIT, OPEN
from sme2_assets.report.pictures.style import ARMS
from sme2_assets.report.pictures.work import WORK_CAPTION, category_spec
from sme2_assets.report.tables import setting_text
from sme2_assets.warehouse import Warehouse
from sme2_assets.warehouse.read import SERIES

# Most rows of a picture; the table has them all.
MOST_ROWS = 40


def overview_pictures(warehouse: Warehouse, session_ids: list[str]) -> list[Picture]:
    """For these sessions: work on the unit in arms with SME2 on, latencies on hardware, and categories."""
    asked: list[object] = [session_ids]
    series = ", ".join(SERIES)
    work = warehouse.query(
        f"SELECT {series}, macs, macs_on_unit, macs_on_unit_at_most FROM unit_use "
        f"WHERE list_contains(?, session_id) AND sme2 = 'on' AND macs > 0 ORDER BY {series}",
        asked,
    )
    latency = warehouse.query(
        f"SELECT {series}, sme2, median_ns, p05_ns, p95_ns, rounds FROM latency_summary "
        "WHERE list_contains(?, session_id) AND fidelity = 'hardware' "
        f"AND passes_agree IS DISTINCT FROM false ORDER BY {series}, sme2",
        asked,
    )
    return [*_work(work), *_latency(latency), *_categories(category_rows(warehouse, session_ids))]


def category_rows(warehouse: Warehouse, session_ids: list[str]) -> pd.DataFrame:
    """Every category of these sessions, over models, precisions, platforms and arms."""
    series = ", ".join(SERIES)
    return warehouse.query(
        f"SELECT {series}, model, precision, sme2, fidelity, session_id, run_id, category, operators, "
        "sme2_operators, sme2_unknown_operators, mean_ns, share, instructions FROM category_summary "
        f"WHERE list_contains(?, session_id) ORDER BY {series}, sme2, category",
        [session_ids],
    )


def _series(row: dict[Any, Any], rows: pd.DataFrame) -> str:
    """What tells a row from the others: the device and the threads only if they differ."""
    names = [name for name in ("device", "threads") if rows[name].nunique() > 1]
    parts = (row["variant"], row["platform"], *(str(row[name]) for name in names), setting_text(row))
    return ", ".join(filter(None, parts))


def _arm(row: dict[Any, Any], rows: pd.DataFrame) -> str:
    return f"{_series(row, rows)}, SME2 {row['sme2']}"


def work_rows(work: pd.DataFrame) -> list[Spec]:
    """Parts of the multiply-accumulates of each row of `unit_use`: on the unit, unknown, not on it."""
    return [
        {
            "series": _series(row, work),
            "where": where,
            "share": share,
            "start": start,
            "macs": known(row["macs"]),
        }
        for row in work.to_dict("records")
        for where, start, share in (
            (ON_UNIT, 0.0, row["macs_on_unit"]),
            (OPEN, row["macs_on_unit"], row["macs_on_unit_at_most"] - row["macs_on_unit"]),
            (MISSED, row["macs_on_unit_at_most"], 1 - row["macs_on_unit_at_most"]),
        )
        if share > 0
    ]


def _work(work: pd.DataFrame) -> list[Picture]:
    rows = work_rows(work.dropna(subset=["macs_on_unit", "macs_on_unit_at_most"]).head(MOST_ROWS))
    if not rows:
        return []
    share = number("start", "share of multiply-accumulates", domain=[0, 1])
    bars = {
        "transform": [{"calculate": "datum.start + datum.share", "as": "end"}],
        "mark": {"type": "bar", "height": {"band": 0.75}},
        "encoding": {
            "y": named("series", labelLimit={"expr": "narrow ? 120 : 360"}),
            "x": {**share, "axis": {**share["axis"], "format": ".0%"}},
            "x2": {"field": "end"},
            "color": coloured("where", COLOURS, rows),
            "tooltip": tips(series="model", where="where", share=("share", ".1%"), macs=("MACs in all", ",")),
        },
    }
    return [
        Picture(
            "work",
            "How much of each model is on the SME unit",
            "Share of the multiply-accumulates of convolutions and matrix products, with SME2 on, from the "
            "newest session of each model and platform. What is not counted is in no bar.",
            "Share of multiply-accumulates on the SME unit by model and precision",
            lite(rows, 26 * len({row["series"] for row in rows}), [bars]),
        )
    ]


def _categories(rows: pd.DataFrame) -> list[Picture]:
    """Times and counts are not for one axis: a picture for hardware, and one for each kind of count."""
    emulated = rows["fidelity"] == "emulated"
    counted = rows.groupby("run_id")["instructions"].transform("count") > 0
    made = []
    for of_it, key, title, caption in (
        (
            rows[rows["fidelity"] == "hardware"],
            "categories",
            "Time by category, of all models",
            "Mean time per inference by category. What SME2 makes faster shrinks from one bar of a session "
            "to the other; what it does not is what to look at next.",
        ),
        (
            rows[emulated & counted],
            "work_by_category",
            "Work by category, of all models that were emulated",
            WORK_CAPTION,
        ),
        (
            rows[emulated & ~counted],
            "emulated_categories",
            "Operators by category, of all models whose work was not counted",
            "Operators per inference by category: in full colour those on the SME unit, paler those for "
            "which it is unknown, palest those that are not on it.",
        ),
    ):
        shown = of_it[of_it["run_id"].isin(of_it["run_id"].unique()[:MOST_ROWS])]
        if not shown.empty:
            spec = category_spec(shown, partial(_arm, rows=shown))
            made.append(Picture(key, title, caption, title, spec))
    return made


def _latency(latency: pd.DataFrame) -> list[Picture]:
    latency = latency.dropna(subset=["median_ns"]).head(MOST_ROWS)
    if latency.empty:
        return []
    rows = [
        {
            "series": _series(row, latency),
            "arm": f"SME2 {row['sme2']}",
            "rounds": known(row["rounds"]),
            **{name: row[f"{name}_ns"] / 1e6 for name in ("median", "p05", "p95")},
        }
        for row in latency.to_dict("records")
    ]
    told = tips(
        series="model",
        arm="arm",
        median=("median ms", ".3f"),
        p05=("5 % ms", ".3f"),
        p95=("95 % ms", ".3f"),
        rounds="rounds",
    )
    each = {
        "y": named("series", labelLimit={"expr": "narrow ? 120 : 360"}),
        "yOffset": {"field": "arm", "type": "nominal"},
        "color": coloured("arm", {f"SME2 {arm}": colour for arm, colour in ARMS.items()}, rows),
        "tooltip": told,
    }
    layers = [
        {
            "mark": {"type": "rule", "strokeWidth": 2},
            "encoding": {"x": number("p05", "ms per inference"), "x2": {"field": "p95"}, **each},
        },
        {
            "mark": {"type": "point", "filled": True, "size": 80, "opacity": 1},
            "encoding": {"x": number("median", "ms per inference"), **each},
        },
    ]
    return [
        Picture(
            "latencies",
            "Latency on hardware",
            "Median inference without tracer, and the range from 5 % to 95 % of all inferences. Rows are "
            "sessions of their own: only the two arms of one row were measured together.",
            "Median latency of each model on hardware",
            lite(rows, 32 * len({row["series"] for row in rows}), layers),
        )
    ]
