"""`sme2`: the same assets, from a terminal.

Belongs here: options, and how results are printed. Heavy imports happen inside the commands, so that
`sme2 --help` answers at once.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.table import Table

import sme2_assets
from sme2_assets.cli_models import check_model, models, onboard
from sme2_assets.cli_support import json_option, out, progress
from sme2_assets.errors import Sme2Error
from sme2_assets.store import Store, default_data_root

if TYPE_CHECKING:
    from sme2_assets.launch import ProfileRequest
    from sme2_assets.warehouse import Warehouse


class _Group(click.Group):
    """Errors meant for people are printed without a traceback."""

    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except Sme2Error as error:
            progress.print(f"error: {error}", style="bold red", markup=False, highlight=False, soft_wrap=True)
            sys.exit(1)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(sme2_assets.__version__)
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    help="The data folder. Default: $SME2_DATA, else data/ of the checkout.",
)
@click.pass_context
def main(context: click.Context, data: Path | None) -> None:
    """Measure what Arm's SME2 matrix unit does for ExecuTorch models."""
    if data is not None:
        # The models folder is part of the data folder, and so are processes that are started from here.
        os.environ["SME2_DATA"] = str(data.resolve())
    context.obj = Store((data or default_data_root()).resolve())


@main.command()
@json_option
@click.pass_obj
def doctor(store: Store, as_json: bool) -> None:
    """What is there, what is missing, and how to get it."""
    from sme2_assets.doctor import examine

    findings = examine(store)
    if as_json:
        _print_json([asdict(finding) for finding in findings])
    else:
        marks = {"ok": "[green]ok[/]", "missing": "[red]missing[/]", "optional": "[yellow]optional[/]"}
        table = Table("", "status", "found", "what to do", box=None, pad_edge=False)
        for finding in findings:
            remedy = finding.remedy if finding.status != "ok" else None
            table.add_row(finding.name, marks[finding.status], finding.detail, remedy or "")
        out.print(table)
    if any(finding.status == "missing" for finding in findings):
        sys.exit(1)


for command in (models, onboard, check_model):
    main.add_command(command)


@main.command()
@json_option
@click.pass_obj
def targets(store: Store, as_json: bool) -> None:
    """The platforms with SME2 on and off: which this machine can give, and what the others need."""
    from sme2_assets.targets import TARGETS, open_target

    states = {str(key): open_target(key.platform, store).availability(key.sme2) for key in TARGETS}
    if as_json:
        _print_json([{"target": name, **asdict(state)} for name, state in states.items()])
        return
    table = Table("target", "available", "detail", "what to do", box=None, pad_edge=False)
    for name, state in states.items():
        table.add_row(
            name, "[green]yes[/]" if state.ok else "[yellow]no[/]", state.detail, state.remedy or ""
        )
    out.print(table)


@main.command()
@click.pass_obj
def emulator(store: Store) -> None:
    """Find QEMU >= 10.1, or fetch it from the package mirror of this machine; no root needed."""
    from sme2_assets.targets.qemu import ensure_qemu

    def log(message: str) -> None:
        progress.print(message, style="dim", markup=False, highlight=False, soft_wrap=True)

    found = ensure_qemu(store.tools, log=log)
    version = ".".join(map(str, found.version))
    out.print(f"QEMU {version} ({found.source}): {found.path}", markup=False, highlight=False, soft_wrap=True)


