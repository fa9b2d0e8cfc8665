"""What all commands of `sme2` share: where they print, and the option for programs."""

from __future__ import annotations

import json
import sys
from typing import Any

import click
from rich.console import Console

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
