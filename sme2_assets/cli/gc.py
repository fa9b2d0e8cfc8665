"""`sme2 gc`: shows what is old and no longer needed, and removes it.

Belongs here: options, and how results are printed. Heavy imports happen inside the command.
"""

from __future__ import annotations

import re
import sys
from contextlib import nullcontext
from functools import partial
from typing import Any

import click
from click.core import ParameterSource

from sme2_assets.cli.support import AtLeast, json_option, print_json, progress_log, reads_store, say, tell
from sme2_assets.cli.warehouse import facts_of_refused, show_refused
from sme2_assets.store import Store

# As in retention.py, which is slow to import; a test checks that they agree.
KIND_NAMES = ("leftovers", "exports", "reports", "snapshots", "runners", "models", "dagster", "runs")
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


class _Size(click.ParamType[int]):
    name = "SIZE"

    def convert(self, value: Any, param: click.Parameter | None, context: click.Context | None) -> int:
        match = re.fullmatch(r"(\d{1,15})([KMGT]?)", str(value).upper())
        if match is None:
            self.fail(f"{value!r} is not a size such as 500M or 20G.", param, context)
        return int(match[1]) * _UNITS[match[2]]


@click.command()
@click.option(
    "--run", "run_ids", metavar="RUN", multiple=True, help="Only this run and its session, everywhere."
)
@click.option(
    "--kind",
    "kinds",
    type=click.Choice(KIND_NAMES),
    multiple=True,
    help="Only this kind; repeat it for several. Default: all but `runs`, which is evidence.",
)
@click.option(
    "--older-than",
    "days",
    type=AtLeast(0),
    default=30,
    show_default=True,
    help="Only what has not changed for this many days.",
)
@click.option(
    "--keep", "keep_bytes", type=_Size(), help="Keep this much of each kind, newest first, e.g. 20G."
)
@click.option("--dry-run", is_flag=True, help="Only show what would be removed, as without --yes.")
@click.option("--yes", is_flag=True, help="Remove it.")
@json_option
@reads_store
def gc(
    store: Store,
    run_ids: tuple[str, ...],
    kinds: tuple[str, ...],
    days: float,
    keep_bytes: int | None,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Show what is old and no longer needed, with its size; remove it with --yes.

    By default this is what can be made again: exports, reports, published files except the newest, runners
    and exported models that are not current, and Dagster's records of runs except the last of every
    partition. Evidence is removed only with `--kind runs`, which keeps the newest session of every series and
    what is in no table yet, or with `--run`; the tables are then rebuilt from what is left, and the exit code
    is 1 if a folder of that cannot be read. If that does not reach its end, `sme2 warehouse rebuild` finishes
    it. Nothing is removed during a measurement.
    """
    from sme2_assets.launch import open_instance
    from sme2_assets.warehouse.retention import Wanted, collect

    if run_ids and (kinds or keep_bytes is not None or _days_given()):
        raise click.UsageError(
            "--run removes one session everywhere: leave --kind, --older-than and --keep out."
        )
    if dry_run and yes:
        raise click.UsageError("--dry-run and --yes contradict each other.")
    kinds = () if run_ids else kinds or KIND_NAMES[:-1]
    wanted = Wanted(run_ids, kinds, days * 86400, keep_bytes)
    with progress_log() if yes else nullcontext(tell) as log:
        found = collect(store, partial(open_instance, store), wanted, log, tell, go=yes)
    total = sum(item.size_bytes for item in found.items)
    if as_json:
        facts = (
            {"kind": it.kind, "name": it.name, "bytes": it.size_bytes, "age_s": it.age_s}
            for it in found.items
        )
        print_json(
            {"removed": yes, "bytes": total, "items": list(facts), "refused": facts_of_refused(found.refused)}
        )
    elif not found.items:
        say("With these options there is nothing to remove.")
    else:
        for item in found.items:
            say(f"{item.size_bytes:>15,}  {item.age_s / 86400:6.1f} d  {item.kind:9}  {item.name}")
        say(f"{total:>15,}  bytes {'were removed' if yes else 'would be removed'}.")
        if not yes:
            tell("Nothing was removed: add --yes to remove it.")
        show_refused(found.refused)
    if found.refused:
        sys.exit(1)


def _days_given() -> bool:
    source = click.get_current_context().get_parameter_source("days")
    return source is not ParameterSource.DEFAULT
