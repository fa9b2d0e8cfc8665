"""The playbooks of `skills/`: what must be in one, its commands, a folder to run them in, how long they take.

Belongs here: reading playbooks and running their commands as a person types them. Does not: what is asserted
about them (test_docs.py, e2e/test_documented_commands.py).

As a program, `python -m sme2_assets_tests.skills`, it runs all of them twice, beginning with an empty data
folder, and writes the times into the playbooks and AGENTS.md.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sme2_assets.store import CHECKOUT, DAGSTER_YAML
from sme2_assets.targets.host import host_facts

AGENTS = CHECKOUT / "AGENTS.md"
_MEASURED = re.compile(r"^Measured: (.+) the first time, (.+) again \((.+)\)\.$", re.MULTILINE)
# What decides whether the environment is up to date.
_OF_THE_SET_UP = ("pyproject.toml", "uv.lock")
# What a second walk through the playbooks would find in its way, because nothing is overwritten.
_MADE_BY_HAND = ("data/first.yaml", "data/models/my_net.py")


@dataclass(frozen=True)
class Skill:
    """One playbook."""

    page: Path

    @property
    def name(self) -> str:
        return self.page.parent.name

    @property
    def text(self) -> str:
        return self.page.read_text()

    @property
    def sections(self) -> dict[str, str]:
        """The text below each heading of the second level, in order."""
        parts = re.split(r"^## (.+)\n", self.text, flags=re.MULTILINE)
        return dict(zip(parts[1::2], parts[2::2], strict=True))

    @property
    def commands(self) -> list[str]:
        return bash_commands(self.page)

    @property
    def expected_lines(self) -> list[str]:
        blocks = re.findall(
            r"^```text\n(.*?)^```", self.sections["Expected output"], re.MULTILINE | re.DOTALL
        )
        return [line for block in blocks for line in block.splitlines() if line.strip(" .")]

    @property
    def times(self) -> tuple[str, str]:
        """What the page says: the first time, and again."""
        found = _MEASURED.search(self.sections["Time"])
        assert found, f"{self.page} says no measured time"
        return found[1], found[2]


SKILLS = [Skill(page) for page in sorted((CHECKOUT / "skills").glob("*/SKILL.md"))]


def bash_commands(page: Path) -> list[str]:
    """Every command of the page's bash blocks, without its comment."""
    return _commands_of(page, "bash")


def elsewhere_commands(page: Path) -> list[str]:
    """Commands that need what is not here: a phone, an NDK, a Mac, a clone of ExecuTorch."""
    return _commands_of(page, "bash elsewhere")


def _commands_of(page: Path, kind: str) -> list[str]:
    blocks = re.findall(rf"^```{kind}\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    lines = [line.split("  #")[0].strip() for block in blocks for line in block.splitlines()]
    return [line for line in lines if line]


def printed_line(expected: str, output: str) -> bool:
    """Whether a line of a page is in `output`; `...` stands for anything, blanks for any blanks."""
    pieces = [re.escape(" ".join(piece.split())) for piece in expected.split("...")]
    wanted = re.compile(".*".join(pieces))
    return any(wanted.search(" ".join(line.split())) for line in output.splitlines())


# Running them


def make_desk(folder: Path, data: Path) -> Path:
    """A folder like a fresh checkout: this environment as `.venv`, `data` as its data folder."""
    folder.mkdir()
    for entry in CHECKOUT.iterdir():
        if not entry.name.startswith(".") and entry.name not in ("data", *_OF_THE_SET_UP):
            (folder / entry.name).symlink_to(entry)
    # Copies: if somebody edits the real ones meanwhile, `make setup` must not install this folder into the
    # environment, which is not ours alone.
    for name in _OF_THE_SET_UP:
        shutil.copyfile(CHECKOUT / name, folder / name)
    (folder / ".venv").mkdir()
    for entry in Path(sys.prefix).iterdir():
        if not entry.name.startswith(".ready"):
            (folder / ".venv" / entry.name).symlink_to(entry)
    # Stands for the environment that `make setup` makes; tests run in one.
    (folder / ".venv" / ".ready").touch()
    (folder / "data").symlink_to(data)
    return folder


def typed(desk: Path, command: str) -> subprocess.CompletedProcess[str]:
    """Runs a command as it is written, in the desk. Output and errors are one text."""
    data = (desk / "data").resolve()
    environment = {**os.environ, "SME2_DATA": str(data), "DAGSTER_HOME": str(data / "dagster_home")}
    # No command of a playbook may change the environment that runs it, whatever make thinks is out of date.
    environment["PIP_DRY_RUN"] = "1"
    return subprocess.run(
        ["bash", "-c", command],
        cwd=desk,
        env=environment | {"COLUMNS": "200"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


# Measuring them


def _walk(desk: Path) -> Iterator[tuple[Skill, float]]:
    for name in _MADE_BY_HAND:
        (desk / name).unlink(missing_ok=True)
    for skill in SKILLS:
        begun = time.monotonic()
        for command in skill.commands:
            done = typed(desk, command)
            print(f"{skill.name}: {time.monotonic() - begun:.0f} s: {command}", file=sys.stderr, flush=True)
            if done.returncode:
                raise SystemExit(f"{command}\n{done.stdout}")
        yield skill, time.monotonic() - begun


def measure(data: Path) -> dict[str, tuple[float, float]]:
    """Seconds of each playbook in an empty data folder, and in the folder that this leaves."""
    (data / "dagster_home").mkdir(parents=True)
    shutil.copy(DAGSTER_YAML, data / "dagster_home")
    desk = make_desk(data.parent / "desk", data)
    first = {skill.name: seconds for skill, seconds in _walk(desk)}
    again = {skill.name: seconds for skill, seconds in _walk(desk)}
    return {name: (first[name], again[name]) for name in first}


def shown_time(seconds: float) -> str:
    return f"{max(seconds, 1):.0f} s" if seconds < 100 else f"{seconds / 60:.1f} min"


def write_times(measured: dict[str, tuple[float, float]], machine: str) -> None:
    """Into each playbook, and into the table of AGENTS.md."""
    table = AGENTS.read_text()
    for skill in SKILLS:
        first, again = map(shown_time, measured[skill.name])
        line = f"Measured: {first} the first time, {again} again ({machine})."
        skill.page.write_text(_MEASURED.sub(line, skill.text))
        table = re.sub(
            rf"^(\| \[{skill.name}\].*) \| [^|]+ \| [^|]+ \|$",
            rf"\1 | {first} | {again} |",
            table,
            flags=re.MULTILINE,
        )
    AGENTS.write_text(table)


def machine_text() -> str:
    facts = host_facts()
    busy = ", busy with other work" if os.getloadavg()[1] > facts.cores / 2 else ""
    return f"{facts.os}, {facts.cpu}, {facts.cores} cores{busy}"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="sme2-skills-") as folder:
        machine = machine_text()
        write_times(measure(Path(folder) / "data"), machine)
    for skill in SKILLS:
        print(skill.name, *skill.times)
