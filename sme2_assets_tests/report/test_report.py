from __future__ import annotations

import re
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from sme2_assets.report.files import write_report
from sme2_assets.report.markdown import Report, baseline_report, comparison_report, latest_report
from sme2_assets.report.tables import EMULATED_NOTE
from sme2_assets.warehouse import Warehouse
from sme2_assets.warehouse.comparisons import compare_latest
from sme2_assets_tests.report.test_tables import TIME
from sme2_assets_tests.warehouse.run_folder import MadeRun, ingest

VARIANT = "toy_cnn-fp32"


def table_rows(text: str, heading: str) -> list[list[str]]:
    section = text.split(f"## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines[2:]]


def test_the_report_begins_with_the_verdict_and_carries_interval_and_n(paired: Warehouse):
    text = comparison_report(paired, VARIANT, "linux").text
    assert text.startswith(f"# {VARIANT} on linux: SME2 on against off\n\n**Verdict: faster.**")
    assert re.search(r"Speedup \(off / on\): 1\.\d\dx \(1\.\d\d to 1\.\d\d, n=6\)\.", text)
    assert "2 of 8 with SME2 on, 0 with it off" in text
    assert EMULATED_NOTE not in text


def test_its_tables_are_those_of_the_warehouse(paired: Warehouse):
    text = comparison_report(paired, VARIANT, "linux").text
    assert [row[0] for row in table_rows(text, "Latency")] == ["off", "on"]
    assert len(table_rows(text, "Categories")) == 6
    assert len(table_rows(text, "Operators")) == 8
    provenance = {row[0]: row[1:] for row in table_rows(text, "What this rests on")}
    runs = paired.query("SELECT run_id FROM runs WHERE platform = 'linux' ORDER BY sme2")["run_id"]
    assert provenance["run"] == runs.tolist(), "the two runs that were compared and no other"
    assert provenance["runner hash"] == ["b" * 16] * 2


def test_an_emulated_report_says_so_and_shows_no_times(paired: Warehouse):
    text = comparison_report(paired, VARIANT, "emulated").text
    assert text.splitlines()[2] == f"> {EMULATED_NOTE}"
    assert "Speedup" not in text
    assert "Latency" not in text
    for heading in ("Categories", "Operators"):
        cells = [cell for row in table_rows(text, heading) for cell in row]
        assert [cell for cell in cells if TIME.search(cell)] == [], heading


def test_one_arm_alone_is_reported_without_a_comparison(paired: Warehouse):
    text = baseline_report(paired, VARIANT, "linux", "off").text
    assert "measured alone" in text
    assert "Verdict" not in text
    assert len(table_rows(text, "Operators")) == 8


def test_the_latest_report_is_of_what_was_measured_last(warehouse: Warehouse, tmp_path: Path):
    assert latest_report(warehouse, VARIANT, "linux") is None
    off = MadeRun(rounds=1, warmup=0, iterations=1)
    for run in (off, replace(off, sme2="on")):
        ingest(warehouse, run.write(tmp_path))
    warehouse.publish()
    compare_latest(warehouse, VARIANT, "linux")
    warehouse.publish()
    compared = latest_report(warehouse, VARIANT, "linux")
    assert compared is not None
    assert "SME2 on against off" in compared.text
    alone = replace(off, session_id="later", started_at=off.started_at + timedelta(days=1))
    ingest(warehouse, alone.write(tmp_path))
    warehouse.publish()
    latest = latest_report(warehouse, VARIANT, "linux")
    assert latest is not None
    assert "SME2 off alone" in latest.text


def test_a_report_on_disk_has_its_pictures_beside_it(paired: Warehouse, tmp_path: Path):
    report = comparison_report(paired, VARIANT, "linux")
    named = re.findall(r"!\[[^]]*\]\(([^)]*)\)", report.text)
    assert sorted(named) == sorted(report.pictures) == ["categories.png", "modules.png", "roofline.png"]
    path = write_report(tmp_path / "reports", report)
    assert path.read_text() == report.text
    for name, picture in report.pictures.items():
        assert (path.parent / name).read_bytes() == picture
    write_report(tmp_path / "reports", Report("new", {"categories.png": b"new"}))
    assert path.read_text() == "new"
    assert {each.name for each in path.parent.iterdir()} == {*named, "report.md"}


def test_a_report_says_what_the_samples_prove(paired: Warehouse):
    text = comparison_report(paired, VARIANT, "linux").text
    assert "SME2 off: 0 operators were sampled in SME kernels; 0% of" in text
    assert "SME2 on: 2 operators were sampled in SME kernels; 67% of" in text
    assert "## Kernels with SME2 on" in text


def test_a_report_that_fails_midway_keeps_the_old_text(
    paired: Warehouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = write_report(tmp_path, Report("old", {"categories.png": b"old"}))

    def fail(path: Path, text: str) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("sme2_assets.report.files.write_text_atomically", fail)
    with pytest.raises(OSError, match="disk full"):
        write_report(tmp_path, Report("new", {"categories.png": b"new"}))
    assert path.read_text() == "old"
