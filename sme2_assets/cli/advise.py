"""`sme2 advise`: changes of a model, made and measured before they are recommended.

Belongs here: options, and how results are printed. Heavy imports happen inside the command.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from sme2_assets.cli.gate import Timed, measure, times_option
from sme2_assets.cli.support import json_option, out, print_json, say, tell, verbose_option
from sme2_assets.errors import Sme2Error
from sme2_assets.store import Store

if TYPE_CHECKING:
    from sme2_assets.gate.advice import Candidate
    from sme2_assets.gate.baseline import ModelFacts
    from sme2_assets.models.registry import ModelSpec, Variant

AS_IT_IS = "as it is"
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
    from sme2_assets.gate.advice import Candidate, ranked
    from sme2_assets.models.registry import model_spec, parse_variant
    from sme2_assets.models.rewrites import NOTHING

    if device and not platform:
        raise click.UsageError("--device is for --times: add --times PLATFORM.")
    variant = parse_variant(model)
    changes = _changes(model_spec(variant.model), variant, rewrites, precisions)
    if not changes:
        raise Sme2Error(
            f"There is nothing to try with {variant.key}.",
            "A finished program is what it is: give the model that it was exported from. Otherwise leave "
            "--no-rewrites and --no-precisions out.",
        )
    places = [Timed(platform, device, 1)] if platform else []
    base = measure(store, {variant.key: places})[variant.key].facts
    tried = []
    for name, what, code, key in changes:
        tell(f"trying {name}: {what}")
        try:
            facts, problem = measure(store, {key: places})[key].facts, None
        except Sme2Error as error:
            facts, problem = None, error.what.splitlines()[0]
            if NOTHING in problem:
                problem = "the model has none"
        tried.append(Candidate(name, what, code, facts, problem))
    best = ranked(base, tried)
    if as_json:
        print_json(_json(base, best))
    else:
        _show(variant, base, best)


def _changes(
    spec: ModelSpec, variant: Variant, rewrites: bool, precisions: bool
) -> list[tuple[str, str, str | None, str]]:
    """Name as people write it, words, code and key of everything that is worth a try."""
    from sme2_assets.models.registry import Variant
    from sme2_assets.models.rewrites import OPTION, REWRITES, rewritten

    changes: list[tuple[str, str, str | None, str]] = []
    if rewrites and spec.factory is not None and OPTION not in dict(spec.values):
        changes += [
            (
                f"{other.title}-{variant.precision}",
                it.what,
                it.code,
                Variant(other.key, variant.precision).key,
            )
            for name, it in REWRITES.items()
            for other in [rewritten(spec, name)]
        ]
    if precisions:
        others = [precision for precision in spec.precisions if precision != variant.precision]
        changes += [
            (f"{spec.title}-{other}", f"at {other}", None, Variant(spec.key, other).key) for other in others
        ]
    return changes


def _show(variant: Variant, base: ModelFacts, best: list[Candidate]) -> None:
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
