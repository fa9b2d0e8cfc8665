"""An icicle of the model: the inference on top, its modules below it, and its operators at the end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from sme2_assets.analysis.insights.values import shown_name
from sme2_assets.report.document import Picture
from sme2_assets.report.pictures.chart import Spec, scale_of, vega
from sme2_assets.report.pictures.status import COLOURS, STATUS_LEGEND, status_of, status_scales, together
from sme2_assets.report.pictures.style import FAINT, GROUND, INK
from sme2_assets.report.pictures.work import hardware

TOP, NOWHERE, OVERHEAD = "(top level)", "(unattributed)", "(overhead)"
_ROW = 30


@dataclass
class _Part:
    """A module, or an operator where it has no parts."""

    name: str
    path: str
    weight: float = 0.0
    kinds: list[str] = field(default_factory=list)
    parts: dict[str, _Part] = field(default_factory=dict)

    def flattened(self) -> _Part:
        """A module that holds a single module and nothing else shares one box with it."""
        parts = [part.flattened() for part in self.parts.values()]
        if len(parts) == 1 and parts[0].parts and self.path:
            return _Part(
                f"{self.name}.{parts[0].name}", parts[0].path, self.weight, self.kinds, parts[0].parts
            )
        return _Part(self.name, self.path, self.weight, self.kinds, {part.path: part for part in parts})

    def boxes(self, left: float, depth: int) -> Iterator[Spec]:
        yield {
            "label": self.name,
            "path": self.path,
            "start": left,
            "end": left + self.weight,
            "depth": depth,
            "kind": together(self.kinds),
            "operators": len(self.kinds),
        }
        for part in self.parts.values():
            yield from part.boxes(left, depth + 1)
            left += part.weight


def icicle_rows(modules: pd.DataFrame, operators: pd.DataFrame) -> list[Spec]:
    """Every box with its edges: milliseconds on hardware, else multiply-accumulates. Empty without either.

    `modules` has the columns of the view module_summary, `operators` those of bottlenecks, of one run.
    """
    timed = hardware(modules)
    operators = operators.sort_values("execution_order")
    root = _Part("inference" if timed else "model", "")
    weights = operators["per_inference_ns"] / 1e6 if timed else operators["macs"].fillna(0).astype(float)
    for row, weight in zip(operators.to_dict("records"), weights, strict=True):
        if weight > 0 or timed:
            _put(root, row, float(weight))
    if timed:
        # Rounding sometimes makes overhead negative; a box cannot have a negative width.
        overhead = modules.loc[modules["module"] == OVERHEAD, "own_ns"].clip(lower=0).sum() / 1e6
        root.parts[OVERHEAD] = _Part(OVERHEAD, OVERHEAD, float(overhead))
        root.weight += float(overhead)
    return list(root.flattened().boxes(0.0, 0)) if root.weight > 0 else []


def _home(module: Any) -> str:
    return NOWHERE if pd.isna(module) else module or TOP


def _put(root: _Part, row: dict[Any, Any], weight: float) -> None:
    home, kind = _home(row["module"]), status_of(row)
    names = [home] if home in (TOP, NOWHERE) else home.split(".")
    part = root
    for depth, name in enumerate([*names, None]):
        part.weight += weight
        part.kinds.append(kind)
        path = ".".join(names[: depth + 1]) if name is not None else f"{home} #{row['execution_order']}"
        part = part.parts.setdefault(path, _Part(name or shown_name(row), path))
    part.weight, part.kinds = weight, [kind]


def module_spec(rows: list[Spec], timed: bool) -> Spec:
    """The picture of `icicle_rows`. A click makes a box as wide as the page; on the top box, it shows all."""
    whole = rows[0]["end"]
    kinds = [row["kind"] for row in rows[1:]]
    used = scale_of(COLOURS, kinds)
    unit = "format(datum.amount, '.3f') + ' ms'" if timed else "format(datum.amount, ',') + ' MACs'"
    about = f"datum.depth ? format(datum.amount / {whole!r}, '.1%') : {unit}"
    label = "datum.label + '  ' + datum.share"
    wide = "(scale('x', datum.end) - scale('x', datum.start))"
    edges = {"x": {"scale": "x", "field": "start"}, "x2": {"scale": "x", "field": "end"}}
    rows_of_boxes = 1 + max(row["depth"] for row in rows)
    return vega(
        rows_of_boxes * _ROW,
        signals=[
            {
                "name": "shown",
                "value": [0, whole],
                "on": [
                    {"events": "@box:click", "update": "[datum.start, datum.end]"},
                    {"events": "@name:click", "update": "[datum.start, datum.end]"},
                ],
            }
        ],
        data=[
            {
                "name": "boxes",
                "values": rows,
                "transform": [
                    {"type": "filter", "expr": "datum.end > datum.start"},
                    {"type": "formula", "as": "amount", "expr": "datum.end - datum.start"},
                    {"type": "formula", "as": "share", "expr": about},
                    {
                        "type": "formula",
                        "as": "told",
                        "expr": "{title: datum.path || datum.label, width: "
                        f"{unit}, share: datum.share, operators: datum.operators, 'where': datum.kind}}",
                    },
                ],
            }
        ],
        scales=[
            {
                "name": "x",
                "type": "linear",
                "domain": {"signal": "shown"},
                "range": "width",
                "clamp": True,
                "zero": False,
            },
            *status_scales(used),
        ],
        legends=[STATUS_LEGEND],
        marks=[
            {
                "name": "box",
                "type": "rect",
                "from": {"data": "boxes"},
                "encode": {
                    "enter": {
                        "y": {"signal": f"datum.depth * {_ROW}"},
                        "height": {"value": _ROW - 2},
                        "fill": [
                            {"test": "!datum.depth", "value": FAINT},
                            {"scale": "colour", "field": "kind"},
                        ],
                        "stroke": {"value": GROUND},
                        "strokeWidth": {"value": 1},
                        "cursor": {"value": "zoom-in"},
                        "tooltip": {"field": "told"},
                    },
                    "update": {**edges, "fillOpacity": {"value": 1}},
                    "hover": {"fillOpacity": {"value": 0.75}},
                },
            },
            {
                "name": "name",
                "type": "text",
                "from": {"data": "boxes"},
                "encode": {
                    "enter": {
                        "y": {"signal": f"datum.depth * {_ROW} + {_ROW / 2 - 1}"},
                        "baseline": {"value": "middle"},
                        "align": {"value": "center"},
                        "fontSize": {"value": 12},
                        "fill": [
                            {"test": "!datum.depth", "value": INK},
                            {"scale": "letters", "field": "kind"},
                        ],
                        "tooltip": {"field": "told"},
                        "cursor": {"value": "zoom-in"},
                    },
                    "update": {
                        "x": {"signal": "(scale('x', datum.start) + scale('x', datum.end)) / 2"},
                        "limit": {"signal": f"{wide} - 8"},
                        "text": {"signal": f"{wide} < 30 ? '' : {wide} < 130 ? datum.label : {label}"},
                    },
                },
            },
        ],
    )


_BY_TIME = "Boxes are as wide as their mean time with the tracer attached."
_BY_WORK = "Boxes are as wide as their multiply-accumulates; operators without any are not shown."
_HOW = (
    " A module has its parts below it; one that holds a single module shares its box. Click a box to "
    "look into it, and the top box to see all again."
)


def module_pictures(modules: pd.DataFrame, operators: pd.DataFrame) -> list[Picture]:
    """The icicle of one run; none if nothing is counted that gives a box its width."""
    rows = icicle_rows(modules, operators)
    if not rows:
        return []
    timed = hardware(modules)
    return [
        Picture(
            "modules",
            "Modules and their operators",
            (_BY_TIME if timed else _BY_WORK) + _HOW,
            "The modules of the model as boxes, as wide as their share",
            module_spec(rows, timed),
        )
    ]
