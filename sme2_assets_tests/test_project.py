"""The files around the code agree with it: changelog, workflow, hooks, lanes of tests."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from sme2_assets.store import CHECKOUT
from sme2_assets_tests.conftest import LONGEST_FIRST
from sme2_assets_tests.lanes import SHARING, SLOW, TESTS

PROJECT = dict(re.findall(r'^([a-z-]+) = "(.*)"$', (CHECKOUT / "pyproject.toml").read_text(), re.MULTILINE))
WORKFLOW = CHECKOUT / ".github" / "workflows" / "ci.yml"


@pytest.fixture(scope="module")
def workflow() -> dict[Any, Any]:
    return yaml.safe_load(WORKFLOW.read_text())


def steps(workflow: dict[Any, Any]) -> list[dict[str, Any]]:
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


def test_the_changelog_has_this_version_and_a_place_for_the_next():
    headings = re.findall(r"^## (.+)$", (CHECKOUT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] == "Unreleased"
    assert re.fullmatch(rf"{re.escape(PROJECT['version'])} \(\d{{4}}-\d\d-\d\d\)", headings[1])


def test_the_workflow_checks_every_python_that_is_promised(workflow: dict[Any, Any]):
    oldest, beyond = re.findall(r"3\.(\d+)", PROJECT["requires-python"])
    promised = [f"3.{minor}" for minor in range(int(oldest), int(beyond))]
    assert workflow["jobs"]["check"]["strategy"]["matrix"]["python"] == promised


def test_the_workflow_tests_both_architectures_and_a_mac(workflow: dict[Any, Any]):
    tested = {entry["arch"] for entry in workflow["jobs"]["test"]["strategy"]["matrix"]["include"]}
    assert tested == {"x86_64", "aarch64"}
    checked = workflow["jobs"]["check"]["strategy"]["matrix"]
    assert any(entry["os"].startswith("macos-") for entry in checked["include"])


def test_the_workflow_may_only_read_and_never_hangs(workflow: dict[Any, Any]):
    assert workflow["permissions"] == {"contents": "read"}
    for name, job in workflow["jobs"].items():
        assert "permissions" not in job, name
        assert job["timeout-minutes"] <= 60, name
    for step in steps(workflow):
        if step.get("uses", "").startswith("actions/checkout@"):
            assert step["with"]["persist-credentials"] is False


def test_what_the_workflow_runs_is_there(workflow: dict[Any, Any]):
    commands = [step["run"] for step in steps(workflow) if "run" in step]
    assert ".ci/run" in commands
    script = (CHECKOUT / ".ci" / "run").read_text()
    made = re.findall(r"^make [a-z]+", "\n".join([*commands, script]), re.MULTILINE)
    assert {"make check", "make lint", "make test"} <= set(made)
    for command in made:
        rule = command.split()[1]
        assert re.search(rf"^{rule}:", (CHECKOUT / "Makefile").read_text(), re.MULTILINE), command


def test_the_hooks_mend_a_badly_written_file_without_a_network(tmp_path: Path):
    """A repository with the real configuration, and this environment as its `.venv`."""
    for name in (".pre-commit-config.yaml", "pyproject.toml"):
        (tmp_path / name).write_bytes((CHECKOUT / name).read_bytes())
    (tmp_path / ".venv").symlink_to(sys.prefix)
    bad = tmp_path / "bad.py"
    bad.write_text("import os\nx = [ 1,2 ]\n")

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        # The types of one file are those of the whole package, and `make lint` has looked at them.
        environment = {**os.environ, "SKIP": "mypy"}
        return subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, env=environment)

    run("git", "init", "--quiet")
    run("git", "add", "bad.py", *(path.name for path in tmp_path.glob(".pre*")))
    done = run(sys.executable, "-m", "pre_commit", "run", "--files", "bad.py")
    assert done.returncode == 1, "a file that had to be mended stops the commit"
    assert bad.read_text() == "x = [1, 2]\n", done.stdout + done.stderr
    assert "files were modified by this hook" in done.stdout


def test_a_test_is_in_the_lane_of_the_emulator_by_what_it_asks_for(pytester: pytest.Pytester):
    pytester.makeini("[pytest]\nmarkers = emulator: as in pyproject.toml")
    pytester.makeconftest(
        "import pytest\n\n@pytest.fixture\ndef emulator(): ...\n\n"
        "@pytest.fixture\ndef behind(emulator): ...\n"
    )
    pytester.makepyfile("def test_quick(tmp_path): ...\n\ndef test_emulated(behind): ...\n")
    plain = ("-p", "sme2_assets_tests.lanes", "-p", "no:hydra_pytest")
    pytester.runpytest(*plain, "-m", "not emulator").assert_outcomes(passed=1, deselected=1)


def test_who_runs_the_tests_that_run_alone_imports_no_other_file(pytester: pytest.Pytester):
    pytester.makeini("[pytest]\nmarkers = alone: as in pyproject.toml")
    pytester.makepyfile(
        test_alone="import pytest\n\n@pytest.mark.alone\ndef test_it(): ...\n\ndef test_other(): ...\n",
        test_together="raise ImportError",
    )
    plain = ("-p", "sme2_assets_tests.lanes", "-p", "no:hydra_pytest")
    pytester.runpytest(*plain, "-m", "alone").assert_outcomes(passed=1, deselected=1)


@pytest.mark.parametrize("name", sorted({*SLOW, *SHARING, *LONGEST_FIRST}))
def test_files_that_are_treated_apart_are_there(name: str):
    assert (TESTS / name).exists()


@pytest.mark.parametrize("room", ["sme2_assets", "benchmarks", "tools"])
def test_nothing_but_tests_imports_tests(room: str):
    importing = re.compile(rf"^\s*(?:from|import) {TESTS.name}\b|[\"']{TESTS.name}\.", re.MULTILINE)
    assert [path for path in (CHECKOUT / room).rglob("*.py") if importing.search(path.read_text())] == []


def _rooms() -> dict[str, int]:
    """The rooms of the package and the level of each, from the top, as the architecture page lists them."""
    page = (CHECKOUT / "docs/architecture.md").read_text()
    table = page.split("## The rooms of the code")[1].split("\n## ")[0]
    levels = [
        re.findall(r"`(\w+)(?:/|\.py)`", row) for row in re.findall(r"^\| (`.*?) \| ", table, re.MULTILINE)
    ]
    return {room: level for level, rooms in enumerate(levels) for room in rooms}


def test_every_room_is_on_the_architecture_page():
    package = CHECKOUT / "sme2_assets"
    there = {path.parent.name for path in package.glob("*/__init__.py")} | {
        path.stem for path in package.glob("*.py")
    }
    assert there - {"__init__"} == set(_rooms())


def test_no_import_climbs():
    package, levels = CHECKOUT / "sme2_assets", _rooms()
    climbing = []
    for path in package.rglob("*.py"):
        room = path.relative_to(package).parts[0].removesuffix(".py")
        for node in ast.walk(ast.parse(path.read_text())):
            modules = [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
            modules += [each.name for each in node.names] if isinstance(node, ast.Import) else []
            for module in modules:
                imported = module.split(".")[1:2] if module.startswith("sme2_assets.") else []
                climbing += [
                    f"{path.relative_to(package)}:{node.lineno} imports {module}"
                    for other in imported
                    if room != "__init__" and levels[other] < levels[room]
                ]
    assert climbing == []
