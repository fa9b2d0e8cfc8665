"""Values of the warehouse's rows as plain numbers and words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd


def known_or(value: Any, default: Any) -> Any:
    """`value`, or the default for a missing one; plain Python numbers."""
    if value is None or pd.isna(value):
        return default
    return value.item() if hasattr(value, "item") else value


def names_in(value: Any) -> list[str]:
    """A list column's value; DuckDB's frames hold arrays, or nothing."""
    if value is None or isinstance(value, float) or value is pd.NA:
        return []
    return [str(name) for name in value]


# What XNNPACK calls operators that it computes by table lookup: it has no names for them.
_NAMELESS = ("Invalid Unary Op", "Unary Elementwise")


def shown_name(operator: Mapping[Any, Any], name: str | None = None) -> str:
    """An operator's name, or where XNNPACK has none, the program's: `hardswish (Invalid Unary Op #1)`."""
    name = str(operator["name"]) if name is None else name
    kind = shown_type(operator)
    return name if kind == operator["op_type"] else f"{kind} ({name})"


def shown_type(operator: Mapping[Any, Any]) -> str:
    """What kind of operator it is; taken from the program where XNNPACK has no name for it."""
    ops = names_in(operator["edge_ops"])
    return ops[0].split(".")[1] if operator["op_type"] in _NAMELESS and ops else str(operator["op_type"])


def ms(duration_ns: float) -> float:
    return float(duration_ns) / 1e6


def ms_text(duration_ns: float) -> str:
    return f"{ms(duration_ns):.3f}"


def percent(share: float) -> str:
    return f"{share:.0%}"


def plural(rows: pd.DataFrame, what: str) -> str:
    return what if len(rows) == 1 else f"{what}s"


def shortened(text: str, most: int = 80) -> str:
    return text if len(text) <= most else text[: most - 3].rstrip(", ") + "..."


def place_of(operator: dict[str, Any]) -> str:
    """Where in the model an operator comes from; empty when unknown."""
    module, source = known_or(operator["module"], ""), known_or(operator["source"], "")
    kind = known_or(operator["module_type"], "")
    if module and kind:
        module = f"{module} ({kind})"
    return ", ".join(part for part in (module, source) if part)
