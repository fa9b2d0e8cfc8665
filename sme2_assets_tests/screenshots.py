"""`python -m sme2_assets_tests.screenshots DATA`: the pictures in docs/images, of reports in a data folder.

The folder is that of `sme2 demo`. Needs a Chromium on PATH.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

from sme2_assets.report.files import write_overview, write_session_report
from sme2_assets.store import CHECKOUT, Store
from sme2_assets.warehouse import Warehouse
from sme2_assets_tests.browser import BROWSERS
from sme2_assets_tests.warehouse.newest import newest_session

IMAGES = CHECKOUT / "docs" / "images"
LAPTOP, PHONE = {"width": 1280, "height": 860}, {"width": 390, "height": 844}
# File, page, size of the window, light or dark, what is at its top, and whether that alone is shown.
SHOTS: tuple[tuple[str, str, dict[str, int], str, str, bool], ...] = (
    ("report", "report", LAPTOP, "light", "h1", False),
    ("report_dark", "report", LAPTOP, "dark", "#modules", False),
    ("report_phone", "report", PHONE, "light", "#modules", False),
    ("graph", "report", LAPTOP, "light", "#picture-graph .picture", True),
    ("overview", "overview", LAPTOP, "light", "h1", False),
)


def main(data: Path, variant: str = "toy_cnn-int8") -> None:
    store = Store(data)
    warehouse = Warehouse(store.warehouse)
    _, [report] = write_session_report(
        store, warehouse, newest_session(warehouse, variant, "emulated"), ["html"]
    )
    _, [overview, _] = write_overview(store, warehouse, ["html"])
    pages = {"report": report, "overview": overview}
    program = next(path for name in BROWSERS if (path := shutil.which(name)))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=program, args=["--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        )
        for name, page, window, scheme, place, alone in SHOTS:
            context = browser.new_context(viewport=window, color_scheme=scheme)  # type: ignore[arg-type]
            shown = context.new_page()
            shown.goto(pages[page].as_uri())
            draw_all(shown)
            target = shown.locator(place).first
            target.evaluate("element => element.scrollIntoView()")
            (target if alone else shown).screenshot(path=IMAGES / f"{name}.png")
            context.close()
        browser.close()


def draw_all(page: Any) -> None:
    """Waits until every picture is drawn by the page itself."""
    for picture in page.locator(".picture").all():
        picture.scroll_into_view_if_needed()
        picture.locator("xpath=self::*[@data-drawn]").wait_for()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
