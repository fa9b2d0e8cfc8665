"""`sme2 run` and `sme2 config`: experiment files, measured, checked and written.

Belongs here: options, questions, and how results are printed. Heavy imports happen inside the commands.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.table import Table

from sme2_assets.cli.support import (
    AtLeast,
    json_option,
    out,
    print_json,
    print_steps,
    progress_log,
    say,
    tell,
    verbose_option,
)
from sme2_assets.errors import Sme2Error
from sme2_assets.profiling.limits import MOST_INFERENCES, MOST_ROUNDS, MOST_THREADS
from sme2_assets.store import Store
from sme2_assets.targets.keys import PLATFORMS

if TYPE_CHECKING:
    from sme2_assets.defs.resources import Lab
    from sme2_assets.experiments.load import Loaded
    from sme2_assets.experiments.plan import Planned, Session, Shown
    from sme2_assets.experiments.run import Outcome
    from sme2_assets.warehouse import Warehouse

_FILE = click.Path(dir_okay=False, path_type=Path)
_PRECISIONS = ("fp32", "fp16", "int8", "int8_dynamic", "int4")
platform_option = click.option(
    "--platform",
    "platform_name",
    type=click.Choice(PLATFORMS),
    help="Measure on this platform, whatever FILE says.",
)


@click.command()
@click.argument("file", type=_FILE)
@click.option("--dry-run", is_flag=True, help="Check everything and print what would be done; do nothing.")
@platform_option
@click.option(
    "--rounds", type=click.IntRange(1, MOST_ROUNDS), help="Exactly this many rounds, whatever FILE says."
)
@click.option(
    "--only", multiple=True, metavar="NAME", help="Only the entry, or the kit's experiment, of this name."
)
@verbose_option
@json_option
@click.pass_obj
def run(
    store: Store,
    file: Path,
    dry_run: bool,
    platform_name: str | None,
    rounds: int | None,
    only: tuple[str, ...],
    as_json: bool,
) -> None:
    """Measure what the experiment file FILE asks for, and show its comparisons.

    FILE is YAML or JSON (`sme2 config new` writes one), or a configuration of the public kit, which is
    translated with a note on every change. Everything is checked before anything is measured. A session that
    fails does not stop the others; the exit code is 0 if all of them were measured.
    """
    from sme2_assets import launch
    from sme2_assets.diagnostics.experiment import check_experiment, require
    from sme2_assets.experiments.plan import chosen_of
    from sme2_assets.experiments.run import as_json as outcome_json
    from sme2_assets.experiments.run import run_sessions

    loaded, plan, lab = _prepared(store, file, platform_name, rounds)
    if only:
        plan = chosen_of(plan, only)
    _print_notes([*loaded.notes, *plan.notes])
    require(check_experiment(loaded, plan, lab), file.name)
    work = _work_json(plan.sessions, lab)
    if not as_json:
        _print_sessions(loaded.name, work)
    if dry_run:
        if as_json:
            print_json({"experiment": loaded.name, "sessions": work})
        return
    folder = loaded.output_folder
    with launch.open_instance(store) as instance, progress_log() as log:
        outcomes = run_sessions(
            lab, instance, plan.sessions, loaded.name, log, folder, file.resolve(), log.reached
        )
    if as_json:
        sessions = [{**outcome_json(it), "comparison": _verdict(lab.warehouse, it)} for it in outcomes]
        print_json({"experiment": loaded.name, "sessions": sessions})
    else:
        _print_outcomes(lab.warehouse, outcomes, plan.shown, loaded.experiment.report.operators)
        if folder is not None:
            say(f"output: {folder}")
    if not all(outcome.ok for outcome in outcomes):
        sys.exit(1)


@click.group()
def config() -> None:
    """Write and check experiment files, and see what they may contain."""


@config.command()
@click.argument("file", type=_FILE)
@platform_option
@json_option
@click.pass_obj
def check(store: Store, file: Path, platform_name: str | None, as_json: bool) -> None:
    """Check everything FILE needs, and do nothing else.

    Schema, models, .pte files, platforms in the states asked for, devices, CPUs, build tools, disk. The exit
    code is 0 when `sme2 run` could begin.
    """
    from sme2_assets.diagnostics.experiment import check_experiment

    loaded, plan, lab = _prepared(store, file, platform_name, None)
    made = check_experiment(loaded, plan, lab)
    notes = [*loaded.notes, *plan.notes]
    if as_json:
        print_json({"notes": notes, **made.as_json()})
    else:
        _print_notes(notes)
        print_steps(made)
        out.print(
            "Everything is there." if made.ok else f"{len(made.failed)} of {len(made.steps)} failed.",
            style="bold",
        )
    if not made.ok:
        sys.exit(1)


@config.command()
def schema() -> None:
    """Print the JSON Schema of experiment files, for editors."""
    from sme2_assets.experiments.schema import json_schema

    click.echo(json.dumps(json_schema(), indent=2))


@config.command("templates")
@click.argument("name", required=False)
@json_option
def templates_command(name: str | None, as_json: bool) -> None:
    """List the templates; with NAME, print one."""
    from sme2_assets.experiments.write import template, templates

    if name is not None:
        click.echo(template(name), nl=False)
        return
    first_lines = {key: text.splitlines()[0].removeprefix("# ") for key, text in templates().items()}
    if as_json:
        print_json([{"name": key, "description": line} for key, line in first_lines.items()])
        return
    table = Table("template", "what for", box=None, pad_edge=False)
    for key, line in first_lines.items():
        table.add_row(key, line)
    out.print(table)
    out.print("sme2 config new my.yaml --template NAME writes one to a file.", highlight=False)


@config.command()
@click.argument("file", type=_FILE)
@click.option("--model", "models", multiple=True, help="A model as `sme2 profile` takes it, or a .pte.")
@click.option(
    "--precision", "precisions", type=click.Choice(_PRECISIONS, case_sensitive=False), multiple=True
)
@click.option("--platform", "platforms", type=click.Choice([*PLATFORMS, "auto"]), multiple=True)
@click.option("--sme2", type=click.Choice(["both", "on", "off"]), help="States of SME2 [both].")
@click.option(
    "--threads", type=click.IntRange(1, MOST_THREADS), multiple=True, help="Threads of the runner [1]."
)
@click.option("--rounds", type=click.IntRange(1, MOST_ROUNDS), help="Exactly this many rounds.")
@click.option("--budget", type=AtLeast(0), help="Seconds after which no round is added.")
@click.option("--iterations", type=click.IntRange(1, MOST_INFERENCES), help="Timed inferences per process.")
@click.option("--warmup", type=click.IntRange(0, MOST_INFERENCES), help="Exactly this many warm-ups.")
@click.option("--device", help="A device: ssh://user@host, a serial, a name or label:LABEL, or any.")
@click.option("--cpus", help="CPUs to run on: a cluster, a list (0-3,7) or a mask (0xf0).")
@click.option("--power", type=click.Choice(["boost", "app"]), help="Android: power mode during the session.")
@click.option("--output", help="A folder for reports, relative to FILE.")
@click.option("--template", "template_name", help="Start from this template, unchanged.")
@click.option("--from", "kit_file", type=_FILE, help="A configuration of the public kit to translate.")
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
@click.pass_obj
def new(
    store: Store,
    file: Path,
    template_name: str | None,
    kit_file: Path | None,
    force: bool,
    **answers: Any,
) -> None:
    """Write the experiment file FILE: asks questions on a terminal, otherwise takes options.

    It does not ask for anything that an option gives. The file has a comment on every key.
    """
    from sme2_assets.experiments.load import load, parsed
    from sme2_assets.experiments.write import experiment_of, template, write_new, yaml_text

    given = {key: value for key, value in answers.items() if value not in (None, ())}
    if (template_name or kit_file) and given:
        raise Sme2Error(
            f"A template or another file is used unchanged, without {', '.join(sorted(given))}.",
            "Edit the file afterwards.",
        )
    if template_name is not None:
        text = template(template_name)
    elif kit_file is not None:
        loaded = load(kit_file)
        _print_notes(loaded.notes)
        text = yaml_text(loaded.experiment)
    else:
        if file.exists() and not force:
            # Before anything is asked.
            write_new(file, "", force=False)
        asked = _asked(store, answers) if sys.stdin.isatty() else answers
        if not asked["models"]:
            raise Sme2Error(
                "There is nothing to measure without a model.", "Give --model, e.g. --model toy_cnn."
            )
        asked["platforms"] = asked["platforms"] or ("auto",)
        _require_models(asked["models"], file)
        asked["budget_s"] = asked.pop("budget")
        listed = {key: list(value) if isinstance(value, tuple) else value for key, value in asked.items()}
        text = yaml_text(parsed(experiment_of(listed), file.name))
    write_new(file, text, force=force)
    say(f"written: {file}")
    say(f"Next: sme2 config check {file}, then sme2 run {file}")


def _prepared(
    store: Store, file: Path, platform_name: str | None, rounds: int | None
) -> tuple[Loaded, Planned, Lab]:
    from dataclasses import replace

    from sme2_assets.defs.resources import Lab
    from sme2_assets.experiments.load import load
    from sme2_assets.experiments.plan import planned

    lab = Lab(data_root=str(store.root))
    loaded = load(file, platform_name)
    if rounds is not None:
        document = loaded.experiment
        entries = document.entries and [it.model_copy(update={"rounds": None}) for it in document.entries]
        document = document.model_copy(update={"rounds": rounds, "entries": entries})
        loaded = replace(loaded, experiment=document)
    return loaded, planned(loaded, lab), lab


def _require_models(models: Sequence[str], file: Path) -> None:
    from sme2_assets.experiments.plan import chosen_models

    for model in models:
        chosen_models(model, None, file.resolve().parent)


def _asked(store: Store, answers: dict[str, Any]) -> dict[str, Any]:
    """The user's answers; what an option gave is not asked."""
    from sme2_assets.models.registry import model_spec, models
    from sme2_assets.models.registry import requested as named
    from sme2_assets.targets import SME2_STATES, open_target

    asked = dict(answers)
    if not asked["models"]:
        click.echo("Models: " + ", ".join(spec.title for spec in models()) + "; more: sme2 models --all")
        asked["models"] = _prompt("Models, separated by commas", "toy_cnn", _models)
    offered = list(
        dict.fromkeys(
            precision
            for model in asked["models"]
            if not model.endswith(".pte")
            for precision in model_spec(named(model)[0].model).precisions
            if precision in _PRECISIONS
        )
    )
    if not asked["precisions"] and offered and not all(_names_precision(it) for it in asked["models"]):
        chosen = _prompt(f"Precisions ({', '.join(offered)}, or all)", "all", _several([*offered, "all"]))
        asked["precisions"] = () if "all" in chosen else chosen
    if not asked["platforms"]:
        for name in PLATFORMS:
            target = open_target(name, store)
            given = [sme2 for sme2 in SME2_STATES if target.availability(sme2).ok]
            click.echo(f"  {name}: " + (f"SME2 {' and '.join(given)}" if given else "not available here"))
        asked["platforms"] = _prompt("Platforms (or auto)", "auto", _several([*PLATFORMS, "auto"]))
    if asked["sme2"] is None:
        asked["sme2"] = click.prompt("SME2", default="both", type=click.Choice(["both", "on", "off"]))
    if not asked["threads"]:
        asked["threads"] = _prompt("Threads, one or several numbers", "1", _numbers)
    if "android" in asked["platforms"]:
        asked["device"] = asked["device"] or _optional(
            "Android device: a serial, any, or empty for the only one"
        )
        asked["cpus"] = asked["cpus"] or _optional("CPUs: a cluster, a list, a mask, or empty for all")
        asked["power"] = asked["power"] or _optional("Power mode: boost, app, or empty to leave it")
    return asked


