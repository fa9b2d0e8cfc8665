"""What all commands of `sme2` share: where they print, and the option for programs."""

from __future__ import annotations

import json
import sys
from typing import Any

import click
from rich.console import Console
from rich.text import Text

from sme2_assets.steps import FAILED, NOT_REACHED, Step

# A pipe or a file has no width: nothing that is printed there is cut.
out = Console() if sys.stdout.isatty() else Console(width=250)
progress = Console(stderr=True)

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")


def print_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=2, allow_nan=False))


def variants_of(model: str) -> list[str]:
    """The variant that was named, or all precisions of the model that was."""
    from sme2_assets.models.registry import requested

    return [variant.key for variant in requested(model)]


_MARKS = {
    "passed": "[green]passed[/]",
    "note": "[yellow]note[/]  ",
    "failed": "[red]FAILED[/]",
    "not reached": "[dim]not reached[/]",
}


def print_step(step: Step) -> None:
    """A line for a step; below it what went wrong, and what to do."""
    out.print(Text(f"  {step.name:16} "), end="", highlight=False)
    out.print(_MARKS[step.status], end="", highlight=False)
    timing = f" {step.seconds:6.1f} s" if step.status != NOT_REACHED else ""
    out.print(f"{timing}  {step.detail}", markup=False, highlight=False, soft_wrap=True)
    if step.problem:
        style = "red" if step.status == FAILED else "yellow"
        out.print(f"    {step.problem}", style=style, markup=False, highlight=False, soft_wrap=True)
        if step.remedy:
            out.print(f"    What to do: {step.remedy}", markup=False, highlight=False, soft_wrap=True)
