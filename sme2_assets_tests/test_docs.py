"""The documents say what is true: commands run, links lead somewhere, flags exist."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from sme2_assets.cli import main
from sme2_assets.defs.assets.guide import GUIDES
from sme2_assets.runner.build import RunnerBinary
from sme2_assets.store import CHECKOUT, anchor_of
from sme2_assets_tests.skills import (
    AGENTS,
    SKILLS,
    Skill,
    bash_commands,
    elsewhere_commands,
    make_desk,
    typed,
)

DOCS = CHECKOUT / "docs"
PAGES = [
    *(CHECKOUT / "README.md", AGENTS, CHECKOUT / "data" / "README.md"),
    *(CHECKOUT / name for name in ("CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")),
    *sorted((CHECKOUT / "docs").glob("*.md")),
    *(skill.page for skill in SKILLS),
]
# Commands that a test runs for real, and where.
RUN_BY = {
    "make demo": "e2e/test_documented_commands.py",
    "make dev": "e2e/test_ui.py",
    "make test": "the run that executes this test",
    "make lint": ".ci/run",
    "make test-all": "the workflow, each night",
    "make check": "the workflow; its parts are make lint and some of make test",
    "make docs": "test_the_web_site_has_every_document_and_finds_it",
    "make bench": "test_make_targets_exist, and by hand: benchmarks assert nothing",
    "make models": "test_make_targets_exist, and by hand: it takes more than an hour",
}

# Pages whose commands build on one another: a test runs them in their order.
RUN_IN_ORDER = {
    CHECKOUT / "docs" / "models.md": "diagnostics/test_model.py",
    CHECKOUT / "docs" / "warehouse.md": "warehouse/test_docs.py",
    CHECKOUT / "docs" / "exchange.md": "exchange/test_documented_commands.py",
    **{CHECKOUT / "docs" / f"{name}.md": "gate/test_gate.py" for name in ("advise", "gate")},
    **{skill.page: "e2e/test_documented_commands.py" for skill in SKILLS},
}


def documented_sme2_commands() -> list[str]:
    """What e2e/test_documented_commands.py runs: profiles first, since others ask for what they measured."""
    told = {command for page in PAGES if page not in RUN_IN_ORDER for command in bash_commands(page)}
    ours = {command for command in told if command.startswith(".venv/bin/sme2 ")}
    return sorted(
        ours - commands_of_pages_in_order(), key=lambda command: (" profile " not in command, command)
    )


def commands_of_pages_in_order() -> set[str]:
    pages = [page for page in RUN_IN_ORDER if page.parent == DOCS]
    return {command for page in pages for command in bash_commands(page)}


def links(page: Path) -> list[Path]:
    """Every file of the checkout that the page leads to."""
    prose = re.sub(r"^```.*?^```|`[^`\n]*`", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    found = re.findall(r"\]\(([^)#\s]+)[^)]*\)", prose)
    return [(page.parent / path).resolve() for path in found if not path.startswith(("http:", "https:"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(CHECKOUT)))
def test_every_documented_command_is_run_by_a_test(page: Path):
    for command in bash_commands(page):
        others = {*RUN_BY, *documented_sme2_commands(), *commands_of_pages_in_order()}
        assert page in RUN_IN_ORDER or command in others, command


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(CHECKOUT)))
def test_every_link_leads_somewhere(page: Path):
    for target in links(page):
        assert target.exists(), target


def test_every_document_can_be_reached_from_the_index():
    waiting = [DOCS / "README.md"]
    reached = set(waiting)
    while waiting:
        found = {target for target in links(waiting.pop()) if target.suffix == ".md"} - reached
        reached |= found
        waiting.extend(found)
    assert set(PAGES) <= reached


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `make docs` makes; --strict fails on a link, an anchor or a menu entry that leads nowhere."""
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder],
        cwd=CHECKOUT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def address(page: Path) -> str:
    """Where the site has a document: under the path of its file, to which assets link (guide.py)."""
    path = page.relative_to(CHECKOUT)
    return (path.with_name("index.html") if path.name == "README.md" else path / "index.html").as_posix()


