"""The rounds of a measurement: how inference times spread in each, and what the interval rests on."""

from __future__ import annotations

from typing import Any

import pandas as pd

from sme2_assets.report.document import Picture
from sme2_assets.report.pictures.chart import Spec, coloured, known, lite, named, number, tips
from sme2_assets.report.pictures.style import ARMS, CATEGORIES, DIM, FAINT, INK
from sme2_assets.warehouse import Warehouse

# The pass without tracer, by round. A round is disturbed if the machine was seen to be, or if its traced
# process stands out; mean times leave out the latter.
_ROUNDS = """
WITH per_round AS (
    SELECT
        run_id, sme2, inferences.round, count(*) AS inferences,
        quantile_cont(inferences.duration_ns / 1e6, [0.05, 0.25, 0.5, 0.75, 0.95]) AS quantiles
    FROM inferences JOIN runs USING (run_id)
    WHERE list_contains(?, run_id) AND fidelity = 'hardware' AND pass = 'latency' AND NOT is_warmup
    GROUP BY ALL
),
seen AS (
    SELECT run_id, round, string_agg(DISTINCT flag, '; ' ORDER BY flag) AS flags
    FROM (SELECT run_id, round, unnest(flags) AS flag FROM environment) GROUP BY ALL
)
SELECT
    sme2, per_round.round + 1 AS round, inferences,
    quantiles[1] AS low, quantiles[2] AS lower, quantiles[3] AS median, quantiles[4] AS upper,
    quantiles[5] AS high,
    coalesce(traced.disturbed, false) OR seen.flags IS NOT NULL AS disturbed,
    coalesce(seen.flags, CASE WHEN traced.disturbed THEN 'its traced inferences stand out' END) AS why
FROM per_round LEFT JOIN traced_rounds AS traced USING (run_id, round) LEFT JOIN seen USING (run_id, round)
ORDER BY sme2, per_round.round
"""
_STATES = {True: "disturbed", False: "undisturbed"}


def rounds_of(warehouse: Warehouse, run_ids: list[str]) -> pd.DataFrame:
    """One row per arm and round of hardware: quantiles in ms, and whether and why it was disturbed."""
    return warehouse.query(_ROUNDS, [run_ids])


def round_pictures(rounds: pd.DataFrame, model: dict[Any, Any] | None) -> list[Picture]:
    """Times of each round; for a pair, also the ratio of each round with the resulting interval.

    `rounds` is what `rounds_of` returns, `model` the row of `comparisons` for the whole model.
    """
    pictures = [
        Picture(
            f"rounds_{arm}",
            f"Times by round, SME2 {arm}",
            "Times of the pass without tracer; a round is a fresh process. The bar is the middle half, the "
            "mark in it the median, the line goes from 5 % to 95 %. A cross marks a round in which the "
            "machine was busy or throttled, or whose traced inferences stand out.",
            "Spread of inference times in each round",
            _times(rows, ARMS[str(arm)]),
        )
        for arm, rows in rounds.groupby("sme2")
    ]
    ratios = ratios_of(rounds)
    if model is None or ratios.empty or pd.isna(model["speedup_low"]):
        return pictures
    interval = Picture(
        "ratios",
        "Ratio of each pair of rounds, and the interval",
        "Median with SME2 off over median with SME2 on, for each round that measured both: above 1, SME2 is "
        "faster. The band is the 95 % interval of the speedup over all rounds, the line in it the speedup. A "
        "cross is a round that was disturbed in either arm.",
        "Ratio off over on of each round, with the interval of the speedup",
        _ratios(ratios, model),
    )
    return [*pictures, interval]


def ratios_of(rounds: pd.DataFrame) -> pd.DataFrame:
    """off / on of the rounds that both arms have."""
    off, on = (rounds[rounds["sme2"] == arm] for arm in ("off", "on"))
    both = off.merge(on, on="round", suffixes=("_off", "_on"))
    return both.assign(
        ratio=both["median_off"] / both["median_on"],
        disturbed=both["disturbed_off"].astype(bool) | both["disturbed_on"].astype(bool),
    )[["round", "ratio", "disturbed"]]


