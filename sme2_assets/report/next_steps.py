"""What to do about an insight: a command to type, or a change in the model's code.

Nothing here is about times: these texts contain names and places of the run, and what the export says.
"""

from __future__ import annotations

import re

from sme2_assets.analysis.claims import Claim
from sme2_assets.analysis.insights.insight import MATRIX, Insight, Row
from sme2_assets.analysis.insights.operators import same_operator
from sme2_assets.analysis.insights.values import shortened
from sme2_assets.report.explain import SAME_OPERATOR, Explanation

# Insights that something can be done about; the others say how far that can lead.
ACTIONABLE = ("missed_sme2", "heavy_operator", "portable_cost", "layout_changes", "delegate_overhead")
# Why operators are outside delegates: the reasons that are told one by one.
MOST_REASONS = 3

_RUN = "SELECT variant = $variant AND platform = $platform FROM runs WHERE run_id = $run_id"
_PLACE = (
    f"{_RUN} AND ($at = '' OR EXISTS (SELECT 1 FROM operator_facts WHERE run_id = $run_id "
    "AND contains($at, source)))"
)
_SEE_REPORT = Claim("`sme2 report {variant} --platform {platform} --open` shows all of it.", _RUN)
_BRING = Claim(
    "Bring its model here, as docs/models.md says, and measure it: this trace came without it.",
    "SELECT experiment = 'foreign' FROM runs WHERE run_id = $run_id",
)
_ADVISE = Claim("`sme2 advise {variant}` tries other precisions and other ways to write it.", _RUN)
_EXPORT_AGAIN = Claim(
    "Export the model again in another precision (int8, fp32), and profile that file.",
    _RUN + " AND ends_with($variant, '-as_is')",
)
_DELEGATE = Claim(
    "Change it{at} so that XNNPACK takes it{why}. `sme2 advise {variant}` tries other ways to write it.",
    f"{_PLACE} AND ($why = '' OR EXISTS (SELECT 1 FROM delegation_report WHERE run_id = $run_id "
    "AND NOT delegated AND contains($why, reason)))",
)
_OF_A_PROGRAM = (
    _RUN + " AND ends_with($variant, '-as_is') AND {} EXISTS (SELECT 1 FROM operator_facts "
    "WHERE run_id = $run_id AND backend <> 'portable')"
)
_LOWER = Claim(
    "Lower the model with XNNPACK's partitioner, in fp32, fp16 or int8, and profile that file: this one has "
    "no delegate.",
    _OF_A_PROGRAM.format("NOT"),
)
_SEE_WHY = Claim(
    "Profile the model instead of this program: its export says why XNNPACK, which takes fp32, fp16 and "
    "int8, left it out.",
    _OF_A_PROGRAM.format(""),
)
_REFUSED = Claim(
    "{count} ({names}): {reason}",
    "SELECT count(*) = $count AND len($positions) = $count FROM operator_facts AS facts "
    "WHERE run_id = $run_id AND backend = 'portable' AND list_contains($positions, position) "
    "AND EXISTS (SELECT 1 FROM delegation_report AS refused WHERE refused.run_id = facts.run_id "
    f"AND NOT refused.delegated AND {SAME_OPERATOR} "
    "AND refused.source IS NOT DISTINCT FROM facts.source AND refused.reason = $reason)",
)
_ORDINARY = Claim(
    "Write it as an ordinary convolution (groups=1){at}: {factor:.0f} times its multiply-accumulates "
    "({before:.2f} to {after:.2f} million), and another model, to be trained again.",
    f"{_PLACE} AND (SELECT abs(sum(macs) / 1e6 - $before) < 1e-6 AND abs(sum(macs * groups) / 1e6 - $after) "
    "< 1e-6 AND abs($factor * $before - $after) < 1e-6 AND count(*) = count(macs * groups) FROM missed_sme2 "
    "WHERE run_id = $run_id AND reason = 'depthwise')",
)
_WHAT_RAN = Claim("""See what ran: `sme2 sql "FROM kernel_usage WHERE run_id = '{run_id}'"`.""", _RUN)
_SAMPLE = Claim("Sample for longer: `sme2 profile {variant} --platform {platform} --runs 200`.", _RUN)
_REPLACE = Claim(
    "Replace or fuse it{at}, then measure again: `sme2 profile {variant} --platform {platform}`.", _PLACE
)
_MEASURE_AGAIN = "then measure again: `sme2 profile {variant} --platform {platform}`."
_MEMORY_FORMAT = Claim(
    "Try one memory format throughout (`x = x.to(memory_format=torch.channels_last)`), " + _MEASURE_AGAIN,
    f"{_RUN} AND EXISTS (SELECT 1 FROM bottlenecks WHERE run_id = $run_id AND category = 'CONV')",
)
_DIMENSION_ORDER = Claim(
    "Try one order of dimensions from one matrix product to the next, " + _MEASURE_AGAIN, _RUN
)
_FEWER_CALLS = Claim(
    'Bring what is between the delegates into them: `sme2 sql "SELECT operator, source, reason FROM '
    "delegation_report WHERE run_id = '{run_id}' AND NOT delegated\"`.",
    _RUN,
)
_BATCH = Claim("Batch: one inference of many inputs rather than many inferences of one.", _RUN)
_WITH_SME2 = Claim("Measure on a machine with SME2: `sme2 profile {variant} --device ssh://user@host`.", _RUN)
_EMULATE = Claim("See whether SME2 takes it: `sme2 profile {variant} --platform emulated`.", _RUN)
_LIST = (
    "`sme2 sql \"SELECT name, source, per_inference_ns FROM bottlenecks WHERE run_id = '{run_id}' "
    "AND category "
)
_OTHERS = Claim("List what else takes time: " + _LIST + "NOT IN ('CONV', 'GEMM') ORDER BY rank\"`.", _RUN)
_MOVERS = Claim("List what moves data: " + _LIST + "= 'Data Movement' ORDER BY rank\"`.", _RUN)

