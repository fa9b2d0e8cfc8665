"""What a notebook gets: frames and answers of a data folder, without times where times mean nothing."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import FrozenInstanceError
from pathlib import Path

import nbformat
import pandas as pd
import pytest
from nbclient import NotebookClient

import sme2_assets as sme2
from sme2_assets.models.brought import write_template
from sme2_assets.store import CHECKOUT, Store
from sme2_assets.warehouse import Warehouse
from sme2_assets_tests.claims.zoo import Calls
from sme2_assets_tests.exchange.measured_pair import EMULATED, LINUX, make_pair
from sme2_assets_tests.made import MadeOnce
from sme2_assets_tests.made.run_folder import MadeRun, ingest
from sme2_assets_tests.made.traces import Delegate, Portable

TIMES = re.compile(r"_ns$|^speedup|^share$|^n$|_share$")


def copy_of_two_pairs(made_once: MadeOnce, folder: Path) -> Path:
    """A data folder with a pair on hardware and one emulated."""
    made = made_once("two-pairs", lambda empty: make_pair(Store(empty), LINUX, EMULATED))
    return shutil.copytree(made, folder / "lab", symlinks=True)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory, made_once: MadeOnce) -> Path:
    """Only for reading."""
    return copy_of_two_pairs(made_once, tmp_path_factory.mktemp("api"))


@pytest.fixture(scope="module")
def lab(root: Path) -> sme2.DataFolder:
    return sme2.open(root)


def test_the_import_loads_nothing_heavy():
    asked = "import sys, sme2_assets; sme2_assets.open(sys.argv[1]); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", asked, CHECKOUT], capture_output=True, text=True, check=True)
    heavy = {"torch", "executorch", "dagster", "pandas", "numpy", "duckdb", "matplotlib", "mcp", "pydantic"}
    assert heavy.isdisjoint(done.stdout.split())


def test_only_what_is_offered_is_there():
    assert {"open", "Sme2Error", "DataFolder"} <= set(dir(sme2))
    with pytest.raises(AttributeError, match="opened"):
        sme2.opened  # noqa: B018


def test_runs_have_a_latency_on_hardware_alone(lab: sme2.DataFolder):
    runs = lab.runs()
    assert sorted(zip(runs["platform"], runs["sme2"], strict=True)) == [
        *(("emulated", "off"), ("emulated", "on"), ("linux", "off"), ("linux", "on"))
    ]
    assert runs["median_ns"].notna().tolist() == (runs["fidelity"] == "hardware").tolist()
    assert len(lab.runs("toy_cnn", "emulated")) == 2
    assert lab.runs("toy_cnn-int8").empty


def test_a_comparison_is_what_the_warehouse_says(lab: sme2.DataFolder):
    pair = lab.compare("toy_cnn-fp32", "linux")
    [expected] = lab.sql("SELECT * FROM comparisons WHERE platform = 'linux' AND level = 'model'").to_dict(
        "records"
    )
    assert (pair.verdict, pair.speedup) == (expected["verdict"], expected["speedup"])
    assert pair.interval == (expected["speedup_low"], expected["speedup_high"])
    assert (pair.off_run_id, pair.on_run_id) == (expected["a_run_id"], expected["b_run_id"])
    assert len(pair.operators) == expected["operators"]
    assert set(pair.rows) == set(lab.sql("FROM sme2_comparison"))
    assert f"{pair.speedup:.2f}x ({pair.interval[0]:.2f} to {pair.interval[1]:.2f}, n=" in repr(pair)
    with pytest.raises(FrozenInstanceError):
        pair.speedup = 2.0  # type: ignore[misc]


def test_a_pair_is_compared_though_one_state_was_measured_alone_since(tmp_path: Path, made_once: MadeOnce):
    store = Store(copy_of_two_pairs(made_once, tmp_path))
    warehouse = Warehouse(store.warehouse)
    later = MadeRun(sme2="on", paired=False, session_id="20270101T000000-aaaaaa")
    ingest(warehouse, later.write(store.runs))
    warehouse.publish()
    pair = sme2.open(store.root).compare("toy_cnn-fp32", "linux")
    assert pair.session_id != later.session_id
    assert {pair.off_run_id, pair.on_run_id} == {MadeRun(sme2=state).run_id for state in ("off", "on")}


def test_that_a_model_has_no_matrix_product_is_said_where_all_its_operators_are_known(tmp_path: Path):
    store = Store(tmp_path)
    warehouse = Warehouse(store.warehouse)
    theirs = Portable("native_call_fused_attention.out", 9_000, 9_500)
    for variant, calls in {"plain-fp32": (), "theirs-fp32": (theirs,)}.items():
        softmax = Delegate([("Softmax (NC, F32) #1", 9_000)], 10_000)
        for state in ("off", "on"):
            run = Calls(variant=variant, sme2=state, calls=(softmax, *calls), sampled=False)
            ingest(warehouse, run.write(store.runs))
    warehouse.publish()
    lab = sme2.open(tmp_path)
    assert "SME2 on: the model has no convolution or matrix product;" in repr(lab.compare("plain-fp32"))
    assert "SME2 on: no operator of the model is known to be a conv" in repr(lab.compare("theirs-fp32"))


def test_nothing_of_an_emulated_pair_is_a_time(lab: sme2.DataFolder):
    pair = lab.compare("toy_cnn-fp32", "emulated")
    assert (pair.speedup, pair.interval, pair.rounds) == (None, None, None)
    why = lab.explain("toy_cnn-fp32", "emulated")
    frames = [pair.rows, pair.unit, why.missed, why.operators, why.modules, lab.timeline(pair.on_run_id)]
    assert all(len(frame) for frame in frames[:2])
    for frame in frames:
        timed = [name for name in frame.columns if TIMES.search(str(name))]
        assert frame[timed].isna().all(axis=None), timed
    for text in (repr(pair), repr(why)):
        assert not re.search(r"\d ?(ms|ns|us)\b|\d\.\d+x", text)


def test_a_timeline_adds_up_to_its_inferences(lab: sme2.DataFolder):
    run = lab.compare("toy_cnn-fp32", "linux").on_run_id
    rows = lab.timeline(run)
    whole = lab.sql(f"SELECT sum(duration_ns)::BIGINT AS ns FROM timeline WHERE run_id = '{run}'")["ns"].iloc[
        0
    ]
    assert rows["duration_ns"].sum() == whole > 0
    with pytest.raises(sme2.Sme2Error, match="nothing"):
        lab.timeline("nothing")


def test_findings_missed_operators_and_what_to_do_are_shown(lab: sme2.DataFolder):
    why = lab.explain("toy_cnn-fp32", "linux")
    assert list(why.findings["title"]) == [each["title"] for each in why.as_json()["insights"]]
    assert "### Insights" in repr(why)
    assert all(title.split(":")[0][:20] in repr(why) for title in why.findings["title"])


def test_a_report_is_written_and_says_first_what_it_says(root: Path, lab: sme2.DataFolder):
    report = lab.report("toy_cnn-fp32", "linux")
    assert report.page.is_file()
    assert report.page.is_relative_to(root / "reports")
    assert report.sentence.split(".")[0] in report.markdown
    assert report.verdict in repr(report)


def test_sql_reads_and_is_cut_where_one_wants_it(lab: sme2.DataFolder):
    rows = lab.sql("SELECT range AS n FROM range(10)", limit=3)
    assert rows["n"].tolist() == [0, 1, 2]
    assert rows.attrs["more"]
    with pytest.raises(sme2.Sme2Error, match="Only queries are allowed"):
        lab.sql("DROP TABLE runs")


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (("toy_cn-fp32",), "did you mean 'toy_cnn'"),
        (("toy_cnn-int8",), "no run of toy_cnn-int8 in the warehouse"),
        (("toy_cnn-fp32", "mac"), "no run of toy_cnn-fp32 on mac"),
        (("toy_cnn-fp32",), "toy_cnn-fp32 on emulated"),
        (("toy_cnn-fp32", "linux", "phone"), "not measured on the device 'phone'"),
    ],
)
def test_what_cannot_be_answered_is_said_with_a_remedy(
    lab: sme2.DataFolder, asked: tuple[str, ...], words: str
):
    with pytest.raises(sme2.Sme2Error) as raised:
        lab.compare(*asked)
    assert words in str(raised.value)
    assert raised.value.remedy
    # What a notebook shows instead of a traceback.
    assert raised.value._render_traceback_()[0].endswith(str(raised.value))


def test_a_folder_that_is_not_there_is_not_made(tmp_path: Path):
    with pytest.raises(sme2.Sme2Error, match="typo"):
        sme2.open(tmp_path / "typo")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_keeps_its_own_models(lab: sme2.DataFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("SME2_DATA", raising=False)
    write_template("only_here", tmp_path / "models", None)
    assert "only_here" in set(sme2.open(tmp_path).models()["model"])
    assert "only_here" not in set(lab.models()["model"])
    assert "SME2_DATA" not in os.environ


@pytest.mark.thorough
def test_the_example_notebook_runs_and_shows_its_answers(root: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SME2_DATA", str(root))
    monkeypatch.setenv("PYTHONPATH", str(CHECKOUT))
    notebook = nbformat.read(CHECKOUT / "examples" / "lab.ipynb", as_version=4)
    stored = [cell.get("outputs") for cell in notebook.cells if cell.cell_type == "code"]
    assert all(outputs for outputs in stored[1:]), "a cell is shown without its output"
    for cell in notebook.cells:
        cell.pop("outputs", None)
        if cell.cell_type == "code":
            cell["outputs"] = []
    made = NotebookClient(notebook, timeout=600, kernel_name="python3").execute()
    kinds = [set(output.get("data", {})) for cell in made.cells for output in cell.get("outputs", [])]
    assert any("text/markdown" in kind for kind in kinds)
    assert sum("text/html" in kind for kind in kinds) >= 5
    assert str(CHECKOUT) not in (CHECKOUT / "examples" / "lab.ipynb").read_text()


def test_the_code_of_the_page_runs(root: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SME2_DATA", str(root))
    blocks = re.findall(r"^```python\n(.*?)^```", (CHECKOUT / "docs" / "python.md").read_text(), re.M | re.S)
    assert len(blocks) >= 4
    names: dict[str, object] = {}
    for block in blocks:
        exec(block, names)
    assert isinstance(names["pair"], sme2.Comparison)
    assert isinstance(names["lab"].runs(), pd.DataFrame)
