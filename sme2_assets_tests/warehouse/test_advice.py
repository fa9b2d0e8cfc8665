"""Advice as rows: made of the files alone, a damaged one named, and a report that says what they say."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from sme2_assets.analysis.claims import heard
from sme2_assets.cli.advise import _show
from sme2_assets.evidence.advice import AS_IT_IS, Advice, TriedChange
from sme2_assets.report import claims
from sme2_assets.report.advice import advice_section, tried_of
from sme2_assets.store import Store, write_text_atomically
from sme2_assets.warehouse import Warehouse
from sme2_assets.warehouse.advice import write_advice
from sme2_assets.warehouse.comparisons import compare_session
from sme2_assets.warehouse.sessions import take_session
from sme2_assets_tests.claims.zoo import false_sentences
from sme2_assets_tests.made.run_folder import MadeRun
from sme2_assets_tests.warehouse.made_operators import Op, OperatorRun

LATER = "20260102T000000-bbbbbb"
PROGRAM = OperatorRun([]).pte_sha256


def change(name: str, share: float | None, **facts: object) -> TriedChange:
    counts = dict.fromkeys(
        ["matrix_operators", "on_unit", "operators", "delegate_calls", "outside", "program_bytes"], 1
    )
    measured = {"run_id": f"run-{name}", "problem": None, **counts, **facts}
    gain = None if share is None else share - 0.5
    return TriedChange.model_validate(
        {
            "change": name,
            "what": f"what {name} is",
            "code": None,
            "share": share,
            "gain": gain,
            "recommended": (gain or 0) > 0.01,
            "onto_unit": [],
            **measured,
        }
    )


def write(store: Store, variant: str, *changes: TriedChange) -> None:
    """The advice, and the run of the model as it is."""
    ops = [Op("Softmax (NC, F32) #1", 9)]
    base = OperatorRun(ops, variant=variant, platform="emulated", fidelity="emulated")
    base.write(Warehouse(store.warehouse))
    advice = Advice(variant=variant, changes=[change(AS_IT_IS, 0.5, run_id=base.run_id), *changes])
    write_text_atomically(store.advice / f"{variant}.json", advice.to_json())


def test_a_damaged_file_is_named_and_costs_only_itself(tmp_path: Path):
    store = Store(tmp_path)
    warehouse = Warehouse(store.warehouse)
    unmeasured = change("b", None, run_id=None, problem="it cannot be exported")
    write(store, "good-fp32", change("a", 0.9, on_unit=3, matrix_operators=4), unmeasured)
    write(store, "bad-fp32", change("a", 0.9))
    text = (store.advice / "bad-fp32.json").read_text()
    (store.advice / "bad-fp32.json").write_text(text[: len(text) // 2])
    refused = write_advice(store, warehouse)
    warehouse.publish()
    assert list(refused) == ["bad-fp32.json"]
    assert "is not a JSON document" in str(refused["bad-fp32.json"])
    rows = warehouse.query("SELECT variant, change, rank, recommended FROM advice ORDER BY rank")
    assert rows.to_dict("list") == {
        "variant": ["good-fp32"] * 3,
        "change": [AS_IT_IS, "a", "b"],
        "rank": [0, 1, 2],
        "recommended": [False, True, False],
    }
    (store.advice / "good-fp32.json").unlink()
    write_advice(store, warehouse)
    warehouse.publish()
    assert warehouse.query("FROM advice").empty


def test_a_terminal_tells_what_a_change_brings_from_what_it_spares(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    store = Store(tmp_path)
    warehouse = Warehouse(store.warehouse)
    fewer = change("c", 0.5, recommended=True, delegate_calls=0, operators=7)
    # Operators that a rewrite splits are in no list of those that move, though more work is on the unit.
    write(store, "gains-fp32", change("a", 0.9, onto_unit=[]), change("b", 0.5), fewer)
    write_advice(store, warehouse)
    warehouse.publish()
    _show("gains-fp32", tried_of(warehouse, "gains-fp32"))
    said = " ".join(capsys.readouterr().out.split())
    assert re.findall(r"(\w): what \1 is(.*?)(?=\w: what|b \(what)", said) == [
        ("a", " "),
        (
            "c",
            " no less on the unit; delegate calls 1 to 0, operators outside 1 to 1, in all 1 to 7; its time "
            "is not known from emulation ",
        ),
    ]
    assert "b (what b is) was tried, and is not recommended" in said


def test_a_report_says_what_was_tried_and_no_more(tmp_path: Path):
    store = Store(tmp_path)
    warehouse = Warehouse(store.warehouse)
    fewer = change("c", 0.5, recommended=True, delegate_calls=0, operators=7)
    write(store, "gains-fp32", change("a", 0.9), change("b", 0.5), fewer)
    write(store, "none-fp32", change("a", 0.5), change("b", None, run_id=None, problem="no"))
    write_advice(store, warehouse)
    warehouse.publish()
    with heard() as said:
        [gains], [none] = (advice_section(warehouse, name, PROGRAM) for name in ("gains-fp32", "none-fp32"))
        assert advice_section(warehouse, "other-fp32", PROGRAM) == []
        assert advice_section(warehouse, "gains-fp32", "b" * 64) == [], "tried with another program"
    assert false_sentences(warehouse, said) == []
    assert [each.text for each in said] == [
        "With a (what a is) 90.0% of the model's multiply-accumulates are on the SME unit, as emulation "
        "shows; as the model is, 50.0%.",
        "With c (what c is) no less of the model is on the SME unit. In one inference, delegate calls: 1 to "
        "0, operators outside of delegates: 1 to 1, operators in all: 1 to 7. What that means for its time "
        "is not known from emulation.",
        "Changes that were tried under emulation: 1. None is recommended: that takes more of the model on "
        "the SME unit; or no less, with fewer calls or operators, in a program of about the same size.",
    ]
    # The sentences and the table; and what was not measured.
    assert (len(gains.blocks), len(none.blocks)) == (3, 3)


def test_the_table_says_what_is_unknown(tmp_path: Path):
    store = Store(tmp_path)
    warehouse = Warehouse(store.warehouse)
    earlier, uncounted = change("a", 0.9, outside=None), change("b", None, worst_db=41.25)
    write(
        store, "net-fp32", earlier, uncounted, change("c", 0.4), change("d", None, run_id=None, problem="no")
    )
    write_advice(store, warehouse)
    warehouse.publish()
    tried = tried_of(warehouse, "net-fp32")
    rows = [[row[0], row[1], row[-1]] for row in tried.table().rows]
    assert rows == [
        [AS_IT_IS, "50.0%", "unknown"],
        ["a", "90.0% (+40.0 pp)", "unknown"],
        ["b", "not counted", "41.2 dB"],
        ["c", "40.0% (-10.0 pp)", "unknown"],
    ]
    assert tried.as_json()["times"] == []


def test_advice_that_left_some_of_it_unknown_promises_no_more_than_it_did():
    new = Advice(variant="net-fp32", changes=[change(AS_IT_IS, 0.5), change("a", 0.9), change("b", None)])
    old = {"schema": 1, **new.as_json()}
    for each, (least, most) in zip(old["changes"], [(0.2, 0.5), (0.9, 1.0), (None, None)], strict=True):
        del each["share"]
        each |= {"least": least, "most": most}
    assert Advice.of(old, "net-fp32.json") == new


def test_changes_that_were_timed_on_hardware_have_their_interval(tmp_path: Path):
    """A change is of the program that ran; what is not from hardware is no time."""
    store = Store(tmp_path)
    first = MadeRun(variant="net-fp16", factor="change", arm="a", sequence=3, arms=2)
    second = replace(first, variant="net.rewrite_x-int8", arm="b", pte_sha256="d" * 64, slowness=0.8, seed=2)
    untimed = {"platform": "emulated", "fidelity": "emulated", "rounds": 1, "session_id": LATER}
    emulated = [replace(run, **untimed) for run in (first, second)]
    for pair in ([first, second], emulated):
        for run in pair:
            run.write(store.runs)
        warehouse = Warehouse(store.warehouse)
        take_session(store, warehouse, store.run_dir(pair[0].run_id))
        warehouse.publish()
        compare_session(warehouse, pair[0].session_id)
    base = change(AS_IT_IS, 0.5, run_id=emulated[0].run_id)
    gains = change("net@rewrite=x-int8", 0.9, run_id=emulated[1].run_id)
    advice = Advice(variant="net-fp16", changes=[base, gains, change("untimed", 0.8)])
    write_text_atomically(store.advice / "net-fp16.json", advice.to_json())
    write_advice(store, warehouse)
    warehouse.publish()
    tried = tried_of(warehouse, "net-fp16")
    assert list(tried.times) == [gains.change]
    [_, cell, nothing] = [row[-1] for row in tried.table().rows]
    assert re.fullmatch(r"1\.2\dx \(1\.\d\d to 1\.\d\d, n=\d+\), SME2 off", cell)
    assert nothing == "-"
    with heard() as said:
        advice_section(warehouse, "net-fp16", first.pte_sha256)
    assert any(each.claim is claims.ARM_FASTER for each in said)
    assert false_sentences(warehouse, said) == []
