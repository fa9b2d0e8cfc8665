"""`sme2 dev`: the Dagster UI on this machine's data folder.

Belongs here: options, and how Dagster's own program is started. What the UI shows is in `definitions.py`.
"""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import click

from sme2_assets.cli.support import tell
from sme2_assets.errors import Sme2Error
from sme2_assets.evidence.leftovers import remove_leftovers
from sme2_assets.store import GUIDE_PAGE, UI_PAGES, Store, ready_dagster_home, workspace_file
from sme2_assets.ui.dev import serve


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option(
    "--port", type=click.IntRange(1, 65535), default=3000, show_default=True, help="The port to listen on."
)
@click.option(
    "--workspace",
    type=click.Path(exists=True, dir_okay=False, resolve_path=True, path_type=Path),
    help="Your own workspace.yaml, for your own definitions.",
)
@click.option(
    "--allow-host",
    "names",
    metavar="NAME",
    multiple=True,
    help="A host name the UI is reached by, e.g. through a proxy. Not needed for addresses and localhost.",
)
@click.pass_obj
def dev(store: Store, host: str, port: int, workspace: Path | None, names: tuple[str, ...]) -> None:
    """Open the Dagster UI: the same assets as a graph, with tables and pictures. Ctrl-C ends it.

    There is no login. Requests that pages of other sites make your browser send are refused.
    """
    _require_free(host, port)
    store.root.mkdir(parents=True, exist_ok=True)
    remove_leftovers(store)
    os.environ["SME2_DATA"] = str(store.root)
    os.environ["DAGSTER_HOME"] = str(ready_dagster_home(store))
    os.environ["SME2_UI_HOSTS"] = ",".join((*names, os.environ.get("SME2_UI_HOSTS", "")))
    address = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    tell(f"{address} in a few seconds; the data folder is {store.root}")
    tell(f"New here? {address}{UI_PAGES}/{GUIDE_PAGE}")
    sys.exit(serve(workspace or workspace_file(), host, port))


def _require_free(host: str, port: int) -> None:
    """Dagster itself reports a taken port as a traceback in the middle of its other output."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            # As the server will: a port whose last connections are still closing is free.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        raise Sme2Error(
            f"The UI cannot listen on {host}, port {port}: {error.strerror}.",
            f"Stop what uses it, or choose another: `sme2 dev --port {port + 1 if port < 65535 else 3000}`.",
        ) from error
