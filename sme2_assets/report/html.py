"""A report as one HTML file that needs nothing else: no network, no other file.

Belongs here: how a document becomes a page. All text is escaped, and commands between backquotes become code;
only the pictures, which Vega drew and escaped, go in as they are, and also as the specifications that they
are drawn from when the page is open. The page's own policy forbids the browser to fetch anything, to run any
script other than its own, and to turn text into code.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from sme2_assets.report.document import Block, Document, Picture
from sme2_assets.report.pictures.chart import drawn_document, inline_svg, library
from sme2_assets.report.tables import COMMAND, TextTable

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

_NUMBER = re.compile(r"-?\d[\d,.]*(%|x| ms)?$")
STAMP = "sme2-report"
# A page made by another version of this module is out of date.
VERSION = 7


def html_of(document: Document) -> str:
    """The page. The drawing code is in it once, and only if there is something to draw."""
    from markupsafe import Markup

    document, drawings = drawn_document(document, inline_svg)
    scripts = [_text("table.js"), *([library(), _text("pictures.js")] if drawings else [])]
    return (
        _templates()
        .get_template("report.html")
        .render(
            document=document,
            kind=_kind,
            numeric=_numeric_columns,
            with_commands=_with_commands,
            svg={name: Markup(drawing) for name, drawing in drawings.items()},
            style=_text("style.css"),
            spec=_spec,
            scripts=scripts,
            policy=_policy(scripts),
            stamp_name=STAMP,
            stamp=stamp_of(document.stamp),
        )
    )


def stamp_of(session_id: str) -> str:
    """The stamp of a page that this version made for this session."""
    return f"{session_id} {VERSION}"


def stamp_in(page: Path) -> str | None:
    """The stamp of a page on disk; None if there is none."""
    if not page.is_file():
        return None
    with page.open(encoding="utf-8", errors="replace") as text:
        found = re.search(rf'<meta name="{STAMP}" content="([^"]*)">', text.read(4096))
    return None if found is None else found[1]


@cache
def _templates() -> Environment:
    # Imported here: most processes that load this module make no page.
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    return Environment(
        loader=FunctionLoader(_text),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _text(name: str) -> str:
    return (resources.files(__package__) / "page" / name).read_text(encoding="utf-8")


def _policy(scripts: Sequence[str]) -> str:
    """What the browser may do: show what is in the page, and run these scripts."""
    digests = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    return (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src {allowed}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _kind(block: Block) -> str:
    return type(block).__name__


def _numeric_columns(table: TextTable) -> list[bool]:
    """Which columns hold nothing but numbers: those are right-aligned."""
    known = [[cell for cell in column if cell not in ("", "-")] for column in zip(*table.rows, strict=True)]
    return [bool(cells) and all(map(_NUMBER.match, cells)) for cells in known]


def _with_commands(text: str) -> Markup:
    """The text, escaped, and then its commands as code."""
    from markupsafe import Markup, escape

    return Markup(COMMAND.sub(r"<code>\1</code>", str(escape(text))))


def _spec(picture: Picture) -> Markup:
    """The specification for inside a script element, which only its end tag can end."""
    from markupsafe import Markup

    return Markup(json.dumps(picture.spec, separators=(",", ":")).replace("<", "\\u003c"))
