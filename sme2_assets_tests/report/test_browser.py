"""The pages in a real browser: what a parser cannot tell."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

PHONE = {"width": 390, "height": 844}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    chromium = os.environ.get("SME2_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("no chromium on PATH; SME2_CHROMIUM names another")
    with playwright.sync_playwright() as started:
        running = started.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield running
        running.close()


@pytest.fixture
def files(pages: dict[str, str], tmp_path: Path) -> dict[str, Path]:
    written = {}
    for name, page in pages.items():
        written[name] = tmp_path / f"{name}.html"
        written[name].write_text(page)
    return written


def opened(browser: Any, path: Path, said: list[str], **options: Any) -> Any:
    """The page, with everything the browser complains about or asks for in `said`."""
    page = browser.new_context(viewport=PHONE, **options).new_page()
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: said.append(request.url))
    page.goto(path.as_uri())
    return page


def test_pages_fit_a_phone_and_ask_for_nothing(browser: Any, files: dict[str, Path]):
    for name in ("faster", "emulated", "baseline"):
        said: list[str] = []
        page = opened(browser, files[name], said, color_scheme="dark")
        assert [text for text in said if text not in (files[name].as_uri(), "data:,")] == []
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"], name
        ink, ground = page.evaluate(
            "[getComputedStyle(document.querySelector('svg text')).fill, "
            "getComputedStyle(document.body).backgroundColor]"
        )
        assert (ink, ground) == ("rgb(230, 237, 243)", "rgb(13, 17, 23)"), "pictures are dark with the page"
        page.context.close()


def column(page: Any, title: str) -> list[str]:
    return page.evaluate(
        """title => {
            const table = document.querySelector('#operators table');
            const heads = [...table.querySelectorAll('th')].map(head => head.textContent);
            const rows = [...table.tBodies[0].rows].filter(row => !row.hidden);
            return rows.map(row => row.cells[heads.indexOf(title)].textContent);
        }""",
        title,
    )


def test_operators_can_be_sorted_and_filtered(browser: Any, files: dict[str, Path]):
    page = opened(browser, files["faster"], [])
    assert column(page, "order") == ["2", "4", "7", "3", "5", "1", "6", "8"], "by their time at first"
    head = page.locator("#operators th button", has_text="order")
    head.click()
    assert column(page, "order") == ["1", "2", "3", "4", "5", "6", "7", "8"]
    head.click()
    assert column(page, "order") == ["8", "7", "6", "5", "4", "3", "2", "1"]
    page.locator("#operators th button", has_text="on ms").click()
    times = [float(text) for text in column(page, "on ms")]
    assert times == sorted(times)
    page.locator("#operators input").fill("gemm head")
    assert column(page, "module") == ["head.linear"]
    page.context.close()


def test_a_page_is_whole_without_scripts(browser: Any, files: dict[str, Path]):
    page = opened(browser, files["faster"], [], java_script_enabled=False)
    assert page.locator("#operators tbody tr").count() == 8
    assert page.locator(".filter").count() == 0
    page.context.close()
