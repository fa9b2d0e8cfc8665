"""`sme2 profile`: the measurement, from the runner to the report.

Belongs here: options, and how results are printed. Heavy imports happen inside the commands.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sme2_assets.cli.support import (
    AtLeast,
    given_options,
    json_option,
    out,
    print_json,
    progress_log,
    say,
    tell,
    variants_of,
    verbose_option,
)
from sme2_assets.profiling.limits import MOST_INFERENCES, MOST_ROUNDS, MOST_THREADS
from sme2_assets.store import Store
from sme2_assets.targets.keys import PLATFORMS

if TYPE_CHECKING:
    from sme2_assets.launch import Measured
    from sme2_assets.profiling.requests import ProfileRequest
    from sme2_assets.warehouse import Warehouse


def plan_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """How much to measure and where, under the names that `etdump_traces` takes; what models are given."""
    for option in (
        json_option,
        verbose_option,
        given_options,
        click.option(
            "--qos",
            type=click.Choice(["user-interactive", "user-initiated", "utility", "background"]),
            help="macOS: quality of service of the runner's threads, which decides the kind of core.",
        ),
        click.option(
            "--device",
            help="A device: ssh://user@host[:port], the serial of an Android device, a name or label:LABEL "
            "from the inventory, `any`, or an emulated CPU: emulated:m4, c1 or max, with a vector length "
            "emulated:m4:256; `profile` takes emulated:all [this machine; the only Android device connected; "
            "emulated:max].",
        ),
        click.option(
            "--runner",
            type=click.Choice(["wheel", "source"]),
            default="wheel",
            show_default=True,
            help="source: the pair that `sme2 build-runner` made, one binary per arm.",
        ),
        click.option(
            "--budget",
            "budget_s",
            type=AtLeast(0),
            help="Seconds after which no round is added [120].",
        ),
        click.option(
            "--rounds",
            type=click.IntRange(1, MOST_ROUNDS),
            help="Exactly this many rounds [10 to 30; emulated 1].",
        ),
        click.option(
            "--warmup",
            type=click.IntRange(0, MOST_INFERENCES),
            help="Exactly this many warm-ups [at least 10 and 0.3 s; emulated 0].",
        ),
        click.option(
            "--runs",
            "iterations",
            type=click.IntRange(1, MOST_INFERENCES),
            help="Exactly this many timed inferences per process [at least 10 and 0.2 s; emulated 1].",
        ),
    ):
        command = option(command)
    return command


@click.command()
@click.argument("model")
@click.option(
    "--platform",
    "platform_name",
    type=click.Choice([*PLATFORMS, "auto"]),
    default="auto",
    show_default=True,
    help="Where to measure. auto: every platform that works here and says something about SME2, in the "
    "states it offers.",
)
@click.option(
    "--sme2",
    type=click.Choice(["both", "on", "off"]),
    default="both",
    show_default=True,
    help="Which arms to measure; a comparison needs both.",
)
@click.option(
    "--threads",
    type=click.IntRange(1, MOST_THREADS),
    default=1,
    show_default=True,
    help="Threads of the runner.",
)
@plan_options
@click.option("--cpus", help="CPUs to run on: prime, performance, efficiency, a list (4-7) or a mask (0xf0).")
@click.option("--power", type=click.Choice(["boost", "app"]), help="Android: power mode during the session.")
@click.option(
    "--sizes",
    multiple=True,
    metavar="DIMENSION=SIZES",
    help="Sizes of a dimension that can vary, a run each: seq=16,128,512. May be repeated.",
)
@click.option("--aa", is_flag=True, help="Measure each state against itself: the noise of this machine.")
@click.option("--operators", is_flag=True, help="Also print every operator.")
@click.pass_obj
def profile(
    store: Store,
    model: str,
    platform_name: str,
    sme2: str,
    threads: int,
    device: str | None,
    cpus: str | None,
    power: str | None,
    inputs: Path | None,
    op_library: Path | None,
    sizes: tuple[str, ...],
    aa: bool,
    operators: bool,
    as_json: bool,
    **wishes: Any,
) -> None:
    """Profile MODEL[-PRECISION] with SME2 on and off, and show the comparison.

    MODEL without a precision means all its precisions. MODEL can also be the path of a .pte, which is first
    copied to the models folder under a name made from its own. Everything from the runner to the report is
    materialised in Dagster; what is up to date comes from the cache. If something cannot be measured, the
    rest still is, and the exit code is 1.
    """
    # Before Dagster is loaded, so that a mistyped name is reported at once.
    variants = variants_of(model, inputs, op_library, sizes)
    from sme2_assets import launch
    from sme2_assets.defs.resources import Lab
    from sme2_assets.profiling.requests import requests_asked_for
    from sme2_assets.targets import SME2_STATES

    lab = Lab(data_root=str(store.root))
    states = SME2_STATES if sme2 == "both" else (sme2,)
    wanted = requests_asked_for(
        store, variants, platform_name, states, device, aa=aa, threads=threads, cpus=cpus
    )
    for note in wanted.notes:
        tell(f"note: {note}", "yellow")
    settings = {**wishes, "threads": threads, "cpus": cpus, "power": power}
    settings = {name: value for name, value in settings.items() if value is not None}
    with launch.open_instance(store) as instance, progress_log() as log:
        done = launch.profile(lab, instance, wanted.requests, settings, log, aa=aa, reached=log.reached)
    left_out = [*wanted.left_out, *done.left_out]
    if aa:
        _show_noise(lab.warehouse, [session.request.variant for session in done.sessions], as_json)
    elif as_json:
        print_json([_session_json(lab.warehouse, session) for session in done.sessions])
    elif len({request.device for request in wanted.requests}) > 1:
        _show_devices(lab.warehouse, wanted.requests, done.sessions)
    else:
        _show(store, lab.warehouse, done.sessions, operators)
    for each in left_out:
        tell(str(each), "bold red")
    if left_out:
        sys.exit(1)


def _show(store: Store, warehouse: Warehouse, sessions: list[Measured], operators: bool) -> None:
    from sme2_assets.report.files import PAGE_NAME, report_folder
    from sme2_assets.report.html import stamp_in, stamp_of
    from sme2_assets.report.terminal import show_session
    from sme2_assets.warehouse.read import run_of_id

    for session in sessions:
        page = report_folder(store, run_of_id(warehouse, session.run_ids[0])) / PAGE_NAME
        # A single arm gets no report; a page that is there is from an earlier session.
        made = stamp_in(page) == stamp_of(session.session_id)
        show_session(out, warehouse, session.session_id, page if made else None, operators)


def _show_devices(warehouse: Warehouse, asked: list[ProfileRequest], sessions: list[Measured]) -> None:
    """Each model's devices side by side; with SME2 on, if that was measured."""
    from sme2_assets.report.devices import devices_table, operators_that_differ
    from sme2_assets.report.terminal import print_table

    measured = {session.request: session.run_ids[-1] for session in sessions}
    for variant in dict.fromkeys(request.variant for request in asked):
        run_ids = {it.place: measured.get(it) for it in asked if it.variant == variant}
        say(variant, "bold")
        print_table(out, devices_table(warehouse, run_ids))
        if sum(map(bool, run_ids.values())) < 2:
            continue
        differing = operators_that_differ(warehouse, run_ids)
        if differing.rows:
            print_table(out, differing)
        else:
            say("Every operator has the same kernel on the same unit on all of them.")


def _show_noise(warehouse: Warehouse, variants: list[str], as_json: bool) -> None:
    from sme2_assets.report.tables import noise_table
    from sme2_assets.report.terminal import print_table

    rows = warehouse.query(
        "SELECT * FROM aa_sessions WHERE list_contains(?, variant) ORDER BY sequence, session_id", [variants]
    )
    if as_json:
        click.echo(rows.to_json(orient="records", date_format="iso", indent=2))
        return
    print_table(out, noise_table(rows))


def _session_json(warehouse: Warehouse, session: Measured) -> dict[str, Any]:
    from sme2_assets.warehouse.read import comparison_of_session

    rows = comparison_of_session(warehouse, session.session_id)
    return {
        "variant": session.request.variant,
        "platform": session.request.platform,
        "device": session.request.device,
        "session_id": session.session_id,
        "run_ids": dict(zip(session.request.states, session.run_ids, strict=True)),
        "comparison": json.loads(rows.to_json(orient="records", date_format="iso")),
    }
