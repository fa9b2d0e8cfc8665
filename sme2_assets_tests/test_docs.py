"""The documents say what is true: commands run, links lead somewhere, flags exist."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from sme2_assets.cli import main
from sme2_assets.defs.assets.guide import GUIDES
from sme2_assets.runner.build import RunnerBinary
from sme2_assets.store import CHECKOUT, anchor_of
from sme2_assets_tests.skills import (
    AGENTS,
    SECTIONS,
    SKILLS,
    Skill,
    bash_commands,
    elsewhere_commands,
    is_a_text_of,
    make_desk,
    shown_commands,
    texts_of_the_code,
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


def test_the_menu_of_the_web_site_follows_the_index():
    """Sections and pages of docs/README.md in its order, under the names it gives them."""
    menu = yaml.load((CHECKOUT / "mkdocs.yml").read_text(), Loader=yaml.BaseLoader)["nav"]
    sections = {name: entries for part in menu for name, entries in part.items() if isinstance(entries, list)}
    index = (DOCS / "README.md").read_text()
    told: dict[str, list[tuple[str, str]]] = {}
    for part in re.split(r"^## ", index, flags=re.MULTILINE)[1:]:
        pages = [
            (name, (DOCS / path).resolve()) for name, path in re.findall(r"\[([^]]+)\]\(([^)]+)\)", part)
        ]
        told[part.splitlines()[0]] = [(name, str(path.relative_to(CHECKOUT))) for name, path in pages]
    # The playbooks have a section to themselves, with all of them.
    told["By task"].remove(("Playbooks", "AGENTS.md"))
    for section, pages in told.items():
        assert [*pairs(sections[section])] == pages
    assert [path for _, path in pairs(sections["Playbooks"])] == [
        str(page.relative_to(CHECKOUT)) for page in (AGENTS, *(skill.page for skill in SKILLS))
    ]


def pairs(entries: list[dict[str, str]]) -> Iterator[tuple[str, str]]:
    for entry in entries:
        yield from entry.items()


def test_pictures_are_small_and_shown():
    shown = {target for page in PAGES for target in links(page)}
    for picture in (DOCS / "images").iterdir():
        assert picture in shown, f"{picture.name} is in no page"
        assert picture.stat().st_size < 150_000, picture.name


def test_the_first_page_stays_short():
    assert len((CHECKOUT / "README.md").read_text().splitlines()) < 120


@pytest.mark.parametrize(
    "target",
    [
        *RUN_BY,
        *(
            f"make {name}"
            for name in ("setup", "emulator", "format", "trust", "constraints", "resolve", "clean")
        ),
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


def ids(skill: Skill) -> str:
    return skill.name


def test_there_are_eight_playbooks_in_a_chain():
    assert [skill.name[:2] for skill in SKILLS] == [f"{number:02}" for number in range(1, 9)]
    for skill, following in pairwise(SKILLS):
        assert f"](../{following.name}/SKILL.md)" in skill.sections["Next"]


@pytest.mark.parametrize("skill", SKILLS, ids=ids)
def test_a_playbook_is_found_by_its_front_matter(skill: Skill):
    matter = skill.front_matter
    assert list(matter) == ["name", "description"]
    # As the public format of agent skills has them.
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", matter["name"])
    assert matter["name"] == skill.name
    assert 100 <= len(matter["description"]) <= 1024
    assert " Use it " in matter["description"], "it does not say when to use it"
    assert yaml.safe_load(skill.text.split("---\n")[1]) == matter, "YAML reads something else"


@pytest.mark.parametrize("skill", SKILLS, ids=ids)
def test_a_playbook_has_all_its_parts_in_order(skill: Skill):
    assert tuple(skill.sections) == SECTIONS
    for part in ("Prerequisites", "Steps", "Verify"):
        assert "```bash\n" in skill.sections[part], f"{part} has no command"
    assert "Pass: " in skill.sections["Prerequisites"]
    assert "exit" in skill.sections["Verify"], "pass and fail are not told by exit codes"
    assert skill.expected_lines
    assert len(skill.failures) >= 5
    assert all(len(row) == 3 for row in skill.failures)
    assert skill.times


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(CHECKOUT)))
def test_commands_that_cannot_run_here_say_where_they_can(page: Path):
    marked = re.findall(r"^Elsewhere, .+:\n\n```bash elsewhere\n", page.read_text(), re.MULTILINE)
    assert len(marked) == page.read_text().count("```bash elsewhere\n")


@pytest.fixture(scope="module")
def texts() -> list[str]:
    return texts_of_the_code()


@pytest.mark.parametrize("skill", SKILLS, ids=ids)
def test_every_message_of_a_failure_table_is_one_of_the_code(skill: Skill, texts: list[str]):
    for message, _, _ in skill.failures:
        assert re.fullmatch(r"`[^`]+`", message), message
        assert is_a_text_of(message.strip("`"), texts), message


def test_every_message_of_troubleshooting_is_one_of_the_code(texts: list[str]):
    page = (DOCS / "troubleshooting.md").read_text()
    messages = re.findall(r"^\| `([^`]+)` \|", page, re.MULTILINE)
    assert len(messages) > 40
    assert [message for message in messages if not is_a_text_of(message, texts)] == []


def test_a_message_that_nothing_prints_is_found(texts: list[str]):
    assert not is_a_text_of("There is no such message ... anywhere.", texts)
    assert not is_a_text_of("No QEMU >= 9.1 was found.", texts)


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


def print_counts() -> None:
    """How many commands each page has, how many of them a test runs, and what becomes of the others."""
    by_hand = {command for command, where in RUN_BY.items() if "by hand" in where}
    print(f"{'page':42}{'commands':>9}{'run by a test':>14}{'by hand':>8}{'elsewhere':>10}{'only shown':>11}")
    table: dict[str, list[int]] = {}
    for page in PAGES:
        told = bash_commands(page)
        kinds = [
            [command for command in told if command not in by_hand],
            [command for command in told if command in by_hand],
            elsewhere_commands(page),
            shown_commands(page),
        ]
        table[str(page.relative_to(CHECKOUT))] = [len(kind) for kind in kinds]
    table["all"] = [sum(column) for column in zip(*table.values(), strict=True)]
    for name, counts in table.items():
        run, hand, elsewhere, shown = counts
        if sum(counts):
            print(f"{name:42}{sum(counts):9}{run:14}{hand:8}{elsewhere:10}{shown:11}")
    print(
        f"{len({command for page in PAGES for command in bash_commands(page)} - by_hand)} different ones run."
    )


if __name__ == "__main__":
    print_counts()
