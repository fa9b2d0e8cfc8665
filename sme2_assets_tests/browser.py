"""A real browser for the tests of pages."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, sync_playwright

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Debian's Chromium or another. Where there is none the test is skipped, but never in CI on Linux."""
    found = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if found is None:
        if os.environ.get("CI") == "true" and platform.system() == "Linux":
            pytest.fail("no Chromium: apt install chromium")
        pytest.skip("needs a Chromium on PATH")
    with sync_playwright() as playwright:
        # No sandbox: in a container the tests are often root.
        started = playwright.chromium.launch(executable_path=found, args=["--no-sandbox", "--disable-gpu"])
        yield started
        started.close()
