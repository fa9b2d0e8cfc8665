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


def ratio_text(ratio: float, low: float, high: float, n: int) -> str:
    """`2.31x (2.28 to 2.35, n=6)`: a ratio with its interval, each number on its side of 1."""
    return f"{beside(ratio, 1, 2)}x ({interval_beside(low, high, 1, 2)}, n={n})"
