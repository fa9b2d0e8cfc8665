"""Colours and fonts of all pictures.

A picture is drawn in the colours of a light page. Four of them mean text, secondary text, faint lines and
background: a style sheet replaces these if the page is dark (`page/style.css`; `DARK` in an SVG file).
"""

from __future__ import annotations

from typing import Any

INK, DIM, FAINT, GROUND = "#1f2328", "#59636e", "#c4cbd2", "#ffffff"
# As in page/style.css.
IN_THE_DARK = {INK: "#e6edf3", DIM: "#9198a1", FAINT: "#3d444d", GROUND: "#0d1117"}
_RULES = (
    f"[{what}='{light}']{{{what}:{dark}}}"
    for light, dark in IN_THE_DARK.items()
    for what in ("fill", "stroke")
)
DARK = "@media (prefers-color-scheme:dark){" + "".join(_RULES) + "}"

# Colour-blind safe (Okabe-Ito); Overhead is grey because it is not an operator category.
CATEGORIES = {
    "CONV": "#0072B2",
    "GEMM": "#56B4E9",
    "Data Movement": "#E69F00",
    "Elementwise": "#009E73",
    "Other": "#CC79A7",
    "Overhead": "#999999",
}
ARMS = {"off": "#D55E00", "on": "#0072B2"}

# Letters on a colour keep theirs on a dark page, because the colour does.
BLACK, LIGHT = "#111111", "#fdfdfd"


def luminance(colour: str) -> float:
    """As the WCAG defines it, from 0 for black to 1 for white."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(share * part for share, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def letters_on(colour: str) -> str:
    """Dark or light letters, whichever are easier to read on a colour."""
    return LIGHT if luminance(colour) < 0.18 else BLACK


# Liberation Sans comes with the renderer, so that a picture is the same on every machine; a browser without
# it uses Arial, whose letters are as wide.
FONT = "Liberation Sans, Arial, Helvetica, sans-serif"

CONFIG: dict[str, Any] = {
    "background": None,
    "font": FONT,
    "aria": False,
    "view": {"stroke": None},
    "axis": {
        "labelColor": INK,
        "titleColor": DIM,
        "titleFontWeight": "normal",
        "labelFontSize": 12,
        "titleFontSize": 12,
        "domainColor": FAINT,
        "tickColor": FAINT,
        "gridColor": FAINT,
        "gridOpacity": 0.5,
        "labelFont": FONT,
        "titleFont": FONT,
    },
    "legend": {
        "labelColor": INK,
        "titleColor": DIM,
        "labelFontSize": 12,
        "orient": "top",
        "direction": "horizontal",
        "title": None,
        "labelLimit": 260,
        "labelFont": FONT,
        "symbolType": "square",
    },
    "text": {"font": FONT, "fontSize": 12, "fill": INK},
}
