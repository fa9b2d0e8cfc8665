"""`python -m sme2_assets.ui.webserver`: Dagster's webserver with its options, behind the guard.

It also serves reports and documents (pages.py). It can be started wherever `dagster-webserver` would be.
"""

from __future__ import annotations

import os

import dagster_webserver.app
from dagster_webserver.cli import main
from starlette.middleware import Middleware
from starlette.routing import BaseRoute

from sme2_assets.ui.guard import Guard
from sme2_assets.ui.pages import routes

#: Names under which the UI may be reached, separated by commas; addresses and `localhost` need no entry.
HOSTS_VARIABLE = "SME2_UI_HOSTS"


class GuardedWebserver(dagster_webserver.app.DagsterWebserver):
    def build_middleware(self) -> list[Middleware]:
        names = [name.strip() for name in os.environ.get(HOSTS_VARIABLE, "").split(",") if name.strip()]
        return [Middleware(Guard, names=names), *super().build_middleware()]

    def build_routes(self) -> list[BaseRoute]:
        # Dagster's last route takes every path.
        return [*routes(), *super().build_routes()]


def run() -> None:
    # The only place from which its command takes the application.
    dagster_webserver.app.DagsterWebserver = GuardedWebserver  # type: ignore[misc]
    main()


if __name__ == "__main__":
    run()
