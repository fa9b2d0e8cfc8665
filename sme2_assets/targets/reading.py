"""Reading what a system says about itself, file by file and command by command, without ever raising.

Anything that cannot be read is empty or None. Text from outside is made harmless here.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

_COMMAND_TIMEOUT_S = 30.0
_NAME_LENGTH = 64


def bytes_of(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except (OSError, ValueError):
        return b""


def text_of(file: Path) -> str:
    return bytes_of(file).decode("utf-8", "replace").strip()


def number_of(file: Path) -> int | None:
    return integer(text_of(file))


def integer(text: str) -> int | None:
    """The text as an integer; None if it is anything else."""
    return int(text) if re.fullmatch(r"-?\d{1,20}", text, re.ASCII) else None


def matches(folder: Path, pattern: str) -> list[Path]:
    try:
        return sorted(folder.glob(pattern))
    except OSError:
        return []


def output_of(command: list[str]) -> str:
    """What a command prints; empty if it is missing, fails or hangs."""
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            timeout=_COMMAND_TIMEOUT_S,
            stdin=subprocess.DEVNULL,
            # Some languages write times with a decimal comma.
            env={**os.environ, "LC_ALL": "C"},
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.decode("utf-8", "replace") if done.returncode == 0 else ""


def printable_name(raw: bytes | str, length: int = _NAME_LENGTH) -> str:
    """A name without anything that would break JSON, a log line or a terminal.

    Any user can give a process any bytes as its name.
    """
    text = raw.decode("utf-8", "replace") if isinstance(raw, bytes) else raw
    text = text[:length]
    if not text.isprintable():
        text = "".join(letter if letter.isprintable() else "\ufffd" for letter in text)
    return text.strip() or "(no name)"
