"""Every test is in the tier it belongs to, and five landings run all of them."""

from __future__ import annotations

import json
from itertools import chain

import pytest

from sme2_assets_tests.tiers import FIFTHS

PLUGIN = ("-p", "sme2_assets_tests.tiers", "-p", "no:hydra_pytest")


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """Tests of all tiers, with the times that were recorded of them."""
    pytester.makeini("[pytest]\nmarkers =\n  thorough: as in pyproject.toml\n  quick: as there")
    pytester.makeconftest(
        "import pytest\n\n@pytest.fixture\ndef emulator(): ...\n\n"
        "@pytest.fixture\ndef behind(emulator): ...\n"
    )
    pytester.makepyfile(
        test_short="def test_new(): ...\n\ndef test_long(): ...\n\ndef test_emulated(behind): ...\n",
        test_sharing=(
            "import pytest\n\n@pytest.fixture(scope='module')\ndef slow(): ...\n\n"
            "def test_sharer(slow): ...\n\ndef test_beside(): ...\n\n"
            "@pytest.mark.thorough\ndef test_deep(): ...\n"
        ),
    )
    durations = pytester.path / "durations.json"
    times = {"tests": {"test_short.py::test_long": 30.0}, "fixtures": {"test_sharing.py::slow": 40.0}}
    durations.write_text(json.dumps(times))
    monkeypatch.setattr("sme2_assets_tests.tiers.DURATIONS", durations)
    return pytester


def chosen(suite: pytest.Pytester, *words: str) -> list[str]:
    """The tests in the order in which they run."""
    lines = suite.runpytest(*PLUGIN, "--collect-only", "-q", *words).outlines
    return [line for line in lines if "::" in line]


def test_quick_is_what_needs_and_takes_little_with_all_it_shares(suite: pytest.Pytester):
    assert set(chosen(suite, "-m", "quick")) == {"test_short.py::test_new", "test_sharing.py::test_beside"}


def test_only_what_is_marked_is_left_to_the_night(suite: pytest.Pytester):
    assert chosen(suite, "-m", "thorough") == ["test_sharing.py::test_deep"]
    assert len(chosen(suite, "-m", "not thorough")) == len(chosen(suite)) - 1


def test_what_takes_longest_begins(suite: pytest.Pytester):
    assert chosen(suite)[:2] == ["test_sharing.py::test_sharer", "test_short.py::test_long"]


def test_each_test_is_in_one_fifth_and_a_file_is_not_torn_apart(pytester: pytest.Pytester):
    files = {f"test_{number}": "def test_a(): ...\n\ndef test_b(): ...\n" for number in range(12)}
    pytester.makepyfile(**files)
    commits = [f"{number:040x}" for number in range(FIFTHS)]
    parts = [chosen(pytester, "--fifth", commit) for commit in commits]
    every = [f"{name}.py::test_{test}" for name in files for test in "ab"]
    assert sorted(chain.from_iterable(parts)) == sorted(every)
    assert all(len(part) in (4, 6) for part in parts)


def test_recorded_times_are_of_tests_and_of_what_they_share(suite: pytest.Pytester):
    suite.makepyfile(
        test_timed=(
            "import pytest, time\n\n@pytest.fixture(scope='session')\ndef made():\n    time.sleep(0.7)\n\n"
            "def test_one(made): ...\n\ndef test_two(made):\n    time.sleep(0.7)\n"
        )
    )
    suite.runpytest(*PLUGIN, "--record-durations").assert_outcomes(passed=8)
    noted = json.loads((suite.path / "durations.json").read_text())
    assert set(noted["tests"]) == {"test_timed.py::test_two"}
    assert set(noted["fixtures"]) == {"test_timed.py::made"}
