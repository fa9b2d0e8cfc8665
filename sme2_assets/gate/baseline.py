"""`sme2_gate.json`: what was true of some models when somebody recorded it. It lives in a user's repository.

An operator is identified by its module and its line of code, not by its position, so unrelated changes leave
it as it is. One operator is one line of the file, so a change to it reads well in a review.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field, StrictStr

from sme2_assets.analysis.percent import percent_text
from sme2_assets.evidence.documents import Count, Document, Number, Part, Text, Upgrade
from sme2_assets.store import write_text_atomically

BASELINE_FILE = "sme2_gate.json"


class Operator(Part):
    """A convolution or matrix product."""

    module: StrictStr
    source: StrictStr
    code: StrictStr
    category: Text
    shape: StrictStr
    kernel: Text
    backend: Text
    # Unknown where nothing was counted, as in version 1 of the file.
    unit: Literal["on", "off", "unknown"]
    macs: Count | None
    # Counted in one inference; None where nothing was.
    instructions: Count | None = None
    macs_executed: Count | None = None
    macs_on_unit: Count | None = None
    outer_products: Count | None = None
    streaming_entries: Count | None = None
    packing_instructions: Count | None = None


class Sketch(Part):
    """Just enough of an array to tell whether another one is near it: see `sketches`."""

    dtype: Text
    shape: list[Count]
    power: Number
    values: list[Number]


class Outside(Part):
    """Operators of the model that no delegate took."""

    operator: Text
    module: StrictStr
    reason: StrictStr
    count: Count


class Times(Part):
    """The median inference of every round of a session on one device."""

    platform: Text
    # As given to `--device`; empty: the platform's default.
    asked: StrictStr
    device: Text
    fidelity: Literal["hardware", "reference"]
    sme2: Literal["on", "off"]
    threads: Count
    cpus: StrictStr
    rounds_ns: list[Number] = Field(min_length=1)

    @property
    def where(self) -> str:
        """As people read it. A machine with another instruction set has no SME2 to switch off."""
        return self.device if self.fidelity == "reference" else f"{self.device}, SME2 {self.sme2}"


class ModelFacts(Part):
    """All that the gate knows about a variant."""

    program_bytes: Count
    # Delegate calls, and all operators, in one inference.
    delegate_calls: Count
    steps: Count
    # For each output, against the eager model; None without one.
    sqnr_db: list[Number] | None
    # What outputs must reach at this precision, against the eager model's and the baseline's.
    least_db: Number
    inputs: list[Sketch]
    outputs: list[Sketch]
    # All that one inference executes, where they are counted: operators and what is between them.
    instructions: Count | None = None
    operators: list[Operator]
    outside: list[Outside]
    times: list[Times] = Field(default_factory=list)

    def units(self) -> str:
        """How many matrix operators are on the unit, as people read it."""
        return f"{sum(each.unit == 'on' for each in self.operators)} of {len(self.operators)}"

    def macs_text(self) -> str:
        """The share of the multiply-accumulates on the unit."""
        share = self.macs_share()
        return "not counted" if share is None else percent_text(share, digits=1)

    def instructions_text(self) -> str:
        return "not counted" if self.instructions is None else f"{self.instructions:,}"

    def macs_share(self) -> float | None:
        """The share of the multiply-accumulates on the unit; None where nobody knows how many there are."""
        counted = [(each.unit, each.macs) for each in self.operators if each.macs is not None]
        total = sum(macs for _, macs in counted)
        return sum(macs for unit, macs in counted if unit == "on") / total if total else None


class Baseline(Document):
    """The file."""

    VERSION: ClassVar[int] = 2
    # Version 1 has no counted instructions.
    UPGRADES: ClassVar[Mapping[int, Upgrade]] = {1: lambda fields: fields}
    REMEDY: ClassVar[str] = "Restore it, or record it again: `sme2 gate record MODEL`."

    executorch: Text
    models: dict[str, ModelFacts]

    def write(self, path: Path) -> None:
        write_text_atomically(path, _text({"schema": self.VERSION, **self.as_json()}) + "\n")


def _text(value: Any, indent: str = "") -> str:
    """JSON in which every list or object of plain values is on one line."""
    plain = not isinstance(value, dict | list) or not any(
        isinstance(each, dict | list) for each in (value.values() if isinstance(value, dict) else value)
    )
    if plain or not value:
        return json.dumps(value, allow_nan=False)
    inner = f"{indent}  "
    if isinstance(value, list):
        lines = [_text(each, inner) for each in value]
        opening, closing = "[", "]"
    else:
        lines = [f"{json.dumps(name)}: {_text(each, inner)}" for name, each in value.items()]
        opening, closing = "{", "}"
    return f"{opening}\n{inner}" + f",\n{inner}".join(lines) + f"\n{indent}{closing}"
