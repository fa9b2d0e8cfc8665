"""`sme2 mcp`: the data folder for an assistant.

Belongs here: the command. Tools and resources are in mcp/server.py, imported when it runs.
"""

from __future__ import annotations

import click

from sme2_assets.store import Store


@click.command()
@click.pass_obj
def mcp(store: Store) -> None:
    """Serve the Model Context Protocol on standard input and output, to the assistant that starts it.

    How to register it: docs/assistants.md.
    """
    from sme2_assets.api import DataFolder
    from sme2_assets.mcp.server import serve

    serve(DataFolder(store.root))
