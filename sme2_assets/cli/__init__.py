"""`sme2`: the same assets, from a terminal.

Belongs here: the program and the list of its commands. Each file has the commands for one subject; heavy
imports happen inside the commands, so that `sme2 --help` answers at once.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click

import sme2_assets
from sme2_assets.cli.advise import advise
from sme2_assets.cli.compare import compare, scale
from sme2_assets.cli.demo import demo
from sme2_assets.cli.dev import dev
from sme2_assets.cli.devices import devices
from sme2_assets.cli.exchange import export_, ingest
from sme2_assets.cli.experiments import config, run
from sme2_assets.cli.gate import gate
from sme2_assets.cli.gc import gc
from sme2_assets.cli.machine import doctor, emulator, targets
from sme2_assets.cli.mcp import mcp
from sme2_assets.cli.measure import profile
from sme2_assets.cli.models import check_model, models, onboard
from sme2_assets.cli.mutate import mutate
from sme2_assets.cli.results import explain, history, kernel_log, language, report
from sme2_assets.cli.runners import build_runner
from sme2_assets.cli.sql import sql
from sme2_assets.cli.support import tell
from sme2_assets.cli.validate import smoke, validate
from sme2_assets.cli.warehouse import check, warehouse
from sme2_assets.cli.worker import worker
from sme2_assets.errors import told
from sme2_assets.store import Store, default_data_root


class _Group(click.Group):
    """Errors meant for people are printed without a traceback; Ctrl-C gives the exit code of shells."""

    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except Exception as error:
            known = told(error)
            if known is None:
                raise
            tell(f"error: {known}", "bold red")
            sys.exit(1)
        except KeyboardInterrupt:
            tell("stopped", "bold red")
            sys.exit(130)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(sme2_assets.__version__)
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    help="The data folder. Default: $SME2_DATA, or data/ in the checkout, or the user's own; "
    f"here: {default_data_root()}",
)
@click.option(
    "--inventory",
    type=click.Path(dir_okay=False, exists=True, path_type=Path),
    help="The file that lists the devices. Default: $SME2_INVENTORY, or devices.yaml in the data folder.",
)
@click.pass_context
def main(context: click.Context, data: Path | None, inventory: Path | None) -> None:
    """Measure what Arm's SME2 matrix unit does for ExecuTorch models."""
    if inventory is not None:
        os.environ["SME2_INVENTORY"] = str(inventory.resolve())
    if data is not None:
        # For the models folder, which is in the data folder, and for child processes.
        os.environ["SME2_DATA"] = str(data.resolve())
    context.obj = Store((data or default_data_root()).resolve())


COMMANDS = (
    demo,
    *(doctor, targets, devices, emulator, build_runner),
    *(models, onboard, check_model),
    *(dev, worker, profile, run, config),
    *(advise, gate, compare, scale, explain, history, language, report, sql, warehouse, kernel_log, mcp),
    *(ingest, export_, validate, check, smoke, mutate, gc),
)
for command in COMMANDS:
    main.add_command(command)
