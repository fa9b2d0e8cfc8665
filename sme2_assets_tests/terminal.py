"""What a command prints on a terminal."""

from __future__ import annotations

import os
import pty
import subprocess
from collections.abc import Sequence
from contextlib import suppress


def said_on_terminal(command: Sequence[str], columns: int, kind: str) -> str:
    """All that a command writes on a terminal of that many columns; it must succeed."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": kind, "COLUMNS": str(columns)}
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment) as process:
        os.close(theirs)
        said = b""
        with suppress(OSError):
            while part := os.read(ours, 65536):
                said += part
    os.close(ours)
    assert process.returncode == 0, said
    return said.decode()
