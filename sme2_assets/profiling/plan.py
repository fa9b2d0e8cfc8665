"""How much is measured."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median

from sme2_assets.errors import Sme2Error
from sme2_assets.evidence.device import Fidelity
from sme2_assets.evidence.result import PassKind, RunnerResult
from sme2_assets.profiling.limits import MOST_ROUNDS

# Each pass would disturb the others, so each is a process of its own. Where a target counts work, that shows
# which kernels run: its `work` pass takes the place of the sampled one.
PASSES = ("latency", "etdump", "kernels")

# A tiny model would otherwise be traced for hundreds of thousands of inferences to fill the second.
MOST_SAMPLED_ITERATIONS = 2000
# The same where sampling has to go on because samples do not show yet where operators run.
MOST_ITERATIONS_FOR_EVIDENCE = 20_000
# Beyond these, more iterations add no information, only longer evidence and traces.
MOST_TIMED_ITERATIONS = 5000
MOST_TRACED_ITERATIONS = 200


@dataclass(frozen=True)
class Lengths:
    """How long one process warms up and is timed: at least these numbers of inferences and milliseconds.

    With 0 milliseconds it is exactly that number of inferences; the cap is for short ones.
    """

    warmup: int
    warmup_ms: int
    iterations: int
    iterations_cap: int
    timed_ms: int

    def flags(self) -> list[str]:
        """For the runner."""
        return [
            *("--warmup", str(self.warmup), "--warmup-ms", str(self.warmup_ms)),
            *("--iterations", str(self.iterations), "--iterations-cap", str(self.iterations_cap)),
            *("--timed-ms", str(self.timed_ms)),
        ]

    def fit(self, result: RunnerResult) -> bool:
        """Whether the process was as long as it was asked to be."""
        warm = result.warmup_iterations >= self.warmup
        timed = self.iterations <= result.iterations <= self.iterations_cap
        if self.warmup_ms:
            warm &= (result.warmup_wall_ns or 0) >= self.warmup_ms * 1_000_000
        else:
            warm &= result.warmup_iterations == self.warmup
        if self.timed_ms and result.iterations < self.iterations_cap:
            timed &= (result.timed_wall_ns or 0) >= self.timed_ms * 1_000_000
        elif not self.timed_ms:
            timed &= result.iterations == self.iterations
        return warm and timed


@dataclass(frozen=True)
class Pace:
    """The time that the slowest arm of a session needs for the minimum number of inferences.

    All arms take that time where it exceeds the plan's: otherwise the faster one would again be timed
    earlier. 0 where time decides and not the number, and before anything is known.
    """

    warmup_ns: float = 0.0
    timed_ns: float = 0.0


@dataclass(frozen=True)
class Plan:
    """Rounds of fresh processes; in each, per arm and pass, warm-up and timed inferences.

    A process warms up for at least `warmup` inferences and `warmup_s` seconds, and is timed for at least
    `iterations` and `timed_s`. Wall time comes first: a clock that ramps up is then at the same point in both
    arms, whichever is faster.

    A pair is measured for at least `rounds` rounds, then until the interval of its speedup is narrower than
    `interval_width` (its ends differ by that share), `max_rounds` are done, or `budget_s` is spent. It stops
    by width and never by significance, which favours neither arm; docs/measuring.md says what it costs.
    """

    threads: int = 1
    passes: tuple[str, ...] = PASSES
    rounds: int = 10
    max_rounds: int = 30
    interval_width: float = 0.02
    budget_s: float = 120.0
    warmup: int = 10
    warmup_s: float = 0.3
    iterations: int = 10
    timed_s: float = 0.2
    timeout_s: float = 600.0
    # The kernels pass runs in the first rounds only: samples add up, and more would add no information.
    kernel_rounds: int = 2
    # How long one process of the kernels pass samples, in seconds of inferences.
    kernel_sampling_s: float = 1.0
    # The limit for that where a convolution or matrix product has too few samples to tell whether it runs on
    # the SME unit; after that it stays unknown.
    kernel_limit_s: float = 10.0
    # How long a session waits, over all rounds, for other processes to leave the machine alone.
    # After that it goes on, and the rounds are flagged.
    quiet_patience_s: float = 20.0
    # The same for a device that is too hot: cooling takes longer than waiting for other processes.
    cool_patience_s: float = 300.0
    # The CPUs to run on, by cluster name, list or mask; empty: the system decides.
    cpus: str = ""
    # macOS: the quality of service of the runner's threads, which is how a kind of core is requested there.
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
        if min(self.warmup, self.warmup_s, self.timed_s, self.kernel_rounds) < 0:
            raise Sme2Error(
                "warmup, warmup_s, timed_s and kernel_rounds must be >= 0.", "Correct the run configuration."
            )
        if self.timeout_s <= 0 or self.kernel_sampling_s <= 0:
            raise Sme2Error("timeout_s and kernel_sampling_s must be > 0.", "Correct the run configuration.")
        if max(self.rounds, self.max_rounds) > MOST_ROUNDS:
            asked = max(self.rounds, self.max_rounds)
            raise Sme2Error(f"rounds must be at most {MOST_ROUNDS}, not {asked}.", "Give fewer rounds.")
        if self.max_rounds < self.rounds:
            raise Sme2Error("max_rounds must be at least rounds.", "Correct the run configuration.")

    def passes_of_round(self, index: int) -> list[str]:
        """The passes of a round, in order."""
        return [kind for kind in self.passes if kind not in ("kernels", "work") or index < self.kernel_rounds]

    def showing_kernels_by(self, pass_kind: PassKind | None) -> Plan:
        """The same with a target's own pass for kernels, or with none. Counts are the same in every round."""
        passes = (pass_kind if kind == "kernels" else kind for kind in self.passes)
        return replace(
            self,
            passes=tuple(kind for kind in passes if kind),
            kernel_rounds=min(self.kernel_rounds, 1) if pass_kind == "work" else self.kernel_rounds,
        )

    def iterations_of(self, pass_kind: str, inference_ns: float) -> int:
        """How often a process runs the model, when one inference takes about this long."""
        if pass_kind != "kernels":
            return self.iterations
        wanted = math.ceil(self.kernel_sampling_s * 1e9 / max(inference_ns, 1))
        return min(max(self.iterations, wanted), MOST_SAMPLED_ITERATIONS)

    def more_iterations(self, iterations: int, inference_ns: float, factor: float) -> int | None:
        """How often to run the model when this many inferences gave too few samples by this factor.

        None when the limit is reached.
        """
        most = min(int(self.kernel_limit_s * 1e9 / max(inference_ns, 1)), MOST_ITERATIONS_FOR_EVIDENCE)
        # A little more than needed: sampling is random.
        wanted = math.ceil(1.5 * factor * iterations)
        return min(wanted, most) if iterations < most else None

    def lengths_of(self, pass_kind: str, inference_ns: float, pace: Pace) -> Lengths:
        """How long a process runs when one inference takes about this long, in a session of this pace."""
        if pass_kind == "work":
            # The same every time, after a first inference that does lazy work inside its delegate calls.
            return Lengths(warmup=1, warmup_ms=0, iterations=1, iterations_cap=1, timed_ms=0)
        sampled = pass_kind == "kernels"
        iterations = self.iterations_of(pass_kind, inference_ns)
        most = MOST_TIMED_ITERATIONS if pass_kind == "latency" else MOST_TRACED_ITERATIONS
        return Lengths(
            warmup=self.warmup,
            warmup_ms=math.ceil(max(1e3 * self.warmup_s, pace.warmup_ns / 1e6)) if self.warmup_s else 0,
            iterations=iterations,
            iterations_cap=max(iterations, most),
            timed_ms=math.ceil(max(1e3 * self.timed_s, pace.timed_ns / 1e6))
            if self.timed_s and not sampled
            else 0,
        )

    def pace_of(self, arms: Iterable[Sequence[RunnerResult]]) -> Pace:
        """The pace of a session, from the results of its arms so far."""
        timed = [
            [result for result in results if result.pass_kind in ("latency", "etdump")] for results in arms
        ]
        return Pace(
            _slowest_ns(timed, lambda it: (it.warmup_iterations, it.warmup_wall_ns), self.warmup),
            _slowest_ns(timed, lambda it: (it.iterations, it.timed_wall_ns), self.iterations),
        )


