"""The most that could be won: by Amdahl's law, and on published SME units where the CPU has none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd

from sme2_assets.analysis.insights import claims
from sme2_assets.analysis.insights.insight import MATRIX, ArmRows, Insight, matters
from sme2_assets.analysis.insights.values import ms, names_in
from sme2_assets.analysis.projection import UNITS, Unit, countable, priced, projected_ns
from sme2_assets.analysis.unit import UNKNOWN

# Below this share the view `headroom` has no ceiling.
LEAST_KNOWN = 0.8


def ceilings(subject: ArmRows) -> Iterator[Insight]:
    headroom = subject.headroom
    parts = (
        ("compute", "CONV and GEMM", MATRIX, "any faster kernel for"),
        ("data_movement", "Data Movement", ("Data Movement",), "removing all"),
    )
    for column, name, categories, remedy in parts:
        took_ns, most_ns = headroom[f"{column}_ns"], headroom[f"{column}_most_ns"]
        if took_ns <= 0:
            continue
        rest_ns = headroom[f"without_{column}_ns"]
        speedup = headroom[f"without_{column}_speedup"]
        which = known_part(subject, name)
        part = {"run_id": subject.run["run_id"], "part": which, "categories": categories, "speedup": speedup}
        bounded = not pd.isna(rest_ns)
        none = claims.LITTLE_IS_KNOWN if headroom["known_share"] < LEAST_KNOWN else claims.NO_CEILING
        yield subject.insight(
            f"amdahl_{column}",
            claims.CEILING.say(**part, ms=ms(rest_ns))
            if bounded
            else none.say(**part, known_share=headroom["known_share"]),
            claims.PART.say(
                **{**part, "part": which[0].upper() + which[1:]},
                take="take" if len(categories) > 1 else "takes",
                ms=ms(took_ns),
                least="at least " if matters(most_ns - took_ns, subject) else "",
                inference_ms=ms(headroom["inference_ns"]),
            ),
            (
                claims.NO_MORE.say(**part, remedy=f"{remedy} {which}")
                if bounded
                else "Nothing: no bound on what could be won is known."
            )
            + _may_be_more(subject),
            win_ns=most_ns if bounded else None,
        )


def known_part(subject: ArmRows, name: str) -> str:
    """What a part of the inference is called: where operators are not known, it is what is known of it."""
    return name if _unknown(subject).empty else f"known {name}"


def _unknown(subject: ArmRows) -> pd.DataFrame:
    """Operators of which it is not known what they compute; none if they take no time."""
    operators = subject.bottlenecks
    unknown = operators[~operators["known"].astype(bool)]
    return unknown if unknown["per_inference_ns"].sum() > 0 else unknown.iloc[:0]


def _may_be_more(subject: ArmRows) -> str:
    unknown = _unknown(subject)
    if unknown.empty:
        return ""
    count = len(unknown)
    return claims.MAY_BE_MORE.say(
        run_id=subject.run["run_id"],
        count=count,
        which="1 operator computes is" if count == 1 else f"{count} operators compute is",
        ms=ms(unknown["per_inference_ns"].sum()),
    )


def projection(subject: ArmRows) -> Iterator[Insight]:
    """What published SME units could do with the counted work, where SME2 cannot be measured."""
    features = names_in(subject.run.get("cpu_features_seen"))
    # Of a CPU whose features are not known, nobody can say that it lacks SME2.
    lacks_sme2 = features and "sme2" not in features
    if subject.run["sme2"] != "off" or not lacks_sme2 or subject.matrix.empty:
        return
    on_unit = subject.matrix[~_places(subject.matrix).isin(_places(subject.missed_sme2))]
    eligible = countable(on_unit)
    inference_ns, eligible_ns = subject.headroom["inference_ns"], float(eligible["per_inference_ns"].sum())
    if inference_ns <= 0 or eligible_ns <= 0 or not priced(subject.matrix):
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
    rest_ns = inference_ns - float(eligible["per_inference_ns"].sum())
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
