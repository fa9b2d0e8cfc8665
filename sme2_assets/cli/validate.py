"""`sme2 validate` and `sme2 smoke`: whether what is there can be relied on, and whether everything works.

Belongs here: options, and how results are printed. Heavy imports happen inside the commands.
"""

from __future__ import annotations

import sys

import click

from sme2_assets.cli.support import json_option, out, print_json, print_step, print_steps, say, status_line
from sme2_assets.store import Store


@click.command()
@click.argument("things", metavar="RUN|FILE|DIR...", nargs=-1, required=True)
@json_option
@click.pass_obj
def validate(store: Store, things: tuple[str, ...], as_json: bool) -> None:
    """Check that a run, a file or a folder is complete and makes sense.

    For a run (its id or folder): files complete and unchanged, traces readable, every nanosecond accounted
    for, metrics sane, arms agree, and the comparison meaningful or why not. Also takes an .etdump, a .pte, a
    manifest.json, an exported folder, a Perfetto trace, an experiment file, a run folder of the public kit.
    The exit code is 1 if a step failed; a note is not a failure.
    """
    from sme2_assets.diagnostics.validation import validate as validated

    made = []
    for thing in things:
        with status_line(thing):
            made.append(validated(thing, store))
        if not as_json:
            say(f"{made[-1].what} ({made[-1].kind})", "bold")
            print_steps(made[-1])
    if as_json:
        print_json([it.as_json() for it in made])
    if not all(it.ok for it in made):
        sys.exit(1)


@click.command()
@click.option("--emulated", is_flag=True, help="Also measure a pair with SME2 on and off under the emulator.")
@json_option
@click.pass_context
def smoke(context: click.Context, emulated: bool, as_json: bool) -> None:
    """Try everything once, in a minute or two: doctor, runner, export, run, analyse, files, validate.

    It uses its own data folder, which it removes; only the cache of runners and models is shared with yours.
    It measures far too little for a verdict. `sme2 --data FOLDER smoke` keeps everything in FOLDER.
    """
    from sme2_assets.diagnostics.smoke import smoke as smoked

    store: Store = context.obj
    keep = store.root if context.parent is not None and context.parent.params.get("data") else None
    with status_line("starting") as log:
        result = smoked(
            store,
            emulated=emulated,
            keep=keep,
            log=log,
            watch=(lambda step: None) if as_json else print_step,
        )
    if as_json:
        print_json(result.as_json())
    elif result.ok:
        out.print(f"Everything works. {result.seconds:.0f} s in total.", highlight=False)
    if not result.ok:
        sys.exit(1)
