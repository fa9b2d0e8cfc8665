"""Claims: sentences about what was measured, each with the predicate over the warehouse that makes it true.

Sentences that people read are not assembled where they are shown: each is a `Claim` in a module of claims, a
template that `say` fills in. The predicate is SQL that gives one boolean from the values of the sentence; it
looks at the tables again, by a different route than the code that found the values. `heard` collects
everything that is said, so that the warehouse can be asked whether it holds: that is how the tests check
every sentence, on warehouses made to provoke a false one.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

_PARAMETER = re.compile(r"\$([a-z_]+)")


@dataclass(frozen=True)
class Said:
    """A claim with the values it was made with."""

    claim: Claim
    values: dict[str, Any]

    @property
    def text(self) -> str:
        return self.claim.text.format_map(self.values)

    @property
    def parameters(self) -> dict[str, Any]:
        return {name: self.values[name] for name in self.claim.parameters}


@dataclass(frozen=True)
class Claim:
    """`text` is a `str.format` template; `holds` is SQL with the values as its parameters."""

    text: str
    holds: str

    @property
    def parameters(self) -> set[str]:
        return set(_PARAMETER.findall(self.holds))

    @property
    def fields(self) -> set[str]:
        return {name for _, name, _, _ in string.Formatter().parse(self.text) if name}

    def say(self, **values: Any) -> str:
        """The sentence. Also takes values that only the predicate needs, such as a run's id."""
        if missing := (self.fields | self.parameters) - set(values):
            raise TypeError(f"{self.text!r} lacks {', '.join(sorted(missing))}")
        said = Said(self, {name: _plain(value) for name, value in values.items()})
        for listen in _listeners.get():
            listen(said)
        return said.text


_listeners: ContextVar[tuple[Callable[[Said], None], ...]] = ContextVar("listeners", default=())


@contextmanager
def heard() -> Iterator[list[Said]]:
    """Everything that is said in this context, in order."""
    said: list[Said] = []
    token = _listeners.set((*_listeners.get(), said.append))
    try:
        yield said
    finally:
        _listeners.reset(token)


def _plain(value: Any) -> Any:
    """As SQL takes it: a missing value is None, a number is a plain Python one."""
    if isinstance(value, list | tuple | set | frozenset | np.ndarray):
        return [_plain(each) for each in value]
    if value is None or value is pd.NA or value is pd.NaT or (isinstance(value, float) and np.isnan(value)):
        return None
    return value.item() if isinstance(value, np.generic) else value
