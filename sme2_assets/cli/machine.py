"""`sme2 doctor`, `sme2 targets`, `sme2 emulator`: what this machine can measure, and what is missing.

Belongs here: options, and how results are printed. Heavy imports happen inside the commands.
"""

from __future__ import annotations

import sys
from dataclasses import asdict

import click
from rich.table import Table
from rich.text import Text

from sme2_assets.cli.support import json_option, out, print_json, print_steps, say, tell
from sme2_assets.store import Store


@click.command()
@json_option
@click.pass_obj
def doctor(store: Store, as_json: bool) -> None:
    """Show what is here, what is missing, and how to get it."""
    from sme2_assets.diagnostics.doctor import examine

    made = examine(store)
    if as_json:
        print_json(made.as_json())
    else:
        print_steps(made)
    if not made.ok:
        sys.exit(1)


@click.command()
@json_option
@click.pass_obj
def targets(store: Store, as_json: bool) -> None:
    """List the platforms with SME2 on and off: which this machine offers, and what the others need."""
    from sme2_assets.targets import availabilities
    from sme2_assets.targets.inventory import read_inventory

    rows = [(str(key), fidelity, state) for key, fidelity, state in availabilities(store)]
    if as_json:
        print_json([{"target": name, "fidelity": what, **asdict(state)} for name, what, state in rows])
        return
    table = Table("target", "available", "fidelity", "detail", "what to do", box=None, pad_edge=False)
    for name, fidelity, state in rows:
        mark = Text("yes", "green") if state.ok else Text("no", "yellow")
        table.add_row(name, mark, fidelity if state.ok else "", state.detail, state.remedy or "")
    out.print(table)
    if named := read_inventory(store).devices:
        say(f"Devices in the inventory, {', '.join(named)}: see `sme2 devices`.")


@click.command()
@click.pass_obj
def emulator(store: Store) -> None:
    """Find QEMU >= 10.1, or fetch it from this machine's package mirror; no root needed.

    On a host whose CPU is not aarch64, also find or fetch the compiler for its runner, and try it.
    """
    from sme2_assets.targets.local import EmulatedTarget

    qemu, compiler = EmulatedTarget(store.tools).provision(lambda message: tell(message, "dim"))
    say(f"QEMU {qemu.version_text} ({qemu.source}): {qemu.path}")
    if compiler is not None:
        say(f"its runner is built with: {compiler.command[0]}")
