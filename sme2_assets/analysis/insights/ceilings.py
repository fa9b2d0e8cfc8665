"""The most that could be won: by Amdahl's law, and on published SME units where the CPU has none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd

from sme2_assets.analysis.insights import claims
from sme2_assets.analysis.insights.insight import MATRIX, ArmRows, Insight
from sme2_assets.analysis.insights.values import ceiling_text, ms, names_in
from sme2_assets.analysis.projection import UNITS, Unit, countable, projected_ns
from sme2_assets.analysis.unit import UNKNOWN


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
    """What published SME units could do with the counted work, where SME2 cannot be measured."""
    has_sme2 = "sme2" in names_in(subject.run.get("cpu_features_seen"))
    if subject.run["sme2"] != "off" or has_sme2 or subject.matrix.empty:
        return
    on_unit = subject.matrix[~_places(subject.matrix).isin(_places(subject.missed_sme2))]
    eligible = countable(on_unit)
    inference_ns, eligible_ns = subject.headroom["inference_ns"], float(eligible["mean_ns"].sum())
    if inference_ns <= 0 or eligible_ns <= 0:
        return
    run_id = subject.run["run_id"]
    rows = [_on_unit(run_id, unit, eligible, inference_ns) for unit in UNITS]
    if subject.evidence_run_id is not None:
        why = claims.ELIGIBLE.say(evidence_run_id=subject.evidence_run_id)
    else:
        why = "all but those whose type has no SME2 kernel; no run with SME2 on shows the others"
    if unknown := int((subject.missed_sme2["on_sme_unit"] == UNKNOWN).sum()):
        why += claims.UNKNOWN_LEFT_OUT.say(run_id=run_id, count=unknown)
    if uncounted := len(on_unit) - len(eligible):
        why += claims.UNCOUNTED_LEFT_OUT.say(run_id=run_id, count=uncounted)
    first, *others = rows
    yield subject.insight(
        "projection",
        claims.PROJECTION.say(**first),
        claims.IF_ON_UNIT.say(
            run_id=run_id,
            count=len(eligible),
            total=len(subject.matrix),
            ms=ms(eligible_ns),
            inference_ms=ms(inference_ns),
        )
        + "".join(claims.ON_OTHER_UNIT.say(**other) for other in others),
        claims.NOT_MORE.say(**first),
        evidence=(
            f"operators counted: {why}",
            "rates and bandwidth as published: "
            + ", ".join(dict.fromkeys(sum((u.sources for u in UNITS), ()))),
        ),
        basis="projection",
        rows=tuple(
            {
                "unit": row["unit"],
                "speedup_low": row["low"],
                "speedup_high": row["high"],
                "operators": len(eligible),
                "of_operators": len(subject.matrix),
                "eligible_ms": ms(eligible_ns),
                "inference_ms": ms(inference_ns),
                "evidence_run_id": subject.evidence_run_id,
            }
            for row in rows
        ),
    )


def _places(operators: pd.DataFrame) -> pd.MultiIndex:
    """Where operators are in the program; a portable one is in no delegate."""
    place = operators[["backend", "delegate", "position"]].fillna({"delegate": -1})
    return pd.MultiIndex.from_frame(place)


def _on_unit(run_id: str, unit: Unit, eligible: pd.DataFrame, inference_ns: float) -> dict[str, Any]:
    """The values of a sentence about one unit: the range, and what it was computed from."""
    rest_ns = inference_ns - float(eligible["mean_ns"].sum())
    fast_ns, slow_ns = projected_ns(eligible, unit)
    return {
        "run_id": run_id,
        "unit": unit.name,
        "low": inference_ns / (rest_ns + slow_ns),
        "high": inference_ns / (rest_ns + fast_ns),
        "single": unit.gops["fp32"],
        "half": unit.gops["fp16"],
        "integer": unit.gops["int8"],
        "gb_s": unit.gb_s,
        "tile": unit.tile,
    }
