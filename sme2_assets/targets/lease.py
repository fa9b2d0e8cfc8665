"""A device is used by one session at a time, no matter who asks: UI, schedule or command line."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from sme2_assets.errors import TargetUnavailable
from sme2_assets.store import is_unlocked, safe_name

_LOOK_S = 0.05
# How often a wait says how long it goes on.
_TELL_S = 30.0
_LONGEST_NAME = 500
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
    leases: Path,
    device: str,
    *,
    log: Callable[[str], None],
    patience_s: float = 1800,
    what: str = "",
    shared: bool = False,
) -> Iterator[None]:
    """Holds the device, for `what`. The operating system ends the lease with the last process that holds it.

    A shared one is for work that may go on beside other such work: it is only waited for by what holds alone.
    """
    leases.mkdir(parents=True, exist_ok=True)
    lock = os.open(_lock_file(leases, device), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        _wait(lock, fcntl.LOCK_SH if shared else fcntl.LOCK_EX, device, patience_s, log)
        if not shared:
            os.ftruncate(lock, 0)
            os.pwrite(lock, f"{what or 'something else'} (process {os.getpid()})".encode(), 0)
        _HELD.add(lock)
        yield
    finally:
        _HELD.discard(lock)
        os.close(lock)


def beside_sessions(leases: Path, device: str, log: Callable[[str], None]) -> AbstractContextManager[None]:
    """For work from which no time is read: no session waits for it, and what removes things does."""
    return lease(leases, f"{device}.beside", log=log, shared=True)


def _lock_file(leases: Path, device: str) -> Path:
    return leases / f"{safe_name(device)}.lock"


def _wait(lock: int, kind: int, device: str, patience_s: float, log: Callable[[str], None]) -> None:
    """Takes the lock; until then says who has it, and how long it still waits."""
    deadline = time.monotonic() + patience_s
    tell_at = 0.0
    while True:
        try:
            fcntl.flock(lock, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            now = time.monotonic()
            holder = os.pread(lock, _LONGEST_NAME, 0).decode(errors="replace") or "something else"
            if now >= deadline:
                raise TargetUnavailable(
                    f"{device} was still in use after {patience_s:.0f} s, by {holder}.",
                    "Wait for the other session to end, or stop it (see the running runs in the UI).",
                ) from None
            if now >= tell_at:
                log(f"{device} is in use by {holder}; waiting for at most {deadline - now:.0f} s more")
                tell_at = now + _TELL_S
            time.sleep(_LOOK_S)
        else:
            return
