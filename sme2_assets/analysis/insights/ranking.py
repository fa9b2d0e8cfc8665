"""All insights about a run, in order."""

from __future__ import annotations

from collections.abc import Sequence

from sme2_assets.analysis.insights.ceilings import ceilings, projection
from sme2_assets.analysis.insights.costs import heavy_operators, heavy_work, overheads, portable_cost
from sme2_assets.analysis.insights.insight import ArmRows, Insight
from sme2_assets.analysis.insights.layout import layout_changes
from sme2_assets.analysis.insights.missed import missed_kernels
from sme2_assets.analysis.insights.shift import kernel_shift, time_shift

KINDS = (
    "bottleneck_shift",
    "missed_sme2",
    "heavy_operator",
    "portable_cost",
    "layout_changes",
    "delegate_overhead",
    "framework_overhead",
    "amdahl_compute",
    "amdahl_data_movement",
    "projection",
)


def insights(subject: ArmRows, baseline: ArmRows | None = None) -> list[Insight]:
    """All insights about `subject`, ranked.

    The subject is the arm to make faster: SME2 on, or the only one that was measured. `baseline` is the
    arm of the same session with SME2 off.
    """
    found: list[Insight] = []
    # Nothing can be said about how two references differ: neither has SME2.
    baseline = baseline if subject.speaks_of_sme2 else None
    if baseline is not None:
        found.append((time_shift if subject.timed else kernel_shift)(baseline, subject))
    found += missed_kernels(subject)
    found += portable_cost(subject)
    found += layout_changes(subject)
    found += (heavy_operators if subject.timed else heavy_work)(subject, baseline)
    if subject.timed:
        found += overheads(subject)
    if subject.timed and subject.speaks_of_sme2:
        found += ceilings(subject)
        found += projection(subject)
    return ranked(found)


def ranked(found: Sequence[Insight]) -> list[Insight]:
    """By the time that could be won, or without times by the instructions of the operators. The shift comes
    first, because the rest is read against it; the projection comes last, because it is not a measurement."""

    def place(insight: Insight) -> tuple[int, float, int]:
        group = {"bottleneck_shift": 0, "projection": 3}.get(insight.kind, 2 if insight.win_ns is None else 1)
        work = sum(row.get("instructions_share") or 0.0 for row in insight.rows)
        return group, -(insight.win_ns or work), KINDS.index(insight.kind)

    return sorted(found, key=place)
