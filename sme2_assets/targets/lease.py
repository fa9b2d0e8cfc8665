"""A device is used by one session at a time, no matter who asks: UI, schedule or command line."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from sme2_assets.errors import TargetUnavailable
from sme2_assets.store import is_unlocked, safe_name

_LOOK_S = 0.05
# Descriptors of the leases that this process holds.
_HELD: set[int] = set()


def held_leases() -> tuple[int, ...]:
    """To be inherited by a program that uses the device: the lease then lasts until it has ended, too."""
    return tuple(_HELD)


def is_leased(leases: Path, device: str) -> bool:
    """Whether a session holds the device now."""
    lock = _lock_file(leases, device)
    return lock.is_file() and not is_unlocked(lock)


@contextmanager
def lease(
    leases: Path, device: str, *, log: Callable[[str], None], patience_s: float = 1800
) -> Iterator[None]:
    """Holds the device. The operating system ends the lease with the last process that holds it."""
    leases.mkdir(parents=True, exist_ok=True)
    lock = os.open(_lock_file(leases, device), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        if not _locked(lock, 0):
            log(f"{device} is measuring something else; waiting up to {patience_s:.0f} s for it")
            if not _locked(lock, patience_s):
                raise TargetUnavailable(
                    f"{device} was still in use after {patience_s:.0f} s.",
                    "Wait for the other session to end, or stop it (see the running runs in the UI).",
                )
        _HELD.add(lock)
        yield
    finally:
        _HELD.discard(lock)
        os.close(lock)


def _lock_file(leases: Path, device: str) -> Path:
    return leases / f"{safe_name(device)}.lock"


def _locked(lock: int, patience_s: float) -> bool:
    deadline = time.monotonic() + patience_s
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(_LOOK_S)
        else:
            return True
