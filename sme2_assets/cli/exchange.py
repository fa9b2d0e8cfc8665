"""`sme2 ingest` and `sme2 export`: runs in from other tools, and out to them.

Belongs here: options, and how results are printed. Heavy imports happen inside the commands.
"""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.table import Table

from sme2_assets.cli.support import json_option, out, print_json, reads_store, say, status_line, tell
from sme2_assets.store import Store

if TYPE_CHECKING:
    from sme2_assets.exchange.ingest import Ingested

# As in exchange.trace_facts and exchange.export, which are slow to import; a test checks that they agree.
PLATFORM_NAMES = ("linux", "mac", "android", "emulated")
FORMAT_NAMES = ("csv", "parquet", "json", "markdown", "perfetto", "etdump")


@click.command()
@click.argument("paths", metavar="PATH...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--model", help="The model of all traces, e.g. toy_cnn-fp16, if their names do not say it.")
@click.option("--platform", "platform_name", type=click.Choice(PLATFORM_NAMES), help="Where they were made.")
@click.option("--sme2", type=click.Choice(["on", "off"]), help="The SME2 state of all traces.")
@click.option("--threads", type=click.IntRange(1, 1024), help="Threads of the runner.")
@click.option(
    "--warmup", type=click.IntRange(0), help="How many of the first inferences in each trace are warm-up."
)
@json_option
@click.pass_obj
def ingest(
    store: Store,
    paths: tuple[Path, ...],
    model: str | None,
    platform_name: str | None,
    sme2: str | None,
    threads: int | None,
    warmup: int | None,
    as_json: bool,
) -> None:
    """Import ETDump files, or run folders of the public kit, into the warehouse as foreign runs.

    Model, platform, SME2 state and threads come from the options, from the kit's manifest.json and from the
    names of files and folders, in this order; what none of these says stays unknown. Foreign runs can be
    queried and exported. They were not measured as a pair, so they are in no comparison and no history.
    A trace that was ingested before is replaced. The exit code is 1 if anything could not be ingested.
    """
    from sme2_assets.exchange.ingest import ingest_paths
    from sme2_assets.exchange.trace_facts import said_by_options

    said = said_by_options(model, platform_name, sme2, threads, warmup)
    with status_line("reading") as log:
        done = ingest_paths(store, paths, said, log=log)
    if as_json:
        print_json(
            {
                "ingested": [
                    {**asdict(trace), "facts": trace.facts.as_json(), "variant": trace.facts.variant}
                    for trace in done.traces
                ],
                "refused": [asdict(refused) for refused in done.refused],
            }
        )
    else:
        _print_ingested(done)
    if done.refused:
        sys.exit(1)


def _print_ingested(done: Ingested) -> None:
    if done.traces:
        table = Table(
            "run", "model", "platform", "SME2", "threads", "inferences", "traced ms", "from", box=None
        )
        for trace in done.traces:
            facts, median_ns = trace.facts, trace.median_execute_ns
            cells = (
                *(trace.run_id + (" (again)" if trace.replaced else ""), facts.variant),
                *(facts.platform, facts.sme2, facts.threads, trace.inferences),
                *("-" if median_ns is None else f"{median_ns / 1e6:.4g}", trace.source),
            )
            table.add_row(*("unknown" if cell is None else str(cell) for cell in cells))
        out.print(table)
        say(
            "Foreign runs are in no comparison. Look at one with: "
            f"sme2 sql \"SELECT * FROM category_summary WHERE run_id = '{done.traces[0].run_id}'\""
        )
    for refused in done.refused:
        what = f"not ingested: {refused.source}: {refused.what}"
        tell(what, "red")
        if refused.remedy:
            tell(f"  What to do: {refused.remedy}")


@click.command("export")
@click.argument("run")
@click.option(
    "--format",
    "formats",
    type=click.Choice([*FORMAT_NAMES, "all"]),
    multiple=True,
    default=("all",),
    show_default=True,
    help="Repeat it for several formats.",
)
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    help="The folder to write to. Default: exports/RUN in the data folder. An earlier export is replaced.",
)
@click.option("--model", help="With `latest`: of this model or variant.")
@click.option(
    "--platform", "platform_name", type=click.Choice(PLATFORM_NAMES), help="With `latest`: on this platform."
)
@click.option("--sme2", type=click.Choice(["on", "off"]), help="With `latest`: in this SME2 state.")
@click.option(
    "--inferences",
    type=click.IntRange(1),
    default=5,
    show_default=True,
    help="Inferences of each process in the Perfetto trace.",
)
@json_option
@reads_store
def export_(
    store: Store,
    run: str,
    formats: tuple[str, ...],
    output: Path | None,
    model: str | None,
    platform_name: str | None,
    sme2: str | None,
    inferences: int,
    as_json: bool,
) -> None:
    """Write RUN, and the other arm of its session, as files for other tools.

    RUN is a run id, or `latest`. csv and parquet: timeline, operator statistics, categories, kernels. json:
    manifest, metrics, pipeline and analysis summary, in the public kit's form. markdown: the summary to
    read. perfetto: a trace for https://ui.perfetto.dev. etdump: the traces themselves.
    """
    from sme2_assets.exchange.export import FORMATS, default_folder, export_run, find_run
    from sme2_assets.warehouse import Warehouse

    found = find_run(Warehouse(store.warehouse), run, model, platform_name, sme2)
    folder = (output or default_folder(store, found)).absolute()
    with status_line("exporting") as log:
        files = export_run(
            store,
            found,
            FORMATS if "all" in formats else formats,
            folder,
            inferences=inferences,
            log=log,
        )
    if as_json:
        print_json({"run_id": found["run_id"], "folder": str(folder), "files": [str(path) for path in files]})
        return
    for path in files:
        say(f"{path.stat().st_size:>12,}  {path.relative_to(folder)}")
    say(f"written: {folder}")
    if any(path.suffix == ".pftrace" for path in files):
        say("Open the .pftrace at https://ui.perfetto.dev (it stays in your browser).")
