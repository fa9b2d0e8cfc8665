"""Which tests are in which lane, and how many run at once: a plugin of pytest. CONTRIBUTING.md tells more."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

# Who asks for one of these needs more than Python and a compiler, and is not part of `make check`.
EMULATOR_FIXTURES = {"emulator", "any_emulator", "adb_bridge", "browser"}


def pytest_itemcollected(item: pytest.Item) -> None:
    if EMULATOR_FIXTURES.intersection(getattr(item, "fixturenames", ())):
        item.add_marker(pytest.mark.emulator)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Who runs the tests that need the machine for themselves imports only the files that have some."""
    if config.option.markexpr != "alone" or not collection_path.name.startswith("test_"):
        return None
    return True if "mark.alone" not in collection_path.read_text() else None


def pytest_xdist_auto_num_workers() -> int:
    """One more than there are cores: tests of servers, devices and sessions wait much of their time."""
    return 1 + (os.cpu_count() or 1)
