"""Which tests are in which lane, and how they are dealt out. A plugin of pytest; see CONTRIBUTING.md."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling

TESTS = Path(__file__).parent

# Who asks for one of these needs more than Python and a compiler, and is not part of `make check`.
EMULATOR_FIXTURES = {"emulator", "bundle", "adb_bridge", "ssh_machines", "remote_device", "browser"}
# Files and rooms that take twenty seconds or more: they measure sessions, export models, build runners, fetch
# packages, or make many warehouses. Who leaves slow tests out does not import them: torch alone takes as long
# as hundreds of other tests.
SLOW_IN_ROOMS = {
    "analysis": ("attribution", "statistics"),
    "diagnostics": ("model",),
    "etdump": ("against_inspector",),
    "exchange": ("export", "foreign", "perfetto"),
    "gate": ("gate",),
    "models": (
        *("any_model", "architectures", "attribution", "bisection", "delegation", "divergence"),
        *("executorch_llama", "existing", "export", "failures", "graph_rewrites", "huggingface"),
        *("more_architectures", "mutation", "pieces", "programs", "quantise", "rewrites", "sources"),
        *("taps", "time_limit"),
    ),
    "profiling": ("session",),
    "report": ("answer", "html", "night", "overview", "passes", "pictures", "report"),
    "runner": ("native", "source_build"),
    "targets": ("cross_compiler", "debian"),
    "warehouse": (
        *("arms", "blind", "checks", "compare", "continued", "crashes", "devices", "docs", "files"),
        *("history", "ingest", "insight_views", "kernels", "merge", "order", "publish", "questions"),
        *("rebuild", "retention", "shared", "sql_console", "unit", "whole_microseconds"),
    ),
}
SLOW = (
    *("claims/", "e2e/"),
    *(f"test_{name}.py" for name in ("api", "full_disk", "mcp", "nightly", "package", "set_up")),
    *(f"{room}/test_{name}.py" for room, names in SLOW_IN_ROOMS.items() for name in names),
)
# Rooms whose files share what takes long to make: one worker runs all of them.
SHARING = ("etdump/", "exchange/", "report/")


def is_slow(path: Path) -> bool:
    return path.is_relative_to(TESTS) and str(path.relative_to(TESTS)).startswith(SLOW)


def pytest_itemcollected(item: pytest.Item) -> None:
    if EMULATOR_FIXTURES.intersection(getattr(item, "fixturenames", ())):
        item.add_marker(pytest.mark.emulator)
    if is_slow(item.path):
        item.add_marker(pytest.mark.slow)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """What is left out as a whole is not imported."""
    if not collection_path.name.startswith("test_"):
        return None
    lanes = config.option.markexpr
    if lanes == "alone":
        left_out = "mark.alone" not in collection_path.read_text()
    else:
        left_out = "not slow" in lanes and is_slow(collection_path)
    return left_out or None


def pytest_xdist_auto_num_workers() -> int:
    """One more than there are cores: tests of servers, devices and sessions wait much of their time."""
    return 1 + (os.cpu_count() or 1)


class _ByFileOrRoom(LoadFileScheduling):
    def _split_scope(self, nodeid: str) -> str:
        room = nodeid.removeprefix(f"{TESTS.name}/").split("/")[0] + "/"
        return room if room in SHARING else super()._split_scope(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> _ByFileOrRoom:
    """A file's tests stay together, because they share what they measured."""
    return _ByFileOrRoom(config, log)
