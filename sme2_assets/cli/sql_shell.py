"""The shell of `sme2 sql`: lines to queries, with history and completion."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sme2_assets.cli.sql_rows import show_answer
from sme2_assets.cli.support import out, tell
from sme2_assets.errors import WarehouseError

if TYPE_CHECKING:
    from sme2_assets.warehouse.console import Console

HELP = """\
A query ends with a semicolon and may take several lines. Ctrl-C stops it, Ctrl-D leaves.
Tab completes names of tables, views and columns; arrow keys bring earlier lines back.
  .tables        tables and views, and what they hold
  .schema NAME   the columns of one, and what they mean
  .records       show each row as a record, with one line per column; again: as a table
  help           this
  exit           leave
docs/questions.md has questions with their queries."""
COMMANDS = (".tables", ".schema", ".records", ".help", ".quit", "help", "exit", "quit")
LEAVE = ("exit", "quit", "q")
KEYWORDS = (
    *("SELECT", "FROM", "WHERE", "GROUP BY", "ORDER BY", "LIMIT", "JOIN", "LEFT JOIN", "USING", "HAVING"),
    *("DISTINCT", "DESCRIBE", "SUMMARIZE", "SHOW TABLES", "WITH", "UNION ALL", "BETWEEN", "DESC", "IS NULL"),
)


def run_shell(console: Console, rows_shown: int) -> None:
    """Reads queries until the input ends. An error ends the query, never the shell."""
    shell = Shell(console, rows_shown)
    save = _load_history(shell.complete)
    out.print("The warehouse, read-only. help shows what you can type, .tables what is there.", style="dim")
    typed: list[str] = []
    try:
        while True:
            try:
                line = input("  ...> " if typed else "sme2> ")
            except KeyboardInterrupt:
                typed = []
                click.echo()
                continue
            except EOFError:
                click.echo()
                return
            if not typed and (command := _command(line)):
                if command[0] in LEAVE:
                    return
                shell.obey(*command)
                continue
            if typed or line.strip():
                typed.append(line)
            text = "\n".join(typed)
            if is_complete(text):
                typed = []
                _tell(partial(shell.answer, text))
    finally:
        save()


def _command(line: str) -> list[str]:
    """The words of a line that is not SQL: `.tables`, or `help` and `exit` as people type them."""
    words = line.strip().rstrip(";").split()
    if not words or not (words[0].startswith(".") or line.strip().rstrip(";").lower() in COMMANDS):
        return []
    return [words[0].removeprefix(".").lower(), *words[1:]]


@dataclass
class Shell:
    """Carries out a line: a command or a query."""

    console: Console
    rows_shown: int
    records: bool = False

    def answer(self, text: str) -> None:
        started = time.monotonic()
        for query in self.console.queries_in(text):
            show_answer(
                self.console.ask(query, self.rows_shown),
                self.records,
                ".records shows them, or name the ones you want",
            )
        out.print(f"{time.monotonic() - started:.2f} s", style="dim", highlight=False)

    def obey(self, command: str, *words: str) -> None:
        if command == "tables":
            _tell(lambda: show_answer(self.console.relations()))
        elif command == "schema" and len(words) == 1:
            _tell(lambda: show_answer(self.console.schema(words[0])))
        elif command == "schema":
            _complain("Name one table or view, e.g. .schema runs")
        elif command == "records":
            self.records = not self.records
            click.echo("Rows are shown as records." if self.records else "Rows are shown as a table.")
        elif command == "help":
            click.echo(HELP)
        else:
            _complain(f".{command} is not a command; help shows them.")

    @cached_property
    def names(self) -> list[str]:
        """Tables, views and columns."""
        rows = self.console.ask(
            "SELECT DISTINCT unnest([table_name, column_name]) AS name FROM duckdb_columns() "
            "WHERE database_name = 'warehouse' AND schema_name = 'main' ORDER BY name"
        ).rows
        return [str(name) for [name] in rows]

    def complete(self, word: str, state: int) -> str | None:
        """For readline: the candidates for a word, one at a time."""
        with suppress(WarehouseError):
            found = completions(word, [*COMMANDS, *self.names])
            return found[state] if state < len(found) else None
        return None


def completions(word: str, names: list[str]) -> list[str]:
    """The names and keywords that begin with a word; a column after `runs.` keeps what is before it."""
    before, dot, last = word.rpartition(".")
    if dot and before:
        return [f"{before}.{name}" for name in names if name.startswith(last) and "." not in name]
    keywords = [name if word.isupper() else name.lower() for name in KEYWORDS] if word else []
    return [name for name in [*names, *keywords] if name.startswith(word)]


def is_complete(text: str) -> bool:
    """Whether the text ends with the semicolon of a query, not with one in quotes or in a comment."""
    quote, index = "", 0
    ended = False
    while index < len(text):
        rest, character = text[index:], text[index]
        if quote:
            quote = "" if character == quote else quote
        elif rest.startswith(("--", "/*")):
            end = rest.find("\n" if character == "-" else "*/")
            if end < 0:
                return ended and character == "-"
            index += end + (1 if character == "-" else 2)
            continue
        elif not character.isspace():
            quote = character if character in "'\"" else ""
            ended = character == ";"
        index += 1
    return ended and not quote


def _tell(work: Callable[[], None]) -> None:
    try:
        work()
    except KeyboardInterrupt:
        _complain("stopped")
    except WarehouseError as error:
        _complain(str(error))


def _complain(text: str) -> None:
    tell(text, "bold red")


def _load_history(complete: Callable[[str, int], str | None]) -> Callable[[], None]:
    """Sets up Tab, and arrow keys with the lines of earlier shells; the result saves those of this one."""
    try:
        import readline
    except ImportError:
        return lambda: None
    readline.set_completer(complete)
    # A dot is part of a name: of a command, or of a column after its table.
    readline.set_completer_delims(re.sub(r"\.", "", readline.get_completer_delims()) + ",()=<>")
    libedit = "libedit" in (readline.__doc__ or "")
    readline.parse_and_bind("bind ^I rl_complete" if libedit else "tab: complete")
    state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    path = state / "sme2" / "sql_history"
    # A history that cannot be read or saved must not stop the shell.
    with suppress(OSError):
        readline.read_history_file(path)

    def save() -> None:
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            readline.set_history_length(1000)
            readline.write_history_file(path)

    return save
