"""`sme2 warehouse`: rebuilds the tables from the evidence. `sme2 check`: is everything as it was written?"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sme2_assets.cli.support import json_option, out, print_json, progress, reads_store, status_line, tell
from sme2_assets.errors import Sme2Error
from sme2_assets.store import Store

if TYPE_CHECKING:
    from sme2_assets.warehouse.rebuild import Derived, Refused


@click.group()
def warehouse() -> None:
    """Rebuild the tables from the run folders, or add runs from other data folders.

    Run folders are the evidence; nothing here changes them.
    """


@warehouse.command()
@json_option
@click.pass_obj
def rebuild(store: Store, as_json: bool) -> None:
    """Rebuild every table from all run folders.

    Needed after an update that changes what rows say, for instance the category of an operator; `sme2 doctor`
    tells you. Until it is done, the old tables stay; one that was interrupted starts again. A folder that
    cannot be read is named and left out, and the exit code is 1. Runs whose folders are gone are named and
    dropped.
    """
    from sme2_assets.warehouse.rebuild import rebuild as rebuilt

    with _told() as log:
        done = rebuilt(store, log)
    _show(done, as_json)


@click.command()
@click.option("--rows", is_flag=True, help="Also derive every row again and compare it. Takes much longer.")
@json_option
@reads_store
def check(store: Store, rows: bool, as_json: bool) -> None:
    """Check that everything in the data folder is what was written: evidence, tables, published files.

    With a shared store, the evidence in it is checked too.

    Each finding comes with what to do; the exit code is 1 if there is any.
    """
    from sme2_assets.evidence.folder import run_folders
    from sme2_assets.warehouse.check import Finding, check_store
    from sme2_assets.warehouse.rebuild import differences

    with _told() as log:
        found = list(check_store(store, log))
        if rows and not found:
            found = [
                Finding(
                    f"{each.table}: {each.only_stored} rows only in the warehouse, "
                    f"{each.only_derived} only in a rebuild.",
                    "Run `sme2 warehouse rebuild`.",
                )
                for each in differences(store, log)[0]
            ]
    if as_json:
        print_json([asdict(each) for each in found])
    else:
        for each in found:
            out.print(f"{each.what} {each.remedy}", highlight=False, soft_wrap=True)
        if not found and not run_folders(store.runs):
            out.print(f"There is no run folder in {store.root} yet.", soft_wrap=True)
        elif not found:
            out.print("Everything is as it was written." + (" Every row is what the evidence gives." * rows))
    if found:
        sys.exit(1)


@warehouse.command()
@click.option(
    "--publish", is_flag=True, help="Then put the tables and the DuckDB file into the shared store."
)
@json_option
@click.pass_obj
def sync(store: Store, publish: bool, as_json: bool) -> None:
    """Add the run folders that are in no table, and compare the pairs that have not been compared.

    A run is in no table when what follows its measurement failed or was stopped. Rows of damaged
    tables are made again. If $SME2_STORE names a shared store, runs are first exchanged with it.
    """
    from sme2_assets.warehouse.rebuild import Refused
    from sme2_assets.warehouse.rebuild import sync as synced
    from sme2_assets.warehouse.shared import exchange, publish_shared

    with _told() as log:
        refused = exchange(store, log).refused
        done = synced(store, log)
        if publish and publish_shared(store, log) is None:
            raise Sme2Error("There is no shared store.", "Set SME2_STORE to its address: docs/deployment.md.")
    done.refused += [Refused(what, error) for what, error in refused.items()]
    _show(done, as_json)


@warehouse.command()
@click.argument("folder", metavar="DIR", type=click.Path(exists=True, file_okay=False, path_type=Path))
@json_option
@click.pass_obj
def merge(store: Store, folder: Path, as_json: bool) -> None:
    """Copy the run folders of another data folder, DIR, here and add them to the tables.

    Runs that are already here are left alone. Folders with the same run id but different content are refused.
    """
    from sme2_assets.warehouse.rebuild import merge as merged

    with _told() as log:
        done = merged(store, folder, log)
    _show(done, as_json)


@contextmanager
def _told() -> Iterator[Callable[[str], None]]:
    """Progress on one line; without a terminal, one line per message."""
    with status_line("starting") as show:

        def log(message: str) -> None:
            show(message)
            if not progress.is_terminal:
                tell(message, "dim")

        yield log


def _counted(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"


def _show(done: Derived, as_json: bool) -> None:
    if as_json:
        print_json(_facts(done))
    else:
        there = f", {len(done.already_there)} were already here" if done.already_there else ""
        made, compared = _counted(len(done.taken), "run"), _counted(len(done.compared), "pair")
        out.print(f"The rows of {made} were made, {compared} compared{there}.", highlight=False)
        for run in done.dropped:
            tell(f"{run} was dropped: there is no run folder of it any more.", "yellow")
        show_refused(done.refused)
    if done.refused:
        sys.exit(1)


def show_refused(refused: Sequence[Refused]) -> None:
    for each in refused:
        progress.print(
            f"{each.what} was left out: {each.error}",
            style="bold red",
            highlight=False,
            soft_wrap=True,
        )


def _facts(done: Derived) -> dict[str, object]:
    return {
        "taken": done.taken,
        "already_there": done.already_there,
        "compared": done.compared,
        "dropped": done.dropped,
        "refused": facts_of_refused(done.refused),
    }


def facts_of_refused(refused: Sequence[Refused]) -> list[dict[str, str | None]]:
    return [{"what": each.what, "error": each.error.what, "remedy": each.error.remedy} for each in refused]
