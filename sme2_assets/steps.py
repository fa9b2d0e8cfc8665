"""One step of a check that people watch: how it ended, what it found, and if it failed, what to do."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sme2_assets.errors import Sme2Error

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


@contextmanager
def taken(step: Step) -> Iterator[Step]:
    """Takes the step: it passes when the block ends without having said otherwise, and fails by an error."""
    begun = time.perf_counter()
    try:
        yield step
    except Sme2Error as error:
        step.status, step.problem, step.remedy = FAILED, error.what, error.remedy
    finally:
        step.seconds = round(time.perf_counter() - begun, 3)
    if step.status == NOT_REACHED:
        step.status = PASSED
