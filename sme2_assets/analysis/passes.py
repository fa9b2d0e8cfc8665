"""Whether the passes of a run show the same speed.

A tracer costs time, and a sampler costs more. So in the rounds of a run the inferences of the `latency` pass
are the fastest and those of the `kernels` pass the slowest. If it is the other way round, the machine ran at
different speeds in the two passes, and it is unclear which speed the times stand for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, combinations
from statistics import median
from typing import Any

import pandas as pd

from sme2_assets.analysis.statistics import CONFIDENCE, MIN_ROUNDS, PRACTICAL_RATIO

# What the inferences of each pass are called, from the cheapest pass to the dearest.
COSTS = {"latency": "untraced", "etdump": "traced", "kernels": "sampled"}

# The median inference of each round's process, in nanoseconds.
RoundMedians = Mapping[int, float]


@dataclass(frozen=True)
class PassesVerdict:
    """What the passes say together: whether they agree, why not, and what the tracer and sampler cost.

    `agree` is None where it is unknown. Costs are shares of the untraced inference, over paired rounds.
    """

    agree: bool | None
    reason: str | None
    tracer_overhead: float | None = None
    tracer_overhead_low: float | None = None
    tracer_overhead_high: float | None = None
    sampler_overhead: float | None = None


def reconcile(medians: Mapping[str, RoundMedians]) -> PassesVerdict:
    """The verdict on a run, from the round medians of its passes, by name of the pass."""
    tracer, sampler = (_cost(medians, "latency", kind) for kind in ("etdump", "kernels"))
    faults = [
        fault
        for cheap, dear in combinations(COSTS, 2)
        if (fault := _why_they_do_not_fit(medians, cheap, dear)) is not None
    ]
    if faults:
        agree, reason = False, f"{faults[0]}: {_MEANING}"
    elif tracer is None or tracer[1] is None:
        agree, reason = None, f"Fewer than {MIN_ROUNDS} rounds were also traced: too few to tell."
    else:
        agree, reason = True, None
    cost, low, high = tracer or (None, None, None)
    return PassesVerdict(agree, reason, cost, low, high, sampler[0] if sampler else None)


def passes_fault(run: Mapping[str, Any]) -> str | None:
    """Why the times of a run (a row of `runs` or `latency_summary`) cannot be a headline, or None."""
    agree = run.get("passes_agree")
    return None if agree is None or pd.isna(agree) or agree else str(run["passes_reason"])


_MEANING = (
    "the machine ran at different speeds in the two passes, so its times stand for neither. Measure "
    "again when nothing else runs there and its clock is steady."
)


def _cost(
    medians: Mapping[str, RoundMedians], cheap: str, dear: str
) -> tuple[float, float | None, float | None] | None:
    """What the dearer pass costs over the cheaper one: the median of paired rounds with its 95 % interval."""
    of_cheap, of_dear = medians.get(cheap, {}), medians.get(dear, {})
    shared = [index for index in of_cheap.keys() & of_dear.keys() if of_cheap[index] > 0]
    ratios = sorted(of_dear[index] / of_cheap[index] for index in shared)
    if not ratios:
        return None
    if len(ratios) < MIN_ROUNDS:
        return median(ratios) - 1, None, None
    # Exact for any noise, and needs no library that takes longer to load than a run takes to read.
    beyond = _rounds_beyond(len(ratios))
    return median(ratios) - 1, ratios[beyond] - 1, ratios[-1 - beyond] - 1


@cache
def _rounds_beyond(n: int) -> int:
    """How many of n rounds are outside the 95 % interval of their median on each side (sign test)."""
    below = list(accumulate(math.comb(n, k) / 2**n for k in range(n)))
    return sum(share <= (1 - CONFIDENCE) / 2 for share in below) - 1


def _why_they_do_not_fit(medians: Mapping[str, RoundMedians], cheap: str, dear: str) -> str | None:
    """How the dearer pass is faster than the cheaper one by more than chance and memory layout explain."""
    cost = _cost(medians, cheap, dear)
    slower, faster = f"the {COSTS[cheap]} ones", f"the {COSTS[dear]} inferences"
    costs = "Tracing" if dear == "etdump" else "Sampling"
    if cost is not None and cost[1] is not None and cost[2] is not None:
        if cost[2] >= 1 / PRACTICAL_RATIO - 1:
            return None
        return (
            f"{costs} costs time, yet {faster} took {-cost[0]:.1%} less than {slower} (95 % interval "
            f"{-cost[2]:.1%} to {-cost[1]:.1%})"
        )
    # Too few rounds for an interval: they are suspect if they are as far below all rounds of the cheaper pass
    # as those are apart.
    known, few = medians.get(cheap, {}).values(), medians.get(dear, {}).values()
    if len(known) < MIN_ROUNDS or not few or max(few) * PRACTICAL_RATIO * max(known) >= min(known) ** 2:
        return None
    return (
        f"{costs} costs time, yet {faster} took {max(few) / 1e6:.3f} ms, and {slower} "
        f"{min(known) / 1e6:.3f} to {max(known) / 1e6:.3f} ms"
    )
