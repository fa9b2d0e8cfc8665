"""A figure as part of an HTML page: SVG that takes colours and letters from the page, light or dark.

Figures are drawn in the colours of a light page. Here those that mean text, lines and ground become the
page's own variables; the colours of data stay as they are.
"""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING

from markupsafe import Markup, escape

from sme2_assets.report.plots import DIM, FAINT, GROUND, INK

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_PAGE_COLOURS = {INK: "--ink", DIM: "--dim", FAINT: "--faint", GROUND: "--ground"}
_COLOUR = re.compile(r"(?<=: )#[0-9a-f]{6}")
_FONT = re.compile(r"(?<=font: )((?:\d+ )?[\d.]+px) [^;\"]*")
_GROUP_NAME = re.compile(r'<g id="[^"]*"')
_SIZE = re.compile(r'^<svg [^>]*viewBox="([^"]*)"[^>]*>')


def inline_svg(figure: Figure, name: str, description: str) -> Markup:
    """The figure as an `<svg>` element without its title, which the page has in the caption.

    `name` keeps its inner names apart from those of other pictures of the page.
    """
    import matplotlib

    figure.axes[0].set_title("", loc="left")
    buffer = io.StringIO()
    # Text as text, so that it can be selected and takes the page's letters; no date, so that the same
    # rows give the same page.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure.savefig(
            buffer,
            format="svg",
            transparent=True,
            metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")),
        )
    text = buffer.getvalue()
    text = text[text.index("<svg ") :]
    text = _GROUP_NAME.sub("<g", text)
    text = _FONT.sub(r"\1 var(--sans)", text)
    text = _COLOUR.sub(_page_colour, text)
    opening = f'<svg role="img" aria-label="{escape(description)}" viewBox="\\1">'
    # Only matplotlib wrote this; it escapes the text that it draws.
    return Markup(_SIZE.sub(opening, text).strip())


def _page_colour(found: re.Match[str]) -> str:
    variable = _PAGE_COLOURS.get(found[0].upper())
    return found[0] if variable is None else f"var({variable})"
