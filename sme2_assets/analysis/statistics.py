"""Every statistic of a comparison, each with what it can and cannot tell.

The observation is the median of one process; the unit is the round, in which both arms ran. So n is
the number of rounds, however many inferences each had.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

# Below six paired rounds the exact 95 % rank interval does not exist: nothing can be told.
MIN_ROUNDS = 6
CONFIDENCE = 0.95
# A difference smaller than this is of no practical interest, however certain.
PRACTICAL_RATIO = 1.02


@dataclass(frozen=True)
class Speedup:
    """off / on with its interval. `low` and `high` are None when n is too small for one."""

    ratio: float
    low: float | None
    high: float | None
    n: int


def paired_speedup(off_ns: Sequence[float], on_ns: Sequence[float]) -> Speedup:
    """The speedup over paired rounds: Hodges-Lehmann estimate on log times, exact rank interval.

    Robust against a few disturbed rounds, and symmetric: swapping the arms gives the reciprocal. The
    interval inverts the signed-rank test: it holds 1 exactly when that test sees no difference at 5 %.
    It assumes that a round disturbs both arms alike, up to symmetric noise; it cannot see a bias that
    all rounds share, such as a machine that throttles whenever one arm runs.
    """
    off, on = np.asarray(off_ns, dtype=float), np.asarray(on_ns, dtype=float)
    if off.ndim != 1 or off.shape != on.shape or not len(off):
        raise ValueError(f"not paired rounds: {off.shape} and {on.shape}")
    if not (np.isfinite(off).all() and np.isfinite(on).all() and (off > 0).all() and (on > 0).all()):
        raise ValueError("a time that is not a positive number has no ratio")
    differences = np.log(off) - np.log(on)
    n = len(differences)
    averages = _walsh_averages(differences)
    ratio = float(np.exp(np.median(averages)))
    if n < MIN_ROUNDS:
        return Speedup(ratio, None, None, n)
    cut = _signed_rank_cut(n)
    return Speedup(ratio, float(np.exp(averages[cut])), float(np.exp(averages[-1 - cut])), n)


def speedup_verdict(speedup: Speedup) -> tuple[str, str]:
    """`faster`, `slower`, `no difference` or `insufficient data`, and why.

    `no difference` means that a difference beyond the practical threshold is ruled out, not that
    none was found; where neither can be shown, the data are insufficient.
    """
    if speedup.low is None or speedup.high is None:
        return (
            "insufficient data",
            f"{speedup.n} paired rounds; at least {MIN_ROUNDS} are needed for a 95 % interval.",
        )
    interval = f"the 95 % interval {speedup.low:.3f} to {speedup.high:.3f} over {speedup.n} paired rounds"
    if speedup.low > 1 and speedup.ratio >= PRACTICAL_RATIO:
        return "faster", f"SME2 on is faster: {interval} lies above 1."
    if speedup.high < 1 and speedup.ratio <= 1 / PRACTICAL_RATIO:
        return "slower", f"SME2 on is slower: {interval} lies below 1."
    if speedup.low >= 1 / PRACTICAL_RATIO and speedup.high <= PRACTICAL_RATIO:
        return "no difference", f"{interval} rules out a difference of more than {PRACTICAL_RATIO - 1:.0%}."
    return (
        "insufficient data",
        f"{interval} rules out neither a difference of {PRACTICAL_RATIO - 1:.0%} nor its absence; "
        "measure more rounds.",
    )


def _walsh_averages(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """All averages of two values (a value with itself included), sorted."""
    first, second = np.triu_indices(len(values))
    return np.sort((values[first] + values[second]) / 2)


def _signed_rank_cut(n: int) -> int:
    """How many sorted Walsh averages to drop at each end, by the exact signed-rank distribution."""
    probability = np.zeros(n * (n + 1) // 2 + 1)
    probability[0] = 1.0
    for rank in range(1, n + 1):
        # Each rank is in the sum or not, with equal chance; halving at once keeps large n from overflowing.
        probability[rank:] = probability[rank:] + probability[:-rank]
        probability /= 2
    return int(np.searchsorted(np.cumsum(probability), (1 - CONFIDENCE) / 2, side="right")) - 1
