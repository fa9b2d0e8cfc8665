"""A device is used by one session at a time, whoever asks: UI, schedule or command line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from sme2_assets.errors import TargetUnavailable
from sme2_assets.store import safe_name


@contextmanager
def lease(
    leases: Path, device: str, *, log: Callable[[str], None], patience_s: float = 1800
) -> Iterator[None]:
    """Holds the device. The operating system ends the lease of a process that dies."""
    leases.mkdir(parents=True, exist_ok=True)
    lock = FileLock(leases / f"{safe_name(device)}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        log(f"{device} is measuring something else; waiting up to {patience_s:.0f} s for it")
        try:
            lock.acquire(timeout=patience_s)
        except Timeout as busy:
            raise TargetUnavailable(
                f"{device} was still in use after {patience_s:.0f} s.",
                "Wait for the other session to end, or stop it (see the running runs in the UI).",
            ) from busy
    try:
        yield
    finally:
        lock.release()
