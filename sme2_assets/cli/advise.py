"""`sme2 advise`: changes of a model, made and measured before they are recommended.

Belongs here: options, and how results are printed. Heavy imports happen inside the command.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from sme2_assets.cli.gate import times_option
from sme2_assets.cli.support import json_option, out, print_json, progress_log, say, verbose_option
from sme2_assets.store import Store

if TYPE_CHECKING:
    from sme2_assets.experiments.trials import Advised

# Of the operators that come onto the unit; --json has all.
_MOST_PLACES = 6


@click.command()
@click.argument("model")
@click.option("--rewrites/--no-rewrites", default=True, help="Try other ways to write the same network.")
@click.option("--precisions/--no-precisions", default=True, help="Try the model's other precisions.")
@times_option
@click.option("--device", help="The device for --times, as in `sme2 profile`.")
@verbose_option
@json_option
@click.pass_obj
def advise(
    store: Store,
    model: str,
    rewrites: bool,
    precisions: bool,
    platform: str | None,
    device: str | None,
    as_json: bool,
) -> None:
    """Try changes of MODEL-PRECISION, and show which bring more of it onto the SME unit.

    Each change is made, exported and run emulated with SME2 on; its outputs are compared with those of the
    model as it is. A change that cannot be exported, or gives other outputs, is told with the reason.
    """
    from sme2_assets.experiments.trials import Timed
    from sme2_assets.experiments.trials import advise as advised

    if device and not platform:
        raise click.UsageError("--device is for --times: add --times PLATFORM.")
    places = [Timed(platform, device, 1)] if platform else []
    with progress_log() as log:
        advice = advised(
            store,
            model,
            log,
            reached=log.reached,
            rewrites=rewrites,
            precisions=precisions,
            places=places,
        )
    if as_json:
        print_json(advice.as_json())
    else:
        _show(advice)


def _show(advice: Advised) -> None:
    from sme2_assets.evidence.advice import AS_IT_IS
    from sme2_assets.gate.advice import Candidate, is_gain, moved, row_of
    from sme2_assets.report.tables import TextTable
    from sme2_assets.report.terminal import print_table

    variant, base, best = advice.variant, advice.base, advice.tried
    measured = [Candidate(AS_IT_IS, "", None, base), *(each for each in best if each.facts is not None)]
    rows = [row_of(base, each) for each in measured]
    print_table(out, TextTable.of(list(rows[0]), [list(row.values()) for row in rows]))
    gaining = [each for each in best if is_gain(base, each)]
    if not gaining:
        say(f"No change that was tried brings more of {variant.key} onto the SME unit.")
    for each in gaining:
        say(f"\n{each.name}: {each.what}", "bold")
        if each.code is not None:
            say(f"  {each.code}")
        if places := moved(base, each):
            more = f", and {len(places) - _MOST_PLACES} more" if len(places) > _MOST_PLACES else ""
            say(f"  onto the unit: {', '.join(places[:_MOST_PLACES])}{more}")
    for each in best:
        if each.facts is None:
            say(f"{each.name} ({each.what}) was not measured: {each.problem}", "dim")
        elif not is_gain(base, each):
            say(f"{each.name} ({each.what}) was tried, and brings nothing onto the unit", "dim")
