"""Rows of a query on a terminal: a table, or records where a table does not fit."""

from __future__ import annotations

import math
from datetime import datetime
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from sme2_assets.cli.support import Printer, out
from sme2_assets.errors import WarehouseError, printable

if TYPE_CHECKING:
    from sme2_assets.warehouse.console import Answer

# Wider than any table.
WHOLE = 100_000
# A column keeps this many characters, if it has them; longer text is wrapped.
LEAST_WIDTH = 18
# A cell's border and padding.
FRAME = 3
# More takes minutes to lay out.
MOST_CHARACTERS = 10_000_000
# Up to this many rows are shown as records where a table does not fit.
FEW_ROWS = 3
HOW_TO_SEE = "--records shows them, or name the columns you want"


def show_answer(answer: Answer, records: bool = False, how: str = HOW_TO_SEE) -> None:
    """Prints rows as a table, as wide as there is room, and their number.

    Columns that do not fit are counted, and `how` says how to see them; a few rows are shown as records, with
    all columns. A pipe or a file has no width: nothing is cut there.
    """
    cells = [[_cell(value) for value in row] for row in answer.rows]
    if sum(len(cell) for row in cells for cell in row) > MOST_CHARACTERS:
        raise WarehouseError("This is too much text for a table.", "Ask for less, or write it to a file.")
    fitting = _fitting(answer.columns, cells, out.width) if out.is_terminal else len(answer.columns)
    hidden = len(answer.columns) - fitting
    if records or (hidden and 0 < len(cells) <= FEW_ROWS):
        _print_records(answer.columns, cells)
        hidden = 0
    else:
        _print_table(answer.columns[:fitting], [row[:fitting] for row in cells])
    count = f"{len(cells)} row{'' if len(cells) == 1 else 's'}"
    told = [f"the first {count}; there are more (--limit)" if answer.more else count]
    if hidden:
        told.append(f"{hidden} column{'' if hidden == 1 else 's'} hidden: {how}")
    out.print(Text("; ".join(told), "dim"))


def _fitting(columns: tuple[str, ...], cells: list[list[str]], width: int) -> int:
    """How many of the columns, from the first, fit next to each other; at least one."""
    left = width - 1
    for index, name in enumerate(columns):
        natural = max([len(name), *(len(row[index]) for row in cells)])
        left -= min(natural, LEAST_WIDTH) + FRAME
        if left < 0:
            return max(index, 1)
    return len(columns)


def _print_table(columns: tuple[str, ...], cells: list[list[str]]) -> None:
    table = Table()
    for name in columns:
        # An id that is too long is wrapped: cut off, it would be useless.
        table.add_column(Text(name), overflow="fold")
    for row in cells:
        table.add_row(*map(Text, row))
    printer = out if out.is_terminal else Printer(width=WHOLE)
    measured = table.__rich_measure__(printer, printer.options).maximum
    printer.print(table, width=None if out.is_terminal else measured)


def _print_records(columns: tuple[str, ...], cells: list[list[str]]) -> None:
    for number, row in enumerate(cells, start=1):
        out.print(Text(f"row {number}", "bold"))
        table = Table(box=None, show_header=False, pad_edge=False)
        table.add_column(style="dim", no_wrap=True)
        table.add_column(overflow="fold")
        for name, cell in zip(columns, row, strict=True):
            table.add_row(Text(name), Text(cell))
        out.print(table)


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
    # Before the widths of columns are measured: codes are longer than the characters.
    return "\n".join(map(printable, str(value).split("\n")))


def _number(value: float) -> str:
    if not math.isfinite(value) or (value != 0 and not 1e-3 <= abs(value) < 1e15):
        return f"{value:.3g}"
    return f"{value:.4f}".rstrip("0").rstrip(".")
