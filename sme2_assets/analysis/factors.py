"""What the arms of a session may differ in: one thing, the factor, declared before they are measured.

Belongs here: which columns of `runs` a factor may change, and what its arms are called. Everything else that
could make a difference must be the same in both arms, or they are no pair.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

Run = Mapping[Any, Any]

# Of `runs`, what could make a difference, and what people call it.
IDENTITY = {
    "variant": "models",
    "pte_sha256": "model files",
    "precision": "precisions",
    "sme2": "SME2 states",
    "runner_pair": "runners",
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
    """`columns` of `runs` may differ; `called` is what an arm is known by in a sentence."""

    name: str
    columns: frozenset[str]
    called: Callable[[Run], str]
    # Whether both arms run one program: then their outputs are compared with each other, too.
    one_program: bool = True
    # Whether operators of one arm have their like in the other.
    one_network: bool = True


def _threads(run: Run) -> str:
    return f"{int(run['threads'])} thread{'' if run['threads'] == 1 else 's'}"


SME2 = Factor("sme2", frozenset({"sme2"}), lambda run: f"SME2 {run['sme2']}")
_PROGRAM = frozenset({"variant", "pte_sha256"})
FACTORS = {
    factor.name: factor
    for factor in (
        SME2,
        Factor("precision", _PROGRAM | {"precision"}, lambda run: str(run["precision"]), one_program=False),
        *(
            Factor(name, _PROGRAM | {"method"}, lambda run: str(run["variant"]), False, one_network=False)
            for name in ("option", "model")
        ),
        Factor("threads", frozenset({"threads"}), _threads),
        Factor("cpus", frozenset({"cpus"}), lambda run: f"CPUs {run['cpus'] or 'as the system likes'}"),
        Factor(
            "power",
            frozenset({"power_mode"}),
            lambda run: f"power mode {run['power_mode']}" if run["power_mode"] else "power as it was",
        ),
    )
}


def factor_of(run: Run) -> Factor | None:
    """What the arms of the run's session differ in; None where they are the same, or there is but one."""
    if run["experiment"] == "sme2":
        return SME2
    return FACTORS.get(run["factor"]) if run["experiment"] == "arms" else None


def arm_name(run: Run) -> str:
    """What an arm is called; identical ones by their letter."""
    factor = factor_of(run)
    return factor.called(run) if factor else f"arm {run['arm']}"


def arm_label(run: Run) -> str:
    """The same in a word, where the session makes clear what is meant: `off`, `b`, `fp16`."""
    return arm_name(run) if run.get("experiment") == "arms" else str(run.get("arm", run["sme2"]))


def is_or_are(name: str) -> str:
    """The verb that goes with the name of an arm."""
    return "are" if name.startswith("CPUs ") or name.endswith("threads") else "is"


def _fact(run: Run, column: str) -> Any:
    """None for what was not recorded yet; the one binary of runs from before there were pairs of them."""
    if column == "runner_pair" and pd.isna(run[column]):
        column = "runner_sha256"
    return None if pd.isna(run[column]) else run[column]


def why_not_one_factor(first: Run, second: Run) -> str | None:
    """What the arms differ in besides their factor, all of it; or that they do not differ at all."""
    factor = factor_of(first)
    allowed = factor.columns if factor else frozenset()
    differing = {}
    for column, what in IDENTITY.items():
        values = _fact(first, column), _fact(second, column)
        if values[0] != values[1]:
            differing[column] = f"{what} ({values[0]} and {values[1]})"
    if "variant" in differing:
        # Of two models nobody needs the hashes.
        differing.pop("pte_sha256", None)
    besides = [said for column, said in differing.items() if column not in allowed]
    if besides:
        return f"the runs have different {' and different '.join(besides)}"
    if factor is not None and not allowed & differing.keys():
        return f"the runs do not differ in their {factor.name}"
    return None
