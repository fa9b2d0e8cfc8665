"""`sme2 worker`: this machine measures what Dagster's queue hands to it."""

from __future__ import annotations

import os

import click

from sme2_assets.errors import Sme2Error
from sme2_assets.store import Store, safe_name


@click.command()
@click.argument("name", default="lab")
@click.option(
    "--sessions",
    type=click.IntRange(1, 64),
    default=1,
    show_default=True,
    help="How many runs at a time: as many as this machine has devices.",
)
@click.pass_obj
def worker(store: Store, name: str, sessions: int) -> None:
    """Serve the queue NAME of a deployment, with this machine's data folder. Ctrl-C ends it after its runs.

    NAME is the `worker` of a device in the inventory. There must be one worker `lab`: it makes what follows
    measurements, i.e. comparisons, reports, summaries. See docs/deployment.md.
    """
    try:
        import dagster as dg

        from sme2_assets.defs.workers import WorkerRunLauncher, worker_app
    except ImportError as error:
        raise Sme2Error(
            f"A worker needs packages that are not installed: {error}.", "pip install 'sme2-assets[deploy]'."
        ) from error
    home = os.environ.get("DAGSTER_HOME")
    with dg.DagsterInstance.get() if home else dg.DagsterInstance.ephemeral() as instance:
        if not isinstance(instance.run_launcher, WorkerRunLauncher):
            raise Sme2Error(
                f"DAGSTER_HOME is {home!r}, which has no dagster.yaml of a deployment.",
                "Set it to a folder with deploy/dagster.yaml, the same for all machines.",
            )
    os.environ["SME2_DATA"] = str(store.root)
    os.environ["SME2_WORKER"] = safe_name(name)
    words = ["worker", "--queues", name, "--hostname", f"{name}@%h", "--concurrency", str(sessions)]
    # Each run has its own process, which ends with it; the main process answers health checks.
    words += ["--pool", "prefork", "--max-tasks-per-child", "1", "--without-gossip", "--without-mingle"]
    worker_app().worker_main([*words, "--loglevel", "INFO"])
