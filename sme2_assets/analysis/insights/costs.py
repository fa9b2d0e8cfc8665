"""What the time goes to: heavy operators, operators outside delegates, overheads."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from sme2_assets.analysis.insights.insight import MATRIX, PROOF, ArmRows, Insight, Row
from sme2_assets.analysis.insights.operators import operator_rows, same_operator
from sme2_assets.analysis.insights.values import counted, ms, place_of, shortened
from sme2_assets.analysis.pairing import Place, operator_pairs
from sme2_assets.analysis.pairing import place_of as place_in_run

HEAVY_SHARE = 0.05


def heavy_operators(subject: ArmRows, baseline: ArmRows | None) -> Iterator[Insight]:
    operators = subject.bottlenecks
    heavy = operators[operators["share"] > HEAVY_SHARE].sort_values("rank")
    rest = operators[operators["share"] <= HEAVY_SHARE]
    off_of = _with_sme2_off(baseline, operators)
    for operator in heavy.to_dict("records"):
        facts = [place_of(operator)]
        if not pd.isna(operator["gops"]):
            work = f"{operator['macs'] / 1e6:.1f} million multiply-accumulates"
            facts.append(f"{work} at {operator['gops']:.1f} {operator['rate_unit']}")
        off = off_of.get(place_in_run(operator))
        if off is not None:
            facts.append(f"{ms(off['mean_ns']):.3f} ms with SME2 off")
        facts.append(_evidence_text(operator) if subject.run["sme2"] == "on" else "")
        yield Insight(
            "heavy_operator",
            f"{operator['name']} takes {operator['share']:.1%} of the inference",
            "; ".join([f"{ms(operator['mean_ns']):.3f} ms", *(fact for fact in facts if fact)]) + ".",
            (subject.measurement(),),
            f"{_not_the_cause(operator, subject)}The {len(rest)} operators below {HEAVY_SHARE:.0%} take "
            f"{rest['share'].sum():.0%} together.",
            float(operator["mean_ns"]),
            float(operator["share"]),
            "measured",
            operator_rows(heavy[heavy["rank"] == operator["rank"]]),
        )


def _with_sme2_off(baseline: ArmRows | None, operators: pd.DataFrame) -> dict[Place, Row]:
    """The same operators in the other arm, by their places in this one."""
    if baseline is None:
        return {}
    rows = {place_in_run(row): row for row in baseline.bottlenecks.to_dict("records")}
    pairs = operator_pairs(baseline.bottlenecks, operators)
    return {pair.on: rows[pair.off] for pair in pairs if pair.off is not None and pair.on is not None}


def _not_the_cause(operator: Row, subject: ArmRows) -> str:
    """What SME2 has to do with it, as a sentence with a space behind it; nothing of a reference."""
    if not subject.speaks_of_sme2:
        return ""
    if operator["category"] not in MATRIX:
        return f"It is {operator['category']}: no SME2 kernel would change it. "
    if operator["sme2_evidence"] in PROOF:
        return "It is not a missed kernel: it has one of SME2. "
    missed = same_operator(subject.missed_sme2, operator)
    if missed is not None:
        return f"A CPU with SME2 does not help as it stands: {missed['reason']}. "
    if subject.evidence_run_id is not None:
        return "It is not out of SME2's reach: it has an SME2 kernel under emulation. "
    return "Whether SME2 would take it is not shown. "


def _evidence_text(operator: Row) -> str:
    if operator["category"] not in MATRIX:
        return ""
    if operator["sme2_evidence"] == "executed":
        return f"{operator['sme_samples']} of {operator['samples']} samples in SME kernels"
    return f"evidence of an SME2 kernel: {operator['sme2_evidence']}"


def portable_cost(subject: ArmRows) -> Iterator[Insight]:
    operators = subject.bottlenecks
    portable = operators[operators["backend"] == "portable"].sort_values(["rank", "execution_order"])
    if portable.empty:
        return
    win_ns = float(portable["mean_ns"].sum()) if subject.timed else None
    names = ", ".join(dict.fromkeys(portable["op_type"]))
    calls = int(subject.headroom["delegate_calls"])
    yield subject.insight(
        "portable_cost",
        f"{counted(portable, 'operator')} outside delegates: {shortened(names)}",
        ("" if win_ns is None else f"Together: {ms(win_ns):.3f} ms. ")
        + f"One between delegates splits them: there are {calls} delegate calls.",
        f"The other {len(operators) - len(portable)} operators are delegated.",
        win_ns=win_ns,
        evidence=tuple(filter(None, map(place_of, portable.head(3).to_dict("records")))),
        rows=operator_rows(portable),
    )


def overheads(subject: ArmRows) -> Iterator[Insight]:
    headroom = subject.headroom
    calls = int(headroom["delegate_calls"])
    delegated = int(headroom["operators"] - headroom["portable_operators"])
    delegate_ns, framework_ns = headroom["delegate_overhead_ns"], headroom["framework_overhead_ns"]
    if calls and delegate_ns > 0:
        rounding_ns = min(1000.0 * delegated, delegate_ns)
        yield subject.insight(
            "delegate_overhead",
            f"{calls} delegate {'call costs' if calls == 1 else 'calls cost'} at most "
            f"{ms(delegate_ns):.3f} ms beyond their operators",
            f"At most {ms(delegate_ns / calls):.3f} ms per call: entering, leaving, and what XNNPACK does "
            "between operators.",
            f"XNNPACK floors its times, so up to {ms(rounding_ns):.3f} ms of it may be its operators' own "
            f"({delegated} operators, a microsecond each).",
            win_ns=delegate_ns,
        )
    if framework_ns > 0:
        yield subject.insight(
            "framework_overhead",
            f"ExecuTorch itself takes {ms(framework_ns):.3f} ms",
            "Method::execute beyond delegate calls and portable operators.",
            f"A leaner runtime brings no more than this: {subject.share_of(framework_ns) or 0:.1%} "
            "of the inference.",
            win_ns=framework_ns,
        )
