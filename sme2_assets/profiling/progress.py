"""How much of several requests is done, by their rounds and the steps that follow."""

from __future__ import annotations

import re
from collections.abc import Callable

# What a session says after each of its rounds (profiling/session.py).
_ROUND = re.compile(r": round (\d+) of (\d+)")
# Nearly all of a request's time goes into its rounds.
_ROUNDS_SHARE = 0.8


class Progress:
    """The share that is done, in the order in which the requests are measured."""

    def __init__(self, requests: int, log: Callable[[str], None], reached: Callable[[float], None]) -> None:
        self._requests, self._log, self._reached = requests, log, reached
        self._index, self._done, self._steps = 0, 0, 1

    def begin(self, index: int, steps: int) -> None:
        self._index, self._done, self._steps = index, 0, steps
        self._tell(0.0)

    def log(self, message: str) -> None:
        self._log(message)
        if found := _ROUND.search(message):
            self._tell(_ROUNDS_SHARE * min(int(found[1]) / int(found[2]), 1.0))

    def step(self) -> None:
        self._done = min(self._done + 1, self._steps)
        self._tell(_ROUNDS_SHARE + (1 - _ROUNDS_SHARE) * self._done / self._steps)

    def _tell(self, share: float) -> None:
        self._reached((self._index + share) / self._requests)