@main.command()
@click.argument("model")
@click.option(
    "--platform",
    "platform_name",
    type=click.Choice(["linux", "mac", "emulated", "auto"]),
    default="auto",
    show_default=True,
    help="Where to measure. auto: every platform that works here, in the states it can give.",
)
@click.option(
    "--sme2",
    type=click.Choice(["both", "on", "off"]),
    default="both",
    show_default=True,
    help="Which arms to measure; a comparison needs both.",
)
@click.option(
    "--threads", type=click.IntRange(1), default=1, show_default=True, help="Threads of the runner."
)
@click.option("--runs", type=click.IntRange(1), help="Timed inferences per process [20; emulated 1].")
@click.option(
    "--warmup", type=click.IntRange(0), help="Exactly so many warm-ups [5 to 100, until steady; emulated 0]."
)
@click.option("--rounds", type=click.IntRange(1), help="Exactly so many rounds [10 to 30; emulated 1].")
@click.option("--budget", type=click.FloatRange(0), help="Seconds after which no round is added [120].")
@click.option("--aa", is_flag=True, help="Measure each state against itself: the noise of this machine.")
@click.option("--operators", is_flag=True, help="Also print every operator.")
@json_option
@click.pass_obj
def profile(
    store: Store,
    model: str,
    platform_name: str,
    sme2: str,
    threads: int,
    runs: int | None,
    warmup: int | None,
    rounds: int | None,
    budget: float | None,
    aa: bool,
    operators: bool,
    as_json: bool,
) -> None:
    """Profile MODEL[-PRECISION] with SME2 on and off, and show the comparison.

    MODEL without a precision means all its precisions. Everything from the runner to the report is
    materialised in Dagster; what is up to date is taken from the cache.
    """
    from sme2_assets import launch
    from sme2_assets.report import terminal
    from sme2_assets.resources import Lab
    from sme2_assets.targets import SME2_STATES

    lab = Lab(data_root=str(store.root))
    states = SME2_STATES if sme2 == "both" else (sme2,)
    if platform_name == "auto":
        requests, notes = launch.requests_for_this_machine(lab, _variants(model), states)
        if aa:
            # Emulated times mean nothing, so they have no noise either.
            requests = [request for request in requests if request.platform != "emulated"]
    else:
        requests, notes = launch.requests_for(lab, _variants(model), platform_name, states), []
    for note in notes:
        progress.print(f"note: {note}", style="yellow", markup=False, highlight=False, soft_wrap=True)
    settings = {
        "threads": threads,
        "iterations": runs,
        "warmup": warmup,
        "rounds": rounds,
        "budget_s": budget,
    }
    settings = {name: value for name, value in settings.items() if value is not None}
    with launch.open_instance(store) as instance, progress.status("starting") as status:

        def log(message: str) -> None:
            status.update(message)
            progress.print(message, style="dim", markup=False, highlight=False, soft_wrap=True)

        launch.profile(lab, instance, requests, settings, log, aa=aa)
    if aa:
        _show_noise(lab.warehouse, [request.variant for request in requests], as_json)
        return
    if as_json:
        _print_json([_request_json(lab.warehouse, request) for request in requests])
        return
    for request in requests:
        what = (out, lab.warehouse, request.variant, request.platform)
        if len(request.states) == 2:
            folder = store.report_dir(request.variant, request.platform)
            terminal.show_comparison(*what, folder, operators)
        else:
            terminal.show_baseline(*what, request.states[0])


@main.command()
@click.argument("off_run")
@click.argument("on_run")
@click.option("--operators", is_flag=True, help="Also print every operator.")
@json_option
@click.pass_obj
def compare(store: Store, off_run: str, on_run: str, operators: bool, as_json: bool) -> None:
    """Compare the runs OFF_RUN and ON_RUN, if they were measured together.

    Run ids are in the table runs: sme2 sql "SELECT run_id, arm FROM runs".
    """
    from sme2_assets.report.terminal import show_comparison_rows
    from sme2_assets.warehouse import Warehouse
    from sme2_assets.warehouse.comparisons import compare_runs

    rows = compare_runs(Warehouse(store.warehouse), off_run, on_run)
    if as_json:
        click.echo(rows.to_json(orient="records", date_format="iso", indent=2))
        return
    show_comparison_rows(out, rows, operators)


@main.command()
@click.argument("model")
@click.option("--platform", "platform_name", type=click.Choice(["linux", "mac"]), help="Default: all.")
@json_option
@click.pass_obj
def history(store: Store, model: str, platform_name: str | None, as_json: bool) -> None:
    """The latency of MODEL[-PRECISION] over all its runs on hardware, and where it became slower."""
    from sme2_assets.report.tables import history_table, regression_table
    from sme2_assets.report.terminal import print_table
    from sme2_assets.warehouse import Warehouse
    from sme2_assets.warehouse.history import find_regressions

    warehouse = Warehouse(store.warehouse)
    variants = _variants(model)
    rows = warehouse.query(
        "SELECT * FROM history WHERE category = 'latency' AND list_contains($variants, variant) "
        "AND coalesce(platform = $platform, true) ORDER BY variant, platform, threads, sme2, started_at",
        {"variants": variants, "platform": platform_name},
    )
    if rows.empty:
        raise Sme2Error(
            f"There is no run of {model} on hardware in the warehouse yet.",
            f"Run `sme2 profile {model}` first; emulated runs have no history of times.",
        )
    if as_json:
        click.echo(rows.to_json(orient="records", date_format="iso", indent=2))
        return
    print_table(out, history_table(rows))
    found = find_regressions(warehouse, store.root / "acknowledged.txt")
    found = found[found["variant"].isin(variants)]
    if found.empty:
        out.print("No series became slower.")
    else:
        print_table(out, regression_table(found))


@main.command()
@click.argument("query")
@json_option
@click.pass_obj
def sql(store: Store, query: str, as_json: bool) -> None:
    """Run a read-only SQL QUERY over the warehouse, e.g. "SELECT * FROM sme2_comparison"."""
    from sme2_assets.report.terminal import show_rows
    from sme2_assets.warehouse import Warehouse

    rows = Warehouse(store.warehouse).query(query)
    if as_json:
        click.echo(rows.to_json(orient="records", date_format="iso", indent=2))
        return
    show_rows(out, rows)


