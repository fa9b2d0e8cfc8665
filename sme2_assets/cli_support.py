"""What all commands of `sme2` share: where they print, and the option for programs."""

from __future__ import annotations

import sys

import click
from rich.console import Console

# A pipe or a file has no width: nothing that is printed there is cut.
out = Console() if sys.stdout.isatty() else Console(width=250)
progress = Console(stderr=True)

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
