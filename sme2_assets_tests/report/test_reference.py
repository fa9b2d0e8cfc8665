"""A reference, native on another instruction set: times of its own, and not a word about SME2."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from rich.console import Console

from sme2_assets.defs.assets import summaries
from sme2_assets.exchange.export import FORMATS, export_run
from sme2_assets.report.answer import session_answer
from sme2_assets.report.content import session_document
from sme2_assets.report.explain import explain
from sme2_assets.report.html import html_of
from sme2_assets.report.insights import explanation_json, show_explanation
from sme2_assets.report.markdown import markdown_report
from sme2_assets.report.overview import overview_document, overview_rows
from sme2_assets.report.tables import comparison_table
from sme2_assets.report.terminal import show_session
from sme2_assets.store import Store
from sme2_assets.warehouse import Warehouse
from sme2_assets.warehouse.checks import executed_kernel_faults, sme2_evidence_faults
from sme2_assets.warehouse.comparisons import compare_session
from sme2_assets.warehouse.read import comparison_of_session, run_of_id
from sme2_assets_tests.made.run_folder import MadeRun, ingest

INTEL = MadeRun(fidelity="reference", arch="x86_64", device="xeon-0a1b2c")
# An emulated run of the same model file: what a baseline on AArch64 may borrow its kernels from.
TWIN = MadeRun(
    sme2="on", platform="emulated", fidelity="emulated", rounds=1, session_id="20260102T000000-bbbbbb"
)
NOTE = "native times on x86_64, which say nothing about SME2."


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    store = Store(tmp_path_factory.mktemp("reference"))
    warehouse = Warehouse(store.warehouse)
    ingest(warehouse, *(run.write(store.runs) for run in (INTEL, TWIN)))
    warehouse.publish()
    return store


@pytest.fixture
def warehouse(store: Store) -> Warehouse:
    return Warehouse(store.warehouse)


def about_sme2(text: str) -> list[str]:
    """The lines that speak of SME, but for the sentences that say that nothing is said of it."""
    allowed = re.compile(r"[^.\n|>]*\bsays? nothing about SME2\b\.?|How to read this.*")
    return [line for line in allowed.sub("", text).splitlines() if "SME" in line]


def printed(show) -> str:  # type: ignore[no-untyped-def]
    buffer = io.StringIO()
    show(Console(file=buffer, width=250))
    return buffer.getvalue()


def test_the_report_has_its_times_and_says_what_they_are_not(warehouse: Warehouse):
    text = markdown_report(session_document(warehouse, INTEL.session_id)).text
    assert NOTE in text
    assert "Median inference" in text
    assert "xeon-0a1b2c" in text
    assert about_sme2(text) == []
    for word in ("Projection", "Ceiling", "ceiling", "ruled out", "baseline", "would stay"):
        assert word not in text


def test_the_page_says_no_more_than_the_report(warehouse: Warehouse):
    page = html_of(session_document(warehouse, INTEL.session_id))
    shown = re.sub(r"<(style|script|svg).*?</\1>", "", page, flags=re.DOTALL)
    assert NOTE in shown
    assert about_sme2(re.sub(r"<[^>]+>", "\n", shown)) == []


def test_the_terminal_says_where_it_ran_and_nothing_of_sme2(warehouse: Warehouse):
    explanation = explain(warehouse, INTEL.session_id)
    answer = session_answer(warehouse, explanation)
    said = [
        printed(lambda out: show_session(out, warehouse, INTEL.session_id, None, False)),
        printed(lambda out: show_explanation(out, explanation, answer)),
        printed(lambda out: show_explanation(out, explanation, answer, everything=True)),
    ]
    for text in said:
        assert NOTE in text
        assert "xeon-0a1b2c (x86_64" in text
        assert about_sme2(text) == []
    kinds = {insight.kind for insight in explanation.insights}
    assert "heavy_operator" in kinds
    assert not kinds & {"missed_sme2", "projection", "amdahl_compute", "amdahl_data_movement"}
    assert "SME2" not in json.dumps(explanation_json(explanation, answer)).replace(NOTE, "")


def test_the_warehouse_has_its_times_and_nothing_where_sme2_is_asked_for(warehouse: Warehouse):
    run = {"run_id": INTEL.run_id}
    [headroom] = warehouse.query("SELECT * FROM headroom WHERE run_id = $run_id", run).to_dict("records")
    assert headroom["compute_ns"] > 0
    assert all(pd.isna(value) for name, value in headroom.items() if str(name).startswith("without_"))
    assert warehouse.query("SELECT * FROM missed_sme2 WHERE run_id = $run_id", run).empty
    assert warehouse.query("SELECT * FROM emulated_twin WHERE run_id = $run_id", run).empty
    for view in ("operator_facts", "kernel_usage", "category_summary", "module_summary"):
        rows = warehouse.query(f"SELECT * FROM {view} WHERE run_id = $run_id", run)
        assert len(rows)
        columns = [name for name in rows if re.match(r"sme2_|sme_|sve_|simd_|load_store_", name)]
        assert columns
        assert rows[columns].isna().all(axis=None), view
    slowest = warehouse.query("SELECT * FROM bottlenecks WHERE run_id = $run_id AND rank = 1", run)
    assert slowest["gops"].iloc[0] > 0


def test_its_series_goes_on_from_night_to_night(warehouse: Warehouse):
    history = warehouse.query("SELECT * FROM history WHERE category = 'latency'")
    assert history[["device", "arch", "fidelity"]].values.tolist() == [["xeon-0a1b2c", "x86_64", "reference"]]


def test_its_checks_find_no_fault(warehouse: Warehouse):
    run = run_of_id(warehouse, INTEL.run_id)
    assert sme2_evidence_faults(warehouse, run) is None
    assert executed_kernel_faults(warehouse, run) is None


def test_the_pages_of_the_assets_say_so_too(warehouse: Warehouse):
    for metadata in (
        summaries.latency_metadata,
        summaries.operator_metadata,
        summaries.category_metadata,
        summaries.kernel_metadata,
    ):
        shown = metadata(warehouse, INTEL.run_id)
        assert shown
        text = "\n".join(f"{name}: {value.value}" for name, value in shown.items())
        assert about_sme2(re.sub(r"data:image[^)]*", "", text)) == [], metadata


def test_the_overview_calls_it_a_reference(warehouse: Warehouse):
    rows = overview_rows(warehouse)
    text = markdown_report(overview_document(warehouse, rows, lambda row: None)).text
    [line] = [line for line in text.splitlines() if "xeon-0a1b2c" in line]
    assert "reference (x86_64)" in line
    assert "SME2" not in line


def test_exports_carry_device_architecture_and_the_note(store: Store, warehouse: Warehouse, tmp_path: Path):
    run = run_of_id(warehouse, INTEL.run_id)
    files = export_run(store, run, FORMATS, tmp_path, log=print)
    text = "\n".join(file.read_text() for file in files if file.suffix in (".json", ".md"))
    assert "says nothing about SME2" in text
    for fact in ("xeon-0a1b2c", "x86_64", "reference"):
        assert fact in text
    assert '"name": "SME2 off' not in text


def test_a_pair_of_references_says_nothing_about_the_unit(tmp_path: Path):
    warehouse = Warehouse(tmp_path / "warehouse")
    arms = [replace(INTEL, factor="threads", arm=arm, threads=n) for arm, n in (("a", 1), ("b", 2))]
    ingest(warehouse, *(arm.write(tmp_path / "runs") for arm in arms))
    warehouse.publish()
    compare_session(warehouse, arms[0].session_id)
    warehouse.publish()
    rows = comparison_of_session(warehouse, arms[0].session_id)
    matrix = warehouse.query(
        "SELECT 1 FROM operator_facts WHERE run_id = ? AND category IN ('CONV', 'GEMM')", [arms[1].run_id]
    )
    assert rows["matrix_operators"].iloc[0] == len(matrix) > 0
    assert rows.filter(like="sme2_operators_").isna().all(axis=None)
    for level in ("model", "category", "operator"):
        assert not about_sme2(comparison_table(rows, level).markdown())
