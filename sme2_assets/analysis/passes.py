"""Whether the passes of a run tell the same speed.

A tracer costs time, and a sampler costs more. So in the rounds of a run the inferences of the `latency` pass
are the fastest and those of the `kernels` pass the slowest. Where it is the other way round, the machine ran
at another speed in one pass than in the other, and nobody knows at which the times were taken.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import pandas as pd

from sme2_assets.analysis.statistics import MIN_ROUNDS, PRACTICAL_RATIO, paired_speedup

# From the one that costs nothing to the one that costs most, in words.
COSTS = {"latency": "untraced", "etdump": "traced", "kernels": "sampled"}

# The median inference of the process of each round, in nanoseconds.
RoundMedians = Mapping[int, float]


@dataclass(frozen=True)
class PassesVerdict:
    """What the passes say together: whether they fit, why not, and what tracer and sampler cost.

    `agree` is None where it cannot be told. Costs are shares of the untraced inference, over paired rounds.
    """

    agree: bool | None
    reason: str | None
    tracer_overhead: float | None = None
    tracer_overhead_low: float | None = None
    tracer_overhead_high: float | None = None
    sampler_overhead: float | None = None


def reconcile(medians: Mapping[str, RoundMedians]) -> PassesVerdict:
    """The verdict on a run, from the medians of the rounds of its passes, by the name of the pass."""
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
    """Why the times of a run (a row of `runs` or `latency_summary`) are no headline, or None."""
    agree = run.get("passes_agree")
    return None if agree is None or pd.isna(agree) or agree else str(run["passes_reason"])


_MEANING = (
    "the machine ran at another speed in one pass than in the other, so its times stand for neither. Measure "
    "again when nothing else runs there and its clock is steady."
)


def _cost(
    medians: Mapping[str, RoundMedians], cheap: str, dear: str
) -> tuple[float, float | None, float | None] | None:
    """What the dearer pass costs over the cheaper one, with its 95 % interval where there is one."""
    of_cheap, of_dear = medians.get(cheap, {}), medians.get(dear, {})
    shared = sorted(
        index for index in of_cheap.keys() & of_dear.keys() if min(of_cheap[index], of_dear[index]) > 0
    )
    if not shared:
        return None
    found = paired_speedup([of_dear[index] for index in shared], [of_cheap[index] for index in shared])
    if found.low is None or found.high is None:
        return found.ratio - 1, None, None
    return found.ratio - 1, found.low - 1, found.high - 1


def _why_they_do_not_fit(medians: Mapping[str, RoundMedians], cheap: str, dear: str) -> str | None:
    """How the dearer pass is faster than the cheaper one by more than chance and memory layout make it."""
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
    # Too few rounds of the dearer pass for an interval: no round of the cheaper one may then be as fast.
    known, few = medians.get(cheap, {}).values(), medians.get(dear, {}).values()
    if len(known) < MIN_ROUNDS or not few or max(few) * PRACTICAL_RATIO >= min(known):
        return None
    return (
        f"{costs} costs time, yet {faster} took {max(few) / 1e6:.3f} ms and {slower} at least "
        f"{min(known) / 1e6:.3f} ms in every round"
    )
