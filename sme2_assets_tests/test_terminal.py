"""What a terminal is told: names from outside are shown, never obeyed."""

from __future__ import annotations

import io

import pytest
from rich.table import Table
from rich.text import Text

from sme2_assets.cli.support import Printer

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
