"""The files around the code agree with it: changelog, workflows, hooks."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from sme2_assets.store import CHECKOUT

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


@pytest.mark.parametrize("file", [WORKFLOW, CHECKOUT / "action.yml"], ids=lambda file: file.name)
def test_actions_of_others_are_pinned_to_commits(file: Path):
    used = re.findall(r"uses: (\S+)(.*)", file.read_text())
    assert used
    for action, comment in used:
        assert action == "./" or re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", action + comment)


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