def test_the_web_site_has_every_document_and_finds_it(site: Path):
    made = {str(path.relative_to(site)) for path in site.rglob("*.html")}
    assert made == {"404.html", *map(address, PAGES)}
    entries = json.loads((site / "search" / "search_index.json").read_text())["docs"]
    assert {entry["location"].partition("#")[0] for entry in entries} == set(map(address, PAGES))


def test_the_web_site_leads_from_one_page_to_the_next(site: Path):
    """What the theme adds too, and where assets say to read on (guide.py)."""
    made = {path: path.read_text() for path in site.rglob("index.html")}
    for page, text in made.items():
        for path, anchor in re.findall(r' (?:href|src)="(?![a-z]+:)([^"#]*)#?([^"]*)"', text):
            target = (page.parent / path).resolve() if path else page
            assert target.is_file(), f"{page} leads to {path}"
            assert not anchor or f' id="{anchor}"' in made[target], f"{page} leads to {path}#{anchor}"
    for guide in GUIDES.values():
        page = site / guide.page / "index.html"
        assert f' id="{anchor_of(guide.section)}"' in made[page], guide


def test_the_web_site_fetches_nothing(site: Path):
    for page in site.rglob("*.html"):
        assert not re.findall(
            r'<(?:script|img)[^>]* src="https?:|<link [^>]*stylesheet[^>]*https?:', page.read_text()
        )


@pytest.mark.parametrize(
    "target",
    [
        *RUN_BY,
        *(f"make {name}" for name in ("setup", "emulator", "format", "trust", "lock", "resolve", "clean")),
    ],
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
    from sme2_assets.runner.failures import EXIT_MEANINGS

    listed = {int(code) for code in re.findall(r"^\| (\d+) \|", page, re.MULTILINE)}
    assert listed == {0, *(code for code in EXIT_MEANINGS if code < 126)}


# Playbooks


@pytest.mark.parametrize("skill", SKILLS, ids=lambda skill: skill.name)
def test_a_playbook_is_found_by_its_front_matter(skill: Skill):
    """As the public format of agent skills has it."""
    matter = yaml.safe_load(skill.text.split("---\n")[1])
    assert matter["name"] == skill.name
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", skill.name)
    assert 0 < len(matter["description"]) <= 1024


@pytest.mark.parametrize(
    "page", [AGENTS, *(skill.page for skill in SKILLS)], ids=lambda page: page.parent.name
)
def test_every_command_that_is_named_exists_with_its_options(page: Path):
    told = re.findall(r"`((?:\.venv/bin/)?sme2 [^`]+)`", page.read_text())
    for text in [*told, *bash_commands(page), *elsewhere_commands(page)]:
        for words in re.findall(r"(?<![\w_])sme2 ((?:--data \S+ )?[a-z].*)", text):
            assert_command_exists(words)


def assert_command_exists(words: str) -> None:
    name, *rest = re.sub(r"^--data \S+ ", "", words).split()
    command = main.commands.get(name)
    assert command, words
    if hasattr(command, "commands"):
        command = command.commands[rest[0]]
    options = {option for parameter in command.params for option in parameter.opts} | {"--help"}
    given = re.findall(r"(?<= )--[a-z0-9-]+", " " + " ".join(rest))
    assert set(given) <= options, words


def test_the_page_for_assistants_has_every_playbook_with_its_times():
    rows = re.findall(r"^\| \[(.+)\]\((.+)\) \| .+ \| (.+) \| (.+) \|$", AGENTS.read_text(), re.MULTILINE)
    assert [row[0] for row in rows] == [skill.name for skill in SKILLS]
    for (_, link, *times), skill in zip(rows, SKILLS, strict=True):
        assert CHECKOUT / link == skill.page
        assert tuple(times) == skill.times


def test_a_desk_for_playbooks_installs_nothing_into_the_environment_it_borrows(tmp_path: Path):
    (tmp_path / "data").mkdir()
    desk = make_desk(tmp_path / "desk", tmp_path / "data")
    assert typed(desk, "make --question setup").returncode == 0
    # Even where make finds something out of date, pip only says what it would do.
    assert typed(desk, "echo $PIP_DRY_RUN").stdout == "1\n"
    assert not (desk / "pyproject.toml").is_symlink()
