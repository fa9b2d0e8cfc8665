"""What the arms of a session may differ in: one thing, the factor, declared before they are measured.

Belongs here: which columns of `runs` a factor may change, and what its arms are called. Everything else that
could make a difference must be the same in both arms, or they are not a pair.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

Run = Mapping[Any, Any]

# Columns of `runs` that could make a difference, and what people call them.
IDENTITY = {
    "variant": "models",
    "pte_sha256": "model files",
    "precision": "precisions",
    "sme2": "SME2 states",
    "runner_pair": "runners",
    "executorch_version": "ExecuTorch versions",
    "device": "devices",
    "arch": "architectures",
    "threads": "thread counts",
    "cpus": "CPUs",
    "power_mode": "power modes",
    "method": "methods",
    "fidelity": "fidelities",
}


@dataclass(frozen=True)
class Factor:
    """`columns` of `runs` may differ; the first has its value. `called` makes of that the arm's name in a
    sentence."""

    name: str
    columns: tuple[str, ...]
    called: Callable[[str], str] = str
    # Whether both arms run the same program: then their outputs are also compared with each other.
    one_program: bool = True
    # Whether operators of one arm have counterparts in the other.
    one_network: bool = True

    def value(self, run: Run) -> str:
        """What the factor is in an arm: off, fp16, 2; empty where nothing was chosen."""
        value = _fact(run, self.columns[0])
        return "" if value is None else str(value)


SME2 = Factor("sme2", ("sme2",), lambda state: f"SME2 {state}")
_PROGRAM = ("variant", "pte_sha256")
FACTORS = {
    factor.name: factor
    for factor in (
        SME2,
        Factor("precision", ("precision", *_PROGRAM), one_program=False),
        *(
            Factor(name, (*_PROGRAM, "method"), one_program=False, one_network=False)
            for name in ("option", "model")
        ),
        # What `sme2 advise` tries: a model as it is, and changed in a way that has a name.
        Factor("change", (*_PROGRAM, "precision"), one_program=False, one_network=False),
        Factor("executorch", ("executorch_version", "runner_pair"), lambda version: f"ExecuTorch {version}"),
        Factor("threads", ("threads",), lambda count: f"{count} thread{'' if count == '1' else 's'}"),
        Factor("cpus", ("cpus",), lambda cpus: f"CPUs {cpus or 'as the system likes'}"),
        Factor("power", ("power_mode",), lambda mode: f"power mode {mode}" if mode else "power as it was"),
    )
}


def factor_of(run: Run) -> Factor | None:
    """What the arms of the run's session differ in; None if they are identical or there is only one."""
    if run["experiment"] == "sme2":
        return SME2
    return FACTORS.get(run["factor"]) if run["experiment"] == "arms" else None


def arm_name(run: Run) -> str:
    """What an arm is called; identical arms are called by their letters."""
    factor = factor_of(run)
    return factor.called(factor.value(run)) if factor else f"arm {run['arm']}"


def arm_names(compared: Run) -> tuple[str, str]:
    """What the arms of a row of `comparisons` are called."""
    factor = FACTORS.get(compared["factor"])
    if factor is None:
        return "arm a", "arm b"
    return factor.called(compared["a_value"]), factor.called(compared["b_value"])


def arm_label(run: Run) -> str:
    """A short name, for where the session makes clear what is meant: `off`, `b`, `fp16`."""
    return arm_name(run) if run.get("experiment") == "arms" else str(run.get("arm", run["sme2"]))


def is_or_are(name: str) -> str:
    """The verb that goes with the name of an arm."""
    return "are" if name.startswith("CPUs ") or name.endswith("threads") else "is"


def _fact(run: Run, column: str) -> Any:
    """None for a fact not yet recorded then; runs from before runner pairs give their one binary instead."""
    if column == "runner_pair" and pd.isna(run[column]):
        column = "runner_sha256"
    return None if pd.isna(run[column]) else run[column]


def why_not_one_factor(first: Run, second: Run) -> str | None:
    """Everything that the arms differ in besides their factor; or that they do not differ in the factor."""
    factor = factor_of(first)
    if factor is None and first["experiment"] == "arms":
        return f"this version does not know the factor {first['factor']}"
    allowed = factor.columns if factor else ()
    differing = {}
    for column, what in IDENTITY.items():
        values = _fact(first, column), _fact(second, column)
        if values[0] != values[1]:
            differing[column] = f"{what} ({values[0]} and {values[1]})"
    if "variant" in differing:
        # For two different models the hashes add nothing.
        differing.pop("pte_sha256", None)
    besides = [said for column, said in differing.items() if column not in allowed]
    if besides:
        return f"the runs have different {' and different '.join(besides)}"
    if factor is not None and factor.value(first) == factor.value(second):
        return f"the runs do not differ in their {factor.name}"
    return None
