"""The answer comes first, and its numbers are those of the warehouse, counted by plain SQL here."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from rich.console import Console

from sme2_assets.analysis.claims import heard
from sme2_assets.report.answer import MOST_ACTIONS, findings, hardware_first, session_answer, top_actions
from sme2_assets.report.document import Answer, Text
from sme2_assets.report.explain import Explanation, explain
from sme2_assets.report.insights import FINDINGS_SHOWN, missed_section, show_explanation
from sme2_assets.report.next_steps import next_step
from sme2_assets.report.terminal import show_session
from sme2_assets.warehouse import Warehouse
from sme2_assets.warehouse.schema import DELEGATION
from sme2_assets_tests.claims.zoo import false_sentences, sentences
from sme2_assets_tests.warehouse.made_operators import INSERTED, Op, OperatorRun, cnn, source, write_runs

KINDS = (
    "hardware_and_emulated_pairs",
    "pairs_that_prove_little",
    "arms_alone",
    "a_baseline_with_a_twin_under_emulation",
    "operators_of_which_nothing_tells",
    "an_emulated_pair_without_any_matrix_operator",
    "precisions_apart",
)
# A step is a command, or a change in code: never a place to look something up.
STEP = re.compile(
    r"`sme2 \w+|Write it as|Change it|Replace or fuse it|Try one (memory format|order)|Batch:|Export the"
)


@dataclass(frozen=True)
class Told:
    """A session, and what is said of it."""

    facts: dict[Any, Any]
    explanation: Explanation
    answer: Answer


@pytest.fixture(scope="module", params=KINDS)
def warehouse(request: pytest.FixtureRequest, zoo: Callable[[str], Warehouse]) -> Warehouse:
    return zoo(request.param)


@pytest.fixture(scope="module")
def sessions(warehouse: Warehouse) -> list[Told]:
    told = []
    for facts in warehouse.query(
        "SELECT session_id, any_value(fidelity) AS fidelity, max_by(run_id, sme2) AS run_id, "
        "max(sme2) AS sme2 FROM runs GROUP BY session_id"
    ).to_dict("records"):
        explanation = explain(warehouse, facts["session_id"])
        told.append(Told(facts, explanation, session_answer(warehouse, explanation)))
    return told


def printed(session: Told, width: int, everything: bool = False) -> str:
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=True, color_system=None)
    show_explanation(console, session.explanation, session.answer, everything)
    return out.getvalue()


def test_the_numbers_of_the_sentence_are_those_of_the_warehouse(warehouse: Warehouse, sessions: list[Told]):
    for session in sessions:
        answer = session.answer
        if session.facts["fidelity"] == "reference":
            assert "SME unit" not in answer.sentence
            continue
        if session.facts["fidelity"] == "hardware" and session.facts["sme2"] == "off":
            continue
        [[on, unknown, off, total]] = warehouse.query(
            "SELECT count(*) FILTER (on_sme_unit = 'on'), count(*) FILTER (on_sme_unit = 'unknown'), "
            "count(*) FILTER (on_sme_unit = 'off'), count(*) FROM operator_facts "
            "WHERE run_id = ? AND category IN ('CONV', 'GEMM')",
            [session.facts["run_id"]],
        ).to_numpy()
        if not total:
            assert "no convolution and no matrix product" in answer.sentence
            continue
        assert f"{on} of {total} matrix operators" in answer.sentence
        assert (f"{unknown} of {total} unknown" in answer.sentence) == bool(unknown)
        if session.facts["sme2"] == "on":
            named = re.findall(r"(?:the|(\d+)) [^;,]*? (?:cannot|does not|do not)[:,]", answer.sentence)
            assert sum(int(count or 1) for count in named) == off, answer.sentence


def test_emulated_results_are_kernel_evidence_and_show_no_time(warehouse: Warehouse, sessions: list[Told]):
    for session in sessions:
        answer = session.answer
        assert (answer.word == "kernel evidence") == (session.facts["fidelity"] == "emulated")
        [[right]] = warehouse.query(
            "SELECT bool_and(coalesce(sqnr_db >= sqnr_threshold_db, true)) FROM runs WHERE session_id = ?",
            [session.facts["session_id"]],
        ).to_numpy()
        assert answer.sentence.startswith("THE OUTPUTS ARE WRONG. ") != right
        if session.facts["fidelity"] == "emulated":
            said = " ".join([answer.sentence, *(action.gain for action in answer.actions)])
            assert not re.search(r"\d ms|\dx\b", said), said
            assert "not comparable" not in said


def test_what_to_do_are_at_most_three_different_things_that_one_can_do(sessions: list[Told]):
    for session in sessions:
        explanation = session.explanation
        actions = session.answer.actions
        assert len(actions) <= MOST_ACTIONS
        assert len({action.next for action in actions}) == len(actions)
        assert all(STEP.search(action.next) for action in actions), actions
        text = printed(session, 2000, everything=True)
        steps = re.findall(r"next: (.*)", text)
        assert len(steps) == len(explanation.insights)
        assert all(STEP.search(step) for step in steps), steps


def test_what_to_do_is_by_gain_and_hides_nothing_larger(tmp_path: Path):
    """A layer off the unit takes the same step as a heavier one on it: it is no repetition of that."""

    def named(name: str, us: int, line: int, kind: str = "XNNHardswish") -> Op:
        return Op(name, us, 0, source(f"layer{line}", kind, line, macs=1_000_000, groups=1))

    dense = "Convolution (NHWC, {}) IGEMM #{}"
    run = OperatorRun(
        [
            named(dense.format("PF32", 1), 300, 1, "XNNConv2d"),
            replace(named(dense.format("F32", 2), 204, 2, "XNNConv2d"), samples=30),
            *(named(f"{name} (NC) #1", 180, 3 + n) for n, name in enumerate(("HardSwish", "Sigmoid"))),
            Op("Transpose (ND, X32) #1", 90, 0, INSERTED),
            Op("native_call_mean.out", 136, None, source("", "aten::mean.out", 9)),
        ],
        features=("sme2",),
    )
    warehouse = Warehouse(tmp_path / "warehouse")
    write_runs(warehouse, run)
    warehouse.publish()
    with heard() as said:
        explanation = explain(warehouse, run.session_id)
        actions = top_actions(explanation)
        printed(Told({}, explanation, Answer("", "open", "")), 200)
    assert false_sentences(warehouse, said) == []
    assert len(actions) == MOST_ACTIONS
    first, *_ = actions
    assert "IGEMM #1 takes" in first.what
    assert "1 CONV or GEMM operator stayed off the SME unit: shape" in first.what
    gains = [float(re.match(r"at most ([\d.]+) ms", action.gain)[1]) for action in actions]  # type: ignore[index]
    # Each operator may have taken a microsecond more than XNNPACK says.
    assert gains == pytest.approx([0.504, 0.180, 0.180], abs=0.0021)
    shown = findings(explanation)[:FINDINGS_SHOWN]
    wins = [insight.win_ns for insight in shown]
    assert wins == pytest.approx([300_000, 204_000, 180_000, 180_000, 136_000], abs=1000)


def told_of(tmp_path: Path, kind: str, *ops: Op, refused: Sequence[dict[str, Any]] = ()) -> tuple[str, str]:
    """The title of an insight of a run of these operators, and what to do about it."""
    run = OperatorRun(ops, features=("sme2",))
    warehouse = Warehouse(tmp_path / "warehouse")
    keys = {"variant": run.variant, "target": "linux-sme2_on", "run_id": run.run_id}
    rows = pd.DataFrame([{"delegated": False, "count": 1, "module": "", **row} for row in refused])
    parts = [*run.parts(), *([(DELEGATION, rows, keys)] if refused else [])]
    warehouse.write_together(parts, [run.run_id])
    warehouse.publish()
    with heard() as said:
        explanation = explain(warehouse, run.session_id)
        [insight] = [each for each in explanation.insights if each.kind == kind]
        step = next_step(insight, explanation)
    assert false_sentences(warehouse, said) == []
    return insight.title, step


@pytest.mark.parametrize(("groups", "known"), [(32, True), (None, False)])
def test_advice_that_multiplies_the_work_says_by_how_much(tmp_path: Path, groups: int | None, known: bool):
    facts = source("layer", "XNNDepthwiseConv2d", 1, macs=880_000, groups=groups)
    title, step = told_of(tmp_path, "missed_sme2", Op("Convolution (NHWC, F32) DWConv #1", 150, 0, facts))
    assert title.endswith("off the SME unit: depthwise")
    assert ("groups=1" in step) == known
    assert ("32 times its multiply-accumulates (0.88 to 28.16 million)" in step) == known


def test_operators_outside_delegates_are_told_by_reason_the_heaviest_first(tmp_path: Path):
    def outside(op: str, us: int, line: int) -> Op:
        facts = source("", f"aten::{op}.out", line, edge_ops=[f"aten.{op}.out"])
        return Op(f"native_call_{op}.out", us, None, facts)

    def name_of(op: Op) -> str:
        return op.facts["node_kind"].removeprefix("aten::").removesuffix(".out")

    few, many, no_such = "GELU does not support fp16", "only 4-D tensors", "XNNPACK has no such operator"
    ops = [
        *(outside("mul", 2, line) for line in range(1, 9)),
        outside("gelu", 5, 20),
        outside("sort", 40, 30),
    ]
    reasons = {"mul": many, "gelu": few, "sort": no_such}
    refused = [
        {
            "operator": f"aten.{name_of(op)}.Tensor",
            "source": op.facts["source"],
            "reason": reasons[name_of(op)],
        }
        for op in ops
    ]
    title, step = told_of(
        tmp_path, "portable_cost", Op("Fully Connected (NC, PF32) GEMM #1", 50), *ops, refused=refused
    )
    assert title == "10 operators outside delegates: sort, 8 mul, gelu"
    assert f": 1 (sort): {no_such}; 8 (mul): {many}; 1 (gelu): {few}. " in step
    assert "`sme2 advise made-fp32`" in step


def test_an_explanation_is_short_unless_asked_for_all(sessions: list[Told]):
    for session in sessions:
        explanation = session.explanation
        text = printed(session, 2000)
        shown = re.findall(r"^\d+\. ", text, re.MULTILINE)
        assert len(shown) == min(FINDINGS_SHOWN, len(explanation.insights))
        left = len(explanation.insights) - len(shown)
        assert (f"{left} more" in text) == (left > 0)
        assert ("--all" in text) == (left > 0)


def test_nothing_but_a_link_is_wider_than_the_terminal(
    warehouse: Warehouse, sessions: list[Told], tmp_path: Path
):
    width = 80
    page = tmp_path / "report.html"
    page.touch()
    for session in sessions:
        out = io.StringIO()
        terminal = Console(file=out, width=width, force_terminal=True, color_system=None)
        show_session(terminal, warehouse, session.facts["session_id"], page, True)
        text = printed(session, width, everything=True) + out.getvalue()
        wide = [line for line in text.splitlines() if len(line) > width]
        assert all(line.startswith("report: file:///") for line in wide), wide
        assert f"report: {page.as_uri()}" in out.getvalue()


def test_the_answer_of_a_pair_begins_with_its_speedup(zoo: Callable[[str], Warehouse]):
    warehouse = zoo("hardware_and_emulated_pairs")
    [row] = warehouse.query(
        "SELECT * FROM comparisons WHERE level = 'model' AND fidelity = 'hardware'"
    ).to_dict("records")
    [[middle]] = warehouse.query(
        "SELECT median(off.median_ns / arm.median_ns) FROM latency_rounds off JOIN latency_rounds arm "
        "USING (round) WHERE off.run_id = ? AND arm.run_id = ?",
        [row["a_run_id"], row["b_run_id"]],
    ).to_numpy()
    answer = session_answer(warehouse, explain(warehouse, row["session_id"]))
    found = re.match(r"Speedup \(off / on\) ([\d.]+)x \(([\d.]+) to ([\d.]+), n=6\): faster", answer.sentence)
    assert found is not None, answer.sentence
    assert float(found[2]) <= float(found[1]) <= float(found[3])
    assert float(found[1]) == pytest.approx(middle, abs=0.02)
    assert answer.figure == f"{found[1]}x"


def test_hardware_comes_before_emulation_and_a_reference_last():
    runs = [{"fidelity": name} for name in ("reference", "emulated", "hardware")]
    assert [run["fidelity"] for run in hardware_first(runs)] == ["hardware", "emulated", "reference"]


def test_operators_that_nobody_knows_may_be_for_the_unit(zoo: Callable[[str], Warehouse]):
    warehouse = zoo("operators_that_nobody_knows")
    found = warehouse.query("SELECT DISTINCT session_id FROM runs WHERE variant = 'theirs-fp32'")
    assert len(found) == 2, "one on hardware, one emulated"
    for session_id in found["session_id"]:
        explanation = explain(warehouse, session_id)
        said = session_answer(warehouse, explanation).sentence
        assert said.endswith(
            "nothing in it is known to be for the SME unit: "
            "what is computed by 4 of its operators is not known."
        )
        [block] = missed_section(explanation).blocks
        assert block == Text(
            "The model has no known CONV or GEMM operator: "
            "what is computed by 4 of its operators is not known."
        )
    texts = {each.text for each in sentences(warehouse)}
    assert not [text for text in texts if re.search(r"has no (CONV|convolution)|no CONV and no GEMM", text)]


@pytest.mark.parametrize(
    ("sme2", "said"),
    [
        ("on", "Every {}CONV and GEMM operator is on the SME unit{}"),
        ("off", "Nothing shows or predicts that a {}CONV or GEMM operator would stay off the SME unit{}"),
    ],
)
def test_of_all_matrix_operators_it_is_said_only_where_all_operators_are_known(
    tmp_path: Path, sme2: str, said: str
):
    packed = {"on": "PF32", "off": "F32"}[sme2]
    linear = Op(f"Fully Connected (NC, {packed}) GEMM #1", 50)
    not_known = [Op(f"native_call_{name}.out", 9, None) for name in ("fused_attention", "fused_norm")]
    warehouse = Warehouse(tmp_path / "warehouse")
    runs = [
        OperatorRun([linear], sme2),
        OperatorRun([linear, *not_known], sme2, session_id="n", variant="n-fp32"),
    ]
    write_runs(warehouse, *runs)
    warehouse.publish()
    with heard() as claims:
        [known], [unknown] = (missed_section(explain(warehouse, run.session_id)).blocks for run in runs)
    assert known == Text(said.format("", "."))
    rest = "; what is computed by 2 of the model's operators is not known."
    assert unknown == Text(said.format("known ", rest))
    assert false_sentences(warehouse, claims) == []


@pytest.mark.parametrize("delegates", [True, False])
def test_a_program_from_elsewhere_is_not_told_to_change_its_code(tmp_path: Path, delegates: bool):
    """Neither why it was lowered as it was is known, nor where its code is."""
    warehouse = Warehouse(tmp_path / "warehouse")
    ops = [Op("native_call_mm.out", 200, None), Op("native_call_softmax.out", 90, None)]
    ops += [Op("Fully Connected (NC, PF32) GEMM #1", 50)] if delegates else []
    run = OperatorRun(ops, variant="program-as_is")
    write_runs(warehouse, run)
    warehouse.publish()
    with heard() as said:
        explanation = explain(warehouse, run.session_id)
        steps = {next_step(insight, explanation) for insight in explanation.insights}
    assert not [step for step in steps if "Change it" in step]
    assert any("instead of this program" in step for step in steps) == delegates
    assert any("this one has no delegate" in step for step in steps) != delegates
    assert false_sentences(warehouse, said) == []


def test_nobody_is_told_to_measure_a_model_that_is_not_here(tmp_path: Path):
    """A trace from elsewhere has no model that could be profiled or changed."""
    warehouse = Warehouse(tmp_path / "warehouse")
    write_runs(warehouse, OperatorRun(cnn("off"), "off", experiment="foreign"))
    warehouse.publish()
    [session_id] = warehouse.query("SELECT session_id FROM runs")["session_id"]
    with heard() as said:
        explanation = explain(warehouse, session_id)
        steps = [next_step(insight, explanation) for insight in explanation.insights]
    assert steps
    assert not [step for step in steps if re.search("sme2 (profile|advise)", step)]
    assert any("Bring its model here" in step for step in steps)
    assert false_sentences(warehouse, said) == []
