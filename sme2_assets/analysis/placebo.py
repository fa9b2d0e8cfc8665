"""Operators whose kernel is the same in both arms: whatever difference they show is not due to SME2.

They ran in the same processes, in the same rounds. So their ratio is 1 unless something else differs between
the arms; how far it is from 1 shows how far the other ratios of the session can be trusted.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from sme2_assets.analysis.statistics import Speedup, Times, bounded_speedup, noise_floor, threshold_of
from sme2_assets.analysis.unit import ON, UNKNOWN
from sme2_assets.evidence.digits import beside, interval_beside

# An operator whose time the clock leaves open by more than this factor says too little about a bias.
MOST_OPEN = 1.05
# Backends whose names tell which kernel it is.
_NAMES_TELL = ("xnnpack", "portable")
# Names shared by kernels with and without SME2, or by the packing for them.
_SAYS_NOTHING = re.compile(r"\bQP8\b|^Pack ")


@dataclass(frozen=True)
class Placebo:
    """What the placebo operators of a session show; `joint` is for their total time.

    `scatter` is the ratio that 95 % of them stay within; None for fewer than ten of them.
    """

    operators: int = 0
    joint: Speedup | None = None
    scatter: float | None = None

    @property
    def deviation(self) -> float:
        """The least by which the same work differed between the arms, as a ratio of 1 or more."""
        return 1.0 if self.joint is None else max(self.joint.nearest, 1 / self.joint.nearest)

    def bias(self, noise_floor: float | None) -> str | None:
        """Why no verdict of the session counts, or None: the arms differ in more than SME2."""
        threshold = threshold_of(noise_floor)
        if self.joint is None or self.joint.low is None or self.joint.high is None:
            return None
        if self.joint.low <= threshold and self.joint.high >= 1 / threshold:
            return None
        # Told of the slower arm: a ratio below 1 reads as if it were faster.
        ratio, low, high = self.joint.ratio, self.joint.low, self.joint.high
        slower, ratio, low, high = (
            ("off", ratio, low, high) if ratio > 1 else ("on", 1 / ratio, 1 / high, 1 / low)
        )
        return (
            f"{self.operators} operator{' has' if self.operators == 1 else 's have'} the same kernel in both "
            f"arms, and yet took {beside(ratio, 1, 3)} times as long with SME2 {slower} (95 % interval "
            f"{interval_beside(low, high, 1, 3)}): the arms differ in something other "
            f"than SME2, by more than {threshold - 1:.1%}."
        )


def is_placebo(pair: pd.DataFrame) -> bool:
    """Whether a pair of operators, a row per round, certainly ran the same kernel, and for long enough."""
    if pair[["median_ns_a", "median_ns_b"]].isna().any(axis=None):
        return False
    a, b = (re.sub(r" #\d+$", "", str(pair[f"name_{arm}"].iloc[0])) for arm in ("a", "b"))
    if a != b or _SAYS_NOTHING.search(a):
        return False
    for arm in ("a", "b"):
        # If unknown, it may be another kernel.
        if pair[f"on_sme_unit_{arm}"].isin([ON, UNKNOWN]).any():
            return False
        # Elsewhere, the name does not tell the kernel.
        if not (pair[f"backend_{arm}"].isin(_NAMES_TELL) & pair[f"known_{arm}"].astype(bool)).all():
            return False
        if (pair[f"certain_sme_samples_{arm}"] > 0).any():
            return False
        times = times_of(pair, arm)
        if min(times.least_ns) <= 0:
            return False
        if np.median(np.divide(times.most_ns, times.least_ns)) > MOST_OPEN:
            return False
    return True


def placebo_of(pairs: Sequence[pd.DataFrame]) -> Placebo:
    """What these pairs of operators show: each is a placebo, with a row per round in the same order."""
    if not pairs:
        return Placebo()
    arms = [[times_of(pair, arm) for pair in pairs] for arm in ("a", "b")]
    together = [Times(*np.sum([(times.least_ns, times.most_ns) for times in arm], axis=0)) for arm in arms]
    single = [bounded_speedup(a, b, interval=False).nearest for a, b in zip(*arms, strict=True)]
    return Placebo(len(pairs), bounded_speedup(*together), noise_floor(single))


def times_of(pair: pd.DataFrame, arm: str) -> Times:
    """The times of one arm of a pair; exact unless bounds are given."""
    median = pair[f"median_ns_{arm}"]
    least, most = (pair.get(f"{name}_ns_{arm}", median) for name in ("least", "most"))
    return Times(least.to_numpy(float), most.to_numpy(float))