def _slowest_ns(
    arms: Iterable[Sequence[RunnerResult]], part: Callable[[RunnerResult], tuple[int, int | None]], least: int
) -> float:
    """How long the minimum number of inferences took in the slowest arm, where longer than asked for."""
    walls = [[wall_ns or 0 for made, wall_ns in map(part, results) if made == least] for results in arms]
    return max((median(each) for each in walls if each), default=0.0)


# Ten rounds: an exact rank test can reach 5 % with six or more, but not for one operator among many.
HARDWARE_PLAN = Plan()
# One arm alone gives no comparison, so more rounds gain nothing, nor does sampling a second process.
BASELINE_PLAN = replace(HARDWARE_PLAN, rounds=6, max_rounds=6, kernel_rounds=1)
# Emulated times mean nothing, so one inference is enough: it shows kernels and outputs.
EMULATED_PLAN = Plan(
    rounds=1,
    max_rounds=1,
    warmup=0,
    warmup_s=0.0,
    iterations=1,
    timed_s=0.0,
    kernel_rounds=1,
    timeout_s=1800.0,
    quiet_patience_s=0.0,
    cool_patience_s=0.0,
)


def plan_for(fidelity: Fidelity, *, paired: bool = True, **wishes: int | float | str | None) -> Plan:
    """The default plan, overridden by what was asked for (None: the default).

    A requested number of rounds, warm-ups or iterations is exact, unless its limit or time was requested too.
    """
    base = EMULATED_PLAN if fidelity == "emulated" else HARDWARE_PLAN if paired else BASELINE_PLAN
    given = {name: value for name, value in wishes.items() if value is not None}
    if "rounds" in given:
        given.setdefault("max_rounds", given["rounds"])
    for exact, time in (("warmup", "warmup_s"), ("iterations", "timed_s")):
        if exact in given:
            given.setdefault(time, 0.0)
    return replace(base, **given)  # type: ignore[arg-type]


def arm_orders(states: list[str], rounds: int, seed: int) -> list[list[str]]:
    """The order of the arms in each round: ABBA, starting with a random arm.

    Neighbouring rounds have opposite orders, so a slow drift of the machine cancels over a pair of rounds.
    With more than two arms each such pair begins in another order, so that none is always in the middle.
    """
    chance = random.Random(seed)
    orders: list[list[str]] = []
    for _ in range(0, rounds, 2):
        if not orders or len(states) > 2:
            first = chance.sample(states, len(states))
        orders += [first, first[::-1]]
    return orders[:rounds]
