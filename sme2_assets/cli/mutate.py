"""`sme2 mutate`: what share of wrong kernels the comparison of the arms catches."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from sme2_assets.cli.support import json_option, out, print_json, status_line, tell
from sme2_assets.errors import Sme2Error

# The share of faults that must be caught.
LEAST = 0.95
# What a score has, and as what.
_SCORE = {
    "variant": str,
    "operators": int,
    "faults": int,
    "equivalent": int,
    "caught": int,
    "seen_in_outputs": int | None,
    "missed": dict,
    "missed_in": list,
}


@click.command()
@click.argument("models", nargs=-1, required=True, metavar="MODEL...")
@click.option(
    "--outputs", is_flag=True, help="Also say how many show in the outputs alone, by the eager bound."
)
@click.option(
    "--results",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Keep each finished variant in this file, and skip those that are already in it.",
)
@json_option
def mutate(models: tuple[str, ...], outputs: bool, results: Path | None, as_json: bool) -> None:
    """Put faults into each matrix operator of MODEL[-PRECISION], and count how many are caught.

    The faults are those of a wrong kernel: a zero row or column of a tile, a stale accumulator, swapped
    lanes, a zero channel. They are tried one at a time; the intact and the faulty model are compared in torch
    by the bounds that hold between the arms of a session. Fails if less than 95 % are caught.
    """
    from sme2_assets.models.registry import requested

    done = {
        score["variant"]: score
        for score in _kept(results)
        if not outputs or score["seen_in_outputs"] is not None
    }
    asked = [found.key for model in models for found in requested(model)]
    for variant in asked:
        if variant not in done:
            done[variant] = _score(variant, outputs)
            if results is not None:
                with results.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(done[variant]) + "\n")
    scores = [done[variant] for variant in asked]
    if as_json:
        print_json(scores)
    else:
        _print(scores)
    low = [score["variant"] for score in scores if score["caught"] < LEAST * score["faults"]]
    if low:
        tell(f"Less than {LEAST:.0%} caught: {', '.join(low)}", "red")
        sys.exit(1)


def _score(variant: str, outputs: bool) -> dict[str, Any]:
    from sme2_assets.models.differences.mutation import mutants

    with status_line("starting") as log:
        found = list(mutants(variant, outputs=outputs, log=log))
    real = [mutant for mutant in found if mutant.changed]
    missed = [mutant for mutant in real if not mutant.caught]
    return {
        "variant": variant,
        "operators": len({mutant.operator for mutant in found}),
        "faults": len(real),
        "equivalent": len(found) - len(real),
        "caught": len(real) - len(missed),
        "seen_in_outputs": sum(bool(mutant.seen_in_outputs) for mutant in real) if outputs else None,
        "missed": dict(Counter(mutant.fault for mutant in missed)),
        "missed_in": sorted({mutant.operator for mutant in missed}),
    }


def _kept(results: Path | None) -> list[dict[str, Any]]:
    if results is None:
        return []
    # Before anything is tried, which takes minutes.
    try:
        results.open("a").close()
    except OSError as error:
        raise Sme2Error(
            f"{results} cannot be written: {error.strerror}.", "Name a file in a folder that is there."
        ) from error
    try:
        scores = [json.loads(line) for line in results.read_text(encoding="utf-8").splitlines()]
        if all(isinstance(score[name], kind) for score in scores for name, kind in _SCORE.items()):
            return scores
    except (ValueError, KeyError, TypeError):
        pass
    raise Sme2Error(
        f"{results} is not a file of `sme2 mutate --results`, or its last line was cut off.",
        "Remove that line, or name another file.",
    )


def _print(scores: list[dict[str, Any]]) -> None:
    table = Table(
        *("model", "operators", "faults", "caught", "share", "by outputs alone", "equivalent", "missed"),
        box=None,
        pad_edge=False,
    )
    for score in scores:
        faults = score["faults"]
        alone = score["seen_in_outputs"]
        table.add_row(
            score["variant"],
            str(score["operators"]),
            str(faults),
            str(score["caught"]),
            f"{score['caught'] / faults:.1%}" if faults else "-",
            "-" if alone is None else str(alone),
            str(score["equivalent"]),
            ", ".join(f"{count} {fault}" for fault, count in score["missed"].items()),
        )
    out.print(table)
