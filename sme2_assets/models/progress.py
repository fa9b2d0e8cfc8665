"""What people see while a model is exported: the step, the time it takes, the memory it needs.

A large model can spend minutes in one step; then a line every half minute says that it is still working.
"""

from __future__ import annotations

import contextlib
import re
import resource
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

from sme2_assets.heartbeat import heartbeat

Log = Callable[[str], None]
# The parts of an export that a person would name; each has one or more steps.
Stage = Literal["load", "build", "read", "export", "lower"]
OnStage = Callable[[Stage], None]

_CLEAR_REFS = Path("/proc/self/clear_refs")
_STATUS = Path("/proc/self/status")


class Progress:
    """Reports the steps of one export."""

    def __init__(
        self,
        name: str,
        log: Log,
        *,
        on_stage: OnStage | None = None,
    ) -> None:
        self._name = name
        self._log = log
        self._on_stage = on_stage
        self._started = time.perf_counter()
        _forget_peak()

    @property
    def peak_memory_bytes(self) -> int:
        """The most memory the process has held since the export began; on macOS, since the process began."""
        return peak_memory_bytes()

    def say(self, what: str) -> None:
        self._log(f"{self._name}: {what}")

    @contextlib.contextmanager
    def step(self, what: str, stage: Stage | None = None) -> Iterator[None]:
        """A step of the export: reported when it begins, and again from time to time while it runs."""
        if stage is not None and self._on_stage is not None:
            self._on_stage(stage)
        self.say(f"{what} ({self._facts()})")
        with heartbeat(self.say, what, self._facts):
            yield

    def _facts(self) -> str:
        elapsed = time.perf_counter() - self._started
        return f"after {elapsed:.1f} s, peak memory {self.peak_memory_bytes / 2**20:,.0f} MiB"


def _forget_peak() -> None:
    """Let the kernel measure the peak from now on, where it can: not on macOS or if /proc is read-only."""
    with contextlib.suppress(OSError):
        _CLEAR_REFS.write_text("5")


def peak_memory_bytes() -> int:
    """The most memory that this process has held."""
    with contextlib.suppress(OSError):
        # Not by getrusage: on Linux, a process begins with the peak of the one that started it.
        if found := re.search(r"^VmHWM:\s*(\d+) kB$", _STATUS.read_text(), re.MULTILINE):
            return int(found[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # Linux counts kibibytes, macOS bytes.
    return peak if sys.platform == "darwin" else peak * 1024
