"""How much is measured."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace

from sme2_assets.errors import Sme2Error
from sme2_assets.evidence.device import Fidelity

# Each pass disturbs the others, so each is a process of its own.
PASSES = ("latency", "etdump", "kernels")


# A tiny model would otherwise be traced for hundreds of thousands of inferences to fill the second.
MOST_SAMPLED_ITERATIONS = 2000
# The same where it has to be sampled for longer, because samples do not tell yet where operators run.
MOST_ITERATIONS_FOR_EVIDENCE = 20_000


@dataclass(frozen=True)
class Plan:
    """Rounds of fresh processes; in each, per arm and pass, warm-up and timed inferences.

    A pair is measured for `rounds` rounds at least, then on until the interval of its speedup is
    narrower than `interval_width` (its ends differ by that share), `max_rounds` are made, or `budget_s`
    is spent. It stops by width and never by significance, so looking after every round biases nothing.
    """

    threads: int = 1
    passes: tuple[str, ...] = PASSES
    rounds: int = 10
    max_rounds: int = 30
    interval_width: float = 0.02
    budget_s: float = 120.0
    warmup: int = 5
    warmup_cap: int = 100
    iterations: int = 20
    timeout_s: float = 600.0
    # The kernels pass is made in the first rounds only: samples add up, and more of them say no more.
    kernel_rounds: int = 2
    # What one process of the kernels pass samples, in seconds of inferences.
    kernel_sampling_s: float = 1.0
    # What it samples at most, where a convolution or matrix product has too few samples to tell whether it
    # runs on the SME unit; after that it stays unknown.
    kernel_limit_s: float = 10.0
    # Warm-up of the kernels pass where the others have less: a first inference does lazy work inside its
    # delegate calls, and its operators do not stand where the trace says.
    kernel_warmup: int = 0
    # How long a session waits, all rounds together, for other processes to leave the machine alone.
    # After that it goes on, and the rounds are flagged.
    quiet_patience_s: float = 20.0
    # The same for a device that is too hot: it cools more slowly than others leave.
    cool_patience_s: float = 300.0
    # The CPUs to run on, by cluster name, list or mask; empty: as the system likes.
    cpus: str = ""
    # macOS: the quality of service of the runner's threads, which is how one asks for a kind of core there.
    qos: str = ""
    # The power mode of the device during the session; empty: as it is.
    power: str = ""
    # How long a session waits for a device that went away.
    reconnect_patience_s: float = 120.0

    def __post_init__(self) -> None:
        for name in ("threads", "rounds", "iterations"):
            if getattr(self, name) < 1:
                raise Sme2Error(
                    f"{name} must be at least 1, not {getattr(self, name)}.", f"Give a larger {name}."
                )
        if self.warmup < 0 or self.timeout_s <= 0 or self.kernel_rounds < 0 or self.kernel_sampling_s <= 0:
            raise Sme2Error(
                "warmup and kernel_rounds must be >= 0, timeout_s and kernel_sampling_s > 0.",
                "Correct the run configuration.",
            )
        if self.max_rounds < self.rounds or self.warmup_cap < self.warmup:
            raise Sme2Error(
                "max_rounds must be at least rounds, and warmup_cap at least warmup.",
                "Correct the run configuration.",
            )

    def passes_of_round(self, index: int) -> list[str]:
        """The passes of a round, in order."""
        return [kind for kind in self.passes if kind != "kernels" or index < self.kernel_rounds]

    def iterations_of(self, pass_kind: str, inference_ns: float) -> int:
        """How often a process runs the model, when one inference takes about so long."""
        if pass_kind != "kernels":
            return self.iterations
        wanted = math.ceil(self.kernel_sampling_s * 1e9 / max(inference_ns, 1))
        return min(max(self.iterations, wanted), MOST_SAMPLED_ITERATIONS)

    def more_iterations(self, iterations: int, inference_ns: float, factor: float) -> int | None:
        """How often to run the model when so many inferences gave too few samples by this factor.

        None where the limit is reached.
        """
        most = min(int(self.kernel_limit_s * 1e9 / max(inference_ns, 1)), MOST_ITERATIONS_FOR_EVIDENCE)
        # A little more than needed: samples fall by chance.
        wanted = math.ceil(1.5 * factor * iterations)
        return min(wanted, most) if iterations < most else None

    def warmup_of(self, pass_kind: str) -> tuple[int, int]:
        """Warm-up inferences of a process: at least, and at most."""
        least = max(self.warmup, self.kernel_warmup) if pass_kind == "kernels" else self.warmup
        return least, max(least, self.warmup_cap)


# Ten rounds: an exact rank test can reach 5 % from six on, but not for one operator among many.
HARDWARE_PLAN = Plan()
# One arm alone gives no comparison, so nothing is won by going on, nor by sampling a second process.
BASELINE_PLAN = replace(HARDWARE_PLAN, rounds=6, max_rounds=6, kernel_rounds=1)
# Emulated times mean nothing, so one inference serves: it shows kernels and outputs.
EMULATED_PLAN = Plan(
    rounds=1,
    max_rounds=1,
    warmup=0,
    warmup_cap=0,
    iterations=1,
    kernel_rounds=1,
    kernel_sampling_s=0.5,
    kernel_limit_s=20.0,
    kernel_warmup=1,
    timeout_s=1800.0,
    quiet_patience_s=0.0,
    cool_patience_s=0.0,
)


def plan_for(fidelity: Fidelity, *, paired: bool = True, **wishes: int | float | str | None) -> Plan:
    """The default plan with what was asked for instead (None: the default).

    A number of rounds or of warm-ups that was asked for is exact, unless its limit was asked for too.
    """
    base = EMULATED_PLAN if fidelity == "emulated" else HARDWARE_PLAN if paired else BASELINE_PLAN
    given = {name: value for name, value in wishes.items() if value is not None}
    for exact, limit in (("rounds", "max_rounds"), ("warmup", "warmup_cap")):
        if exact in given:
            given.setdefault(limit, given[exact])
    return replace(base, **given)  # type: ignore[arg-type]


def arm_orders(states: list[str], rounds: int, seed: int) -> list[list[str]]:
    """The order of the arms in each round: ABBA, starting with a random arm.

    Neighbouring rounds have opposite orders, so a slow drift of the machine cancels over a pair of rounds.
    """
    first = list(states)
    random.Random(seed).shuffle(first)
    return [first if index % 2 == 0 else first[::-1] for index in range(rounds)]
