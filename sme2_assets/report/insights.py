"""Insights as people read them: ranked list, tables, findings of a report, terminal, JSON.

Times of emulated runs are left out, as in every table.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import asdict
from typing import Any

import pandas as pd
from rich.console import Console
from rich.text import Text as Styled

from sme2_assets.analysis.confidence import Confidence, confidence
from sme2_assets.analysis.insights.insight import Insight, device_text
from sme2_assets.analysis.insights.values import shown_name
from sme2_assets.analysis.unit import OFF, UNKNOWN
from sme2_assets.report import claims
from sme2_assets.report.answer import findings, gain_text
from sme2_assets.report.document import Answer, Block, Finding, Grid, Section, Text
from sme2_assets.report.explain import Explanation
from sme2_assets.report.next_steps import next_step
from sme2_assets.report.tables import (
    WORK,
    TextTable,
    arm_text,
    fidelity_note,
    of_sme2,
    of_work,
    on_unit_cell,
    real_times,
    unit_cell,
    work_cells,
)
from sme2_assets.report.terminal import print_table, print_text, show_answer
from sme2_assets.report.unit_use import rest_text

# Operators below this rank are a long tail; the view bottlenecks has them all.
BOTTLENECKS_SHOWN = 15
WINS_NOTE = (
    "Time to gain is an upper bound: the thing's whole time, with what XNNPACK's whole microseconds may hide "
    "of it; gains overlap and do not add up."
)
_BASIS = {
    "measured": "measured",
    "emulated": "seen under emulation",
    "implied": "implied by names and types under emulation, not sampled",
    "predicted": "predicted from operator types",
    "projection": "projection, not a measurement",
}

# How many a terminal shows by default.
FINDINGS_SHOWN = 5

Record = Mapping[Hashable, Any]


def insight_table(found: list[Insight]) -> TextTable:
    """The ranked list, one line each."""
    return TextTable.of(
        ["", "insight", "time to gain", "of the inference", "rests on"],
        [
            [
                number,
                insight.title,
                _ms_text(insight.win_ns),
                _percent_text(insight.win_share),
                _BASIS[insight.basis],
            ]
            for number, insight in enumerate(found, start=1)
        ],
    )


def missed_table(missed: pd.DataFrame) -> TextTable:
    """Rows of `missed_sme2` of one run."""
    table = TextTable.of(
        ["reason", "operator", "module", "source", "basis", "mean ms", "share", "rounds"],
        [
            [
                row["reason"],
                row["name"],
                row["module"],
                row["source"],
                row["basis"],
                _ms_text(row["per_inference_ns"]),
                _percent_text(row["share"]),
                row["rounds"],
            ]
            for row in missed.to_dict("records")
        ],
    )
    return real_times(table, missed, "mean ms", "share", "rounds")


def bottleneck_table(bottlenecks: pd.DataFrame, most: int = BOTTLENECKS_SHOWN) -> TextTable:
    """The first rows of `bottlenecks` of one run, by rank; in order of execution where they have none."""
    ordered = bottlenecks.sort_values(["rank", "execution_order"]).head(most)
    table = TextTable.of(
        [
            "rank",
            "operator",
            "category",
            "module",
            "source",
            "SME unit",
            *WORK,
            "mean ms",
            "share",
            "cumulative",
            "rate",
        ],
        [
            [
                row["rank"],
                shown_name(row),
                row["category"],
                row["module"],
                row["source"],
                unit_cell(row),
                *work_cells(row),
                _ms_text(row["per_inference_ns"]),
                _percent_text(row["share"]),
                _percent_text(row["cumulative_share"]),
                _rate_text(row),
            ]
            for row in ordered.to_dict("records")
        ],
    )
    unranked = ("rank",) if bottlenecks["rank"].isna().all() else ()
    timed = real_times(table, bottlenecks, *unranked, "mean ms", "share", "cumulative", "rate")
    return of_sme2(of_work(timed, bottlenecks, *WORK), bottlenecks, "SME unit")


def module_table(modules: pd.DataFrame, deepest: int = 2) -> TextTable:
    """Rows of `module_summary` of one run as a tree, down to a depth."""
    table = TextTable.of(
        [
            "module",
            "type",
            "operators",
            "CONV and GEMM",
            "on the SME unit",
            "multiply-accumulates",
            *WORK,
            "mean ms",
            "share",
            "rate",
        ],
        [
            [
                _indented(row),
                row["module_type"],
                row["operators"],
                row["matrix_operators"],
                on_unit_cell(row),
                None if pd.isna(row["macs"]) else f"{int(row['macs']):,}",
                *work_cells(row),
                _ms_text(row["mean_ns"]),
                _percent_text(row["share"]),
                _rate_text(row),
            ]
            for row in _as_tree(modules[modules["depth"] <= deepest])
        ],
    )
    timed = of_work(real_times(table, modules, "mean ms", "share", "rate"), modules, *WORK)
    return of_sme2(timed, modules, "on the SME unit")


def headroom_table(explanation: Explanation) -> TextTable:
    """Rows of `headroom`, one column per arm; none for an emulated run, and no ceilings for a reference."""
    lines = {
        "inference with tracer, ms": "inference_ns",
        "CONV and GEMM, ms": "compute_ns",
        "Data Movement, ms": "data_movement_ns",
        "portable operators, ms": "portable_ns",
        "delegate overhead, ms": "delegate_overhead_ns",
        "framework overhead, ms": "framework_overhead_ns",
    }
    arms = [arm for arm in explanation.arms if arm.timed]
    parts = (("CONV and GEMM", "compute"), ("Data Movement", "data_movement"))
    bounded = explanation.subject.speaks_of_sme2
    if bounded:
        lines |= {f"without {label}, ms": f"without_{name}_ns" for label, name in parts}
    rows = [[label, *(_ms_text(arm.headroom[name]) for arm in arms)] for label, name in lines.items()]
    for label, name in parts if bounded else ():
        ceilings = [arm.headroom[f"without_{name}_speedup"] for arm in arms]
        rows.append([f"ceiling without {label}", *(_ceiling_text(value) for value in ceilings)])
    return TextTable.of(["", *(arm_text(arm.run) for arm in arms)], rows if arms else [])


def insight_sections(explanation: Explanation) -> list[Section]:
    """The insights of a report: the ranked list, then each with what to do, what it rules out, how sure."""
    blocks: list[Block] = [Text(_subject(explanation)), Text(f"Numbers are from {_common(explanation)}.")]
    if explanation.subject.timed:
        blocks.append(Text(WINS_NOTE, note=True))
    table = insight_table(explanation.insights)
    if not explanation.subject.timed:
        table = table.without("time to gain", "of the inference")
    blocks.append(Grid(table))
    for number, insight in enumerate(explanation.insights, start=1):
        blocks.append(Finding(number, insight.title, insight.detail, finding_points(insight, explanation)))
    return [Section("Insights", blocks)]


def missed_section(explanation: Explanation) -> Section:
    """CONV and GEMM off the SME unit, and why, then those for which it is unknown. Not for a reference."""
    subject = explanation.subject
    blocks: list[Block] = []
    for _, missed in _missed_groups(subject.missed_sme2):
        said = missed.groupby("reason", sort=True)["because"].agg(
            lambda texts: " ".join(dict.fromkeys(texts))
        )
        blocks += [Text(f"{reason}: {because}") for reason, because in said.items()]
        blocks.append(Grid(missed_table(missed)))
    not_known = int((~subject.bottlenecks["known"].astype(bool)).sum())
    if subject.matrix.empty and not_known:
        said = claims.NO_KNOWN_CONV_OR_GEMM.say(run_id=subject.run["run_id"], count=not_known)
        blocks.append(Text(said))
    elif subject.matrix.empty:
        blocks.append(Text(claims.NO_CONV_OR_GEMM.say(run_id=subject.run["run_id"])))
    elif not blocks:
        run_id = subject.run["run_id"]
        said = claims.EVERY_ON if subject.run["sme2"] == "on" else claims.NOTHING_SPEAKS_AGAINST
        blocks.append(
            Text(
                said.say(
                    run_id=run_id, known="known " if not_known else "", rest=rest_text(run_id, not_known)
                )
            )
        )
    return Section("CONV and GEMM not on the SME unit", blocks)


def _missed_groups(missed: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """Those that are off the unit, and those for which it is unknown, each with a heading."""
    headings = {OFF: "CONV and GEMM off the SME unit", UNKNOWN: "CONV and GEMM for which it is unknown"}
    groups = [(text, missed[missed["on_sme_unit"] == state]) for state, text in headings.items()]
    return [(text, rows) for text, rows in groups if not rows.empty]


def finding_points(insight: Insight, explanation: Explanation) -> tuple[tuple[str, str], ...]:
    return (
        ("Next", next_step(insight, explanation)),
        ("Rules out", insight.rules_out),
        ("Confidence", f"{_confidence(insight, explanation)}."),
        ("Evidence", f"{_evidence(insight, _common(explanation))}."),
    )


def _confidence(insight: Insight, explanation: Explanation) -> Confidence:
    """How sure an insight is. Only the shift is about both arms."""
    if insight.kind == "missed_sme2" and insight.title.endswith(f": {UNKNOWN}"):
        return Confidence("none", "all it says is that this is not known")
    arms = explanation.arms if insight.kind == "bottleneck_shift" else [explanation.subject]
    found = confidence(insight.basis, [arm.conditions for arm in arms], explanation.doubts)
    if insight.kind == "layout_changes" and found.level == "high":
        return Confidence("medium", "candidates by order and shape: what they compute was not checked")
    return found


def show_explanation(
    out: Console, explanation: Explanation, answer: Answer, everything: bool = False
) -> None:
    """The same on a terminal: the answer and the first findings, or everything."""
    show_answer(out, f"{explanation.variant} on {explanation.platform}", answer, actions=False)
    if explanation.subject.timed:
        print_text(out, Styled(f"device: {device_text(explanation.subject.run)}", "dim"))
    if everything:
        print_text(out, Styled(f"Numbers are from {_common(explanation)}.", "dim"))
        if explanation.subject.timed:
            print_text(out, Styled(WINS_NOTE, "dim"))
    found = findings(explanation)
    shown = found if everything else found[:FINDINGS_SHOWN]
    for number, insight in enumerate(shown, start=1):
        gain = gain_text([insight], explanation)
        print_text(
            out,
            Styled.assemble((f"{number}. {insight.title}", "bold"), (f"  [{gain}]" if gain else "", "green")),
        )
        if insight.detail:
            print_text(out, Styled(insight.detail), 3)
        for label, text in finding_points(insight, explanation):
            if everything or label == "Next":
                print_text(out, Styled(f"{label.lower()}: {text}", "dim" if label == "Evidence" else ""), 3)
    out.print()
    if not everything:
        if len(found) > len(shown):
            told = {"variant": explanation.variant, "platform": explanation.platform}
            print_text(
                out,
                Styled(
                    claims.MORE.say(
                        **told, run_id=explanation.subject.run["run_id"], more=len(found) - len(shown)
                    ),
                    "dim",
                ),
            )
            out.print()
        return
    for heading, missed in _missed_groups(explanation.subject.missed_sme2):
        print_text(out, Styled(heading, "bold"))
        print_table(out, missed_table(missed))
    print_text(out, Styled("Bottlenecks" if explanation.subject.timed else "Operators", "bold"))
    print_table(out, bottleneck_table(explanation.subject.bottlenecks))
    print_text(out, Styled("Modules", "bold"))
    print_table(out, module_table(explanation.modules))


def explanation_json(explanation: Explanation, answer: Answer) -> dict[str, Any]:
    """For programs: strict JSON values, wins in nanoseconds."""
    return {
        "variant": explanation.variant,
        "platform": explanation.platform,
        "fidelity": explanation.fidelity,
        "run_ids": {arm.run["sme2"]: arm.run["run_id"] for arm in explanation.arms},
        "subject": explanation.subject.run["sme2"],
        "kind": answer.word,
        "answer": answer.sentence,
        "actions": [asdict(action) for action in answer.actions],
        "insights": [insight.as_json() for insight in explanation.insights],
    }


def _subject(explanation: Explanation) -> str:
    if note := fidelity_note(explanation.subject.run):
        return note
    sme2 = explanation.subject.run["sme2"]
    if explanation.baseline is not None:
        return "About the arm with SME2 on: what is left to gain."
    return claims.ABOUT_ONE_ARM.say(run_id=explanation.subject.run["run_id"], state=sme2)


def _common(explanation: Explanation) -> str:
    """The run that nearly every number is from, so that it is named only once."""
    return explanation.subject.measurement()


def _evidence(insight: Insight, common: str) -> str:
    basis = [] if insight.basis == "measured" else [_BASIS[insight.basis]]
    return "; ".join([*basis, *("this run" if text == common else text for text in insight.evidence)])


def _as_tree(modules: pd.DataFrame) -> list[Record]:
    """Parents before their children, children in order of execution."""
    children: dict[Any, list[Record]] = {}
    for row in modules.sort_values(["first_operator", "module"], na_position="last").to_dict("records"):
        parent = None if row["depth"] == 0 else row["parent"]
        children.setdefault(parent, []).append(row)
    tree: list[Record] = []

    def add(row: Record) -> None:
        tree.append(row)
        for child in children.get(row["module"], []):
            add(child)

    for root in children.get(None, []):
        add(root)
    return tree


def _indented(row: Record) -> str:
    if row["depth"] == 0:
        return "(inference)"
    return "· " * (row["depth"] - 1) + str(row["module"])


def _ms_text(value: float | None) -> str | None:
    return None if value is None or pd.isna(value) else f"{value / 1e6:.3f}"


def _percent_text(value: float | None) -> str | None:
    return None if value is None or pd.isna(value) else f"{value:.1%}"


def _rate_text(row: Record) -> str | None:
    return None if pd.isna(row["gops"]) else f"{row['gops']:.1f} {row['rate_unit']}"


def _ceiling_text(value: float | None) -> str | None:
    return None if value is None or pd.isna(value) else f"{value:.2f}x"
