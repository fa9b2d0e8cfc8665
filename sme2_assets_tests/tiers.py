"""Which tests are in which tier, and how workers share them. A plugin of pytest; see CONTRIBUTING.md.

Marks decide, and marks belong to tests. `thorough` is given by hand: such a test is in `make test-all` alone.
`quick` is given here, by what a test asks for and how long it took when times were last recorded.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Generator, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
# Seconds of tests, and of the fixtures that several tests share; written by --record-durations.
DURATIONS = TESTS / "durations.json"
QUICK_S = 1.0
# What takes less is not recorded.
LEAST_S = 0.5
FIFTHS = 5
# Who asks for one of these needs more than Python and a compiler.
NEVER_QUICK = {"emulator", "bundle", "adb_bridge", "ssh_machines", "browser"}
# Importing torch takes as long as hundreds of quick tests.
IMPORTS_TORCH = re.compile(r"^(?:import|from) (?:torch|executorch)", re.MULTILINE)
# It takes no time, and every test asks for it.
OF_EVERY_FILE = "environment_of_a_file"


@dataclass
class Durations:
    """Seconds by name; what is not named takes none."""

    tests: dict[str, float] = field(default_factory=dict)
    fixtures: dict[str, float] = field(default_factory=dict)

    def of_test(self, item: pytest.Item) -> float:
        """As it would take alone, with every fixture that it asks for."""
        shared = (self.fixtures.get(name, 0) for name in shared_fixtures(item))
        return self.tests.get(name_of(item.nodeid), 0) + sum(shared)

    def of_group(self, items: Iterable[pytest.Item]) -> float:
        """As they take one after the other, when each fixture is made once."""
        together = list(items)
        shared = {name for item in together for name in shared_fixtures(item)}
        return sum(self.tests.get(name_of(item.nodeid), 0) for item in together) + sum(
            self.fixtures.get(name, 0) for name in shared
        )


def recorded() -> Durations:
    return Durations(**json.loads(DURATIONS.read_text())) if DURATIONS.exists() else Durations()


def name_of(nodeid: str) -> str:
    """The test's own name: xdist appends that of its group."""
    return nodeid.rpartition("@")[0] if nodeid.rfind("@") > nodeid.rfind("]") else nodeid


def shared_fixtures(item: pytest.Item, *scopes: str) -> set[str]:
    """The fixtures behind a test that are made for several."""
    known = getattr(item, "_fixtureinfo", None)
    behind = known.name2fixturedefs.items() if known else ()
    wanted = scopes or ("session", "package", "module")
    return {
        _fixture_name(each[-1]) for name, each in behind if each[-1].scope in wanted and name != OF_EVERY_FILE
    }