def _prompt(question: str, default: str, read: Callable[[str], tuple[Any, ...]]) -> tuple[Any, ...]:
    return click.prompt(question, default=default, value_proc=read)


def _optional(question: str) -> str | None:
    return click.prompt(question, default="", show_default=False) or None


def _words(text: str) -> list[str]:
    return [word for word in text.replace(",", " ").split() if word]


def _models(text: str) -> tuple[str, ...]:
    # A model's options have commas too: where there are any, only a comma with a space separates models.
    words = text.replace(", ", " ").split() if "@" in text else _words(text)
    try:
        _require_models(words, Path("x.yaml"))
    except Sme2Error as error:
        raise click.UsageError(str(error)) from None
    if not words:
        raise click.UsageError("Name at least one model.")
    return tuple(dict.fromkeys(words))


def _names_precision(model: str) -> bool:
    from sme2_assets.models.spec import split_precision

    return model.endswith(".pte") or bool(split_precision(model)[1])


def _several(known: Sequence[str]) -> Callable[[str], tuple[str, ...]]:
    def read(text: str) -> tuple[str, ...]:
        words = _words(text)
        wrong = [word for word in words if word not in known]
        if wrong or not words:
            raise click.UsageError(f"{', '.join(wrong) or 'Nothing'}: choose from {', '.join(known)}.")
        return tuple(dict.fromkeys(words))

    return read


