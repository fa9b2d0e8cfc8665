"""Where the time or the work goes: heavy operators, operators outside delegates, overheads."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from sme2_assets.analysis.insights import claims
from sme2_assets.analysis.insights.insight import MATRIX, ArmRows, Insight, Row, matters
from sme2_assets.analysis.insights.operators import operator_rows, same_operator
from sme2_assets.analysis.insights.values import ms, place_of, plural, shortened, shown_name
from sme2_assets.analysis.pairing import KEYS, Place, operator_pairs
from sme2_assets.analysis.pairing import place_of as place_in_run
from sme2_assets.analysis.unit import OFF, ON, UNKNOWN

HEAVY_SHARE = 0.05


def heavy_operators(subject: ArmRows, baseline: ArmRows | None) -> Iterator[Insight]:
    operators = subject.bottlenecks
    heavy = operators[operators["share"] > HEAVY_SHARE].sort_values("rank")
    rest = operators[operators["share"] <= HEAVY_SHARE]
    off_of = _with_sme2_off(baseline, operators)
    for operator in heavy.to_dict("records"):
        here = {"run_id": subject.run["run_id"], **{name: operator[name] for name in KEYS}}
        facts = [_ran_text(operator, subject, here), place_of(operator)]
        if not pd.isna(operator["gops"]):
            facts.append(
                claims.RATE.say(
                    millions=operator["macs"] / 1e6, rate=operator["gops"], unit=operator["rate_unit"], **here
                )
            )
        off = off_of.get(place_in_run(operator))
        if off is not None:
            there = {"off_run_id": off["run_id"], **{name: off[name] for name in KEYS}}
            facts.append(claims.TIME_OFF.say(ms=ms(off["per_inference_ns"]), **there))
        told = subject.speaks_of_sme2 and subject.run["sme2"] == "on"
        facts.append(_evidence_text(operator, here) if told else "")
        row = heavy[heavy["rank"] == operator["rank"]]
        hidden_ns = subject.hidden_ns(row)
        win_ns = float(operator["per_inference_ns"]) + hidden_ns
        yield Insight(
            "heavy_operator",
            claims.HEAVY.say(
                name=shown_name(operator),
                share=operator["share"],
                least="at least " if matters(hidden_ns, subject) else "",
                **here,
            ),
            "; ".join(
                [claims.HEAVY_TIME.say(ms=ms(operator["per_inference_ns"]), **here), *filter(None, facts)]
            )
            + ".",
            (subject.measurement(),),
            _not_the_cause(operator, subject, here)
            + claims.LIGHT.say(count=len(rest), limit=HEAVY_SHARE, share=rest["share"].sum(), **here),
            win_ns,
            subject.share_of(win_ns),
            "measured",
            operator_rows(row),
        )


def heavy_work(subject: ArmRows, baseline: ArmRows | None) -> Iterator[Insight]:
    """The same by instructions, where there are no times and they were counted."""
    operators = subject.bottlenecks
    heavy = operators[operators["instructions_share"] > HEAVY_SHARE].sort_values("rank")
    rest = operators[~operators.index.isin(heavy.index)]
    off_of = _with_sme2_off(baseline, operators)
    for operator in heavy.to_dict("records"):
        here = {"run_id": subject.run["run_id"], **{name: operator[name] for name in KEYS}}
        facts = [claims.WORK_TIMES.say(count=operator["instructions"], **here)]
        if operator["packing_instructions"]:
            share = operator["packing_instructions"] / operator["instructions"]
            facts[0] += claims.PACKING.say(share=share, **here)
        off = off_of.get(place_in_run(operator))
        if off is not None and pd.notna(off["instructions"]):
            there = {"off_run_id": off["run_id"], **{name: off[name] for name in KEYS}}
            facts.append(claims.WORK_OFF.say(count=off["instructions"], **there))
        if operator["outer_products"]:
            counts = {name: operator[name] for name in ("outer_products", "streaming_entries")}
            facts.append(claims.WORK_ON_UNIT.say(**counts, **here))
        if pd.notna(operator["macs"]) and operator["macs_executed"]:
            facts.append(claims.FILL.say(share=operator["macs"] / operator["macs_executed"], **here))
        yield subject.insight(
            "heavy_operator",
            claims.HEAVY_WORK.say(name=shown_name(operator), share=operator["instructions_share"], **here),
            "; ".join([*facts, *filter(None, [place_of(operator)])]) + ".",
            _not_the_cause(operator, subject, here)
            + claims.LIGHT_WORK.say(
                count=len(rest), limit=HEAVY_SHARE, share=rest["instructions_share"].sum(), **here
            ),
            rows=operator_rows(heavy[heavy["rank"] == operator["rank"]]),
        )


def _ran_text(operator: Row, subject: ArmRows, here: Row) -> str:
    """Where only some inferences ran it: how many, and how long it took there."""
    ran, inferences = int(operator["inferences"]), int(subject.headroom["inferences"])
    if ran == inferences:
        return ""
    return claims.RAN_IN_SOME.say(ran=ran, inferences=inferences, ms=ms(operator["mean_ns"]), **here)


def _with_sme2_off(baseline: ArmRows | None, operators: pd.DataFrame) -> dict[Place, Row]:
    """The same operators in the other arm, by their places in this one."""
    if baseline is None:
        return {}
    rows = {place_in_run(row): row for row in baseline.bottlenecks.to_dict("records")}
    pairs = operator_pairs(baseline.bottlenecks, operators)
    return {pair.b: rows[pair.a] for pair in pairs if pair.a is not None and pair.b is not None}


def _not_the_cause(operator: Row, subject: ArmRows, here: Row) -> str:
    """What SME2 has to do with it, as a sentence with a trailing space; empty for a reference."""
    if not subject.speaks_of_sme2:
        return ""
    if not operator["known"]:
        return claims.NOT_KNOWN.say(**here)
    if operator["category"] not in MATRIX:
        return claims.NOT_MATRIX.say(category=operator["category"], **here)
    if operator["on_sme_unit"] == ON:
        return claims.ON_UNIT.say(**here)
    missed = same_operator(subject.missed_sme2, operator)
    if missed is not None and missed["on_sme_unit"] == UNKNOWN:
        return claims.UNKNOWN_UNIT.say(**here)
    if missed is not None:
        return claims.NO_HELP.say(reason=missed["reason"], **here)
    if subject.evidence_run_id is not None:
        return claims.IN_REACH.say(**here, evidence_run_id=subject.evidence_run_id)
    return claims.NOT_SHOWN.say(**here)


def _evidence_text(operator: Row, here: Row) -> str:
    if operator["category"] not in MATRIX:
        return ""
    if operator["sme2_evidence"] == "executed" and pd.notna(operator["macs_executed"]):
        done = {name: int(operator[name]) for name in ("macs_executed", "macs_on_unit")}
        return claims.COUNTED_ON_UNIT.say(**done, **here)
    if operator["sme2_evidence"] == "executed":
        told, sme = operator["telling_samples"], operator["certain_sme_samples"]
        return claims.SAMPLED_IN_SME.say(sme=sme, told=told, **here)
    said = {ON: claims.ON_BY_NAME, OFF: claims.OFF_UNIT}.get(operator["on_sme_unit"], claims.UNIT_NOT_KNOWN)
    return said.say(**here)


def portable_cost(subject: ArmRows) -> Iterator[Insight]:
    operators = subject.bottlenecks
    portable = operators[operators["backend"] == "portable"].sort_values(["rank", "execution_order"])
    if portable.empty:
        return
    win_ns = float(portable["per_inference_ns"].sum()) if subject.timed else None
    of_type = portable.groupby("op_type", sort=False)
    counts = of_type.size()
    heaviest = counts if win_ns is None else of_type["per_inference_ns"].sum()
    names = ", ".join(
        name if counts[name] == 1 else f"{counts[name]} {name}"
        for name in heaviest.sort_values(ascending=False, kind="stable").index
    )
    calls = int(subject.headroom["delegate_calls"])
    run_id = subject.run["run_id"]
    yield subject.insight(
        "portable_cost",
        claims.PORTABLE.say(
            run_id=run_id, count=len(portable), operators=plural(portable, "operator"), names=shortened(names)
        ),
        ("" if win_ns is None else claims.PORTABLE_TIME.say(run_id=run_id, ms=ms(win_ns)))
        + (claims.SPLITS.say(run_id=run_id, calls=calls) if calls > 1 else ""),
        claims.DELEGATED.say(run_id=run_id, count=len(operators) - len(portable)),
        win_ns=win_ns,
        evidence=tuple(filter(None, map(place_of, portable.head(3).to_dict("records")))),
        rows=operator_rows(portable),
    )


def overheads(subject: ArmRows) -> Iterator[Insight]:
    headroom = subject.headroom
    calls, alike = int(headroom["delegate_calls"]), subject.bottlenecks["path"].nunique() == 1
    # Only XNNPACK floors; a sequence of operators is what one inference runs.
    floored = subject.bottlenecks[subject.bottlenecks["backend"] == "xnnpack"].groupby("path").size()
    most = int(floored.max()) if len(floored) else 0
    delegate_ns, framework_ns = headroom["delegate_overhead_ns"], headroom["framework_overhead_ns"]
    run_id = subject.run["run_id"]
    if calls and delegate_ns > 0:
        rounding_ns = min(1000.0 * most, delegate_ns)
        yield subject.insight(
            "delegate_overhead",
            claims.DELEGATE_OVERHEAD.say(
                run_id=run_id,
                calls=calls,
                which=f"{calls}" if alike else f"Up to {calls}",
                cost="call costs" if calls == 1 else "calls cost",
                ms=ms(delegate_ns),
            ),
            # Where sequences differ in their calls, no number of them is that of an inference.
            (claims.PER_CALL.say(run_id=run_id, calls=calls, ms=ms(delegate_ns / calls)) if alike else "")
            + "Entering, leaving, and what a delegate does between operators.",
            claims.FLOORED.say(
                run_id=run_id,
                ms=ms(rounding_ns),
                count=most,
                which=f"{'' if alike else 'up to '}{most} operator{'' if most == 1 else 's'}",
            )
            if most
            else claims.NOT_FLOORED.say(run_id=run_id),
            win_ns=delegate_ns,
        )
    if framework_ns > 0:
        yield subject.insight(
            "framework_overhead",
            claims.FRAMEWORK.say(run_id=run_id, ms=ms(framework_ns)),
            "Method::execute beyond delegate calls and portable operators.",
            claims.LEANER.say(run_id=run_id, share=subject.share_of(framework_ns) or 0.0),
            win_ns=framework_ns,
        )
