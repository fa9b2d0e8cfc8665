"""Long work says from time to time that it is still going on, and how long it takes."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

SECONDS = 30.0


@contextlib.contextmanager
def heartbeat(
    say: Callable[[str], None], what: str, facts: Callable[[], str] | None = None
) -> Iterator[None]:
    """Say every half minute, until the block ends, that `what` goes on, for how long, and the facts then."""
    begun = time.perf_counter()
    done = threading.Event()

    def still() -> None:
        while not done.wait(SECONDS):
            more = f" ({facts()})" if facts else ""
            say(f"still {what}, for {duration_text(time.perf_counter() - begun)}{more}")

    thread = threading.Thread(target=still, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def duration_text(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"
