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
    """Every box with its edges: milliseconds on hardware, else instructions or, where these are not counted,
    multiply-accumulates. Empty without any.

    `modules` has the columns of the view module_summary, `operators` those of bottlenecks, of one run.
    """
    unit = _unit(modules)
    operators = operators.sort_values("execution_order")
    root = _Part("model" if unit == "MACs" else "inference", "")
    of_operators, of_modules, one = _WIDTHS[unit]
    weights = operators[of_operators].astype(float).fillna(0) / one
    for row, weight in zip(operators.to_dict("records"), weights, strict=True):
        if weight > 0 or unit == "ms":
            _put(root, row, float(weight))
    if of_modules is not None:
        # Rounding sometimes makes overhead negative; a box cannot have a negative width.
        overhead = modules.loc[modules["module"] == OVERHEAD, of_modules].clip(lower=0).sum() / one
        root.parts[OVERHEAD] = _Part(OVERHEAD, OVERHEAD, float(overhead))
        root.weight += float(overhead)
    return list(root.flattened().boxes(0.0, 0)) if root.weight > 0 else []


# What boxes are as wide as: of operators, and of what is around them.
_WIDTHS: dict[str, tuple[str, str | None, float]] = {
    "ms": ("per_inference_ns", "own_ns", 1e6),
    "instructions": ("instructions", "instructions", 1.0),
    "MACs": ("macs", None, 1.0),
}


def _unit(modules: pd.DataFrame) -> str:
    if hardware(modules):
        return "ms"
    return "instructions" if modules["instructions"].notna().any() else "MACs"


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


def module_spec(rows: list[Spec], unit: str) -> Spec:
    """The picture of `icicle_rows`. A click makes a box as wide as the page; on the top box, it shows all."""
    whole = rows[0]["end"]
    kinds = [row["kind"] for row in rows[1:]]
    used = scale_of(COLOURS, kinds)
    amount = f"format(datum.amount, '{'.3f' if unit == 'ms' else ','}') + ' {unit}'"
    about = f"datum.depth ? format(datum.amount / {whole!r}, '.1%') : {amount}"
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
                        f"{amount}, share: datum.share, operators: datum.operators, 'where': datum.kind}}",
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


_AS_WIDE_AS = {
    "ms": "Boxes are as wide as their mean time with the tracer attached.",
    "instructions": "Boxes are as wide as the instructions that they execute: work, and not time.",
    "MACs": "Boxes are as wide as their multiply-accumulates; operators without any are not shown.",
}
_HOW = (
    " A module has its parts below it; one that holds a single module shares its box. Click a box to "
    "look into it, and the top box to see all again."
)


def module_pictures(modules: pd.DataFrame, operators: pd.DataFrame) -> list[Picture]:
    """The icicle of one run; none if nothing is counted that gives a box its width."""
    rows = icicle_rows(modules, operators)
    if not rows:
        return []
    unit = _unit(modules)
    return [
        Picture(
            "modules",
            "Modules and their operators",
            _AS_WIDE_AS[unit] + _HOW,
            "The modules of the model as boxes, as wide as their share",
            module_spec(rows, unit),
        )
    ]
