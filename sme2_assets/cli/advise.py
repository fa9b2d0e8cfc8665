"""`sme2 advise`: changes of a model, made and measured before they are recommended.

Belongs here: options, and how results are printed. Heavy imports happen inside the command.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from sme2_assets.cli.gate import Timed, measure, times_option
from sme2_assets.cli.support import json_option, out, print_json, say, tell
from sme2_assets.errors import Sme2Error
from sme2_assets.store import Store

if TYPE_CHECKING:
    from sme2_assets.gate.advice import Candidate
    from sme2_assets.gate.baseline import ModelFacts
    from sme2_assets.models.registry import Variant

# Of the operators that come onto the unit; --json has all.
_MOST_PLACES = 6


@click.command()
@click.argument("model")
@click.option("--rewrites/--no-rewrites", default=True, help="Try other ways to write the same network.")
@click.option("--precisions/--no-precisions", default=True, help="Try the model's other precisions.")
@times_option
@click.option("--device", help="The device for --times, as in `sme2 profile`.")
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
    from sme2_assets.gate.advice import Candidate, ranked
    from sme2_assets.gate.changes import changes_of
    from sme2_assets.models.registry import parse_variant
    from sme2_assets.models.rewrites import NOTHING

    if device and not platform:
        raise click.UsageError("--device is for --times: add --times PLATFORM.")
    variant = parse_variant(model)
    changes = changes_of(variant, rewrites=rewrites, precisions=precisions)
    if not changes:
        raise Sme2Error(
            f"There is nothing to try with {variant.key}.",
            "A finished program is what it is: give the model that it was exported from. Otherwise leave "
            "--no-rewrites and --no-precisions out.",
        )
    places = [Timed(platform, device, 1)] if platform else []
    base = measure(store, {variant.key: places})[variant.key].facts
    tried, problems = [], {}
    for name, what, code, key in changes:
        tell(f"trying {name}: {what}")
        try:
            facts, problem = measure(store, {key: places})[key].facts, None
        except Sme2Error as error:
            facts, problem = None, error.what.splitlines()[0]
            if NOTHING in problem:
                problem = "the model has none"
            problems[key] = problem
        tried.append(Candidate(name, what, code, facts, problem))
    _keep(store, variant, problems)
    best = ranked(base, tried)
    if as_json:
        print_json(_json(base, best))
    else:
        _show(variant, base, best)


def _keep(store: Store, variant: Variant, problems: dict[str, str]) -> None:
    """As the asset `advice`, which takes what was measured; and so the table, and a section of the report."""
    from sme2_assets.defs.jobs import advise_job
    from sme2_assets.defs.resources import Lab
    from sme2_assets.launch import Jobs, open_instance

    with open_instance(store) as instance:
        jobs = Jobs(Lab(data_root=str(store.root)), instance, lambda _: None)
        jobs.run(advise_job.name, [variant.key], {"advice": {"config": {"problems": problems}}})


def _show(variant: Variant, base: ModelFacts, best: list[Candidate]) -> None:
    from sme2_assets.evidence.advice import AS_IT_IS
    from sme2_assets.gate.advice import Candidate, is_gain, moved, row_of
    from sme2_assets.report.tables import TextTable
    from sme2_assets.report.terminal import print_table

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


def _json(base: ModelFacts, best: list[Candidate]) -> dict[str, Any]:
    from sme2_assets.gate.advice import is_gain, moved

    return {
        "as it is": base.as_json(),
        "tried": [
            {
                "change": each.name,
                "what": each.what,
                "code": each.code,
                "gain": each.gain(base),
                "is_gain": is_gain(base, each),
                "onto_the_unit": moved(base, each),
                "problem": each.problem,
                "facts": each.facts and each.facts.as_json(),
            }
            for each in best
        ],
    }