def _times(rounds: pd.DataFrame, colour: str) -> Spec:
    rows = [
        {**{name: known(value) for name, value in row.items()}, "state": _STATES[bool(row["disturbed"])]}
        for row in rounds.to_dict("records")
    ]
    told = tips(
        round="round",
        median=("median ms", ".3f"),
        lower=("25 % ms", ".3f"),
        upper=("75 % ms", ".3f"),
        low=("5 % ms", ".3f"),
        high=("95 % ms", ".3f"),
        inferences="inferences",
        state="round was",
        why="because",
    )

    def layer(mark: Spec, low: str, high: str | None = None, **more: Any) -> Spec:
        axis = {"tickCount": 5}
        ends = {
            "y": {**number(low, "ms", zero=False), "axis": axis},
            **({"y2": {"field": high}} if high else {}),
        }
        place = named("round", "ordinal", "round", labelOverlap=True)
        return {"mark": mark, "encoding": {"x": place, **ends, "tooltip": told}, **more}

    layers = [
        layer({"type": "rule", "strokeWidth": 1.5, "color": colour}, "low", "high"),
        layer({"type": "bar", "width": {"band": 0.4}, "color": colour, "opacity": 0.6}, "lower", "upper"),
        layer({"type": "tick", "thickness": 2.5, "color": INK, "width": {"band": 0.5}}, "median"),
    ]
    if any(row["disturbed"] for row in rows):
        cross = {"type": "text", "text": "\u2715", "dy": -9, "fontSize": 13, "color": INK}
        layers.append(layer(cross, "high", transform=[{"filter": "datum.disturbed"}]))
    return lite(rows, 150, layers)


def _ratios(ratios: pd.DataFrame, model: dict[Any, Any]) -> Spec:
    rows = [
        {"round": known(row["round"]), "ratio": known(row["ratio"]), "state": _STATES[bool(row["disturbed"])]}
        for row in ratios.to_dict("records")
    ]
    band = {name: known(model[name]) for name in ("speedup", "speedup_low", "speedup_high", "n")}
    told = tips(
        speedup=("speedup", ".3f"),
        speedup_low=("95 % from", ".3f"),
        speedup_high=("to", ".3f"),
        n="paired rounds",
    )

    def across(values: Spec, mark: Spec, field: str, **more: Any) -> Spec:
        encoding = {"x": number(field, "off / on", zero=False), "tooltip": told, **more}
        return {"data": {"values": [values]}, "mark": mark, "encoding": encoding}

    shown = [band["speedup_low"], band["speedup_high"], *(row["ratio"] for row in rows)]
    layers = [
        across(
            band,
            {"type": "rect", "color": ARMS["on"], "opacity": 0.2},
            "speedup_low",
            x2={"field": "speedup_high"},
        )
    ]
    if band["speedup"] is not None:
        layers.append(across(band, {"type": "rule", "color": ARMS["on"], "strokeWidth": 2}, "speedup"))
    if min(shown) <= 1 <= max(shown):
        layers.append(across({"one": 1}, {"type": "rule", "color": DIM, "strokeDash": [4, 4]}, "one"))
    layers += [
        {
            "transform": [{"filter": f"datum.state == '{state}'"}],
            "mark": {"type": "text", "text": sign, "fontSize": 15, "color": INK},
            "encoding": {
                "x": number("ratio", "off / on", zero=False),
                "y": named("round", "ordinal", "round", grid=True),
                "tooltip": tips(round="round", ratio=("off / on", ".3f"), state="round was"),
            },
        }
        for state, sign in (("undisturbed", "\u25cf"), ("disturbed", "\u2715"))
        if any(row["state"] == state for row in rows)
    ]
    return lite(rows, 24 * len(rows), layers)


