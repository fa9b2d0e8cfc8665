"""`python -m sme2_assets.ui.child webserver ...`, or `daemon`: a program that ends when `sme2 dev` does.

Its standard input is a pipe from `sme2 dev`, which closes whatever way that ended, by SIGKILL too.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from importlib.metadata import entry_points

from sme2_assets.ui.dev import ENDINGS


def main() -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    name = sys.argv.pop(1)
    if name == "webserver":
        from sme2_assets.ui import webserver

        webserver.run()
    else:
        # The installed command of that name, in this interpreter: it need not be next to it, nor on PATH.
        [daemon] = entry_points(group="console_scripts", name="dagster-daemon")
        sys.argv[0] = daemon.name
        sys.exit(daemon.load()())


def _end_with_parent() -> None:
    while os.read(sys.stdin.fileno(), 1):
        pass
    for ending, patience_s in ENDINGS:
        os.kill(os.getpid(), ending)
        time.sleep(patience_s)


if __name__ == "__main__":
    main()
