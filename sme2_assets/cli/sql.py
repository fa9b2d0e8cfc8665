"""`sme2 sql`: questions to the warehouse, once or in a shell.

Belongs here: options, the shell, and how rows are printed. What a query may do is warehouse/console.py's.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.markup import escape
from rich.table import Table

from sme2_assets.cli.support import Printer, json_option, out, progress, tell
from sme2_assets.errors import Sme2Error, WarehouseError
from sme2_assets.store import Store, write_text_atomically

if TYPE_CHECKING:
    from sme2_assets.warehouse import Warehouse
    from sme2_assets.warehouse.console import Answer, Console, Limits

FORMATS = ("table", "csv", "json", "parquet")
ROWS_SHOWN = 1000
# Wider than any table.
WHOLE = 100_000
HELP = """\
A query ends with a semicolon and may take several lines. Ctrl-C stops it, Ctrl-D leaves.
  .tables        tables and views, and what they hold
  .schema NAME   the columns of one, and what they mean
  .help          this
  .quit          leave
docs/warehouse.md has twenty questions with their queries."""


@click.command()
@click.argument("query", required=False)
@click.option(
    "-f",
    "--file",
    "file",
    type=click.File(encoding="utf-8"),
    help="Take the query from this file; - is standard input.",
)
@click.option(
    "--format",
    "file_format",
    type=click.Choice(FORMATS),
    help="How to write the rows. Default: by the name of --output, otherwise a table.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the rows to this file, whole or not at all.",
)
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    help=f"Rows that a table shows (default: {ROWS_SHOWN}). Other formats have all rows.",
)
@click.option("--timeout", type=click.FloatRange(min=0.1), default=60.0, show_default=True, help="Seconds.")
@click.option("--memory", default="2GB", show_default=True, help="Memory a query may use, e.g. 500MB.")
@json_option
@click.pass_obj
def sql(
    store: Store,
    query: str | None,
    file: Any,
    file_format: str | None,
    output: Path | None,
    limit: int | None,
    timeout: float,
    memory: str,
    as_json: bool,
) -> None:
    """Query the warehouse in SQL: QUERY, a file, standard input, or a shell if none is given.

    Reads only, and only the warehouse. E.g.: sme2 sql "SELECT * FROM sme2_comparison"
    """
    from sme2_assets.warehouse import Warehouse
    from sme2_assets.warehouse.console import Limits, open_console

    if query is not None and file is not None:
        raise click.UsageError("Give a query or a file, not both.")
    chosen = _chosen_format(file_format, output, as_json)
    if limit is not None and chosen != "table":
        raise click.UsageError(f"--limit is for tables; say LIMIT {limit} in the query.")
    warehouse, limits = Warehouse(store.warehouse), Limits(timeout, memory)
    if query is None and file is None and sys.stdin.isatty():
        if chosen != "table":
            raise click.UsageError("The shell shows tables; give a query for another format.")
        with open_console(warehouse, limits) as console:
            _shell(console, limit or ROWS_SHOWN)
        return
    text = query if query is not None else (file or sys.stdin).read()
    with _stopped_by_ctrl_c():
        if chosen in ("csv", "parquet"):
            _give_file(warehouse, limits, text, chosen, output)
            return
        with open_console(warehouse, limits) as console:
            if chosen == "json":
                _give_json(console, text, output)
                return
            for single in console.queries_in(text):
                show_answer(console.ask(single, limit or ROWS_SHOWN))


def show_answer(answer: Answer) -> None:
    """Rows as a table, and how many they are."""
    table = Table(*map(escape, answer.columns))
    for row in answer.rows:
        table.add_row(*(escape(_cell(value)) for value in row))
    # A pipe or a file has no width: what is wide stays whole there.
    printer = out if out.is_terminal else Printer(width=WHOLE)
    measured = table.__rich_measure__(printer, printer.options).maximum
    printer.print(table, width=None if out.is_terminal else measured)
    count = f"{len(answer.rows)} row{'' if len(answer.rows) == 1 else 's'}"
    out.print(f"the first {count}; there are more (--limit)" if answer.more else count, style="dim")


def _chosen_format(file_format: str | None, output: Path | None, as_json: bool) -> str:
    if as_json:
        if file_format not in (None, "json"):
            raise click.UsageError(f"--json and --format {file_format} contradict each other.")
        return "json"
    if file_format is None and output is not None:
        file_format = output.suffix.lower().removeprefix(".")
        if file_format not in FORMATS:
            raise click.UsageError(f"The name {output} gives no format: add --format csv, json or parquet.")
    chosen = file_format or "table"
    if chosen == "parquet" and output is None:
        raise click.UsageError("Parquet is not text: name a file with --output.")
    if chosen == "table" and output is not None:
        raise click.UsageError("A table is for reading: write csv, json or parquet to a file.")
    return chosen


def _give_file(warehouse: Warehouse, limits: Limits, text: str, chosen: str, output: Path | None) -> None:
    """CSV and Parquet by DuckDB itself, in a folder beside the file, and renamed when it is whole."""
    from sme2_assets.warehouse.console import open_console

    folder = output.absolute().parent if output else None
    if folder is not None and not folder.is_dir():
        raise Sme2Error(f"There is no folder {folder}.", "Make it, or write elsewhere.")
    with (
        tempfile.TemporaryDirectory(prefix=".sme2-sql-", dir=folder) as staging,
        open_console(warehouse, limits, writable=Path(staging)) as console,
    ):
        staged = Path(staging) / f"rows.{chosen}"
        console.write(text, staged, "csv" if chosen == "csv" else "parquet")
        if output is not None:
            staged.replace(output)
            tell(f"written: {output}")
            return
        with staged.open("rb") as rows:
            shutil.copyfileobj(rows, sys.stdout.buffer)


def _give_json(console: Console, text: str, output: Path | None) -> None:
    made = json.dumps(console.ask(text).records(), indent=2, allow_nan=False)
    if output is None:
        click.echo(made)
        return
    if not output.absolute().parent.is_dir():
        raise Sme2Error(f"There is no folder {output.absolute().parent}.", "Make it, or write elsewhere.")
    write_text_atomically(output, made + "\n")
    tell(f"written: {output}")


def _cell(value: Any) -> str:
    """A value to be read at a glance; files and JSON have all digits."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, datetime):
        return value.isoformat(sep=" ", timespec="seconds")
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_cell, value))
    return str(value)


