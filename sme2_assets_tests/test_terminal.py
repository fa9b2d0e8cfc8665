"""What a terminal is told: names from outside are shown, never obeyed."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from rich.console import Console
from rich.table import Table
from rich.text import Text

from sme2_assets.cli import support
from sme2_assets.cli.support import Printer
from sme2_assets.report.answer import session_answer
from sme2_assets.report.explain import explain
from sme2_assets.report.insights import show_explanation
from sme2_assets.report.tables import TextTable
from sme2_assets.report.terminal import print_table, show_rows
from sme2_assets.warehouse import Warehouse
from sme2_assets_tests.terminal import said_on_terminal
from sme2_assets_tests.warehouse.made_operators import Op, OperatorRun, write_runs

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
        printer.print(what, highlight=False)
    plain = written.getvalue()
    for style in ("\x1b[31m", "\x1b[0m", "\x1b[1m"):
        plain = plain.replace(style, "")
    assert plain.replace("\n", "").isprintable(), ascii(plain)
    assert plain.count("a") >= 3


def test_what_is_printable_is_printed_as_it_is():
    written = io.StringIO()
    Printer(file=written, width=60).print("zwei Zeilen:\n  grösser → 1.5")
    assert written.getvalue() == "zwei Zeilen:\n  grösser → 1.5\n"


# Names that Rich would colour, drop, or refuse.
BRACKETED = [
    "native_call_[bold red]x[/bold red].out",
    "native_call_y[/].out",
    "a[red]b",
    "[link=http://x]z[/]",
]


@pytest.mark.parametrize("name", BRACKETED)
def test_brackets_in_a_name_are_no_markup(name: str, monkeypatch: pytest.MonkeyPatch):
    written = io.StringIO()
    plain = Console(file=written, width=200)
    print_table(plain, TextTable.of([name], [[name]]))
    show_rows(plain, pd.DataFrame({name: [name]}))
    assert written.getvalue().count(name) == 4
    table = Table(name, title=name, box=None)
    table.add_row(name)
    printer = Printer(file=(written := io.StringIO()), width=200)
    for what in (name, table):
        printer.print(what, highlight=False)
    assert written.getvalue().count(name) == 4
    on_terminal = Printer(file=(written := io.StringIO()), width=200, force_terminal=True, color_system=None)
    monkeypatch.setattr(support, "progress", on_terminal)
    with support.status_line(name) as show:
        show(f"then {name}")
    assert f"then {name}" in written.getvalue()


def test_a_model_with_brackets_in_its_names_is_shown_as_it_is(tmp_path: Path):
    warehouse = Warehouse(tmp_path / "warehouse")
    ops = [Op(name, 500, None) for name in BRACKETED[:2]]
    write_runs(warehouse, OperatorRun(ops, "off"))
    warehouse.publish()
    [session_id] = warehouse.query("SELECT DISTINCT session_id FROM runs")["session_id"]
    explanation = explain(warehouse, session_id)
    out = Console(file=(written := io.StringIO()), width=300)
    show_explanation(out, explanation, session_answer(warehouse, explanation), everything=True)
    assert all(name.removeprefix("native_call_") in written.getvalue() for name in BRACKETED[:2])


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
