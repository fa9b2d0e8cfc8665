"""`sme2 advise`: changes to a model, made and measured before they are recommended.

Belongs here: options, and how results are printed. Heavy imports happen inside the command.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from sme2_assets.cli.support import json_option, out, print_json, progress_log, say, verbose_option
from sme2_assets.store import Store

if TYPE_CHECKING:
    from sme2_assets.report.advice import Tried

# Operators listed for each change; --json has all.
_MOST_PLACES = 6
# What a change can spare that brings nothing onto the unit.
_COUNTS = {"delegate_calls": "delegate calls", "outside": "operators outside", "operators": "in all"}


@click.command()
@click.argument("model")
@click.option("--rewrites/--no-rewrites", default=True, help="Try other ways to write the same network.")
@click.option("--precisions/--no-precisions", default=True, help="Try the model's other precisions.")
@click.option(
    "--times/--no-times",
    default=True,
    help="Time the changes that gain against the model as it is, where there is Arm hardware.",
)
@click.option("--device", help="The device to time them on, as in `sme2 profile` [this machine].")
@verbose_option
@json_option
@click.pass_obj
def advise(
    store: Store,
    model: str,
    rewrites: bool,
    precisions: bool,
    times: bool,
    device: str | None,
    as_json: bool,
) -> None:
    """Try changes to MODEL-PRECISION, and show which bring more of it onto the SME unit, or need fewer calls.

    Each change is made, exported and run under emulation with SME2 on; its outputs are compared with those
    of the unchanged model. A change that cannot be exported, or that changes the outputs, is listed with the
    reason.
    """
    from sme2_assets.experiments.trials import advise as advised

    with progress_log() as log:
        tried = advised(
            store,
            model,
            log,
            reached=log.reached,
            rewrites=rewrites,
            precisions=precisions,
            times=times,
            device=device,
        )
    if as_json:
        print_json(tried.as_json())
    else:
        _show(model, tried)


def _show(model: str, tried: Tried) -> None:
    from sme2_assets.evidence.advice import LEAST_GAIN
    from sme2_assets.report.terminal import print_table

    print_table(out, tried.table())
    base = tried.rows.iloc[0]
    gaining = [row for row in tried.changes if row["recommended"]]
    if not gaining:
        say(f"No change to {model} that was tried is recommended: docs/advise.md says what that takes.")
    for row in gaining:
        say(f"\n{row['change']}: {row['what']}", "bold")
        for line in (row["code"] or "").splitlines():
            say(f"  {line}")
        if row["gain"] is None or row["gain"] <= LEAST_GAIN:
            told = [f"{words} {base[name]:.0f} to {row[name]:.0f}" for name, words in _COUNTS.items()]
            say(f"  no less on the unit; {', '.join(told)}; its time is not known from emulation")
        if places := list(row["onto_unit"]):
            more = f", and {len(places) - _MOST_PLACES} more" if len(places) > _MOST_PLACES else ""
            say(f"  onto the unit: {', '.join(places[:_MOST_PLACES])}{more}")
    for row in tried.changes:
        if row["problem"]:
            say(f"{row['change']} ({row['what']}) was not measured: {row['problem']}", "dim")
        elif not row["recommended"]:
            say(f"{row['change']} ({row['what']}) was tried, and is not recommended", "dim")
