"""What could be won at most: by Amdahl's law, and by the published factors where there is no SME2."""

from __future__ import annotations

from collections.abc import Iterator

from sme2_assets.analysis.insights import claims
from sme2_assets.analysis.insights.insight import MATRIX, ArmRows, Insight
from sme2_assets.analysis.insights.values import ceiling_text, ms, names_in
from sme2_assets.analysis.unit import UNKNOWN

# How much faster CONV and GEMM become on SME2, as published for CPUs that have it.
PUBLISHED_SPEEDUPS = (3.0, 15.0)


def ceilings(subject: ArmRows) -> Iterator[Insight]:
    headroom = subject.headroom
    parts = (
        ("compute", "CONV and GEMM", MATRIX, "any faster kernel for CONV and GEMM"),
        ("data_movement", "Data Movement", ("Data Movement",), "removing every copy and transpose"),
    )
    for column, name, categories, remedy in parts:
        win_ns = headroom[f"{column}_ns"]
        if win_ns <= 0:
            continue
        rest_ns = headroom[f"without_{column}_ns"]
        speedup = headroom[f"without_{column}_speedup"]
        ceiling = ceiling_text(speedup)
        part = {"run_id": subject.run["run_id"], "part": name, "categories": categories, "speedup": speedup}
        yield subject.insight(
            f"amdahl_{column}",
            claims.CEILING.say(**part, ms=ms(rest_ns), ceiling=ceiling),
            claims.PART.say(
                **part,
                take="take" if len(categories) > 1 else "takes",
                ms=ms(win_ns),
                inference_ms=ms(headroom["inference_ns"]),
            ),
            claims.NO_MORE.say(**part, ceiling=ceiling, remedy=remedy),
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
        why = claims.ELIGIBLE.say(evidence_run_id=subject.evidence_run_id)
    else:
        why = "all but those whose type has no SME2 kernel; no run with SME2 on shows the others"
    if unknown := int((subject.missed_sme2["on_sme_unit"] == UNKNOWN).sum()):
        why += claims.UNKNOWN_LEFT_OUT.say(run_id=subject.run["run_id"], count=unknown)
    slowest, fastest = PUBLISHED_SPEEDUPS
    yield subject.insight(
        "projection",
        claims.PROJECTION.say(run_id=subject.run["run_id"], low=low, high=high),
        claims.IF_FASTER.say(
            run_id=subject.run["run_id"],
            count=eligible,
            total=len(subject.matrix),
            ms=ms(eligible_ns),
            inference_ms=ms(inference_ns),
            slowest=slowest,
            fastest=fastest,
        ),
        claims.NOT_MORE.say(high=high, fastest=fastest),
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
