"""What has been measured: history, reports, explanations.

Belongs here: options, and how results are printed. Heavy imports happen inside the commands.
"""

from __future__ import annotations

import json
import webbrowser
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sme2_assets.cli.support import json_option, out, print_json, reads_store, say, status_line
from sme2_assets.errors import Sme2Error
from sme2_assets.store import Store
from sme2_assets.targets.keys import PLATFORMS

if TYPE_CHECKING:
    from sme2_assets.report.document import Answer
    from sme2_assets.warehouse import Warehouse


@click.command()
@click.argument("model")
@click.option(
    "--platform",
    "platform_name",
    type=click.Choice(PLATFORMS),
    help="Default: all.",
)
@json_option
@reads_store
def history(store: Store, model: str, platform_name: str | None, as_json: bool) -> None:
    """Show the latency of MODEL[-PRECISION] over all its native runs, and where it got slower.

    Of emulated runs it shows what their operators executed, which is work and not time, and where it grew.
    """
    from sme2_assets.report.tables import history_table, regression_table, work_history_table
    from sme2_assets.report.terminal import print_table
    from sme2_assets.warehouse import Warehouse
    from sme2_assets.warehouse.history import SERIES, find_regressions, no_slow_down_text, work_of
    from sme2_assets.warehouse.variants import measured_variants

    warehouse = Warehouse(store.warehouse)
    variants = measured_variants(warehouse, model)
    rows = warehouse.query(
        "SELECT * FROM history WHERE category = 'latency' AND list_contains($variants, variant) "
        "AND coalesce(platform = $platform, true) "
        f"ORDER BY {', '.join(SERIES)}, sequence, started_at",
        {"variants": variants, "platform": platform_name},
    )
    work = work_of(warehouse, variants, platform_name)
    if rows.empty and work.empty:
        where = f" on {platform_name}" if platform_name else ""
        raise Sme2Error(
            f"There is no run of {model}{where} in the warehouse that has times or counted work.",
            f"Run `sme2 profile {model}`.",
        )
    if as_json:
        print_json(
            [
                row
                for each in (rows, work)
                for row in json.loads(each.to_json(orient="records", date_format="iso"))
            ]
        )
        return
    for each, table in ((rows, history_table), (work, work_history_table)):
        if len(each):
            print_table(out, table(each))
    found = find_regressions(warehouse, store.root / "acknowledged.txt")
    found = found[found["variant"].isin(variants)]
    if platform_name:
        found = found[found["platform"] == platform_name]
    if found.empty:
        say(no_slow_down_text(warehouse, variants, platform_name))
    else:
        print_table(out, regression_table(found))


@click.command()
@click.argument("model", required=False)
@click.option("--platform", "platform_name", type=click.Choice(PLATFORMS), help="Default: all.")
@click.option(
    "--all", "everything", is_flag=True, help="Write the overview, and every report that is missing."
)
@click.option(
    "--format",
    "wanted",
    type=click.Choice(["md", "html", "both"]),
    default="both",
    show_default=True,
    help="Markdown with pictures next to it, one self-contained HTML file, or both.",
)
@click.option("--open", "opened", is_flag=True, help="Open the HTML page in the browser.")
@json_option
@reads_store
def report(
    store: Store,
    model: str | None,
    platform_name: str | None,
    everything: bool,
    wanted: str,
    opened: bool,
    as_json: bool,
) -> None:
    """Write the report of MODEL[-PRECISION] from what is in the warehouse; print its answer and its link.

    With --all, write the overview of all models on all platforms: data/reports/index.html.
    """
    if everything == (model is not None) or (everything and platform_name):
        raise click.UsageError("Give a MODEL, with --platform if you like, or --all.")
    if opened and wanted == "md":
        raise click.UsageError("--open needs the HTML page: leave out --format md.")
    formats = ("md", "html") if wanted == "both" else (wanted,)
    if everything:
        made = _overview(store, formats)
    else:
        assert model is not None
        made = _reports(store, model, platform_name, formats)
    if as_json:
        print_json(made.facts)
    else:
        made.show()
    if opened:
        for path in made.written:
            if path.suffix == ".html":
                webbrowser.open(path.as_uri())


@dataclass(frozen=True)
class _Written:
    """Files that were written, what they say as JSON, and how to show it on a terminal."""

    written: list[Path]
    facts: list[dict[str, Any]]
    show: Callable[[], None]


def _reports(store: Store, model: str, platform_name: str | None, formats: tuple[str, ...]) -> _Written:
    """Writes a model's reports."""
    from sme2_assets.report.files import write_session_report
    from sme2_assets.report.terminal import print_link, show_answer
    from sme2_assets.warehouse import Warehouse

    warehouse = Warehouse(store.warehouse)
    shown: list[tuple[str, Answer, Path]] = []
    written, facts = [], []
    for run in _newest(warehouse, model, platform_name):
        document, files = write_session_report(store, warehouse, run["session_id"], formats)
        answer = document.answer
        assert answer is not None
        shown.append((f"{run['variant']} on {run['platform']}", answer, files[-1]))
        written += files
        facts.append(
            {
                **{name: run[name] for name in ("variant", "platform", "device", "session_id")},
                "verdict": answer.word,
                "answer": answer.sentence,
                "reason": answer.why,
                "figure": answer.figure,
                "actions": [asdict(action) for action in answer.actions],
                "files": [str(path) for path in files],
            }
        )

    def show() -> None:
        for title, answer, path in shown:
            show_answer(out, title, answer)
            print_link(out, "report", path)
            out.print()

    return _Written(written, facts, show)


