"""How much is measured."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from sme2_assets.errors import Sme2Error
from sme2_assets.targets.base import Fidelity

# Each pass disturbs the others, so each is a process of its own.
PASSES = ("latency", "etdump")


@dataclass(frozen=True)
class Plan:
    """Rounds of fresh processes; in each, per arm and pass, warm-up and timed inferences."""

    threads: int = 1
    rounds: int = 6
    warmup: int = 5
    iterations: int = 20
    timeout_s: float = 600.0

    def __post_init__(self) -> None:
        for name in ("threads", "rounds", "iterations"):
            if getattr(self, name) < 1:
                raise Sme2Error(
                    f"{name} must be at least 1, not {getattr(self, name)}.", f"Give a larger {name}."
                )
        if self.warmup < 0 or self.timeout_s <= 0:
            raise Sme2Error("warmup must be >= 0 and timeout_s > 0.", "Correct the run configuration.")


# Six rounds are the least for which an exact rank test over paired rounds can reach 5 %.
HARDWARE_PLAN = Plan()
# Emulated times mean nothing, so one inference serves: it shows kernels and outputs.
EMULATED_PLAN = Plan(rounds=1, warmup=0, iterations=1, timeout_s=1800.0)


def plan_for(fidelity: Fidelity, **wishes: int | float | None) -> Plan:
    """The default plan of a fidelity with what was asked for instead (None: the default)."""
    base = HARDWARE_PLAN if fidelity == "hardware" else EMULATED_PLAN
    return replace(base, **{name: value for name, value in wishes.items() if value is not None})  # type: ignore[arg-type]


def arm_orders(states: list[str], rounds: int, seed: int) -> list[list[str]]:
    """The order of the arms in each round: ABBA, starting with a random arm.

    Neighbouring rounds have opposite orders, so a slow drift of the machine cancels over a pair of rounds.
    """
    first = list(states)
    random.Random(seed).shuffle(first)
    return [first if index % 2 == 0 else first[::-1] for index in range(rounds)]
