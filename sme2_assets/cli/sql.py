"""`sme2 sql`: queries of the warehouse, once or in a shell.

Belongs here: options, the shell, and how rows are printed. What a query may do is in warehouse/console.py.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

import click

from sme2_assets.cli.sql_rows import show_answer
from sme2_assets.cli.sql_shell import run_shell
from sme2_assets.cli.support import AtLeast, json_option, reads_store, tell
from sme2_assets.errors import Sme2Error, printable
from sme2_assets.store import Store

if TYPE_CHECKING:
    from sme2_assets.warehouse import Warehouse
    from sme2_assets.warehouse.console import FileFormat, Limits

Format: TypeAlias = Literal["table", "csv", "json", "parquet"]
FORMATS = ("table", "csv", "json", "parquet")
ROWS_SHOWN = 1000


@click.command()
@click.argument("query", required=False)
@click.option(
    "-f",
    "--file",
    "file",
    type=click.File(encoding="utf-8"),
    help="Read the query from this file; - is standard input.",
)
@click.option(
    "--format",
    "file_format",
    type=click.Choice(FORMATS),
    help="How to write the rows. Default: from the name of --output, otherwise a table.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the rows to this file, all of them or none.",
)
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    help=f"How many rows a table shows (default: {ROWS_SHOWN}). Other formats have all rows.",
)
@click.option("--records", is_flag=True, help="Show each row as a record, with one line per column.")
@click.option("--timeout", type=AtLeast(min=0.1), default=60.0, show_default=True, help="Seconds.")
@click.option("--memory", default="2GB", show_default=True, help="Memory a query may use, e.g. 500MB.")
@json_option
@reads_store
def sql(
    store: Store,
    query: str | None,
    file: Any,
    file_format: str | None,
    output: Path | None,
    limit: int | None,
    records: bool,
    timeout: float,
    memory: str,
    as_json: bool,
) -> None:
    """Query the warehouse in SQL: QUERY, a file, standard input, or a shell if none is given.

    It can only read, and only the warehouse. E.g.: sme2 sql "SELECT * FROM sme2_comparison"
    """
    from sme2_assets.warehouse import Warehouse
    from sme2_assets.warehouse.console import Limits, open_console

    if query is not None and file is not None:
        raise click.UsageError("Give a query or a file, not both.")
    chosen = _chosen_format(file_format, output, as_json)
    if limit is not None and chosen != "table":
        raise click.UsageError(f"--limit is for tables; say LIMIT {limit} in the query.")
    if records and chosen != "table":
        raise click.UsageError(f"--records is for reading; {chosen} has all columns.")
    warehouse, limits = Warehouse(store.warehouse), Limits(timeout, memory)
    if query is None and file is None and sys.stdin.isatty():
        if chosen != "table":
            raise click.UsageError("The shell shows tables; give a query for another format.")
        with open_console(warehouse, limits) as console:
            run_shell(console, limit or ROWS_SHOWN)
        return
    output = _output_file(output) if output else None
    text = _query_text(query, file or sys.stdin)
    if chosen != "table":
        _give_file(warehouse, limits, text, chosen, output)
        return
    with open_console(warehouse, limits) as console:
        for single in console.queries_in(text):
            show_answer(console.ask(single, limit or ROWS_SHOWN), records)


def _query_text(query: str | None, file: Any) -> str:
    try:
        text = query if query is not None else file.read()
        # What is no text in an argument or on standard input becomes characters that cannot be encoded.
        text.encode()
    except UnicodeError as error:
        raise Sme2Error(f"The query is not text in UTF-8: {error}.", "Write it in UTF-8.") from error
    return str(text)


def _output_file(output: Path) -> Path:
    """The file that is written or replaced: the one that a link points to, and never a device or a pipe."""
    # /dev/stdout leads to a file that the shell has opened: it would write on where nobody reads.
    is_device = output.absolute().is_relative_to("/dev")
    output = output if is_device else output.resolve()
    if is_device or (output.exists() and not output.is_file()):
        raise Sme2Error(
            f"{output} is not a regular file.", "Name another one; without --output, rows are printed."
        )
    if not output.parent.is_dir():
        raise Sme2Error(f"There is no folder {output.parent}.", "Create it, or write elsewhere.")
    return output


def _chosen_format(file_format: str | None, output: Path | None, as_json: bool) -> Format:
    if as_json:
        if file_format not in (None, "json"):
            raise click.UsageError(f"--json and --format {file_format} contradict each other.")
        return "json"
    if file_format is None and output is not None:
        file_format = output.suffix.lower().removeprefix(".")
        if file_format not in FORMATS:
            raise click.UsageError(f"The name {output} gives no format: add --format csv, json or parquet.")
    chosen = cast("Format", file_format or "table")
    if chosen == "parquet" and output is None:
        raise click.UsageError("Parquet is not text: name a file with --output.")
    if chosen == "table" and output is not None:
        raise click.UsageError("A table is for reading: write csv, json or parquet to a file.")
    return chosen


def _give_file(
    warehouse: Warehouse, limits: Limits, text: str, chosen: FileFormat, output: Path | None
) -> None:
    """The rows are written to a folder next to the file; it is renamed when complete."""
    from sme2_assets.warehouse.console import open_console

    with (
        tempfile.TemporaryDirectory(prefix=".sme2-sql-", dir=output.parent if output else None) as staging,
        open_console(warehouse, limits, writable=Path(staging)) as console,
    ):
        staged = Path(staging) / f"rows.{chosen}"
        console.write(text, staged, chosen)
        if output is not None:
            staged.replace(output)
            tell(f"written: {output}")
        elif sys.stdout.isatty():
            with staged.open(encoding="utf-8") as lines:
                for line in lines:
                    click.echo(printable(line.removesuffix("\n")))
        else:
            with staged.open("rb") as rows:
                shutil.copyfileobj(rows, sys.stdout.buffer)
