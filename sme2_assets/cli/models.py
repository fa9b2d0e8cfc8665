"""`sme2 models`, `sme2 onboard` and `sme2 check-model`: which models there are, and adding one.

Belongs here: options, and how results are printed. Heavy imports happen inside the commands.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.table import Table

from sme2_assets.cli.support import (
    given_options,
    json_option,
    out,
    print_json,
    print_step,
    say,
    status_line,
    tell,
    variants_of,
)
from sme2_assets.errors import Sme2Error
from sme2_assets.store import Store

if TYPE_CHECKING:
    from sme2_assets.models.registry import Catalogue
    from sme2_assets.models.sources import ModelSource
    from sme2_assets.models.spec import ModelSpec


@click.command()
@click.option("--all", "everything", is_flag=True, help="Also list models that are built only on request.")
@click.option("--source", "source_name", help="Only the models of this source, e.g. executorch or hf.")
@click.option(
    "--trust",
    "trusted",
    is_flag=True,
    help="Allow the model files in this data folder to run from now on. They are code: read them first.",
)
@json_option
def models(everything: bool, source_name: str | None, trusted: bool, as_json: bool) -> None:
    """List the models that can be profiled, with their precisions and options.

    Listing runs no code from model files.
    """
    from sme2_assets.models.registry import catalogue
    from sme2_assets.models.sources.folder import default_folder, trust

    if trusted:
        folder = default_folder()
        tell(f"The code in {folder} may run from now on (noted in {trust(folder)}).")

    def wanted(source: ModelSource) -> bool:
        if source_name is not None:
            return source_name in (source.prefix, source.name)
        return everything or source.automatic

    _require_source(source_name)
    found = catalogue(wanted)
    if as_json:
        listed = [_model_json(spec) for spec in found.specs]
        click.echo(json.dumps(listed + [asdict(problem) for problem in found.problems], indent=2))
        return
    _print_models(found)
    if not everything and source_name is None:
        _print_other_sources()


@click.command()
@click.argument("name")
@click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where to write it. Default: models/ in the data folder. Any other folder must be in $SME2_MODELS.",
)
@click.option(
    "--from",
    "source",
    metavar="FOLDER|MODULE:CALLABLE",
    help="What to make it from: a folder with config.json and *.safetensors, or package.module:factory.",
)
def onboard(name: str, folder: Path | None, source: str | None) -> None:
    """Write a commented, working model file NAME.py for you to put your model into.

    With --from it is complete: it builds the model in a folder, or what a callable returns, which is
    (module, (input, ...)) or an object with get_eager_model() and get_example_inputs().
    """
    from sme2_assets.models.brought import write_template
    from sme2_assets.models.sources.folder import FOLDERS_VARIABLE, model_folders
    from sme2_assets.models.sources.python_code import declared_models

    path = write_template(name, folder, source)
    click.echo(f"written: {path}")
    names = [declared.name for declared in declared_models(path, name)]
    if path.parent.resolve() not in model_folders():
        click.echo(f"It is not listed yet: add its folder to {FOLDERS_VARIABLE}, e.g.")
        click.echo(f"  export {FOLDERS_VARIABLE}={path.parent.resolve()}")
    click.echo("Next:")
    if source is None:
        click.echo("  1. Replace the network in it with yours.")
    for step, name in enumerate(names, start=1 if source else 2):
        click.echo(f"  {step}. sme2 check-model {name}    goes through every step and says what is wrong")
    click.echo(f"  {step + 1}. sme2 profile {names[0]}        measures it with SME2 on and off")


@click.command("check-model")
@click.argument("model")
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    help="Also put the program and its ETRecord here, as <model>_<backend>_<precision>.pte.",
)
@given_options
@json_option
@click.pass_obj
def check_model(
    store: Store,
    model: str,
    output: Path | None,
    inputs: Path | None,
    op_library: Path | None,
    as_json: bool,
) -> None:
    """Take MODEL[-PRECISION] through import, eager run, export, lowering, run and numerics.

    Each step says whether it passed; the first that fails says why and what to do.
    """
    from sme2_assets.diagnostics.model import check_variant, write_program
    from sme2_assets.models.registry import parse_variant

    checks = []
    for variant in map(parse_variant, variants_of(model, inputs, op_library)):
        if not as_json:
            say(str(variant), "bold")
        with status_line("starting") as log:
            check = check_variant(variant, store, log=log, watch=(lambda _: None) if as_json else print_step)
        checks.append(check)
        if output is not None and check.ok:
            for path in write_program(variant, store, output):
                tell(f"written: {path}")
    if as_json:
        print_json([check.as_json() for check in checks])
    elif all(check.ok for check in checks):
        say(f"Everything passed. Next: sme2 profile {model}")
    if not all(check.ok for check in checks):
        sys.exit(1)


def _require_source(name: str | None) -> None:
    from sme2_assets.models.registry import sources

    known = [source.prefix or source.name for source in sources()]
    if name is not None and not any(name in (source.prefix, source.name) for source in sources()):
        raise Sme2Error(f"There is no source of models {name!r}.", f"Name one of: {', '.join(known)}.")


def _model_json(spec: ModelSpec) -> dict[str, object]:
    return {
        "model": spec.title,
        "key": spec.key,
        "precisions": spec.precisions,
        "description": spec.description,
        "source": spec.source,
        "place": spec.place,
        "options": None if spec.options is None else [asdict(option) for option in spec.options],
    }


def _print_models(found: Catalogue) -> None:
    if found.specs:
        table = Table("model", "precisions", "options", "description", "from", box=None, pad_edge=False)
        for spec in found.specs:
            options = "any" if spec.options is None else ", ".join(str(option) for option in spec.options)
            table.add_row(spec.title, ", ".join(spec.precisions), options, spec.description, spec.source)
        out.print(table)
    elif not found.problems:
        out.print("None: this source lists nothing, but finds a model by its name.")
    for problem in found.problems:
        say(
            f"cannot be used: {problem.name} ({problem.place}): {problem.problem}\n"
            f"  What to do: {problem.remedy}",
            "red",
        )


def _print_other_sources() -> None:
    from sme2_assets.models.registry import sources

    on_request = [source for source in sources() if not source.automatic]
    examples = ", ".join(
        f"{source.prefix}:{source.names()[0]}" if source.names() else f"{source.prefix}:NAME"
        for source in on_request
    )
    say(f"\nMore by name: {examples} (sme2 models --all)")