def _numbers(text: str) -> tuple[int, ...]:
    words = _words(text)
    if not words or not all(word.isdecimal() and int(word) > 0 for word in words):
        raise click.UsageError("Give whole numbers from 1 up, separated by commas.")
    return tuple(dict.fromkeys(map(int, words)))


def _print_notes(notes: Sequence[str]) -> None:
    for note in notes:
        tell(f"note: {note}", "yellow")


def _work_json(sessions: Sequence[Session], lab: Lab) -> list[dict[str, Any]]:
    from sme2_assets.experiments.plan import seconds_per_round, work_of

    known = seconds_per_round(lab)
    listed = []
    for session in sessions:
        work = work_of(session, lab, known.get((session.variant, session.platform, session.threads)))
        listed.append({**session.as_json(), **asdict(work)})
    return listed


def _print_sessions(name: str, work: Sequence[dict[str, Any]]) -> None:
    from sme2_assets.experiments.plan import OF_THE_DEVICE

    table = Table(
        *("model", "platform", "SME2", "threads", "device", "passes", "rounds", "processes", "about"),
        box=None,
        pad_edge=False,
    )
    for it in work:
        settings = it["settings"]
        device = " ".join(str(settings[key]) for key in OF_THE_DEVICE if key in settings)
        table.add_row(
            it["variant"],
            it["platform"],
            " and ".join(it["sme2"]),
            str(settings["threads"]),
            device or "-",
            ", ".join(it["passes"]),
            _range(it["rounds"]),
            _range(it["processes"]),
            "not measured yet" if it["seconds"] is None else f"{_range([round(s) for s in it['seconds']])} s",
        )
    total = [sum(it["processes"][end] for it in work) for end in (0, 1)]
    sessions = "1 session" if len(work) == 1 else f"{len(work)} sessions"
    out.print(f"{name}: {sessions}, {_range(total)} processes", style="bold", highlight=False)
    out.print(table)
    out.print()


