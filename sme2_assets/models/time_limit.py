"""A time limit for exports that would never end."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType

from sme2_assets.errors import ExportError, chain

VARIABLE = "SME2_EXPORT_TIMEOUT_S"
DEFAULT_S = 3600.0
# Python drops errors raised while it removes an object or its garbage collector calls back: we raise again.
_AGAIN_S = 1.0


class TimeIsUp(ExportError):
    """Ends an export, also where it could do without the part that took too long."""


def end_if_time_is_up(error: BaseException) -> None:
    """For errors that an export survives: passes of ExecuTorch wrap whatever is raised in them."""
    for link in chain(error):
        if isinstance(link, TimeIsUp):
            raise link


def export_timeout_s() -> float:
    """How long an export may take."""
    text = os.environ.get(VARIABLE) or str(DEFAULT_S)
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise ExportError(f"{VARIABLE} is {text!r}, not a number of seconds above 0", f"unset {VARIABLE}")
    return seconds


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Ends the block with an error after this many seconds, once its Python code gets to run.

    Only in the main thread, where the command line and each Dagster run export: Python delivers signals
    nowhere else. In other threads there is no limit.
    """
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        yield
        return

    def expire(_number: int, _frame: FrameType | None) -> None:
        raise TimeIsUp(
            f"it did not end within {seconds:g} s",
            f"use a smaller model or size, or set {VARIABLE} to more seconds",
        )

    before = signal.signal(signal.SIGALRM, expire)
    signal.setitimer(signal.ITIMER_REAL, seconds, _AGAIN_S)
    try:
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    finally:
        # Once more: the time may have been up just before it was stopped.
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
