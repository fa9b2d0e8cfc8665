"""What could be won at most: by Amdahl's law, and by the published factors where there is no SME2."""

from __future__ import annotations

from collections.abc import Iterator

from sme2_assets.analysis.insights.insight import ArmRows, Insight
from sme2_assets.analysis.insights.values import ceiling_text, ms, names_in

# How much faster CONV and GEMM become on SME2, as published for CPUs that have it.
PUBLISHED_SPEEDUPS = (3.0, 15.0)


def ceilings(subject: ArmRows) -> Iterator[Insight]:
    headroom = subject.headroom
    parts = (
        ("amdahl_compute", "CONV and GEMM", "compute", "any faster kernel for CONV and GEMM"),
        ("amdahl_data_movement", "Data Movement", "data_movement", "removing every copy and transpose"),
    )
    for kind, name, column, remedy in parts:
        win_ns = headroom[f"{column}_ns"]
        if win_ns <= 0:
            continue
        rest_ns = headroom[f"without_{column}_ns"]
        speedup = ceiling_text(headroom[f"without_{column}_speedup"])
        yield subject.insight(
            kind,
            f"Ceiling: if {name} took no time, at least {ms(rest_ns):.3f} ms would be left, "
            f"{speedup} at most",
            f"{name} {'take' if kind == 'amdahl_compute' else 'takes'} {ms(win_ns):.3f} of "
            f"{ms(headroom['inference_ns']):.3f} ms (Amdahl's law).",
            f"More than {speedup} from {remedy}.",
            win_ns=win_ns,
        )


def projection(subject: ArmRows) -> Iterator[Insight]:
    """What the published factors would give, where SME2 cannot be measured."""
    has_sme2 = "sme2" in names_in(subject.run.get("cpu_features_seen"))
    if subject.run["sme2"] != "off" or has_sme2 or subject.matrix.empty:
        return
    inference_ns = subject.headroom["inference_ns"]
    eligible_ns = float(subject.matrix["mean_ns"].sum() - subject.missed_sme2["mean_ns"].sum())
    eligible = len(subject.matrix) - len(subject.missed_sme2)
    if inference_ns <= 0 or eligible_ns <= 0:
        return
    left_ns = [inference_ns - eligible_ns + eligible_ns / factor for factor in PUBLISHED_SPEEDUPS]
    low, high = (inference_ns / left for left in left_ns)
    if subject.evidence_run_id is not None:
        why = f"those that take SME2 kernels in the emulated run {subject.evidence_run_id}"
    else:
        why = "all but those whose type has no SME2 kernel; no run with SME2 on shows the others"
    slowest, fastest = PUBLISHED_SPEEDUPS
    yield subject.insight(
        "projection",
        f"Projection, not a measurement: {low:.2f}x to {high:.2f}x for the whole model on a CPU with SME2",
        f"If {eligible} of {len(subject.matrix)} CONV and GEMM operators ({ms(eligible_ns):.3f} of "
        f"{ms(inference_ns):.3f} ms) became {slowest:.0f} to {fastest:.0f} times faster, as published for "
        "SME2, and nothing else changed.",
        f"More than {high:.2f}x, unless CONV and GEMM gain more than {fastest:.0f} times. "
        "It does not say what this model gains on a given CPU: measure there.",
        evidence=(f"operators counted: {why}",),
        basis="projection",
        rows=(
            {
                "speedup_low": low,
                "speedup_high": high,
                "factors": list(PUBLISHED_SPEEDUPS),
                "operators": eligible,
                "of_operators": len(subject.matrix),
                "eligible_ms": ms(eligible_ns),
                "inference_ms": ms(inference_ns),
                "evidence_run_id": subject.evidence_run_id,
            },
        ),
    )
