"""A real browser for the tests of pages."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, sync_playwright

from sme2_assets_tests.reach import skip_where_ci_would_fail

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Debian's Chromium or another. Where there is none the test is skipped, but never in CI on Linux."""
    found = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if found is None:
        skip_where_ci_would_fail("no Chromium: apt install chromium")
    with sync_playwright() as playwright:
        # No sandbox: in a container the tests are often root.
        started = playwright.chromium.launch(executable_path=found, args=["--no-sandbox", "--disable-gpu"])
        yield started
        started.close()
