"""Tests do not see what other tests left in this process."""

from __future__ import annotations

from contextvars import ContextVar

import pytest

LEFT: ContextVar[int] = ContextVar("LEFT", default=0)


@pytest.mark.parametrize("number", [1, 2])
def test_a_context_variable_is_not_handed_on(number: int):
    assert LEFT.get() == 0
    LEFT.set(number)
