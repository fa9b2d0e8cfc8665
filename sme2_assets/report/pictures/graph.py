"""The model's graph: operators in boxes with what flows between them, coloured by where they run."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd

from sme2_assets.analysis.insights.values import shown_name, shown_type
from sme2_assets.analysis.pairing import place_of
from sme2_assets.report.document import Picture
from sme2_assets.report.pictures.chart import Spec, known, scale_of, vega
from sme2_assets.report.pictures.status import COLOURS, STATUS_LEGEND, status_of, status_scales
from sme2_assets.report.pictures.style import DIM
from sme2_assets.warehouse import Warehouse

_ROW, _BOX, _COLUMN, _GUTTER = 34, 24, 290, 26
# The width of a letter, about, and of the narrowest box that has a label.
_LETTER, _LABELLED = 6.5, 40


def tensors_of(warehouse: Warehouse, run_id: str) -> pd.DataFrame:
    """The tensors that each operator of a run reads and writes, if its program says."""
    return warehouse.query(
        "SELECT backend, delegate, position, coalesce(reads, []) AS reads, coalesce(writes, []) AS writes "
        "FROM operators WHERE run_id = ?",
        [run_id],
    )


def graph_rows(operators: pd.DataFrame, tensors: pd.DataFrame) -> tuple[list[Spec], list[Spec], bool]:
    """Boxes with their layer, the edges between them, and whether these are tensors.

    `operators` has the columns of the view bottlenecks, of one run, `tensors` is what `tensors_of` returns.
    If the program does not name the tensors of all its nodes, operators follow one another as they ran.
    """
    told = {place_of(row): row for row in tensors.to_dict("records")}
    rows = [
        {"reads": [], "writes": [], **row, **told.get(place_of(row), {})}
        for row in operators.sort_values("execution_order").to_dict("records")
    ]
    flows = bool(rows) and all(len(row["writes"]) for row in rows if known(row["node_kind"]))
    flows = flows and any(len(row["writes"]) for row in rows)
    if flows:
        rows = [row for row in rows if len(row["writes"])]
    boxes = [_box(number, row) for number, row in enumerate(rows)]
    edges = _flow(rows) if flows else [(number - 1, number) for number in range(1, len(rows))]
    _lay_out(boxes, edges)
    return boxes, [{"from": start, "to": end} for start, end in edges], flows


def _box(number: int, row: dict[Any, Any]) -> Spec:
    module, kind = known(row["module"]), shown_type(row)
    return {
        "id": number,
        "label": f"{kind}  {module}" if module else kind,
        "name": shown_name(row),
        "module": module,
        "kind": status_of(row),
        "shapes": " -> ".join(str(row[name]) for name in ("input_shape", "output_shape") if known(row[name])),
        "macs": known(row["macs"]),
        "backend": row["backend"],
    }


def _flow(rows: list[dict[Any, Any]]) -> list[tuple[int, int]]:
    """Edges from the operator that wrote a tensor last to each that reads it."""
    writer: dict[str, int] = {}
    edges: dict[tuple[int, int], None] = {}
    for number, row in enumerate(rows):
        for tensor in row["reads"]:
            if tensor in writer:
                edges[writer[tensor], number] = None
        for tensor in row["writes"]:
            writer[tensor] = number
    return list(edges)


def _lay_out(boxes: list[Spec], edges: list[tuple[int, int]]) -> None:
    """Puts each box below all that it reads from; these also order the boxes of a layer."""
    feeds: dict[int, list[int]] = {}
    for start, end in edges:
        feeds.setdefault(end, []).append(start)
    layers: dict[int, list[int]] = {}
    for box in boxes:
        number = box["id"]
        box["layer"] = 1 + max((boxes[start]["layer"] for start in feeds.get(number, [])), default=-1)
        layers.setdefault(box["layer"], []).append(number)
    for layer in sorted(layers):

        def middle(number: int) -> tuple[float, int]:
            places = [boxes[start]["lane"] / boxes[start]["lanes"] for start in feeds.get(number, [])]
            return (sum(places) / len(places) if places else 0.0, number)

        for lane, number in enumerate(sorted(layers[layer], key=middle)):
            boxes[number] |= {"lane": lane, "lanes": len(layers[layer])}


def graph_spec(boxes: list[Spec], edges: list[Spec]) -> Spec:
    """Layers from top to bottom, in as many columns as fit side by side."""
    layers = 1 + max(box["layer"] for box in boxes)
    used = scale_of(COLOURS, (box["kind"] for box in boxes))
    return vega(
        0,
        signals=[
            # A column has at least a few boxes, and is wide enough to be read.
            {"name": "columns", "update": f"max(1, min(floor(width / {_COLUMN}), {math.ceil(layers / 6)}))"},
            {"name": "tall", "update": f"ceil({layers} / columns)"},
            {"name": "height", "update": f"tall * {_ROW} + 6"},
            {"name": "column", "update": "width / columns"},
        ],
        data=[
            {
                "name": "boxes",
                "values": boxes,
                "transform": [
                    {"type": "formula", "as": "column", "expr": "floor(datum.layer / tall)"},
                    {"type": "formula", "as": "wide", "expr": f"(column - {_GUTTER}) / datum.lanes - 4"},
                    {
                        "type": "formula",
                        "as": "x",
                        "expr": "datum.column * column + datum.lane * (datum.wide + 4) + datum.wide / 2",
                    },
                    {"type": "formula", "as": "y", "expr": f"(datum.layer % tall) * {_ROW} + 6"},
                    {
                        "type": "formula",
                        "as": "told",
                        "expr": "{title: datum.name, module: datum.module, 'where': datum.kind, "
                        "shapes: datum.shapes, backend: datum.backend, "
                        "MACs: isValid(datum.macs) ? format(datum.macs, ',') : 'none counted'}",
                    },
                ],
            },
            {
                "name": "edges",
                "values": edges,
                "transform": [
                    {
                        "type": "lookup",
                        "from": "boxes",
                        "key": "id",
                        "fields": ["from", "to"],
                        "values": ["x", "y", "column", "layer", "wide"],
                        "as": [
                            "a_x",
                            "a_y",
                            "a_column",
                            "a_layer",
                            "a_wide",
                            "b_x",
                            "b_y",
                            "b_column",
                            "b_layer",
                            "b_wide",
                        ],
                    },
                    {"type": "formula", "as": "path", "expr": _path()},
                ],
            },
        ],
        scales=[
            *status_scales(used),
        ],
        legends=[STATUS_LEGEND],
        marks=[
            {
                "type": "path",
                "from": {"data": "edges"},
                "interactive": False,
                "encode": {
                    "enter": {"stroke": {"value": DIM}, "strokeWidth": {"value": 1.2}},
                    "update": {"path": {"field": "path"}},
                },
            },
            {
                "name": "operator",
                "type": "rect",
                "from": {"data": "boxes"},
                "encode": {
                    "enter": {
                        "height": {"value": _BOX},
                        "cornerRadius": {"value": 4},
                        "fill": {"scale": "colour", "field": "kind"},
                        "tooltip": {"field": "told"},
                    },
                    "update": {
                        "xc": {"field": "x"},
                        "y": {"field": "y"},
                        "width": {"field": "wide"},
                        "fillOpacity": {"value": 1},
                    },
                    "hover": {"fillOpacity": {"value": 0.75}},
                },
            },
            {
                "type": "text",
                "from": {"data": "boxes"},
                "interactive": False,
                "encode": {
                    "enter": {
                        "align": {"value": "center"},
                        "baseline": {"value": "middle"},
                        "fontSize": {"value": 12},
                        "fill": {"scale": "letters", "field": "kind"},
                    },
                    "update": {
                        "x": {"field": "x"},
                        "y": {"signal": f"datum.y + {_BOX / 2}"},
                        # Not the mark's limit: to find its cut, the renderer measures each label many times.
                        "text": {
                            "signal": f"datum.wide < {_LABELLED} ? '' "
                            f": truncate(datum.label, floor((datum.wide - 8) / {_LETTER}))"
                        },
                    },
                },
            },
        ],
    )


def _path() -> str:
    """Down to the next layer; around boxes in between and to another column through the gutter."""
    half = _BOX / 2
    below = f"'M' + datum.a_x + ',' + (datum.a_y + {_BOX})"
    beside = f"'M' + (datum.a_x + datum.a_wide / 2) + ',' + (datum.a_y + {half})"
    # The gutter to the right of the column that an edge leaves, and that to the left of the one it enters.
    leaving, entering = (
        f"({column} * column - {_GUTTER / 2})" for column in ("(datum.a_column + 1)", "datum.b_column")
    )
    middle = f"(datum.b_y + {half})"
    straight = f"{below} + 'L' + datum.b_x + ',' + datum.b_y"
    around = (
        f"{beside} + 'C' + {leaving} + ',' + (datum.a_y + {half}) + ' ' + {leaving} + ',' + {middle}"
        f" + ' ' + (datum.b_x + datum.b_wide / 2) + ',' + {middle}"
    )
    to_the_top = f"{below} + 'v4H' + {leaving} + 'V2H' + datum.b_x + 'V' + datum.b_y"
    # Next to the line that goes to the top.
    leaving, entering = f"({leaving} - 6)", f"({entering} - 6)"
    across = f"datum.b_column - datum.a_column > 1 ? 'V2H' + {entering} : ''"
    through = (
        f"{beside} + 'H' + {leaving} + ({across}) + 'V' + {middle} + 'H' + (datum.b_x - datum.b_wide / 2)"
    )
    near = "datum.b_layer - datum.a_layer == 1"
    same = "datum.a_column == datum.b_column"
    return f"{same} ? ({near} ? {straight} : {around}) : {near} ? {to_the_top} : {through}"


def graph_pictures(operators: pd.DataFrame, tensors: pd.DataFrame) -> list[Picture]:
    """The graph of one run; none without operators."""
    boxes, edges, flows = graph_rows(operators, tensors)
    if not boxes:
        return []
    order = (
        "Lines are tensors, from the operator that writes one to those that read it. Operators that XNNPACK"
        " inserted, and whose tensors the program does not name, are left out."
        if flows
        else "The operators as they ran, one after the other: the program of this run does not say which "
        "reads from which."
    )
    return [
        Picture(
            "graph",
            "The model's graph",
            order + " The colour says where each operator runs.",
            "Operators of the model as boxes, coloured by where they run",
            graph_spec(boxes, edges),
        )
    ]
