"""Pictures small enough to be seen without a click.

Dagster's UI shows Markdown of less than 1000 characters inline and hides the rest behind a link, so the real
pictures need a click. These few bars need none.
"""

from __future__ import annotations

import base64

import pandas as pd

from sme2_assets.report.pictures.style import CATEGORIES, LIGHT, letters_on
from sme2_assets.report.tables import is_counted

# Dagster's UI shows Markdown inline only if it is shorter than this.
SHOWN_IN_PLACE = 1000
WIDTH, HEIGHT, LABEL = 420, 16, 24


def category_glance(categories: pd.DataFrame) -> str:
    """A stacked bar for each arm. Measured natively: time by category. Under emulation: instructions by
    category, where they were counted; else operators, those on the SME unit in full colour, or all if
    `sme2_operators` is unknown.

    `categories` has the columns of the view category_summary, of one or both arms.
    """
    measured = not (categories["fidelity"] == "emulated").any()
    column = "mean_ns" if measured else "instructions" if is_counted(categories) else "operators"
    told = column == "operators" and categories["sme2_operators"].notna().any()
    reference = (categories["fidelity"] == "reference").any()
    arms = [arm for arm in ("off", "on") if arm in set(categories["sme2"])]
    rows = {(row["sme2"], row["category"]): row for row in categories.to_dict("records")}
    longest = max(sum(max(row[column], 0) for key, row in rows.items() if key[0] == arm) for arm in arms) or 1
    middle = {arm: HEIGHT // 2 + place * (HEIGHT + 2) for place, arm in enumerate(arms)}
    left = dict.fromkeys(arms, float(LABEL))
    bars = [f"<text y='{middle[arm] + 4}'>{'ref' if reference else arm}</text>" for arm in arms]
    faded: list[str] = []
    words: list[str] = []
    for category, colour in CATEGORIES.items():
        paths = ["", ""]
        for arm in arms:
            row = rows.get((arm, category), {column: 0, "sme2_operators": 0})
            value = max(float(row[column]), 0.0)
            bright = float(row["sme2_operators"]) if told else value
            start = left[arm]
            for place, part in enumerate((bright, value - bright)):
                width = part / longest * (WIDTH - LABEL)
                # Less than a pixel would not be visible.
                if width >= 1:
                    paths[place] += f"M{left[arm]:.0f} {middle[arm]}h{width:.0f}"
                left[arm] += width
            if arm == arms[0] and left[arm] - start > 7 * len(category):
                # Pale colours, those of operators off the unit, have dark letters.
                full = bright / longest * (WIDTH - LABEL) > 7 * len(category)
                fill = f" fill='{LIGHT}'" if full and letters_on(colour) == LIGHT else ""
                words.append(f"<text x='{start + 2:.0f}' y='{middle[arm] + 4}'{fill}>{category}</text>")
        for bunch, path in zip((bars, faded), paths, strict=True):
            bunch += [f"<path stroke='{colour}' d='{path}'/>"] if path else []
    if faded:
        bars += ["<g opacity='.3'>", *faded, "</g>"]
    names = {"mean_ns": "time", "instructions": "instructions, which are work and not time,"}
    what = f"{names.get(column, column)} by category"
    if told:
        unknown = int(categories["sme2_unknown_operators"].sum())
        what += ", in full colour on the SME unit" + (f", {unknown} unknown" if unknown else "")
    pictures = [_svg_markdown(bars + kept, len(arms), what) for kept in (words, [])]
    return next((picture for picture in pictures if len(picture) < SHOWN_IN_PLACE), pictures[-1])


def _svg_markdown(parts: list[str], arms: int, alt: str) -> str:
    size = f"width='{WIDTH}' height='{arms * (HEIGHT + 2)}' stroke-width='{HEIGHT}'"
    svg = f"<svg xmlns='http://www.w3.org/2000/svg' {size} font-size='10' font-family='Arial'>"
    encoded = base64.b64encode(f"{svg}{''.join(parts)}</svg>".encode()).decode()
    return f"![{alt}](data:image/svg+xml;base64,{encoded})"
