"""`sme2 compare` and `sme2 scale`: arms that differ in one thing, measured together.

Belongs here: options, and how results are printed. Heavy imports happen inside the commands.
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sme2_assets.cli.measure import plan_options, profile
from sme2_assets.cli.support import out, print_json, progress_log, tell, variants_of
from sme2_assets.errors import Sme2Error
from sme2_assets.profiling.limits import MOST_THREADS
from sme2_assets.store import Store
from sme2_assets.targets.keys import PLATFORMS, SME2_STATES

if TYPE_CHECKING:
    import pandas as pd

    from sme2_assets.profiling.arm_requests import ArmRequest
    from sme2_assets.warehouse import Warehouse

_OF_TIMES = ("rounds", "budget_s", "iterations", "warmup")
_platform_option = click.option(
    "--platform",
    type=click.Choice(PLATFORMS),
    help="Where to measure [every platform that works here and says something about SME2].",
)


class _Versions(click.ParamType):
    """Versions of ExecuTorch, separated by commas."""

    name = "V,V[,V...]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        versions = str(value).split(",")
        if not all(re.fullmatch(r"\d+\.\d+\.\d+\w*", version) for version in versions):
            self.fail(f"{value!r} is not a list of versions, such as 1.5.0,1.5.1", param, ctx)
        return versions


class _Counts(click.ParamType):
    """Numbers separated by commas."""

    name = "N[,N...]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        counts = str(value).split(",")
        # A number has few digits here: Python refuses to read one with thousands.
        if not all(it.isdecimal() and len(it) < 9 and 1 <= int(it) <= MOST_THREADS for it in counts):
            self.fail(
                f"{value!r} is not a list of whole numbers from 1 to {MOST_THREADS}, such as 1,2,4",
                param,
                ctx,
            )
        return [int(count) for count in counts]


@click.command()
@click.argument("first")
@click.argument("second", required=False)
@_platform_option
@click.option(
    "--sme2",
    type=click.Choice([*SME2_STATES, "off,on"]),
    help="The SME2 state of all arms [on, where there is SME2]; off,on compares both, like `sme2 profile`.",
)
@click.option("--threads", type=_Counts(), default="1", help="Threads of the runner; 1,2 compares both [1].")
@click.option(
    "--cpus",
    multiple=True,
    help="CPUs to run on, as in `sme2 profile`; given twice, they are compared.",
)
@click.option(
    "--power",
    type=click.Choice(["boost", "app"]),
    multiple=True,
    help="Android: power mode while an arm runs; given twice, they are compared.",
)
@click.option(
    "--executorch",
    type=_Versions(),
    help="Versions of ExecuTorch to compare, such as 1.5.0,1.5.1: one exported program, run by the runner of "
    "each, which is built from the wheel of that version [the installed one].",
)
@click.option("--operators", is_flag=True, help="Also print every operator.")
@plan_options
@click.pass_context
def compare(
    context: click.Context,
    first: str,
    second: str | None,
    platform: str | None,
    sme2: str | None,
    threads: list[int],
    cpus: tuple[str, ...],
    power: tuple[str, ...],
    executorch: list[str] | None,
    operators: bool,
    inputs: Path | None,
    op_library: Path | None,
    as_json: bool,
    **wishes: Any,
) -> None:
    """Measure arms that differ in one thing, interleaved, and say which is faster and by how much.

    FIRST and SECOND are two models, each as MODEL-PRECISION or a .pte file. A MODEL without a precision means
    all of its precisions; each arm is compared with the first. One model is enough if a setting is a list,
    such as --threads 1,2. Arms that differ in two things are refused.

    If FIRST and SECOND are the ids of two runs that were measured together, those runs are compared again.
    """
    from sme2_assets.profiling.arm_requests import arms_of

    store: Store = context.obj
    if second is not None and any(map(partial(_is_run, store), (first, second))):
        _compare_runs(store, first, second, operators, as_json)
        return
    models = (first,) if second is None else (first, second)
    variants = [key for model in models for key in variants_of(model, inputs, op_library)]
    if executorch and wishes["runner"] == "source":
        raise Sme2Error(
            "A runner that was built from source has the version of its checkout.",
            "Leave --runner out: the runners of versions are built from their wheels.",
        )
    factor, arms = arms_of(
        variants,
        threads,
        cpus or ("",),
        power or ("",),
        (sme2 or "").split(","),
        executorch or ("",),
    )
    if factor == "sme2":
        [arm] = {replace(arm, sme2="") for arm in arms}
        settings = {"threads": arm.threads, "cpus": arm.cpus or None, "power": arm.power or None}
        context.invoke(
            profile,
            model=arm.variant,
            platform_name=platform or "auto",
            operators=operators,
            as_json=as_json,
            **settings,
            **wishes,
        )
        return
    _measure(store, factor, arms, platform, wishes, as_json, operators)


@click.command()
@click.argument("model")
@click.option("--threads", type=_Counts(), required=True, help="Thread counts to compare, such as 1,2,4.")
@_platform_option
@click.option("--sme2", type=click.Choice(SME2_STATES), help="The SME2 state [on, where there is SME2].")
@click.option("--cpus", default="", help="CPUs to run on, as in `sme2 profile`.")
@plan_options
@click.pass_obj
def scale(
    store: Store,
    model: str,
    threads: list[int],
    platform: str | None,
    sme2: str | None,
    cpus: str,
    inputs: Path | None,
    op_library: Path | None,
    as_json: bool,
    **wishes: Any,
) -> None:
    """Measure MODEL-PRECISION with several thread counts, and show how it scales.

    Shows time, speedup and efficiency relative to the smallest count, with their intervals, and what part of
    the model is on the SME unit. Under emulation there is only the last of these.
    """
    from sme2_assets.profiling.arm_requests import arms_of

    variants = variants_of(model, inputs, op_library)
    factor, arms = arms_of(variants, sorted(threads), (cpus,), sme2=(sme2 or "",))
    if factor != "threads":
        raise Sme2Error(
            f"{model} means {len(arms)} variants.", f"Name one, such as {arms[0].variant}, and --threads 1,2."
        )
    _measure(store, factor, arms, platform, wishes, as_json, scaling=True)


def _measure(
    store: Store,
    factor: str,
    arms: tuple[ArmRequest, ...],
    platform: str | None,
    wishes: dict[str, Any],
    as_json: bool,
    operators: bool = False,
    scaling: bool = False,
) -> None:
    from sme2_assets import launch
    from sme2_assets.defs.resources import Lab
    from sme2_assets.profiling.arm_requests import places_of
    from sme2_assets.profiling.requests import LeftOut
    from sme2_assets.targets.inventory import platform_of
    from sme2_assets.warehouse.read import comparison_of_session

    settings = {name: value for name, value in wishes.items() if value is not None}
    device = settings.get("device")
    if platform is None and device is not None:
        platform = platform_of(store, device)
    places, notes, left_out = places_of(store, arms, factor, platform, device)
    for note in notes:
        tell(f"note: {note}", "yellow")
    lab = Lab(data_root=str(store.root))
    sessions = []
    failed: list[LeftOut] = []
    with launch.open_instance(store) as instance, progress_log() as log:
        for index, place in enumerate(places):

            def reached(share: float, before: int = index) -> None:
                log.reached((before + share) / len(places))

            # These settings are meant for hardware: one emulated inference already shows all it can.
            untimed = platform is None and place.platform == "emulated"
            asked = {name: it for name, it in settings.items() if not (untimed and name in _OF_TIMES)}
            # A failure costs only itself, as in `sme2 profile`.
            try:
                sessions.append(launch.compare_arms(lab, instance, place, asked, log, reached))
            except Sme2Error as error:
                failed.append(LeftOut(place.platform, error))
                if len(failed) < len(places):
                    log(str(failed[-1]))
    if not sessions:
        raise failed[0].error
    left_out += failed
    compared = {session: comparison_of_session(lab.warehouse, session) for session in sessions}
    if as_json:
        print_json([_json(rows) for rows in compared.values()])
    else:
        for rows in compared.values():
            _show(lab.warehouse, rows, operators, scaling)
    for each in left_out:
        tell(str(each), "bold red")
    if left_out:
        sys.exit(1)


def _show(warehouse: Warehouse, rows: pd.DataFrame, operators: bool, scaling: bool = False) -> None:
    from sme2_assets.report.arms import arms_table, scaling_table, show_arms

    session = str(rows["session_id"].iloc[0])
    table = scaling_table(warehouse, session, rows) if scaling else arms_table(warehouse, session)
    show_arms(out, warehouse, rows, table, operators)


def _json(rows: pd.DataFrame) -> dict[str, Any]:
    from sme2_assets.report.arms import verdict_of_arms

    models = rows[rows["level"] == "model"].to_dict("records")
    return {
        **{name: str(models[0][name]) for name in ("factor", "platform", "session_id", "fidelity")},
        "verdicts": [verdict_of_arms(row) for row in models],
        "comparison": json.loads(rows.to_json(orient="records", date_format="iso")),
    }


def _is_run(store: Store, name: str) -> bool:
    """Whether this is a run id, even of a run that does not exist: run ids begin with the time."""
    return bool(re.match(r"\d{8}T\d{6}-", name)) or (store.runs / name).is_dir()


def _compare_runs(store: Store, first: str, second: str, operators: bool, as_json: bool) -> None:
    """Two runs of one session, as they are in the warehouse."""
    from sme2_assets.analysis.factors import SME2
    from sme2_assets.report.terminal import show_comparison_rows
    from sme2_assets.warehouse import Warehouse
    from sme2_assets.warehouse.comparisons import compare_runs

    warehouse = Warehouse(store.warehouse)
    rows = compare_runs(warehouse, first, second)
    if as_json:
        click.echo(rows.to_json(orient="records", date_format="iso", indent=2))
    elif rows["factor"].iloc[0] == SME2.name:
        show_comparison_rows(out, warehouse, rows, operators)
    else:
        _show(warehouse, rows, operators)