def speedup_pictures(comparison: pd.DataFrame, threshold: float) -> list[Picture]:
    """The speedup of the model and of its categories with their intervals; none without an interval.

    `comparison` has the columns of the table comparisons, of one session. Within `threshold`, a ratio,
    a difference is too small to count.
    """
    rows = comparison[comparison["level"].isin(["model", "category"]) & comparison["speedup_low"].notna()]
    if "model" not in set(rows["level"]) or (rows["fidelity"] != "hardware").any():
        return []
    values = [
        {
            "what": "whole model" if row["level"] == "model" else row["category"],
            **{name: known(row[name]) for name in ("speedup", "speedup_low", "speedup_high", "n", "verdict")},
        }
        for row in rows.sort_values("level", ascending=False, kind="stable").to_dict("records")
    ]

    def ratio(field: str) -> Spec:
        return number(field, "speedup (off / on); above 1, SME2 is faster", zero=False)

    of_each = {
        "y": named("what"),
        "color": {**coloured("what", {"whole model": INK, **CATEGORIES}, values), "legend": None},
        "tooltip": tips(
            what="of",
            speedup=("speedup", ".2f"),
            speedup_low=("95 % from", ".2f"),
            speedup_high=("to", ".2f"),
            n="paired rounds",
            verdict="verdict",
        ),
    }
    layers: list[Spec] = [
        {
            "data": {"values": [{"low": 1 / threshold, "high": threshold}]},
            "mark": {"type": "rect", "color": FAINT, "opacity": 0.45},
            "encoding": {"x": ratio("low"), "x2": {"field": "high"}},
        },
        {
            "data": {"values": [{"one": 1}]},
            "mark": {"type": "rule", "color": DIM},
            "encoding": {"x": ratio("one")},
        },
        {
            "mark": {"type": "rule", "strokeWidth": 3},
            "encoding": {"x": ratio("speedup_low"), "x2": {"field": "speedup_high"}, **of_each},
        },
        {
            "transform": [{"filter": "isValid(datum.speedup)"}],
            "mark": {"type": "point", "filled": True, "size": 90, "opacity": 1},
            "encoding": {"x": ratio("speedup"), **of_each},
        },
    ]
    return [
        Picture(
            "speedups",
            "Speedup of the model and of each category",
            "With 95 % intervals; in the grey band a difference is too small to count. Where there is no "
            "point, XNNPACK's whole microseconds leave no single number.",
            "Intervals of the speedup of the model and of each category",
            lite(values, 30 * len(values), layers),
        )
    ]


def history_spec(history: pd.DataFrame, slower_since: list[pd.Timestamp]) -> Spec:
    """One series over its runs; a line where it became slower. `history` has the columns of that view."""
    return _series_spec(
        history["started_at"], history["median_ns"] / 1e6, "median (ms)", "slower", slower_since
    )


def work_history_spec(work: pd.DataFrame, more_since: list[pd.Timestamp]) -> Spec:
    """The same of counted work."""
    title = "instructions (work, not time)"
    return _series_spec(work["started_at"], work["instructions"], title, "more", more_since)


def _series_spec(
    moments: pd.Series, values: pd.Series, title: str, step: str, steps: list[pd.Timestamp]
) -> Spec:
    rows = [
        {"at": moment.isoformat(), "value": value}
        for moment, value in zip(moments, values.tolist(), strict=True)
    ]
    when = {"x": {"field": "at", "type": "temporal", "title": None}}
    layers: list[Spec] = [
        {
            "mark": {"type": "line", "point": True, "color": CATEGORIES["CONV"]},
            "encoding": {**when, "y": number("value", title, zero=True)},
        }
    ]
    text = {"type": "text", "text": f"{step} since", "align": "left", "dx": 4, "y": 8, "color": ARMS["off"]}
    for mark in ({"type": "rule", "color": ARMS["off"], "strokeDash": [5, 4]}, text):
        if steps:
            since = {"values": [{"at": moment.isoformat()} for moment in steps]}
            layers.append({"data": since, "mark": mark, "encoding": when})
    return lite(rows, 220, layers)