def _number(value: float) -> str:
    if not math.isfinite(value) or (value != 0 and not 1e-3 <= abs(value) < 1e15):
        return f"{value:.3g}"
    return f"{value:.4f}".rstrip("0").rstrip(".")


@contextmanager
def _stopped_by_ctrl_c() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        progress.print("stopped", style="bold red")
        sys.exit(130)


def _shell(console: Console, rows_shown: int) -> None:
    """Reads queries until the end. What goes wrong ends a query, never the shell."""
    history = _load_history()
    out.print("The warehouse, read-only. .help shows what you can type, .tables what is there.", style="dim")
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
            if not typed and line.strip().startswith("."):
                if _leaves(console, line):
                    return
                continue
            if typed or line.strip():
                typed.append(line)
            text = "\n".join(typed)
            if is_complete(text):
                typed = []
                _tell(partial(_answer, console, text, rows_shown))
    finally:
        history()


def is_complete(text: str) -> bool:
    """Whether a typed text ends with the semicolon of a query: not one in quotes, nor in a comment."""
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


def _answer(console: Console, text: str, rows_shown: int) -> None:
    started = time.monotonic()
    for query in console.queries_in(text):
        show_answer(console.ask(query, rows_shown))
    out.print(f"{time.monotonic() - started:.2f} s", style="dim", highlight=False)


def _leaves(console: Console, line: str) -> bool:
    """Does what a line with a dot says; whether that is to leave."""
    command, *words = line.strip().rstrip(";").split()
    if command in (".quit", ".exit", ".q"):
        return True
    if command == ".tables":
        _tell(lambda: show_answer(console.relations()))
    elif command == ".schema" and len(words) == 1:
        _tell(lambda: show_answer(console.schema(words[0])))
    elif command == ".schema":
        _complain("Name one table or view, e.g. .schema runs")
    elif command == ".help":
        click.echo(HELP)
    else:
        _complain(f"{command} is not known here; .help shows what is.")
    return False


def _tell(work: Callable[[], None]) -> None:
    try:
        work()
    except KeyboardInterrupt:
        _complain("stopped")
    except WarehouseError as error:
        _complain(str(error))


def _complain(text: str) -> None:
    tell(text, "bold red")


def _load_history() -> Callable[[], None]:
    """Gives arrow keys the lines of earlier shells; the result saves those of this one."""
    try:
        import readline
    except ImportError:
        return lambda: None
    state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    path = state / "sme2" / "sql_history"
    # A history that cannot be read or kept is no reason to answer nothing.
    with suppress(OSError):
        readline.read_history_file(path)

    def save() -> None:
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            readline.set_history_length(1000)
            readline.write_history_file(path)

    return save
