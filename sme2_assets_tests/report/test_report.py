from __future__ import annotations

import re
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from sme2_assets.errors import WarehouseError
from sme2_assets.report.arms import outputs_cell
from sme2_assets.report.claims import EMULATED
from sme2_assets.report.content import session_document
from sme2_assets.report.document import Document
from sme2_assets.report.files import report_folder, write_document, write_report
from sme2_assets.report.markdown import MarkdownReport, markdown_of, markdown_report
from sme2_assets.report.numerics import numerics_text
from sme2_assets.store import Store
from sme2_assets.warehouse import Warehouse
from sme2_assets_tests.made.run_folder import MadeRun, ingest
from sme2_assets_tests.report.test_tables import TIME
from sme2_assets_tests.warehouse.made_operators import Op, OperatorRun
from sme2_assets_tests.warehouse.newest import compare_newest, newest_session

VARIANT = "toy_cnn-fp32"
BARE = OperatorRun([Op("Softmax (NC, F32) #1", 5)], "off", fidelity="emulated")
# Shapes, and functions by their offset.
NO_TIMES = re.compile(r"[\dx]+ -> [\dx]+|\S+\+0x\d+ \(\d+ samples\)")


def table_rows(text: str, heading: str) -> list[list[str]]:
    section = text.split(f"## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines[2:]]


def test_the_report_begins_with_the_answer_and_carries_interval_and_n(documents: dict[str, Document]):
    text = markdown_of(documents["faster"])
    title = f"# {VARIANT} on linux, a-cpu-0a1b2c: SME2 on against off\n\n"
    speedup = (
        r"\*\*Faster\.\*\* Speedup \(off / on\) 1\.\d\dx \(1\.\d\d to 1\.\d\d, n=6\): faster with SME2 on;"
    )
    assert text.startswith(title)
    assert re.match(speedup, text.removeprefix(title))
    work = "91% of the multiply-accumulates"
    assert f"SME2 on: 2 of 3 convolutions and matrix products, {work}; SME2 off: 0 of 3" in text
    assert EMULATED.text not in text


def test_its_tables_are_those_of_the_warehouse(paired: Warehouse, documents: dict[str, Document]):
    text = markdown_of(documents["faster"])
    assert [row[0] for row in table_rows(text, "Latency")] == ["off", "on"]
    categories = [row[0] for row in table_rows(text, "Categories")[:6]]
    assert categories == ["CONV", "GEMM", "Elementwise", "Other", "Data Movement", "Overhead"]
    assert len(table_rows(text, "Operators")) == 8
    provenance = {row[0]: row[1:] for row in table_rows(text, "What was measured")}
    runs = paired.query("SELECT run_id FROM runs WHERE platform = 'linux' ORDER BY sme2")["run_id"]
    assert provenance["run"] == runs.tolist(), "the two runs that were compared and no other"
    assert provenance["runner hash"] == ["b" * 16] * 2


def test_an_emulated_report_says_so_and_shows_no_times(documents: dict[str, Document]):
    text = markdown_of(documents["emulated"])
    assert f"> {EMULATED.text}" in text
    assert "Speedup" not in text
    assert "Latency" not in text
    for heading in ("Categories", "Operators"):
        cells = [cell for row in table_rows(text, heading) for cell in row]
        assert [cell for cell in cells if TIME.search(cell) and not NO_TIMES.fullmatch(cell)] == [], heading


def test_one_arm_alone_is_reported_without_a_comparison(documents: dict[str, Document]):
    text = markdown_of(documents["baseline"])
    assert "measured alone" in text
    assert "Verdict" not in text
    assert len(table_rows(text, "Operators")) == 8


def test_the_latest_report_is_of_what_was_measured_last(warehouse: Warehouse, tmp_path: Path):
    off = MadeRun(rounds=1, warmup=0, iterations=1)
    ingest(warehouse, off.write(tmp_path), replace(off, sme2="on").write(tmp_path))
    warehouse.publish()
    compare_newest(warehouse, VARIANT, "linux")
    warehouse.publish()
    compared = session_document(warehouse, newest_session(warehouse, VARIANT, "linux"))
    assert "SME2 on against off" in compared.title
    alone = replace(off, session_id="later", started_at=off.started_at + timedelta(days=1))
    ingest(warehouse, alone.write(tmp_path))
    warehouse.publish()
    latest = session_document(warehouse, newest_session(warehouse, VARIANT, "linux"))
    assert "SME2 off alone" in latest.title


def test_a_report_on_disk_has_its_pictures_beside_it(documents: dict[str, Document], tmp_path: Path):
    report = markdown_report(documents["faster"])
    named = re.findall(r"!\[[^]]*\]\(([^)]*)\)", report.text)
    pictures = [
        *("categories", "graph", "modules", "ratios", "roofline", "rounds_off", "rounds_on", "speedups"),
        *("timeline", "waterfall"),
    ]
    assert sorted(named) == sorted(report.pictures) == [f"{name}.svg" for name in pictures]
    markdown, page = write_document(tmp_path / "reports", documents["faster"])
    assert markdown.read_text() == report.text
    for name, picture in report.pictures.items():
        assert (markdown.parent / name).read_bytes() == picture
    assert {each.name for each in markdown.parent.iterdir()} == {*named, "report.md", "report.html"}
    assert page.stat().st_size < 3_000_000
    assert write_document(tmp_path / "page", documents["faster"], ["html"]) == [tmp_path / "page/report.html"]
    assert [each.name for each in (tmp_path / "page").iterdir()] == ["report.html"]


def test_the_same_rows_give_the_same_files(documents: dict[str, Document], tmp_path: Path):
    texts = [
        [path.read_bytes() for path in write_document(tmp_path / name, documents["emulated"])]
        for name in ("one", "two")
    ]
    assert texts[0] == texts[1]


def test_a_report_says_what_the_samples_prove(documents: dict[str, Document]):
    text = markdown_of(documents["faster"])
    assert "SME2 off: 0 of the 9 samples in kernels that compute CONV and GEMM are on SME." in text
    assert "SME2 on: 6 of the 9 samples in kernels that compute CONV and GEMM are on SME." in text
    assert "## Kernels with SME2 on" in text


@pytest.mark.parametrize(
    ("sqnr_db", "needed_db", "said", "cell"),
    [
        (39.97, 40.0, "WRONG, 39.97 dB against eager (40 dB needed)", "WRONG, 39.97 dB"),
        (12.34, 40.0, "WRONG, 12.3 dB against eager (40 dB needed)", "WRONG, 12 dB"),
        (12.34, 12.5, "WRONG, 12.3 dB against eager (12.5 dB needed)", "WRONG, 12 dB"),
        (40.0, 40.0, "right, 40.0 dB against eager (40 dB needed)", "right, 40 dB"),
        (40.02, 40.0, "right, 40.02 dB against eager (40 dB needed)", "right, 40.02 dB"),
    ],
)
def test_outputs_beside_the_threshold_stay_on_their_side_of_it(
    sqnr_db: float, needed_db: float, said: str, cell: str
):
    run = {"run_id": "r", "sme2": "off", "fidelity": "hardware", "eager_fault": None}
    run |= {"sqnr_db": sqnr_db, "sqnr_threshold_db": needed_db}
    assert numerics_text([run]) == f"SME2 off: {said}"
    assert outputs_cell(run) == cell


def test_a_report_that_fails_midway_keeps_the_old_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = write_report(tmp_path / "report.md", MarkdownReport("old", {"categories.svg": b"old"}))

    def fail(path: Path, text: str) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("sme2_assets.report.files.write_text_atomically", fail)
    with pytest.raises(OSError, match="disk full"):
        write_report(path, MarkdownReport("new", {"categories.svg": b"new"}))
    assert path.read_text() == "old"


def test_a_pair_that_was_never_compared_has_no_report_and_the_remedy_is_said(
    warehouse: Warehouse, tmp_path: Path
):
    off = MadeRun(rounds=1, warmup=0, iterations=1)
    ingest(warehouse, off.write(tmp_path), replace(off, sme2="on").write(tmp_path))
    warehouse.publish()
    with pytest.raises(WarehouseError, match="have not been compared") as raised:
        session_document(warehouse, off.session_id)
    assert "sme2 warehouse sync" in str(raised.value.remedy)


# Its neighbours are reports of the same model with other settings.
@pytest.mark.parametrize(
    ("run", "named"),
    [
        (replace(BARE, power_mode="", method="forward"), ""),
        (replace(BARE, power_mode="app"), ", power mode app"),
        (replace(BARE, threads=2, method="decode"), ", 2 threads, method decode"),
        (MadeRun(variant=BARE.variant, threads=4, cpus="4-7"), ", a-cpu-0a1b2c, 4 threads, CPUs 4-7"),
    ],
)
def test_the_title_names_every_setting_that_is_not_the_default(
    warehouse: Warehouse, tmp_path: Path, run: OperatorRun | MadeRun, named: str
):
    if isinstance(run, MadeRun):
        ingest(warehouse, run.write(tmp_path))
    else:
        run.write(warehouse)
    warehouse.publish()
    title = session_document(warehouse, run.session_id).title
    assert title == f"{run.variant} on {run.platform}{named}: SME2 off alone"


def test_sessions_of_other_devices_and_thread_counts_have_folders_of_their_own(tmp_path: Path):
    run = {
        "variant": VARIANT,
        "platform": "linux",
        "device": "a",
        "arch": "aarch64",
        "threads": 1,
        "cpus": "",
        "power_mode": "",
        "method": "forward",
    }
    changes = [
        {},
        {"device": "b"},
        {"arch": "x86_64"},
        {"threads": 4},
        {"cpus": "4-7"},
        {"cpus": "4-7, utility"},
        {"power_mode": "app"},
        {"method": "decode"},
    ]
    folders = {report_folder(Store(tmp_path), run | change) for change in changes}
    assert len(folders) == len(changes)
    assert all(tmp_path / "reports" / VARIANT / "linux" == folder.parent for folder in folders)
