"""The guarded webserver and Dagster's daemon, side by side until one of them ends.

Dagster's own `dg dev` starts the same two programs, but only with its unguarded webserver.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

# Only an administrator can put anything there.
_NOWHERE = "/"
# First what Ctrl-C sends, at last what no program can ignore; each gets its time.
ENDINGS = ((signal.SIGINT, 15.0), (signal.SIGTERM, 5.0), (signal.SIGKILL, 5.0))
# Each tick of a sensor is a line otherwise, and the address scrolls away; what ticks did is in the UI.
_QUIET = "warning"


def serve(workspace: Path, host: str, port: int) -> int:
    """Runs both until one ends or this process is told to stop; returns the exit code."""
    child = [sys.executable, "-m", "sme2_assets.ui.child"]
    webserver = [*child, "webserver", "--host", host, "--port", str(port), "--dagster-log-level", _QUIET]
    webserver += ["--code-server-log-level", _QUIET]
    daemon = [*child, "daemon", "run", "--log-level", _QUIET, "--code-server-log-level", _QUIET]
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    running: list[subprocess.Popen[bytes]] = []
    try:
        for command in (webserver, daemon):
            # Neither in the current folder nor in the data folder, which may come from somebody else: Dagster
            # takes variables from a `.env` there, and Python takes modules.
            running.append(
                subprocess.Popen(
                    [*command, "--workspace", str(workspace)], cwd=_NOWHERE, stdin=subprocess.PIPE
                )
            )
        while all(program.poll() is None for program in running):
            time.sleep(0.2)
        return 1
    except KeyboardInterrupt:
        return 0
    finally:
        _end(running)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _end(programs: Sequence[subprocess.Popen[bytes]]) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    for ending, patience_s in ENDINGS:
        left = [program for program in programs if program.poll() is None]
        for program in left:
            program.send_signal(ending)
        until = time.monotonic() + patience_s
        for program in left:
            with contextlib.suppress(subprocess.TimeoutExpired):
                program.wait(max(0.0, until - time.monotonic()))
