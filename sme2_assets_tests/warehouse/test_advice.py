"""Advice as rows: made of the files alone, a damaged one named, and a report that says what they say."""

from __future__ import annotations

from pathlib import Path

from sme2_assets.analysis.claims import heard
from sme2_assets.evidence.advice import AS_IT_IS, Advice, Change
from sme2_assets.report.advice import advice_section
from sme2_assets.store import Store, write_text_atomically
from sme2_assets.warehouse import Warehouse
from sme2_assets.warehouse.advice import write_advice
from sme2_assets_tests.claims.zoo import false_sentences
from sme2_assets_tests.warehouse.made_operators import Op, OperatorRun

PROGRAM = OperatorRun([]).pte_sha256


def change(name: str, least: float | None, **facts: object) -> Change:
    measured = {"run_id": f"run-{name}", "problem": None, **facts}
    gain = None if least is None else least - 0.5
    return Change.model_validate(
        {
            "change": name,
            "what": f"what {name} is",
            "code": None,
            "least": least,
            "most": least,
            "gain": gain,
            "recommended": (gain or 0) > 0.01,
            "onto_unit": [],
            **measured,
        }
    )


def write(store: Store, variant: str, *changes: Change) -> None:
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


def test_a_report_says_what_was_tried_and_no_more(tmp_path: Path):
    store = Store(tmp_path)
    warehouse = Warehouse(store.warehouse)
    write(store, "gains-fp32", change("a", 0.9), change("b", 0.5))
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
        "shows; as the model is, 50.0% at most.",
        "Changes that were tried under emulation: 1. None brings more of the model onto the SME unit.",
    ]
    assert len(gains.blocks) == len(none.blocks) == 2
