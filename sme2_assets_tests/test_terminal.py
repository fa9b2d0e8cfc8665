"""What a terminal is told: names from outside are shown, never obeyed."""

from __future__ import annotations

import io
import subprocess
import sys

import pytest
from rich.table import Table
from rich.text import Text

from sme2_assets.cli.support import Printer
from sme2_assets_tests.terminal import said_on_terminal

# Clears the screen, sets the title, rings, writes from right to left, answers as if typed.
HARMFUL = ["\x1b[2J", "\x1b]0;title\x07", "\x07", "\u202e", "\x1bP$q\x1b\\", "\x9b2J", "\r", "\x08"]


@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize("harm", HARMFUL, ids=ascii)
def test_no_control_character_of_a_name_reaches_the_terminal(harm: str, terminal: bool):
    written = io.StringIO()
    printer = Printer(file=written, force_terminal=terminal, width=60, color_system="truecolor")
    table = Table("name", box=None)
    table.add_row(Text(f"a{harm}b"))
    for what in (f"a{harm}b", Text(f"a{harm}b", "red"), table):
        printer.print(what, markup=False, highlight=False)
    plain = written.getvalue()
    for style in ("\x1b[31m", "\x1b[0m", "\x1b[1m"):
        plain = plain.replace(style, "")
    assert plain.replace("\n", "").isprintable(), ascii(plain)
    assert plain.count("a") >= 3


def test_what_is_printable_is_printed_as_it_is():
    written = io.StringIO()
    Printer(file=written, width=60).print("zwei Zeilen:\n  grösser → 1.5", markup=False)
    assert written.getvalue() == "zwei Zeilen:\n  grösser → 1.5\n"


SHOWS = """
import sys
from sme2_assets.cli import support
support._verbose = sys.argv[1] == "-v"
with support.progress_log() as log:
    for number in range(50):
        log(f"compiling file {number}")
        log.reached(number / 50)
"""


def lines_of(*words: str, terminal: bool) -> str:
    command = [sys.executable, "-c", SHOWS, *words]
    if not terminal:
        return subprocess.run(command, capture_output=True, text=True, check=True).stderr
    return said_on_terminal(command, 80, "xterm")


def test_progress_is_one_bar_on_a_terminal_and_lines_elsewhere_or_if_asked_for():
    lines = [f"compiling file {number}" for number in range(50)]
    assert lines_of("", terminal=False).splitlines() == lines
    bar = lines_of("", terminal=True)
    assert bar.count("\n") <= 2, "nothing scrolls"
    assert "%" in bar
    verbose = lines_of("-v", terminal=True)
    assert all(line in verbose for line in lines)
