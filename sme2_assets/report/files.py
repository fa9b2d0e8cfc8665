"""Reports on disk: `report.md` with its pictures, and `report.html`, which needs none."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import duckdb
import pandas as pd

from sme2_assets.report.content import session_document
from sme2_assets.report.document import Document
from sme2_assets.report.html import html_of, stamp_in, stamp_of
from sme2_assets.report.markdown import MarkdownReport, markdown_report
from sme2_assets.report.overview import categories_table, overview_document, overview_rows, overview_table
from sme2_assets.store import UI_PAGES, Store, safe_name, write_text_atomically
from sme2_assets.warehouse import Warehouse
from sme2_assets.warehouse.csv_files import write_csv
from sme2_assets.warehouse.read import latest_sessions, runs_of_session

FORMATS = ("md", "html")
REPORT_NAME = "report.md"
PAGE_NAME = "report.html"
OVERVIEW_NAME = "index.md"
OVERVIEW_PAGE_NAME = "index.html"
OVERVIEW_TABLE_NAME = "index.csv"
CATEGORIES_NAME = "categories.csv"


def report_folder(store: Store, run: Mapping[str, Any]) -> Path:
    """Where the report of a run's session is: each series has its own folder."""
    # What is usual is not named.
    arch = None if run["arch"] == "aarch64" else run["arch"]
    method = None if run["method"] == "forward" else run["method"]
    cpus = run["cpus"] and f"cpus_{run['cpus']}"
    setting = [run["device"], arch, f"t{run['threads']}", cpus, run["power_mode"], method]
    name = re.sub(r"[^A-Za-z0-9._-]", "_", "-".join(str(part) for part in setting if part))
    return store.reports / safe_name(run["variant"]) / safe_name(run["platform"]) / safe_name(name)


def page_address(store: Store, page: Path) -> str:
    """Where the webserver shows a page of the reports."""
    return f"{UI_PAGES}/reports/{quote(page.relative_to(store.reports).as_posix())}"


def write_session_report(
    store: Store, warehouse: Warehouse, session_id: str, formats: Collection[str] = FORMATS
) -> tuple[Document, list[Path]]:
    """Writes the report of a session to the folder of its series."""
    document = session_document(warehouse, session_id)
    folder = report_folder(store, runs_of_session(warehouse, session_id)[0])
    return document, write_document(folder, document, formats)


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
    store: Store,
    warehouse: Warehouse,
    formats: Collection[str] = FORMATS,
    *,
    folder: Path | None = None,
    pages: Mapping[str, Path] | None = None,
) -> tuple[pd.DataFrame, list[Path]]:
    """Writes the overview of all models and platforms; its rows link to the pages that exist.

    With `pages` it covers only these sessions and links to these pages; `folder` is where it goes. The same
    rows are next to it as a CSV file, and in another one the categories of all these sessions.
    """
    folder = folder or store.reports
    rows = overview_rows(warehouse, None if pages is None else list(pages))

    def link(row: Mapping[str, Any]) -> str | None:
        page = report_folder(store, row) / PAGE_NAME if pages is None else pages[row["session_id"]]
        return page.relative_to(folder).as_posix() if page.is_file() else None

    document = overview_document(warehouse, rows, link)
    written = write_document(folder, document, formats, (OVERVIEW_NAME, OVERVIEW_PAGE_NAME))
    tables = {
        OVERVIEW_TABLE_NAME: overview_table(rows),
        CATEGORIES_NAME: categories_table(warehouse, rows["session_id"].tolist()),
    }
    with duckdb.connect() as connection:
        for name, table in tables.items():
            write_csv(connection.from_df(table), folder / f".{name}")
            (folder / f".{name}").replace(folder / name)
    return rows, [*written, *(folder / name for name in tables)]


def write_missing_reports(store: Store, warehouse: Warehouse, log: Callable[[str], None]) -> None:
    """Writes the report of every series whose newest session has none yet."""
    for run in latest_sessions(warehouse):
        if stamp_in(report_folder(store, run) / PAGE_NAME) != stamp_of(run["session_id"]):
            log(f"{run['variant']} on {run['platform']}, {run['device']}")
            write_session_report(store, warehouse, run["session_id"])