# Commands that measure.
_NEEDS_MODEL = re.compile("sme2 (profile|advise)")
_BY_KIND = {
    "bottleneck_shift": _SEE_REPORT,
    "portable_cost": _DELEGATE,
    "delegate_overhead": _FEWER_CALLS,
    "framework_overhead": _BATCH,
    "amdahl_compute": _OTHERS,
    "amdahl_data_movement": _MOVERS,
    "projection": _WITH_SME2,
}
_BY_REASON = {
    "not delegated": _DELEGATE,
    "unexplained": _WHAT_RAN,
    "unknown": _SAMPLE,
}


def next_step(insight: Insight, explanation: Explanation) -> str:
    """What to do about it."""
    sources = list(dict.fromkeys(row["source"] for row in insight.rows if row.get("source")))
    step = _step(insight, explanation)
    if explanation.subject.run["experiment"] == "foreign" and _NEEDS_MODEL.search(step.text):
        step = _BRING
    return step.say(
        variant=explanation.variant,
        platform=explanation.platform,
        run_id=explanation.subject.run["run_id"],
        at=(f" in {sources[0]}" + (" and elsewhere" if sources[1:] else "")) if sources else "",
        why=_why_refused(insight, explanation),
        **_work_of_depthwise(explanation),
    )


def _why_refused(insight: Insight, explanation: Explanation) -> str:
    """Why XNNPACK did not take the operators, to follow what they are; the reasons that cost most first."""
    by_reason: dict[str, list[Row]] = {}
    for row in insight.rows:
        if row.get("backend") == "portable" and row["position"] in explanation.refusals:
            by_reason.setdefault(explanation.refusals[row["position"]], []).append(row)
    if not by_reason:
        return ""
    if len(by_reason) == 1:
        return f": {next(iter(by_reason))}"
    order = sorted(
        by_reason.items(), key=lambda item: (-sum(row["mean_ms"] or 0 for row in item[1]), -len(item[1]))
    )
    said = [
        _REFUSED.say(
            run_id=explanation.subject.run["run_id"],
            count=len(rows),
            names=shortened(", ".join(dict.fromkeys(row["op_type"] for row in rows))),
            reason=reason,
            positions=[row["position"] for row in rows],
        )
        for reason, rows in order[:MOST_REASONS]
    ]
    if order[MOST_REASONS:]:
        said.append("the rest for other reasons")
    return f": {'; '.join(said)}"


def _work_of_depthwise(explanation: Explanation) -> dict[str, float]:
    """The multiply-accumulates of depthwise convolutions off the unit, in millions, and those of ordinary
    ones in their place; empty if not all are known."""
    missed = explanation.subject.missed_sme2
    depthwise = missed[missed["reason"] == "depthwise"]
    if depthwise.empty or depthwise[["macs", "groups"]].isna().any(axis=None) or not depthwise["macs"].sum():
        return {}
    before, after = (
        float(work.sum()) / 1e6 for work in (depthwise["macs"], depthwise["macs"] * depthwise["groups"])
    )
    return {"before": before, "after": after, "factor": after / before}


def _step(insight: Insight, explanation: Explanation) -> Claim:
    advise = _EXPORT_AGAIN if explanation.variant.endswith("-as_is") else _ADVISE
    step = _step_of_kind(insight, explanation, advise)
    if step is _DELEGATE and explanation.variant.endswith("-as_is"):
        # Why a program from elsewhere was lowered as it was is not known.
        return _SEE_WHY if explanation.subject.headroom["delegate_calls"] else _LOWER
    return step


def _step_of_kind(insight: Insight, explanation: Explanation, advise: Claim) -> Claim:
    if insight.kind == "missed_sme2":
        reason = insight.title.removesuffix(" (predicted)").rpartition(": ")[2]
        # Advice that multiplies the work says by how much, or is not given.
        if reason == "depthwise" and _work_of_depthwise(explanation):
            return _ORDINARY
        return _BY_REASON.get(reason, advise)
    if insight.kind == "heavy_operator":
        return _for_heavy(insight.rows[0], explanation, advise)
    if insight.kind == "layout_changes":
        convolves = (explanation.subject.bottlenecks["category"] == "CONV").any()
        return _MEMORY_FORMAT if convolves else _DIMENSION_ORDER
    return _BY_KIND[insight.kind]


def _for_heavy(operator: Row, explanation: Explanation, advise: Claim) -> Claim:
    subject = explanation.subject
    if operator["category"] not in MATRIX:
        return _REPLACE
    without = subject.speaks_of_sme2 and subject.run["sme2"] == "off"
    if not without or same_operator(subject.missed_sme2, operator) is not None:
        return advise
    return _WITH_SME2 if subject.evidence_run_id is not None else _EMULATE
