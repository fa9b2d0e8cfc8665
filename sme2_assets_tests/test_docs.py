"""The documents say what is true: commands run, links lead somewhere, flags exist."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from sme2_assets.runner.build import RunnerBinary
from sme2_assets.store import CHECKOUT

PAGES = [CHECKOUT / "README.md", CHECKOUT / "data" / "README.md", *sorted((CHECKOUT / "docs").glob("*.md"))]
# Commands that a test runs for real, and where.
RUN_BY = {
    "make demo": "e2e/test_documented_commands.py",
    "make dev": "e2e/test_ui.py",
    "make test": "the run that executes this test",
    "make lint": ".ci/run",
    "make bench": "test_make_targets_exist, and by hand: benchmarks assert nothing",
}

# Pages whose commands build on one another: a test runs them in their order.
RUN_IN_ORDER = {CHECKOUT / "docs" / "models.md": "test_onboarding.py"}


def bash_commands(page: Path) -> list[str]:
    """Every command of the page's bash blocks, without its comment."""
    blocks = re.findall(r"^```bash\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    lines = [line.split("  #")[0].strip() for block in blocks for line in block.splitlines()]
    return [line for line in lines if line]


def documented_sme2_commands() -> list[str]:
    commands = {command for page in PAGES if page not in RUN_IN_ORDER for command in bash_commands(page)}
    return sorted(command for command in commands if command.startswith(".venv/bin/sme2 "))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(CHECKOUT)))
def test_every_documented_command_is_run_by_a_test(page: Path):
    for command in bash_commands(page):
        run = command in RUN_BY or command in documented_sme2_commands() or page in RUN_IN_ORDER
        assert run, command


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(CHECKOUT)))
def test_every_link_leads_somewhere(page: Path):
    for link in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
        if not link.startswith("http"):
            assert (page.parent / link).exists(), link


@pytest.mark.parametrize(
    "target", [*RUN_BY, *(f"make {name}" for name in ("setup", "emulator", "format", "trust", "clean"))]
)
def test_make_targets_exist(target: str):
    done = subprocess.run(
        [*shlex.split(target), "--dry-run", f"VENV={sys.prefix}"],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_the_runner_page_lists_every_flag_and_exit_code(runner_binary: RunnerBinary):
    page = (CHECKOUT / "docs" / "runner.md").read_text()
    usage = subprocess.run([runner_binary.path, "--help"], capture_output=True, text=True, check=True).stdout
    assert set(re.findall(r"--[a-z]+", usage)) <= set(re.findall(r"--[a-z]+", page))
    from sme2_assets.runner.result import EXIT_MEANINGS

    listed = {int(code) for code in re.findall(r"^\| (\d+) \|", page, re.MULTILINE)}
    assert listed == {0, *(code for code in EXIT_MEANINGS if code < 126)}
