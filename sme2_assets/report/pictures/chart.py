"""A specification as a still picture, what makes it interactive in a page, and what specifications share.

Vega (BSD-3-Clause, University of Washington Interactive Data Lab) draws both: in the page with the JavaScript
that vl-convert brings, and here with the same JavaScript inside vl-convert, so that the two look the same.
Names come from models and traces: a specification has none but printable letters, as XML demands.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from typing import Any
from xml.sax.saxutils import quoteattr

import pandas as pd

from sme2_assets.errors import printable
from sme2_assets.report.document import Block, Document, Picture, Text
from sme2_assets.report.pictures.drawing import NotDrawnError, drawn
from sme2_assets.report.pictures.style import CONFIG, DARK, GROUND
from sme2_assets.store import write_text_atomically

Spec = dict[str, Any]
# The width of a still picture in pixels; in a page it is as wide as the page.
WIDE = 900
# JavaScript sets this if the page is narrow; see page/pictures.js.
NARROW = {"name": "narrow", "value": False}
_LITE = "https://vega.github.io/schema/vega-lite/v6.json"
_VEGA = "https://vega.github.io/schema/vega/v6.json"
_FIT = {"type": "fit-x", "contains": "padding"}


def lite(rows: Iterable[Mapping[Any, Any]], height: int, layers: Sequence[Spec], **parts: Any) -> Spec:
    """A picture in Vega-Lite: layers over the same rows."""
    spec = {
        "$schema": _LITE,
        "width": WIDE,
        "height": height,
        "autosize": _FIT,
        "config": CONFIG,
        "params": [NARROW],
        "data": {"values": [dict(row) for row in rows]},
        "layer": list(layers),
        **parts,
    }
    return _printable(spec)


def vega(height: int, **parts: Any) -> Spec:
    """A picture in Vega itself, for what Vega-Lite cannot express."""
    signals = [NARROW, *parts.pop("signals", [])]
    spec = {
        "$schema": _VEGA,
        "width": WIDE,
        "height": height,
        "padding": 5,
        "autosize": _FIT,
        "config": CONFIG,
        "signals": signals,
        **parts,
    }
    return _printable(spec)


def _printable(value: Any) -> Any:
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, Mapping):
        return {_printable(key): _printable(each) for key, each in value.items()}
    return [_printable(each) for each in value] if isinstance(value, (list, tuple)) else value


def number(field: str, title: str | None = None, **scale: Any) -> Spec:
    """A channel of numbers; its axis need not begin at zero if `zero` is False."""
    axis = {"tickCount": {"expr": "narrow ? 4 : 9"}, "labelOverlap": True}
    return {"field": field, "type": "quantitative", "title": title, "scale": scale, "axis": axis}


def named(field: str, kind: str = "nominal", title: str | None = None, **axis: Any) -> Spec:
    """A channel of names, in the order of the rows."""
    return {"field": field, "type": kind, "title": title, "sort": None, "axis": {"labelAngle": 0, **axis}}


def coloured(
    field: str, colours: Mapping[str, str], rows: Iterable[Mapping[str, Any]], wide: int = 6
) -> Spec:
    """A colour for each name that occurs, and a legend with `wide` columns, or one on a phone.

    It begins where the bars do, so that long names of rows leave it little room there.
    """
    scale = scale_of(colours, (row[field] for row in rows))
    columns = {"expr": f"narrow ? 1 : {wide}"}
    return {"field": field, "type": "nominal", "scale": scale, "legend": {"title": None, "columns": columns}}


def tips(**fields: str | tuple[str, str]) -> list[Spec]:
    """What hovering shows: the title of each field, and how its number is written."""
    told = {name: (text, None) if isinstance(text, str) else text for name, text in fields.items()}
    return [
        {"field": name, "title": title, **({"format": form} if form else {})}
        for name, (title, form) in told.items()
    ]


def scale_of(colours: Mapping[str, str], used: Iterable[Any]) -> Spec:
    """The colours of the names that occur, in their own order."""
    there = set(used)
    kept = {name: colour for name, colour in colours.items() if name in there}
    return {"domain": list(kept), "range": list(kept.values())}


def known(value: Any) -> Any:
    """A value of a frame as JSON has it: None if it is not known."""
    if value is None or (not isinstance(value, (list, tuple)) and pd.isna(value)):
        return None
    return value.item() if hasattr(value, "item") else value


def inline_svg(spec: Spec, description: str) -> str:
    """The still picture as an element of a page, whose style sheet colours it."""
    return drawn(spec).replace("<svg ", f'<svg role="img" aria-label={quoteattr(description)} ', 1)


def svg(spec: Spec, description: str) -> str:
    """The same as a file: light, and dark where the reader's system is."""
    opening, rest = inline_svg(spec, description).split(">", 1)
    ground = f'<rect width="100%" height="100%" fill="{GROUND}"/>'
    return f"{opening}><style>{DARK}</style>{ground}{rest}"


def drawn_document(document: Document, draw: Callable[[Spec, str], str]) -> tuple[Document, dict[str, str]]:
    """The pictures by name, and the document with a sentence in place of each that cannot be drawn."""
    drawings: dict[str, str] = {}

    def block(block: Block) -> Block:
        if not isinstance(block, Picture):
            return block
        try:
            drawings[block.name] = draw(block.spec, block.alternative)
        except NotDrawnError as why:
            return Text(f'"{block.title}" is left out: {why}.', note=True)
        return block

    sections = [replace(section, blocks=list(map(block, section.blocks))) for section in document.sections]
    return replace(document, sections=sections), drawings


def data_uri_markdown(spec: Spec, description: str) -> str:
    """Markdown with the picture inside, which Dagster's UI shows inline; else why there is none."""
    try:
        encoded = base64.b64encode(svg(spec, description).encode()).decode()
    except NotDrawnError as why:
        return f"No picture: {why}."
    return f"![{description}](data:image/svg+xml;base64,{encoded})"


@cache
def library() -> str:
    """The JavaScript that draws in a page, as one script. It takes seconds to make, so it is cached."""
    import platformdirs
    import vl_convert

    name = f"vega-{vl_convert.get_vega_version()}-embed-{vl_convert.get_vega_embed_version()}.js"
    kept = platformdirs.user_cache_path("sme2_assets", appauthor=False) / name
    # A cache that cannot be read or written counts as missing.
    with suppress(OSError):
        return kept.read_text(encoding="utf-8")
    text = str(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;"))
    with suppress(OSError):
        write_text_atomically(kept, text)
    return text