@main.command()
@click.argument("model")
@click.option(
    "--platform", "platform_name", type=click.Choice(["linux", "mac", "emulated"]), help="Default: all."
)
@click.pass_obj
def report(store: Store, model: str, platform_name: str | None) -> None:
    """Write and print the report of MODEL[-PRECISION] from what is in the warehouse."""
    from sme2_assets.report.files import write_report
    from sme2_assets.report.markdown import latest_report
    from sme2_assets.targets import PLATFORMS
    from sme2_assets.warehouse import Warehouse

    warehouse = Warehouse(store.warehouse)
    written = []
    for variant in _variants(model):
        for name in [platform_name] if platform_name else PLATFORMS:
            made = latest_report(warehouse, variant, name)
            if made is not None:
                written.append(write_report(store.report_dir(variant, name), made))
                click.echo(made.text)
    if not written:
        raise Sme2Error(
            f"There is no run of {model} in the warehouse yet.", f"Run `sme2 profile {model}` first."
        )
    for path in written:
        progress.print(f"written: {path}", markup=False, highlight=False)


@main.command()
@click.argument("model")
@click.option(
    "--platform", "platform_name", type=click.Choice(["linux", "mac", "emulated"]), help="Default: all."
)
@json_option
@click.pass_obj
def explain(store: Store, model: str, platform_name: str | None, as_json: bool) -> None:
    """Why MODEL[-PRECISION] is as fast as it is: what to fix next, ranked by the time there is to win."""
    from sme2_assets.explain import explain as explained
    from sme2_assets.report.insights import explanation_json, show_explanation
    from sme2_assets.targets import PLATFORMS
    from sme2_assets.warehouse import Warehouse
    from sme2_assets.warehouse.read import newest_run

    warehouse = Warehouse(store.warehouse)
    found = [
        explained(warehouse, variant, name)
        for variant in _variants(model)
        for name in ([platform_name] if platform_name else PLATFORMS)
        if newest_run(warehouse, variant, name) is not None
    ]
    if not found:
        raise Sme2Error(
            f"There is no run of {model} in the warehouse yet.", f"Run `sme2 profile {model}` first."
        )
    if as_json:
        _print_json([explanation_json(explanation) for explanation in found])
        return
    for explanation in found:
        show_explanation(out, explanation)


@main.command("kernel-log")
@click.argument("log_file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--run", "run_id", help="Store them with this run of the warehouse, as registered evidence.")
@json_option
@click.pass_obj
def kernel_log(store: Store, log_file: Path, run_id: str | None, as_json: bool) -> None:
    """The kernels that LOG_FILE says XNNPACK registered. Registered is not executed.

    LOG_FILE is what a runner printed that was built from source with XNNPACK's logging.
    """
    from sme2_assets.report.terminal import show_rows
    from sme2_assets.warehouse import Warehouse
    from sme2_assets.warehouse.ingest import registered_rows_of_log, write_registered

    rows = registered_rows_of_log(log_file)
    if run_id is not None:
        warehouse = Warehouse(store.warehouse)
        write_registered(warehouse, run_id, rows)
        warehouse.publish()
    if as_json:
        click.echo(rows.to_json(orient="records", indent=2))
        return
    show_rows(out, rows)


def _variants(model: str) -> list[str]:
    """The variant that was named, or all precisions of the model that was."""
    from sme2_assets.models.registry import requested

    return [variant.key for variant in requested(model)]


def _show_noise(warehouse: Warehouse, variants: list[str], as_json: bool) -> None:
    from sme2_assets.report.tables import noise_table
    from sme2_assets.report.terminal import print_table

    rows = warehouse.query(
        "SELECT * FROM aa_sessions WHERE list_contains(?, variant) ORDER BY session_id", [variants]
    )
    if as_json:
        click.echo(rows.to_json(orient="records", date_format="iso", indent=2))
        return
    print_table(out, noise_table(rows))


def _request_json(warehouse: Warehouse, request: ProfileRequest) -> dict[str, Any]:
    from sme2_assets.warehouse.read import comparison, latest_run

    runs = [latest_run(warehouse, request.variant, request.platform, sme2) for sme2 in request.states]
    compared = (
        json.loads(
            comparison(warehouse, request.variant, request.platform).to_json(
                orient="records", date_format="iso"
            )
        )
        if len(runs) == 2
        else []
    )
    return {
        "variant": request.variant,
        "platform": request.platform,
        "run_ids": {run["sme2"]: run["run_id"] for run in runs},
        "comparison": compared,
    }


def _print_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=2, allow_nan=False))


if __name__ == "__main__":
    main()
