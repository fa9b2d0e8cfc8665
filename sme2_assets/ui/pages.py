"""Reports and documents next to the UI, so that links of assets open: /sme2/reports/... and /sme2/docs/...

Belongs here: which files are shown, the page around a document, and what the first page is. They are
behind the same guard as the UI. A report has a script and is in a sandbox: whatever got into it, its requests
are refused like another site's.
"""

from __future__ import annotations

import html
import re
from itertools import pairwise
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from sme2_assets.report.tables import TextTable
from sme2_assets.store import GUIDE_PAGE, UI_PAGES, Store, anchor_of, default_data_root, documents
from sme2_assets.targets import availabilities

_SHOWN = (".html", ".md", ".png", ".svg")
_HEADERS = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-cache"}
_OF_REPORTS = {
    **_HEADERS,
    "Content-Security-Policy": "sandbox allow-scripts allow-popups; connect-src 'none'; "
    "frame-ancestors 'none'",
}
_OF_DOCUMENTS = {
    **_HEADERS,
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; img-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
}
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title><style>
:root {{ color-scheme: light dark; }}
body {{ font: 16px/1.6 system-ui, sans-serif; max-width: 54rem; margin: 2rem auto; padding: 0 1rem; }}
pre, code {{ font: 0.9em/1.45 ui-monospace, monospace; }}
pre {{ overflow-x: auto; padding: 0.8rem; border: 1px solid #8884; border-radius: 4px; }}
table {{ border-collapse: collapse; display: block; overflow-x: auto; }}
th, td {{ border: 1px solid #8884; padding: 0.3rem 0.6rem; text-align: left; vertical-align: top; }}
img {{ max-width: 100%; }}
</style></head><body><nav><a href="/runs">Runs</a> · <a href="../reports/">Reports</a> ·
<a href="ui.md">Guide</a> · <a href="README.md">All documents</a></nav>
{body}</body></html>
"""


def routes() -> list[Route]:
    return [
        Route("/", _front),
        Route(f"{UI_PAGES}/reports/{{path:path}}", _report),
        Route(f"{UI_PAGES}/docs/{{path:path}}", _document),
    ]


def _front(request: Request) -> Response:
    """The list of runs: the timeline that Dagster begins with leaves out what the command line ran."""
    is_used = any(Store(default_data_root()).runs.glob("*"))
    return RedirectResponse("/runs" if is_used else f"{UI_PAGES}/{GUIDE_PAGE}", headers=_HEADERS)


def _report(request: Request) -> Response:
    found = _file_in(Store(default_data_root()).reports, request.path_params["path"] or "index.html")
    if found is None:
        return _missing("There is no such report here: `sme2 report --all` writes them.")
    return FileResponse(found, headers=_OF_REPORTS)


def _document(request: Request) -> Response:
    pages = documents()
    found = _file_in(pages[0].parent, request.path_params["path"] or "README.md") if pages else None
    if found is None:
        return _missing("There is no such document here.")
    if found.suffix != ".md":
        return FileResponse(found, headers=_OF_DOCUMENTS)
    page = page_of(found, _offered_here() if found.name == Path(GUIDE_PAGE).name else "")
    return HTMLResponse(page, headers=_OF_DOCUMENTS)


def _offered_here() -> str:
    """What this deployment can measure now, for the guide. The definitions of Dagster cannot say it."""
    found = availabilities(Store(default_data_root()))
    rows = [[key, "yes" if it.ok else "no", it.detail] for key, _, it in found]
    table = TextTable.of(["target", "here", "what"], rows).markdown()
    reader = MarkdownIt("commonmark", {"html": False}).enable("table")
    return reader.render(f"## What can be measured here\n\n{table}")


def _file_in(folder: Path, name: str) -> Path | None:
    """A file to show below a folder, and nothing outside it that a name or a link leads to."""
    # No file has such a name, and looking for one would be an error.
    if "\0" in name:
        return None
    path = (folder / name).resolve()
    inside = path.is_relative_to(folder.resolve())
    return path if inside and path.suffix in _SHOWN and path.is_file() else None


def _missing(text: str) -> Response:
    return PlainTextResponse(f"{text}\n", 404, headers=_HEADERS)


def page_of(path: Path, appended: str = "") -> str:
    """A document as a page: its sections have the anchors that links name."""
    reader = MarkdownIt("commonmark").enable("table")
    tokens = reader.parse(path.read_text(encoding="utf-8"))
    title = path.stem
    for opening, content in pairwise(tokens):
        if opening.type == "heading_open":
            opening.attrSet("id", anchor_of(re.sub(r"\[([^\]]*)\]\([^)]*\)|`", r"\1", content.content)))
            title = content.content if opening.tag == "h1" else title
    for token in tokens:
        for child in token.children or []:
            _keep_if_served(child, path.parent)
    body = reader.renderer.render(tokens, reader.options, {})
    return _PAGE.format(title=html.escape(title), body=body + appended)


def _keep_if_served(token: Token, folder: Path) -> None:
    """Leaves only the text of a link to something that is only in the repository."""
    href = str(token.attrGet("href") or "")
    if href and not re.match(r"https?:|#", href) and _file_in(folder, href.partition("#")[0]) is None:
        del token.attrs["href"]
