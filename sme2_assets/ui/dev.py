"""`python -m sme2_assets.ui.dev`: `dg dev` with its options, and the guarded webserver for Dagster's own.

`dg dev` knows how to run a code server, a daemon and a webserver together, and offers no other webserver: the
name of the program is changed where it starts them.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from typing import Any

import dagster._cli.dev as dagster_dev
from dagster_dg_cli.cli import main

_start = dagster_dev.open_ipc_subprocess


def _start_guarded(parts: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
    words = ["sme2_assets.ui.webserver" if part == "dagster_webserver" else part for part in parts]
    return _start(words, **options)


if __name__ == "__main__":
    dagster_dev.open_ipc_subprocess = _start_guarded
    main()
