"""`python -m sme2_assets_tests.screenshots DATA`: the pictures in docs/images, of a data folder.

Reports, the UI and a terminal. The folder is that of `sme2 demo`. Needs a Chromium on PATH.
"""

from __future__ import annotations

import io
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Error, sync_playwright
from rich.console import Console
from rich.text import Text

from sme2_assets.report.files import write_overview, write_session_report
from sme2_assets.store import CHECKOUT, Store
from sme2_assets.warehouse import Warehouse
from sme2_assets_tests.browser import BROWSERS
from sme2_assets_tests.terminal import said_on_terminal
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
    _, [overview, *_] = write_overview(store, warehouse, ["html"])
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
        _terminal(browser, data, ["explain", variant, "--platform", "emulated"])
        _ui(browser, data)
        browser.close()


def _terminal(browser: Browser, data: Path, words: list[str], columns: int = 110) -> None:
    """What a command prints, as a terminal shows it."""
    command = [sys.executable, "-m", "sme2_assets.cli", "--data", str(data), *words]
    said = said_on_terminal(command, columns, "xterm-256color")
    console = Console(record=True, width=columns, file=io.StringIO())
    console.print(Text.from_ansi(f"$ sme2 {' '.join(words)}\n\n" + said.replace("\r\n", "\n").rstrip()))
    page = browser.new_page(viewport=LAPTOP, device_scale_factor=0.8)  # type: ignore[arg-type]
    page.set_content(console.export_svg(title="sme2"))
    page.locator("svg").screenshot(path=IMAGES / "terminal.png")


def _ui(browser: Browser, data: Path) -> None:
    """The first page of the UI of `sme2 dev`: what has run."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "sme2_assets.cli", "--data", str(data), "dev", "--port", str(port)]
    with subprocess.Popen(command, start_new_session=True) as process:
        try:
            page = browser.new_page(viewport={"width": 1500, "height": 660})
            deadline = time.monotonic() + 300
            while time.monotonic() < deadline:
                try:
                    page.goto(f"http://127.0.0.1:{port}/")
                    break
                except Error:
                    time.sleep(1)
            page.get_by_text("measures").first.wait_for()
            page.screenshot(path=IMAGES / "ui.png")
        finally:
            os.killpg(process.pid, signal.SIGTERM)


def draw_all(page: Any) -> None:
    """Waits until every picture is drawn by the page itself."""
    for picture in page.locator(".picture").all():
        picture.scroll_into_view_if_needed()
        picture.locator("xpath=self::*[@data-drawn]").wait_for()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
