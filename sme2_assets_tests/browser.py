"""A real browser for the tests of pages: one that is installed, else Debian's, unpacked and not installed."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

from sme2_assets.errors import Sme2Error
from sme2_assets.toolchain.debian import fetch_packages, libraries_the_host_lacks
from sme2_assets_tests.reach import skip_out_of_reach, skip_where_ci_would_fail

# For a browser to start, and for what a page is to show: the machine may be busy with other tests.
PATIENCE_MS = 300_000
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def _unpacked(folder: Path) -> tuple[Path, dict[str, str]]:
    """The program of Debian's package, and where it finds the libraries that this host has not."""
    try:
        fetch_packages(["chromium"], folder, with_dependencies=True, log=print)
    except Sme2Error as error:
        skip_out_of_reach(error)
    private = folder / "usr/lib" / f"{platform.machine()}-linux-gnu" / "pulseaudio"
    libraries = os.pathsep.join(map(str, (libraries_the_host_lacks(folder), private)))
    program = folder / "usr/lib/chromium/chromium"
    if not program.is_file():
        skip_where_ci_would_fail("this distribution has no package with a Chromium: install one")
    return program, {"LD_LIBRARY_PATH": libraries}


@pytest.fixture(scope="session")
def chromium(artifacts_dir: Path) -> tuple[Path, dict[str, str]]:
    """The program, and what it needs in its environment."""
    found = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if found is not None:
        return Path(found), {}
    if platform.system() != "Linux":
        pytest.skip("needs a Chromium on PATH")
    return _unpacked(artifacts_dir / "tools" / "chromium")


@pytest.fixture(scope="module")
def browser(chromium: tuple[Path, dict[str, str]]) -> Iterator[Browser]:
    program, variables = chromium
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(
            executable_path=program,
            # No sandbox: in a container the tests are often root.
            args=["--no-sandbox", "--disable-gpu"],
            env={**os.environ, **variables},
            timeout=PATIENCE_MS,
        )
        yield started
        started.close()
