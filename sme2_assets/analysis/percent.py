"""Shares as people read them. Rounding never makes all or nothing of what is neither."""

from __future__ import annotations

_MOST_DIGITS = 9


def percent_text(share: float, digits: int = 0) -> str:
    """`93%`; `over 99%` and `under 1%` where rounding would say 100% and 0%."""
    step = 10.0 ** -(digits + 2)
    text = f"{share:.{digits}%}"
    if share < 1 and text == f"{1:.{digits}%}":
        return f"over {1 - step:.{digits}%}"
    if share > 0 and text == f"{0:.{digits}%}":
        return f"under {step:.{digits}%}"
    return text


def percent_range_text(low: float, high: float, digits: int = 0) -> str:
    """`93%`, or `90% to 93%`: with as many digits as it takes to tell the ends apart."""
    if low == high:
        return percent_text(low, digits)
    texts = ((percent_text(low, more), percent_text(high, more)) for more in range(digits, _MOST_DIGITS))
    return next(
        (f"{first} to {last}" for first, last in texts if first != last), percent_text(low, _MOST_DIGITS)
    )