def _range(ends: Sequence[int]) -> str:
    return str(ends[0]) if ends[0] == ends[1] else f"{ends[0]} to {ends[1]}"


def _print_outcomes(
    warehouse: Warehouse, outcomes: Sequence[Outcome], shown: Sequence[Shown], operators: bool
) -> None:
    by_session = {outcome.session: outcome for outcome in outcomes}
    for it in shown:
        outcome = by_session[it.session]
        if outcome.ok:
            _print_comparison(warehouse, outcome, it.label, operators)
    for outcome in outcomes:
        if outcome.ok and not outcome.session.paired:
            _print_baseline(warehouse, outcome)
    for outcome in outcomes:
        if outcome.output_error is not None:
            _print_notes([f"{outcome.session.title} was measured, but not exported: {outcome.output_error}"])
    failed = [outcome for outcome in outcomes if not outcome.ok]
    out.print(f"{len(outcomes) - len(failed)} of {len(outcomes)} sessions were measured.", style="bold")
    for outcome in failed:
        say(f"FAILED {outcome.session.title}: {outcome.error}", "red")


def _print_comparison(warehouse: Warehouse, outcome: Outcome, label: str | None, operators: bool) -> None:
    from sme2_assets.report.terminal import show_comparison_rows
    from sme2_assets.warehouse.read import comparison_of_session

    title = f"{label}: {outcome.session.title}" if label else outcome.session.title
    say(f"== {title} ==", "bold")
    assert outcome.session_id is not None
    show_comparison_rows(out, warehouse, comparison_of_session(warehouse, outcome.session_id), operators)


def _verdict(warehouse: Warehouse, outcome: Outcome) -> dict[str, Any] | None:
    """The verdict on a pair, for programs."""
    from sme2_assets.warehouse.read import comparison_of_session

    if outcome.session_id is None or not outcome.session.paired:
        return None
    rows = comparison_of_session(warehouse, outcome.session_id)
    told = ["verdict", "reason", "speedup", "speedup_low", "speedup_high", "confidence"]
    return json.loads(rows[rows["level"] == "model"][told].to_json(orient="records"))[0]


def _print_baseline(warehouse: Warehouse, outcome: Outcome) -> None:
    from sme2_assets.report.terminal import show_arm

    say(f"== {outcome.session.title} ==", "bold")
    assert outcome.session_id is not None
    show_arm(out, warehouse, outcome.session_id)
