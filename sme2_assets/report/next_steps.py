"""What to do about an insight: a command to type, or a change in the model's code.

Nothing here is about times: these texts contain names and places of the run, and what the export says.
"""

from __future__ import annotations

import re

from sme2_assets.analysis.claims import Claim
from sme2_assets.analysis.insights.insight import MATRIX, Insight, Row
from sme2_assets.analysis.insights.operators import same_operator
from sme2_assets.report.explain import Explanation

# Insights that something can be done about; the others say how far that can lead.
ACTIONABLE = ("missed_sme2", "heavy_operator", "portable_cost", "layout_changes", "delegate_overhead")

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
    "Change it{at} so that XNNPACK takes it{why}.",
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
_ORDINARY = Claim(
    "Write it as an ordinary convolution (groups=1){at}: another model, to be trained again.", _PLACE
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
    "depthwise": _ORDINARY,
    "unexplained": _WHAT_RAN,
    "unknown": _SAMPLE,
}


def next_step(insight: Insight, explanation: Explanation) -> str:
    """What to do about it."""
    sources = list(dict.fromkeys(row["source"] for row in insight.rows if row.get("source")))
    refusals = [explanation.refusals[source] for source in sources if source in explanation.refusals]
    step = _step(insight, explanation)
    if explanation.subject.run["experiment"] == "foreign" and _NEEDS_MODEL.search(step.text):
        step = _BRING
    return step.say(
        variant=explanation.variant,
        platform=explanation.platform,
        run_id=explanation.subject.run["run_id"],
        at=(f" in {sources[0]}" + (" and elsewhere" if sources[1:] else "")) if sources else "",
        why=f": {refusals[0]}" if refusals else "",
    )


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
