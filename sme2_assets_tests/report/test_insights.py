from __future__ import annotations

import re

import pytest
from rich.console import Console

from sme2_assets.report.claims import EMULATED
from sme2_assets.report.document import Answer
from sme2_assets.report.explain import Explanation
from sme2_assets.report.insights import (
    WINS_NOTE,
    bottleneck_table,
    headroom_table,
    insight_sections,
    insight_table,
    missed_table,
    module_table,
    show_explanation,
)
from sme2_assets.report.markdown import section_markdown
from sme2_assets.report.tables import fidelity_note
from sme2_assets_tests.report.test_tables import TIME
from sme2_assets_tests.warehouse.made_operators import OperatorRun, cnn, explained

NAMES = {
    "pair": ("made-fp32", "linux"),
    "emulated": ("made-fp32", "emulated"),
    "alone": ("alone-fp32", "linux"),
}


def printed(explanation: Explanation) -> str:
    out = Console(width=2000, record=True, file=None, quiet=False, force_terminal=False)
    with out.capture() as capture:
        answer = Answer("a word", "open", "The answer.", fidelity_note(explanation.subject.run))
        show_explanation(out, explanation, answer, everything=True)
    return capture.get()


def test_every_insight_is_in_the_list_with_its_time_and_its_basis():
    found = explained(*NAMES["pair"]).insights
    table = insight_table(found)
    assert [row[1] for row in table.rows] == [insight.title for insight in found]
    by_title = {row[1]: row for row in table.rows}
    missed = next(insight for insight in found if insight.kind == "missed_sme2")
    share = OperatorRun(cnn("on")).inference_ns
    # The most that it can be: the whole microseconds of the trace hide up to one of its operator.
    assert by_title[missed.title][2:] == ["0.151", f"{151_000 / share:.1%}", "measured"]
    projected = insight_table(explained(*NAMES["alone"]).insights).rows[-1]
    assert projected[2:] == ["-", "-", "projection, not a measurement"]


@pytest.mark.parametrize("name", NAMES)
def test_report_and_terminal_have_every_insight_with_evidence_and_what_it_rules_out(name: str):
    explanation = explained(*NAMES[name])
    [section] = insight_sections(explanation)
    for text in (section_markdown(section), printed(explanation)):
        for insight in explanation.insights:
            assert insight.title in text
            assert insight.rules_out in text
            assert all(evidence in text for evidence in insight.evidence)
        assert (WINS_NOTE in text) == (name != "emulated")
        assert (EMULATED.text in text) == (name == "emulated")


def test_nothing_emulated_shows_a_time():
    explanation = explained(*NAMES["emulated"])
    tables = [
        missed_table(explanation.subject.missed_sme2),
        bottleneck_table(explanation.subject.bottlenecks),
        module_table(explanation.modules),
        insight_table(explanation.insights),
    ]
    for table in tables:
        assert table.rows
        assert [name for name in table.header if re.search(r"\bms\b|share|rate", name)] == []
        assert [cell for row in table.rows for cell in row if TIME.search(cell)] == []
    assert headroom_table(explanation).rows == []
    assert " ms" not in printed(explanation)


def test_bottlenecks_come_by_rank_and_no_more_than_asked_for():
    table = bottleneck_table(explained(*NAMES["pair"]).subject.bottlenecks, most=3)
    assert [row[0] for row in table.rows] == ["1", "2", "3"]
    first = dict(zip(table.header, table.rows[0], strict=True))
    assert first["operator"] == "Convolution (NHWC, PF32) IGEMM #1"
    assert (first["module"], first["source"], first["SME unit"]) == ("features.0.conv", "model.py:10", "on")
    assert (first["mean ms"], first["rate"]) == ("0.200", "90.0 GFLOP/s")


def test_modules_are_a_tree_in_order_of_execution():
    names = [row[0] for row in module_table(explained(*NAMES["pair"]).modules, deepest=3).rows]
    assert names == [
        "(inference)",
        "(unattributed)",
        "features",
        "· features.0",
        "· · features.0.conv",
        "· features.1",
        "· · features.1.conv",
        "· · features.1.act",
        "(top level)",
        "head",
        "(overhead)",
    ]
    assert len(module_table(explained(*NAMES["pair"]).modules, deepest=1).rows) == 6


def test_headroom_has_a_column_per_arm():
    table = headroom_table(explained(*NAMES["pair"]))
    assert table.header == ["", "SME2 off", "SME2 on"]
    rows = {row[0]: row[1:] for row in table.rows}
    assert rows["CONV and GEMM, ms"] == ["0.850", "0.400"]
    assert all(re.fullmatch(r"\d+\.\d\dx", cell) for cell in rows["ceiling without CONV and GEMM"])
    assert headroom_table(explained(*NAMES["alone"])).header == ["", "SME2 off"]
