"""Reports on disk: `report.md` with its pictures, and `report.html`, which needs none."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path

import pandas as pd

from sme2_assets.report.content import latest_document
from sme2_assets.report.document import Document
from sme2_assets.report.html import html_of, stamp_in, stamp_of
from sme2_assets.report.markdown import MarkdownReport, markdown_report
from sme2_assets.report.overview import overview_document, overview_rows
from sme2_assets.store import Store, write_text_atomically
from sme2_assets.warehouse import Warehouse

FORMATS = ("md", "html")
REPORT_NAME = "report.md"
PAGE_NAME = "report.html"
OVERVIEW_NAME = "index.md"
OVERVIEW_PAGE_NAME = "index.html"


def write_document(
    directory: Path,
    document: Document,
    formats: Collection[str] = FORMATS,
    names: tuple[str, str] = (REPORT_NAME, PAGE_NAME),
) -> list[Path]:
    """Writes the document in the formats asked for; everything is made before anything is written."""
    report = markdown_report(document) if "md" in formats else None
    page = html_of(document) if "html" in formats else None
    written = []
    if report is not None:
        written.append(write_report(directory / names[0], report))
    if page is not None:
        write_text_atomically(directory / names[1], page)
        written.append(directory / names[1])
    return written


def write_report(path: Path, report: MarkdownReport) -> Path:
    """Writes the Markdown; the text comes last, so that it never refers to a missing picture."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for name, picture in report.pictures.items():
        staged = path.with_name(f".{name}")
        staged.write_bytes(picture)
        staged.replace(path.with_name(name))
    write_text_atomically(path, report.text)
    return path


def write_overview(
    store: Store, warehouse: Warehouse, formats: Collection[str] = FORMATS
) -> tuple[pd.DataFrame, list[Path]]:
    """Writes the overview of all models and platforms; its rows lead to the pages that are there."""
    rows = overview_rows(warehouse)

    def link(variant: str, platform: str) -> str | None:
        page = store.report_dir(variant, platform) / PAGE_NAME
        return page.relative_to(store.reports).as_posix() if page.is_file() else None

    document = overview_document(rows, link)
    return rows, write_document(store.reports, document, formats, (OVERVIEW_NAME, OVERVIEW_PAGE_NAME))


def write_missing_reports(store: Store, warehouse: Warehouse, log: Callable[[str], None]) -> None:
    """Writes the report of every model on every platform that has none of its newest session yet."""
    for row in overview_rows(warehouse).to_dict("records"):
        directory = store.report_dir(row["variant"], row["platform"])
        if stamp_in(directory / PAGE_NAME) == stamp_of(row["session_id"]):
            continue
        log(f"{row['variant']} on {row['platform']}")
        document = latest_document(warehouse, row["variant"], row["platform"])
        if document is not None:
            write_document(directory, document)
