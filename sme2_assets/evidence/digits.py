"""Numbers next to a limit as people read them. Rounding never puts one on the limit, or beyond it."""

from __future__ import annotations


def beside(value: float, limit: float, digits: int, kind: str = "f") -> str:
    """The value with these digits, or with as many more as it takes to stay on its side of the limit."""
    side = (value < limit, value > limit)
    texts = (f"{value:.{more}{kind}}" for more in range(digits, digits + 16))
    return next((text for text in texts if (float(text) < limit, float(text) > limit) == side), str(value))


def interval_beside(low: float, high: float, limit: float, digits: int) -> str:
    """Both ends of an interval, each on its side of the limit."""
    return f"{beside(low, limit, digits)} to {beside(high, limit, digits)}"
