"""Whether other models on the same device slowed down in the same nights.

A machine that moves to another clock state, and a new runner or system, slow everything down. In one series
this looks just like a model that became slower; only the other series of the device can tell.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from sme2_assets.analysis.change_points import MIN_NIGHTS, Floats

# How many runs on each side are compared: the nearest, because a series may have other steps further away.
NEAREST = 7
# How much of the step another series must have taken: states of a machine do not slow all models alike.
LEAST_SHARE = 0.5
# A step is the device's if this many series of other models could have shown it, and this share of them did.
LEAST_WATCHED, MOST_OF_THEM = 3, 0.75


@dataclass(frozen=True)
class Others:
    """How many series of other models have runs on both sides of a step, and how many slowed down with it."""

    watched: int
    slower: int

    @property
    def joint(self) -> bool:
        return self.watched >= LEAST_WATCHED and self.slower >= MOST_OF_THEM * self.watched


def others_at_step(last_before: int, ratio: float, others: Iterable[tuple[np.ndarray, Floats]]) -> Others:
    """The company of a step by `ratio` after the run at this place in the order of all runs.

    Each of `others` is a series: the places of its runs, ascending, and their times, NaN where there is none.
    Its next run may still have been before the step; medians do not mind one.
    """
    watched = slower = 0
    for places, times in others:
        timed = ~np.isnan(times)
        before = times[timed & (places <= last_before)][-NEAREST:]
        after = times[timed & (places > last_before)][:NEAREST]
        if min(len(before), len(after)) < MIN_NIGHTS:
            continue
        watched += 1
        slower += math.log(np.median(after) / np.median(before)) >= LEAST_SHARE * math.log(ratio)
    return Others(watched, int(slower))
