"""Reports on disk."""

from __future__ import annotations

from pathlib import Path

from sme2_assets.report.markdown import Report
from sme2_assets.store import write_text_atomically

REPORT_NAME = "report.md"


def write_report(directory: Path, report: Report) -> Path:
    """Writes the report; the text comes last, so that it never refers to a missing picture."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, picture in report.pictures.items():
        staged = directory / f".{name}"
        staged.write_bytes(picture)
        staged.replace(directory / name)
    write_text_atomically(directory / REPORT_NAME, report.text)
    return directory / REPORT_NAME
