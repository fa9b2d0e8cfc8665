"""Where time or work goes: categories, what each operator saved, one inference in order, and rates."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import pandas as pd

from sme2_assets.analysis.pairing import operator_pairs, place_of
from sme2_assets.report.document import Picture
from sme2_assets.report.pictures.chart import Spec, coloured, known, lite, named, number, tips
from sme2_assets.report.pictures.style import ARMS, CATEGORIES, DIM, FAINT
from sme2_assets.report.tables import arm_text, is_counted, names_in_both
from sme2_assets.warehouse import Warehouse

# Most bars of a waterfall; the operators that saved or cost least share one.
MOST_STEPS = 25
LEFT = "everything else"
WORK_CAPTION = (
    "Instructions that one inference executes, by category, counted under emulation. They are work and not "
    "time: instructions do not take equally long."
)
# For each measure: what its axis is called, and an amount of it, and how that is written.
_AMOUNTS = {
    "time": ("mean ms per inference", ("mean ms", ".3f")),
    "instructions": ("million instructions per inference (work, not time)", ("million instructions", ",.3f")),
    "operators": ("operators", ("operators", "d")),
}
# How pale operators are that are not on the unit: the opacity of each state.
_SHADES = {"on the SME unit": 1.0, "unknown": 0.65, "not on it": 0.35}


def hardware(rows: pd.DataFrame) -> bool:
    """Whether times of these rows may be drawn: not those of an emulator or another instruction set."""
    return bool((rows["fidelity"] == "hardware").all()) and not rows.empty


def category_spec(categories: pd.DataFrame, bar: Callable[[dict[Any, Any]], str] = arm_text) -> Spec:
    """A stacked bar for each arm: time by category on hardware; elsewhere what they execute, where that is
    counted, or operators, pale off the unit.

    `categories` has the columns of the view category_summary, of one or both arms.
    """
    measure = _measure(categories)
    told = measure == "operators" and bool(categories["sme2_operators"].notna().all())
    records = categories.to_dict("records")
    rows = [{**row, "arm": bar(it)} for it in records for row in _category_rows(it, measure, told)]
    axis, amount = _AMOUNTS[measure]
    encoding: Spec = {
        "y": named("arm", labelLimit={"expr": "narrow ? 120 : 360"}),
        "x": {**number("amount", axis), "stack": "zero"},
        "color": coloured("category", CATEGORIES, rows),
        "order": {"field": "order", "type": "quantitative"},
        "tooltip": tips(
            arm="arm", category="category", **({"where": "where"} if told else {}), amount=amount
        ),
        "opacity": {"field": "shade", "type": "quantitative", "scale": None},
    }
    arms = len({row["arm"] for row in rows})
    return lite(rows, 46 * arms, [{"mark": {"type": "bar", "height": {"band": 0.7}}, "encoding": encoding}])


def _measure(categories: pd.DataFrame) -> str:
    if hardware(categories):
        return "time"
    return "instructions" if is_counted(categories) else "operators"


def _category_rows(record: dict[Any, Any], measure: str, told: bool) -> list[Spec]:
    row = {"category": record["category"], "shade": 1.0}
    order = len(_SHADES) * list(CATEGORIES).index(record["category"])
    if measure == "time":
        # Rounding sometimes makes overhead negative; a bar cannot have a negative length.
        return [{**row, "amount": max(float(record["mean_ns"]) / 1e6, 0.0), "order": order}]
    if measure == "instructions":
        return [{**row, "amount": float(record["instructions"]) / 1e6, "order": order}]
    if record["category"] == "Overhead":
        return []
    if not told:
        return [{**row, "amount": int(record["operators"]), "order": order}]
    on, unknown = int(record["sme2_operators"]), int(record["sme2_unknown_operators"])
    parts = (on, unknown, int(record["operators"]) - on - unknown)
    return [
        {**row, "where": where, "amount": amount, "order": order + place, "shade": _SHADES[where]}
        for place, (where, amount) in enumerate(zip(_SHADES, parts, strict=True))
        if amount
    ]


def category_pictures(categories: pd.DataFrame) -> list[Picture]:
    """`categories` has the columns of the view category_summary, of one or both arms."""
    measure = _measure(categories)
    if measure == "time":
        title, caption = "Time by category", "Mean time per inference by category."
    elif measure == "instructions":
        title, caption = "Work by category", WORK_CAPTION
    elif (categories["fidelity"] == "reference").any():
        title, caption = "Operators by category", "Operators per inference by category."
    else:
        title = "Operators by category, and which are on the SME unit"
        caption = (
            "Operators per inference by category: in full colour those on the SME unit, paler those for "
            "which it is unknown, palest those that are not on it."
        )
    return [Picture("categories", title, caption, title, category_spec(categories))]


def waterfall_rows(comparison: pd.DataFrame) -> list[Spec]:
    """The steps from the median with SME2 off to that with SME2 on, in ms; none if the pair does not compare.

    `comparison` has the rows of the table comparisons of one session. Each operator takes away what its
    median lost; the last step is what the operators do not explain, so that the steps add up.
    """
    model = comparison[comparison["level"] == "model"]
    if model.empty or not hardware(comparison) or model["verdict"].iloc[0] == "not comparable":
        return []
    off, on = (float(model[f"{arm}_ns"].iloc[0]) / 1e6 for arm in ("a", "b"))
    operators = comparison[comparison["level"] == "operator"].to_dict("records")
    steps = sorted(map(_step, operators), key=lambda step: -step["saved"])
    if not steps or math.isnan(off) or math.isnan(on):
        return []
    if len(steps) > MOST_STEPS:
        largest = sorted(range(len(steps)), key=lambda at: -abs(steps[at]["saved"]))[: MOST_STEPS - 1]
        rest = sum(step["saved"] for at, step in enumerate(steps) if at not in largest)
        steps = [steps[at] for at in sorted(largest)] + [_saved("all other operators", rest)]
    explained = sum(step["saved"] for step in steps)
    steps.append({**_saved(LEFT, off - on - explained), "kind": LEFT})
    rows, level = [{"step": "SME2 off", "kind": "SME2 off", "start": 0.0, "end": off}], off
    for step in steps:
        rows.append({**step, "start": level, "end": level - step["saved"]})
        level -= step["saved"]
    rows.append({"step": "SME2 on", "kind": "SME2 on", "start": 0.0, "end": on})
    return [{**row, "order": order} for order, row in enumerate(rows)]


def _step(row: dict[Any, Any]) -> Spec:
    # An operator that is in one arm only takes no time in the other.
    off, on = (0.0 if pd.isna(row[f"{arm}_ns"]) else float(row[f"{arm}_ns"]) / 1e6 for arm in ("a", "b"))
    return {**_saved(names_in_both(row), off - on), "off": off, "on": on, "verdict": row["verdict"]}


def _saved(name: str, saved: float) -> Spec:
    return {"step": name, "saved": saved, "kind": "saved" if saved >= 0 else "cost"}


def waterfall_pictures(comparison: pd.DataFrame) -> list[Picture]:
    """What each operator saved between the two medians; only for hardware pairs that compare."""
    rows = waterfall_rows(comparison)
    if not rows:
        return []
    arms = {f"SME2 {arm}": colour for arm, colour in ARMS.items()}
    colours = {**arms, "saved": "#009E73", "cost": "#E69F00", LEFT: "#999999"}
    names = json.dumps([row["step"] for row in rows])
    axis: Spec = {"labelExpr": f"{names}[datum.value]", "labelLimit": {"expr": "narrow ? 120 : 360"}}
    bars = {
        "mark": {"type": "bar", "height": {"band": 0.75}},
        "encoding": {
            "y": named("order", "ordinal", **axis),
            "x": number("start", "ms per inference"),
            "x2": {"field": "end"},
            "color": coloured("kind", colours, rows),
            "tooltip": tips(
                step="operator",
                off=("SME2 off, ms", ".3f"),
                on=("SME2 on, ms", ".3f"),
                saved=("saved, ms", ".3f"),
                verdict="verdict",
            ),
        },
    }
    return [
        Picture(
            "waterfall",
            "What each operator saved",
            "From the median inference with SME2 off to that with SME2 on, both without tracer, operators "
            "by the time they saved. Their times are medians with the tracer, in XNNPACK's whole "
            "microseconds; the grey bar is what they leave unexplained: overhead, the tracer, rounding, and"
            " the fact that medians do not add up.",
            "Time that each operator saved with SME2 on",
            lite(rows, 22 * len(rows), [bars]),
        )
    ]


_INFERENCE = """
WITH traced AS (
    SELECT inferences.round, iteration, execute_ns, abs(execute_ns - median(execute_ns) OVER ()) AS away
    FROM inferences JOIN traced_rounds USING (run_id, round)
    WHERE run_id = $run_id AND pass = 'etdump' AND NOT is_warmup AND NOT coalesce(disturbed, false)
),
typical AS (SELECT round, iteration, execute_ns FROM traced ORDER BY away, round, iteration LIMIT 1)
SELECT timeline.sme2, timeline.fidelity, name, backend, category, start_ns, duration_ns, typical.execute_ns
FROM timeline JOIN typical USING (round, iteration)
WHERE run_id = $run_id AND pass = 'etdump' AND kind = 'operator' AND fidelity = 'hardware'
ORDER BY start_ns, delegate NULLS LAST, position
"""


def inference_of(warehouse: Warehouse, run_id: str) -> pd.DataFrame:
    """The operators of the traced inference that took the middle time; none unless on hardware."""
    return warehouse.query(_INFERENCE, {"run_id": run_id})


def timeline_pictures(inferences: list[pd.DataFrame]) -> list[Picture]:
    """One inference of each arm in order of time. `inferences` has what `inference_of` returns."""
    there = [frame for frame in inferences if not frame.empty]
    rows = [
        {
            "arm": arm_text(row),
            **{name: row[name] for name in ("name", "category", "backend")},
            "start": row["start_ns"] / 1e6,
            "end": (row["start_ns"] + row["duration_ns"]) / 1e6,
            "ms": row["duration_ns"] / 1e6,
        }
        for frame in there
        for row in frame.to_dict("records")
    ]
    wholes = [
        {
            "arm": arm_text(frame.iloc[0].to_dict()),
            "start": 0.0,
            "end": float(frame["execute_ns"].iloc[0]) / 1e6,
        }
        for frame in there
    ]
    if not rows:
        return []

    def bars(colour: Spec, told: list[Spec], **mark: Any) -> Spec:
        place = {
            "y": named("arm"),
            "x": number("start", "ms since the inference began"),
            "x2": {"field": "end"},
        }
        encoding = {**place, **colour, "tooltip": told}
        return {"mark": {"type": "bar", "height": {"band": 0.7}, **mark}, "encoding": encoding}

    whole = tips(arm="arm", end=("whole inference, ms", ".3f"))
    each = tips(name="operator", arm="arm", backend="backend", ms=("ms", ".3f"), start=("from ms", ".3f"))
    layers = [
        {**bars({}, whole, color=CATEGORIES["Overhead"], opacity=0.45), "data": {"values": wholes}},
        bars({"color": coloured("category", CATEGORIES, rows)}, each),
    ]
    return [
        Picture(
            "timeline",
            "One inference in order of time",
            "The traced inference of each arm that took the middle time. Grey between operators is overhead. "
            "XNNPACK reports whole microseconds and no starts: its operators are drawn one after the other.",
            "Operators of one inference in order of time",
            lite(rows, 60 * len(wholes), layers),
        )
    ]


# Bytes of an element by XNNPACK's data type. Nothing is counted if input, weights and output have different
# ones, as in operators that are quantised while they run.
_BYTES = {"F32": 4, "PF32": 4, "F16": 2, "PF16": 2, "QS8": 1, "PQS8": 1, "QC8": 1, "QC8W": 1, "QU8": 1}


def intensity_of(row: dict[Any, Any]) -> float | None:
    """Operations per byte if input, weights and output are moved once: what the shapes allow at best."""
    types = "" if pd.isna(row["data_type"]) else str(row["data_type"])
    sizes = {_BYTES.get(kind.strip()) for kind in types.split(",")}
    if len(sizes) > 1 or (size := sizes.pop()) is None:
        return None
    if any(pd.isna(row[name]) for name in ("macs", "input_shape", "output_shape")):
        return None
    given, made = ([int(part) for part in row[f"{end}_shape"].split("x")] for end in ("input", "output"))
    # Channels are last: each output channel has as many weights as an output element has multiplications.
    weights = row["macs"] / math.prod(made) * made[-1]
    if row["node_kind"] == "XNNBatchMatrixMultiply":
        weights *= math.prod(made[:-2])
    return float(2 * row["macs"] / (size * (math.prod(given) + math.prod(made) + weights)))


def roofline_rows(operators: pd.DataFrame) -> list[Spec]:
    """Operators with a rate and an intensity. `operators` has the columns of bottlenecks, of all arms."""
    if not hardware(operators):
        return []
    rated = operators[operators["gops"] > 0].to_dict("records")
    return [
        {
            "arm": arm_text(row),
            "place": [row["sme2"], *place_of(row)],
            **{name: known(row[name]) for name in ("name", "category", "module", "gops", "rate_unit")},
            "intensity": intensity,
            "ms": row["median_ns"] / 1e6,
        }
        for row in rated
        if (intensity := intensity_of(row)) is not None
    ]


def _roof(rows: list[Spec], peak: float, bandwidth: float) -> list[Spec]:
    """The corners of the roof, a little wider than the points below it."""
    least, most = (pick(row["intensity"] for row in rows) for pick in (min, max))
    ridge = peak / bandwidth
    at = sorted({least / 1.5, most * 1.5, *([ridge] if least / 1.5 < ridge < most * 1.5 else [])})
    return [{"intensity": x, "gops": min(peak, bandwidth * x)} for x in at]


_POINTS = (
    "Each convolution and matrix product whose bytes are known and whose time is long enough for XNNPACK's "
    "whole microseconds; where both arms were measured, a line joins the same operator in them. Bytes are "
    "those of input, weights and output, moved once."
)
_NO_ROOF = "No roofs are drawn: peak rate and bandwidth of this device were not measured."
_ROOF = (
    "The dashed line is what plain code reached on this device right after the session, with as many "
    "threads: where it rises, reading memory; where it is flat, 32-bit multiply-accumulates of 128-bit "
    "vectors. Other precisions and the SME unit may exceed it."
)


def roofline_pictures(operators: pd.DataFrame, roof: tuple[float, float] | None = None) -> list[Picture]:
    """Rate against intensity; none if no operator has both. `roof` is a rate and a bandwidth, measured."""
    rows = roofline_rows(operators)
    if not rows:
        return []
    units = " and ".join(sorted({row["rate_unit"] for row in rows}))
    log = {"type": "log", "nice": False, "padding": 24}
    x = number("intensity", "operations per byte moved at least", **log)
    y = number("gops", f"achieved {units}", **log)
    shapes = ["triangle-down", "circle"] if len({row["arm"] for row in rows}) > 1 else ["circle"]
    points = {
        "mark": {"type": "point", "filled": True, "size": 110, "opacity": 1},
        "encoding": {
            "x": x,
            "y": y,
            "color": coloured("category", CATEGORIES, rows),
            "shape": {
                "field": "arm",
                "type": "nominal",
                "scale": {"range": shapes},
                "legend": {
                    "title": None,
                    "symbolType": None,
                    "symbolFillColor": DIM,
                    "symbolStrokeColor": DIM,
                },
            },
            "tooltip": tips(
                name="operator",
                module="module",
                arm="arm",
                gops=(f"achieved {units}", ".1f"),
                intensity=("operations per byte", ".1f"),
                ms=("median ms", ".3f"),
            ),
        },
    }
    moved = _moves(operators, rows)
    moves = {
        "data": {"values": moved},
        "mark": {"type": "rule", "color": FAINT, "strokeWidth": 1.5},
        "encoding": {"x": x, "y": y, "x2": {"field": "to"}, "y2": {"field": "on"}},
    }
    measured = {
        "data": {"values": _roof(rows, *roof) if roof else []},
        "mark": {"type": "line", "color": DIM, "strokeDash": [6, 4], "strokeWidth": 1.5},
        "encoding": {"x": x, "y": y},
    }
    layers = [*([measured] if roof else []), *([moves] if moved else []), points]
    return [
        Picture(
            "roofline",
            "Achieved rate against intensity",
            " ".join([_POINTS, _ROOF if roof else _NO_ROOF]),
            "Achieved rate of operators against their operations per byte",
            lite(rows, 340, layers),
        )
    ]


def _moves(operators: pd.DataFrame, rows: list[Spec]) -> list[Spec]:
    """Lines from each operator without SME2 to the same one with it, paired by place."""
    points = {tuple(row["place"]): row for row in rows}
    off, on = (operators[operators["sme2"] == arm] for arm in ("off", "on"))
    pairs = [
        (points.get(("off", *(pair.a or ()))), points.get(("on", *(pair.b or ()))))
        for pair in operator_pairs(off, on)
    ]
    return [
        {"intensity": a["intensity"], "gops": a["gops"], "to": b["intensity"], "on": b["gops"]}
        for a, b in pairs
        if a is not None and b is not None
    ]
