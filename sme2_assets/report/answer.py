"""The answer: what a session shows in one sentence, and the first things to do about it.

Terminal, report, overview and UI begin with it. Every sentence is a claim; what the evidence does not show is
said to be unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from sme2_assets.analysis.insights import claims as insight_claims
from sme2_assets.analysis.insights.ceilings import LEAST_KNOWN
from sme2_assets.analysis.insights.insight import Insight
from sme2_assets.analysis.insights.values import known_or, ms
from sme2_assets.analysis.passes import passes_fault
from sme2_assets.analysis.percent import percent_text
from sme2_assets.evidence.digits import beside
from sme2_assets.report import claims
from sme2_assets.report.document import Action, Answer, Tone
from sme2_assets.report.explain import Explanation
from sme2_assets.report.next_steps import ACTIONABLE, next_step
from sme2_assets.report.numerics import numerics_text, outputs_are_wrong
from sme2_assets.report.tables import arm_text, fidelity_note, is_counted, speedup_text, verdict_and_reason
from sme2_assets.report.unit_use import (
    MatrixOperator,
    UnitUse,
    count_text,
    named,
    operators_not_known,
    rest_text,
    unit_use,
    work_text,
)
from sme2_assets.warehouse import Warehouse
from sme2_assets.warehouse.read import comparison_of_session, rows_of_view, runs_of_session

MOST_ACTIONS = 3
# Of what one action is about.
MOST_TITLES = 3
# What an emulated pair gives: its times allow no verdict.
KERNEL_EVIDENCE = "kernel evidence"
TONES: dict[str, Tone] = {
    "faster": "good",
    "slower": "bad",
    "no difference": "same",
    "too small to count": "same",
}
_SHOWN = {
    "faster": "faster with SME2 on",
    "slower": "slower with SME2 on",
    "no difference": "no difference",
    "too small to count": "too small a difference to count",
}
# Why operators are off the unit, to follow their names: for one operator, and for several.
_OFF = {
    "depthwise": ("cannot: this ExecuTorch has no such kernel",) * 2,
    "data type": (
        "cannot: this ExecuTorch has no kernel for its data type",
        "cannot: this ExecuTorch has no kernel for their data type",
    ),
    "quantisation scheme": ("cannot: this ExecuTorch has no kernel for this quantisation",) * 2,
    "not delegated": ("does not: it is outside the delegate", "do not: they are outside the delegate"),
    "shape": (
        "does not: its own shape or parameters keep it off",
        "do not: their own shapes or parameters keep them off",
    ),
    "unexplained": ("does not, and nothing stored says why", "do not, and nothing stored says why"),
}


def word_and_reason(model: dict[Any, Any]) -> tuple[str, str]:
    """What a pair is called wherever it is shown, from its row of `comparisons` for the whole model."""
    verdict, reason = verdict_and_reason(model)
    return KERNEL_EVIDENCE if model["fidelity"] == "emulated" else verdict, reason


def session_answer(
    warehouse: Warehouse, explanation: Explanation, compared: pd.DataFrame | None = None
) -> Answer:
    """The answer for an explained session; `compared` are its rows of `comparisons`, if already read."""
    subject = explanation.subject.run
    runs = runs_of_session(warehouse, subject["session_id"])
    actions = top_actions(explanation)
    if explanation.baseline is None or len(runs) == 1:
        alone = _of_one_arm(warehouse, explanation, actions, len(runs) == 1)
        return _with_outputs(alone, [subject])
    rows = comparison_of_session(warehouse, subject["session_id"]) if compared is None else compared
    models: list[dict[Any, Any]] = rows[rows["level"] == "model"].to_dict("records")
    return _with_outputs(_of_pair(warehouse, explanation, models[0] if models else None, actions), runs)


def _with_outputs(answer: Answer, runs: list[dict[str, Any]]) -> Answer:
    """The answer; if outputs are wrong, it says that before anything else."""
    if not outputs_are_wrong(runs):
        return answer
    said = claims.OUTPUTS_WRONG.say(run_ids=[run["run_id"] for run in runs])
    why = " ".join(filter(None, (f"{numerics_text(runs)}.", answer.why)))
    return replace(answer, sentence=f"{said} {answer.sentence}", tone="bad", why=why)


def _of_pair(
    warehouse: Warehouse,
    explanation: Explanation,
    model: dict[Any, Any] | None,
    actions: tuple[Action, ...],
) -> Answer:
    run = explanation.subject.run
    if explanation.fidelity == "reference":
        note = fidelity_note(run)
        return Answer(arm_text(run), "open", note, actions=actions)
    on_unit = unit_answer(warehouse, run["run_id"])
    if explanation.fidelity == "emulated":
        figure = _count(warehouse, run["run_id"])
        shift = [each.title for each in explanation.insights if each.kind == "bottleneck_shift"]
        work = f"{shift[0]}. " if is_counted(explanation.subject.category_summary) else ""
        why = f"{work}{fidelity_note(run)}"
        return Answer(KERNEL_EVIDENCE, "emulated", f"{on_unit}.", why, figure, actions)
    if model is None:
        return Answer("not compared yet", "open", f"{on_unit}.", actions=actions)
    verdict, reason = verdict_and_reason(model)
    figure = None
    if verdict in _SHOWN and not pd.isna(model["speedup"]) and not pd.isna(model["speedup_low"]):
        figure = f"{beside(model['speedup'], 1, 2)}x"
        said = claims.SHOWN.say(
            session_id=model["session_id"],
            text=speedup_text(model),
            shown=_SHOWN[verdict],
            verdict=verdict,
            speedup=model["speedup"],
        )
    else:
        said = claims.NO_SPEEDUP.say(session_id=model["session_id"], verdict=verdict)
    return Answer(verdict, TONES.get(verdict, "open"), f"{said}; {on_unit}.", reason, figure, actions)


def _of_one_arm(
    warehouse: Warehouse, explanation: Explanation, actions: tuple[Action, ...], measured_alone: bool
) -> Answer:
    subject = explanation.subject
    run, run_id = subject.run, subject.run["run_id"]
    reference = explanation.fidelity == "reference"
    word = arm_text(run) if reference else f"baseline, {arm_text(run)}"
    note = fidelity_note(run)
    if explanation.fidelity == "emulated":
        said = unit_answer(warehouse, run_id, arm=f" with {arm_text(run)}")
        return Answer(KERNEL_EVIDENCE, "emulated", f"{said}.", note, _count(warehouse, run_id), actions)
    fault = passes_fault(run)
    alone = note or (
        claims.ALONE.say(session_id=run["session_id"])
        if measured_alone
        else claims.ABOUT_ONE_ARM.say(run_id=run_id, state=run["sme2"])
    )
    if fault or not subject.latency:
        return Answer(word, "open", alone, fault or "", actions=actions)
    latency = subject.latency
    figure = f"{latency['median_ns'] / 1e6:.3f} ms"
    parts = [
        claims.LATENCY.say(
            run_id=run_id,
            ms=latency["median_ns"] / 1e6,
            arm=f"on {run['arch']}" if reference else f"with {arm_text(run)}",
            low=latency["p05_ns"] / 1e6,
            high=latency["p95_ns"] / 1e6,
            rounds=int(latency["rounds"]),
        )
    ]
    if not reference and run["sme2"] == "on":
        parts.append(unit_answer(warehouse, run_id))
    elif not reference and subject.evidence_run_id is not None:
        parts.append(f"emulated with SME2 on, {unit_answer(warehouse, subject.evidence_run_id)}")
    return Answer(word, "open", f"{'; '.join(parts)}.", alone, figure, actions)


def _count(warehouse: Warehouse, run_id: str) -> str | None:
    counts = rows_of_view(warehouse, "unit_use", run_id).to_dict("records")
    return count_text(counts[0]) if counts else None


def unit_answer(warehouse: Warehouse, run_id: str, arm: str = "") -> str:
    """`7 of 8 matrix operators, 93% of the multiply-accumulates, run on the SME unit; the depthwise
    convolution cannot: this ExecuTorch has no such kernel`, without a full stop."""
    counts = rows_of_view(warehouse, "unit_use", run_id).to_dict("records")
    not_known = operators_not_known(warehouse, [run_id])[run_id]
    if not counts:
        if not_known:
            return claims.NOTHING_KNOWN_FOR_UNIT.say(run_id=run_id, count=not_known)
        return claims.NOTHING_FOR_UNIT.say(run_id=run_id)
    [row] = counts
    work, named = work_text(row), row["by_name_alone"]
    said = [
        claims.RUN_ON_UNIT.say(
            run_id=run_id,
            on_unit=row["on_unit"],
            matrix_operators=row["matrix_operators"],
            work=f", {work}," if work else "",
            arm=arm,
            by_name_alone=named,
            by_name=claims.NO_SAMPLE_SHOWS.say(run_id=run_id, count=named) if named else "",
        )
    ]
    for use in unit_use(warehouse, [run_id]):
        said += _off_clauses(use)
    if row["unknown"]:
        said.append(
            claims.UNKNOWN_OF.say(
                run_id=run_id, unknown=row["unknown"], matrix_operators=row["matrix_operators"]
            )
        )
    [known] = warehouse.query("SELECT known_share FROM headroom WHERE run_id = ?", [run_id])["known_share"]
    if pd.isna(known) or (known >= LEAST_KNOWN and not not_known):
        return "; ".join(said) + rest_text(run_id, not_known)
    return "; ".join(said) + claims.KNOWN_SHARE.say(run_id=run_id, share=percent_text(known))


def _off_clauses(use: UnitUse) -> list[str]:
    """Which operators stay off the unit and why, a clause for each reason."""
    by_reason: dict[str, list[MatrixOperator]] = {}
    for operator in use.operators:
        if operator.reason in _OFF:
            by_reason.setdefault(operator.reason, []).append(operator)
    order = sorted(by_reason.items(), key=lambda item: (-len(item[1]), item[0]))
    return [
        claims.STAYS_OFF.say(
            run_id=use.run_id,
            which=named(operators),
            why=_OFF[reason][len(operators) > 1],
            reason=reason,
            count=len(operators),
        )
        for reason, operators in order
    ]


def top_actions(explanation: Explanation, most: int = MOST_ACTIONS) -> tuple[Action, ...]:
    """The first things to do, by what each can gain, with all that it is done about."""
    by_step: dict[str, list[Insight]] = {}
    for insight in findings(explanation):
        if insight.kind in ACTIONABLE and not _repeats(insight, explanation):
            same = by_step.setdefault(next_step(insight, explanation), [])
            places = _places(insight)
            if not places or not {place for each in same for place in _places(each)}.issuperset(places):
                same.append(insight)
    # What one step is done about gains more together; the order stays where no gain is known.
    order = sorted(by_step.items(), key=lambda item: -sum(insight.win_ns or 0.0 for insight in item[1]))
    return tuple(Action(_titles(same), gain_text(same, explanation), step) for step, same in order[:most])


def _titles(found: Sequence[Insight]) -> str:
    titles = [insight.title for insight in found[:MOST_TITLES]]
    return "; ".join([*titles, "and others"] if found[MOST_TITLES:] else titles)


def findings(explanation: Explanation) -> list[Insight]:
    """All insights: first those that can be acted on, then those that repeat one of them, then the rest."""
    return sorted(
        explanation.insights,
        key=lambda insight: int(_repeats(insight, explanation)) if insight.kind in ACTIONABLE else 2,
    )


def _repeats(insight: Insight, explanation: Explanation) -> bool:
    """Whether it is about an operator of which another finding says what to do: a missed kernel whose gain is
    known, or one outside delegates."""
    timed = explanation.subject.timed
    others = [
        each
        for each in explanation.insights
        if each.kind in ("missed_sme2", "portable_cost") and (each.win_ns is not None or not timed)
    ]
    told = {place for each in others for place in _places(each)}
    return insight.kind == "heavy_operator" and told.issuperset(_places(insight))


def gain_text(found: Sequence[Insight], explanation: Explanation) -> str:
    """The most that could be gained: time, or work under emulation; empty if unknown."""
    subject, run_id = explanation.subject, explanation.subject.run["run_id"]
    places = [place for insight in found for place in _places(insight)]
    gains = [insight.win_ns for insight in found if insight.win_ns is not None]
    share = subject.share_of(sum(gains))
    if len(gains) == len(found) and share is not None:
        return insight_claims.GAIN.say(run_id=run_id, ms=ms(sum(gains)), share=share, places=places)
    kinds = {insight.kind for insight in found}
    if subject.timed or not kinds <= {"missed_sme2", "portable_cost"}:
        return ""
    gains_of_work = []
    operators, matrix = subject.bottlenecks, subject.matrix
    here = operators[[_place(row) in places for row in operators.to_dict("records")]]
    if kinds == {"missed_sme2"} and len(here) and matrix["macs"].notna().all():
        share = float(here["macs"].sum() / matrix["macs"].sum()) if matrix["macs"].sum() else 0.0
        macs = {"run_id": run_id, "share": share, "text": percent_text(share), "places": places}
        gains_of_work.append(insight_claims.GAIN_WORK.say(**macs))
    if len(here) and here["instructions"].notna().all():
        share = here["instructions_share"].sum()
        gains_of_work.append(insight_claims.GAIN_INSTRUCTIONS.say(run_id=run_id, share=share, places=places))
    return ", ".join(gains_of_work)


def _places(insight: Insight) -> list[str]:
    """The operators that an insight is about, by delegate and position."""
    places: list[str] = []
    for row in insight.rows:
        if "position" in row:
            places.append(_place(row))
        places += [_key(*place) for place in row.get("places", ())]
    return places


def _place(row: dict[Any, Any]) -> str:
    return _key(known_or(row["delegate"], None), row["position"])


def _key(delegate: Any, position: Any) -> str:
    return f"{'' if delegate is None else int(delegate)}|{int(position)}"


def hardware_first(runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Runs in the order in which they answer: hardware, kernels under emulation, a reference last."""
    order = {"hardware": 0, "emulated": 1, "reference": 2}
    return sorted(runs, key=lambda run: order.get(run["fidelity"], 3))