def _newest(warehouse: Warehouse, model: str, platform_name: str | None) -> list[dict[str, Any]]:
    """A run of the newest session of each series of a model, hardware first; an error if there is none."""
    from sme2_assets.warehouse.variants import measured_variants

    # Before pandas is loaded, so that a mistyped name is reported at once.
    variants = measured_variants(warehouse, model)
    from sme2_assets.report.answer import hardware_first
    from sme2_assets.warehouse.read import measured_sessions

    return hardware_first(measured_sessions(warehouse, model, variants, platform_name))


def _overview(store: Store, formats: tuple[str, ...]) -> _Written:
    """Writes the overview, and the reports it links to that are missing."""
    from sme2_assets.report.files import write_missing_reports, write_overview
    from sme2_assets.report.overview import overview_sentence
    from sme2_assets.report.terminal import print_link
    from sme2_assets.warehouse import Warehouse

    warehouse = Warehouse(store.warehouse)
    with status_line("writing reports") as log:
        write_missing_reports(store, warehouse, lambda message: log(f"writing the report of {message}"))
    rows, written = write_overview(store, warehouse, formats)

    def show() -> None:
        say(overview_sentence(rows))
        page = next((path for path in written if path.suffix == ".html"), written[0])
        print_link(out, "overview", page)

    return _Written(written, json.loads(rows.to_json(orient="records", date_format="iso")), show)


@click.command()
@click.argument("model")
@click.option("--platform", "platform_name", type=click.Choice(PLATFORMS), help="Default: all.")
@click.option("--all", "everything", is_flag=True, help="All findings, with evidence and tables.")
@json_option
@reads_store
def explain(store: Store, model: str, platform_name: str | None, everything: bool, as_json: bool) -> None:
    """Say why MODEL[-PRECISION] is as fast as it is, and what to fix next.

    Prints the answer, then five findings, each with what to do: first those that can be acted on, then those
    that repeat one of them, then the rest, each by the time to gain; --all adds the others, and the evidence.
    """
    from sme2_assets.warehouse import Warehouse

    warehouse = Warehouse(store.warehouse)
    newest = _newest(warehouse, model, platform_name)
    # Only after a mistyped name has been reported.
    from sme2_assets.report.answer import session_answer
    from sme2_assets.report.explain import explain as explained
    from sme2_assets.report.insights import explanation_json, show_explanation

    found = [explained(warehouse, run["session_id"]) for run in newest]
    answers = [session_answer(warehouse, explanation) for explanation in found]
    if as_json:
        print_json([explanation_json(*each) for each in zip(found, answers, strict=True)])
        return
    for explanation, answer in zip(found, answers, strict=True):
        show_explanation(out, explanation, answer, everything)


@click.command("kernel-log")
@click.argument("log_file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--run", "run_id", help="Store them with this run in the warehouse, as registered evidence.")
@json_option
@click.pass_obj
def kernel_log(store: Store, log_file: Path, run_id: str | None, as_json: bool) -> None:
    """List the kernels that XNNPACK registered, according to LOG_FILE. Registered is not executed.

    LOG_FILE is the output of a runner that was built from source with XNNPACK's logging.
    """
    from sme2_assets.report.terminal import show_rows
    from sme2_assets.warehouse import Warehouse
    from sme2_assets.warehouse.ingest import annotate, registered_rows_of_log
    from sme2_assets.warehouse.read import run_of_id
    from sme2_assets.warehouse.sessions import take_session

    rows = registered_rows_of_log(log_file)
    if run_id is not None:
        warehouse = Warehouse(store.warehouse)
        # The run must exist. The log is kept first: rows are made from what is kept.
        run_of_id(warehouse, run_id)
        annotate(store, run_id, log_file)
        take_session(store, warehouse, store.run_dir(run_id))
        warehouse.publish()
    if as_json:
        click.echo(rows.to_json(orient="records", indent=2))
        return
    show_rows(out, rows)


@click.command()
@click.argument("model")
@reads_store
def language(store: Store, model: str) -> None:
    """Show what was measured for the language model MODEL, in the terms of llama-bench.

    pp reads a prompt, tg adds a token. Tokens per second are those of the newest run; where times mean
    nothing, as under emulation, there are none. The cache and the program are those of one inference.
    """
    from sme2_assets.report.language import language_table
    from sme2_assets.report.terminal import print_table
    from sme2_assets.warehouse import Warehouse
    from sme2_assets.warehouse.variants import measured_variants

    warehouse = Warehouse(store.warehouse)
    print_table(out, language_table(store, warehouse, measured_variants(warehouse, model)))