def _fixture_name(fixture: pytest.FixtureDef[object]) -> str:
    return f"{fixture.baseid}::{fixture.argname}"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("tiers")
    group.addoption(
        "--fifth", metavar="COMMIT", help="of what is selected, the fifth that the hash of a commit decides"
    )
    group.addoption(
        "--record-durations", action="store_true", help=f"write into {DURATIONS.name} how long tests take"
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--record-durations") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Recorder())


def pytest_xdist_auto_num_workers() -> int:
    """One more than there are cores: tests of servers, devices and sessions wait much of their time."""
    return 1 + (os.cpu_count() or 1)


def pytest_report_header(config: pytest.Config) -> str | None:
    commit = config.getoption("--fifth")
    return f"fifth {1 + _fifth_of(commit)} of {FIFTHS}, by commit {commit}" if commit else None


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    quick_alone = config.option.markexpr == "quick" and collection_path.name.startswith("test_")
    return True if quick_alone and IMPORTS_TORCH.search(collection_path.read_text()) else None


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> Generator[None, None, None]:
    """Marks, groups and order before pytest selects by marks; then a fifth of what it selected."""
    durations = recorded()
    for item in items:
        if _is_quick(item, durations):
            item.add_marker("quick")
        if shared_fixtures(item, "package", "module") and not item.get_closest_marker("xdist_group"):
            item.add_marker(pytest.mark.xdist_group(_file(item.nodeid)))
    items[:] = longest_first(items, durations)
    yield
    if commit := config.getoption("--fifth"):
        part = fifths(items, durations)[_fifth_of(commit)]
        config.hook.pytest_deselected(items=[item for item in items if item not in part])
        items[:] = [item for item in items if item in part]


def _is_quick(item: pytest.Item, durations: Durations) -> bool:
    elsewhere = item.get_closest_marker("thorough") or item.get_closest_marker("alone")
    needs_much = NEVER_QUICK.intersection(getattr(item, "fixturenames", ()))
    return not elsewhere and not needs_much and durations.of_test(item) < QUICK_S


def longest_first(items: Iterable[pytest.Item], durations: Durations) -> Iterator[pytest.Item]:
    """Tests that share what a file makes stay together; nobody waits for one that began last."""
    groups: dict[str, list[pytest.Item]] = {}
    for item in items:
        group = item.get_closest_marker("xdist_group")
        groups.setdefault(group.args[0] if group else item.nodeid, []).append(item)
    return chain.from_iterable(sorted(groups.values(), key=durations.of_group, reverse=True))


def fifths(items: Iterable[pytest.Item], durations: Durations) -> list[set[pytest.Item]]:
    """Five parts that take about as long as one another; a file is in one of them."""
    files: dict[str, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(_file(item.nodeid), []).append(item)
    parts: list[set[pytest.Item]] = [set() for _ in range(FIFTHS)]
    taken = [0.0] * FIFTHS
    for together in sorted(files.values(), key=durations.of_group, reverse=True):
        shortest = taken.index(min(taken))
        parts[shortest].update(together)
        # Files without a record take something, too.
        taken[shortest] += durations.of_group(together) + LEAST_S
    return parts


def _fifth_of(commit: str) -> int:
    return int(commit, 16) % FIFTHS


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[object], request: pytest.FixtureRequest
) -> Generator[None, object, object]:
    started = time.perf_counter()
    try:
        return (yield)
    finally:
        if fixturedef.scope not in ("function", "class"):
            _made_since_the_last_report.append((_fixture_name(fixturedef), time.perf_counter() - started))


_made_since_the_last_report: list[tuple[str, float]] = []


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item) -> None:
    """Workers send with the report of a test what they made for it."""
    item.user_properties += [("made", made) for made in _made_since_the_last_report]
    _made_since_the_last_report.clear()


class _Recorder:
    """What takes long in a run of all tests."""

    def __init__(self) -> None:
        self.taken = Durations()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        tests, name = self.taken.tests, name_of(report.nodeid)
        tests[name] = tests.get(name, 0) + report.duration
        if report.when == "teardown":
            for fixture, seconds in _made_for(report):
                tests[name] -= seconds
                # Each worker makes those of a session; the first may have waited for a download.
                made = self.taken.fixtures
                made[fixture] = min(seconds, made.get(fixture, seconds))

    def pytest_sessionfinish(self) -> None:
        """What did not run keeps the time it had."""
        before, noted = asdict(recorded()), {}
        for kind, taken in asdict(self.taken).items():
            known = {name: s for name, s in before[kind].items() if (TESTS.parent / _file(name)).exists()}
            every = {**known, **taken}
            noted[kind] = {name: round(s, 1) for name, s in sorted(every.items()) if s >= LEAST_S}
        DURATIONS.write_text(json.dumps(noted, indent=1) + "\n")


def _file(name: str) -> str:
    return name.partition("::")[0]


def _made_for(report: pytest.TestReport) -> Iterator[tuple[str, float]]:
    for kind, made in report.user_properties:
        if kind == "made":
            assert isinstance(made, (tuple, list))
            yield made[0], made[1]
