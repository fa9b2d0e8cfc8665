"""One step of a check that people watch: how it ended, what it found, and if it failed, what to do."""

from __future__ import annotations

from dataclasses import dataclass

PASSED, FAILED, NOTE, NOT_REACHED = "passed", "failed", "note", "not reached"


@dataclass
class Step:
    """A step that has not been reached until somebody says how it ended."""

    name: str
    status: str = NOT_REACHED
    seconds: float = 0.0
    detail: str = ""
    problem: str | None = None
    remedy: str | None = None
