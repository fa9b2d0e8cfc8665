from __future__ import annotations

import json
import random
import shutil
from dataclasses import replace
from pathlib import Path

import dagster as dg
import pandas as pd
import pytest
from click.testing import CliRunner, Result

from sme2_assets.cli import main
from sme2_assets.defs.assets.reports import overview
from sme2_assets.defs.resources import Lab
from sme2_assets.report.files import write_overview
from sme2_assets.report.overview import overview_document, overview_rows
from sme2_assets.store import Store
from sme2_assets.warehouse import Warehouse
from sme2_assets_tests.made.run_folder import MadeRun, ingest
from sme2_assets_tests.made.traces import Delegate, Portable
from sme2_assets_tests.report.hostile import parsed

VARIANT = "toy_cnn-fp32"


@pytest.fixture(scope="module")
def store(paired: Warehouse, tmp_path_factory: pytest.TempPathFactory) -> Store:
    """The pairs, and a baseline of another model beside them."""
    made = Store(tmp_path_factory.mktemp("overview"))
    shutil.copytree(paired.root / "tables", made.warehouse / "tables")
    warehouse = Warehouse(made.warehouse)
    alone = replace(MadeRun(), variant="toy_cnn-int8", session_id="later", rounds=1, iterations=1)
    ingest(warehouse, alone.write(made.runs))
    warehouse.publish()
    return made


def sme2(store: Store, *words: str, code: int = 0) -> Result:
    done = CliRunner().invoke(main, ["--data", str(store.root), *words])
    assert done.exit_code == code, done.output
    return done


class Uneven(MadeRun):
    """One inference in five or so has a softmax that takes twenty times as long."""

    def _calls(self, noise: random.Random) -> list[Delegate | Portable]:
        softmax_ns = 1_000_000 if noise.random() < 0.2 else 50_000
        rows = [("Convolution (NHWC, F32) IGEMM #1", 100_000), ("Softmax (NC, F32) #1", softmax_ns)]
        return [Delegate(rows, softmax_ns + 105_000)]


def test_the_biggest_bottleneck_is_what_takes_the_most(tmp_path: Path):
    warehouse = Warehouse(tmp_path / "warehouse")
    ingest(warehouse, Uneven(iterations=20, sampled=False).write(tmp_path / "runs"))
    warehouse.publish()
    undisturbed = "round IN (SELECT round FROM traced_rounds WHERE NOT disturbed) AND NOT is_warmup"
    taken = warehouse.query(
        "SELECT name, sum(duration_ns) AS ns, median(duration_ns) AS median_ns FROM timeline "
        f"WHERE kind = 'operator' AND {undisturbed} GROUP BY name ORDER BY ns DESC"
    )
    assert taken["median_ns"].is_monotonic_increasing, "by median it would be another one"
    [row] = overview_rows(warehouse).to_dict("records")
    [whole] = warehouse.query(
        f"SELECT sum(execute_ns) AS ns FROM inferences WHERE pass = 'etdump' AND {undisturbed}"
    )["ns"]
    assert row["bottleneck"] == f"{taken['name'].iloc[0]}: {taken['ns'].iloc[0] / whole:.0%}"


def test_each_model_on_each_platform_has_one_row(store: Store):
    warehouse = Warehouse(store.warehouse)
    document = overview_document(warehouse, overview_rows(warehouse), lambda row: None)
    [text, _, *pictures, grid] = document.sections[0].blocks
    names = ["work", "latencies", "categories", "emulated_categories"]
    assert [picture.name for picture in pictures] == names
    assert "1 model in 2 variants on 2 platforms: 1 kernel" in text.text
    assert "1 kernel evidence, 1 faster, 1 baseline, SME2 off" in text.text
    emulated, linux, alone = grid.table.rows
    device = "a-cpu-0a1b2c (aarch64)"
    assert emulated[:6] == [VARIANT, "emulated", device, "1", "kernel evidence", "-"]
    assert emulated[6] == linux[6] == "2 of 3, 91% of the multiply-accumulates"
    assert emulated[7] == "not on the SME unit, or unknown: 1 shape"
    assert linux[:5] == [VARIANT, "linux", device, "1", "faster"]
    assert linux[5].endswith("n=6)")
    assert linux[7].startswith("Convolution (NHWC, PF32) IGEMM #1, features.0.conv: 4")
    assert linux[8] == "right, 90 dB"
    assert alone[:6] == ["toy_cnn-int8", "linux", device, "1", "baseline, SME2 off", "-"]
    # Times with what nine of ten inferences took, and where they go; emulated there are none.
    assert emulated[9:12] == ["-", "-", "-"]
    assert [float(cell.split()[0]) for cell in linux[9:11]] == pytest.approx([1.33, 0.83], abs=0.02)
    assert linux[11] == "CONV, 43%"
    assert alone[10] == "-"


def test_the_overview_is_a_table_for_spreadsheets_too(store: Store):
    warehouse = Warehouse(store.warehouse)
    _, written = write_overview(store, warehouse, ("md",))
    assert [path.name for path in written] == ["index.md", "index.csv", "categories.csv"]
    rows = pd.read_csv(written[1]).set_index(["variant", "platform"])
    pair = rows.loc[(VARIANT, "linux")]
    medians = warehouse.query(
        "SELECT sme2, median_ns / 1e6 AS ms FROM latency_summary WHERE session_id = ?", [pair["session_id"]]
    ).set_index("sme2")["ms"]
    assert (pair["off_median_ms"], pair["on_median_ms"]) == pytest.approx((medians["off"], medians["on"]))
    assert pair["off_p05_ms"] <= pair["off_median_ms"] <= pair["off_p95_ms"]
    assert (pair["verdict"], pair["n"], pair["threads"]) == ("faster", 6, 1)
    assert (pair["matrix_operators"], pair["on_unit_operators"], pair["unknown_operators"]) == (3, 2, 0)
    emulated = rows.loc[(VARIANT, "emulated")]
    assert emulated[[name for name in rows if name.endswith("_ms")]].isna().all()
    assert emulated["on_unit_operators"] == 2


def test_categories_are_side_by_side_over_platforms_precisions_and_arms(store: Store):
    warehouse = Warehouse(store.warehouse)
    rows, written = write_overview(store, warehouse, ("md",))
    table = pd.read_csv(written[-1])
    keys = ["model", "precision", "platform", "sme2"]
    sessions = table[[*keys]].drop_duplicates().apply(tuple, axis=1).tolist()
    assert set(sessions) == {
        *(
            ("toy_cnn", "fp32", platform, sme2)
            for platform in ("linux", "emulated")
            for sme2 in ("off", "on")
        ),
        ("toy_cnn", "int8", "linux", "off"),
    }
    for _, of_run in table.groupby("run_id"):
        emulated = (of_run["fidelity"] == "emulated").all()
        assert of_run["mean_ms"].isna().all() if emulated else of_run["share"].sum() == pytest.approx(1)
    timed, counted = (
        picture.spec["data"]["values"]
        for picture in overview_document(warehouse, rows, lambda row: None).sections[0].blocks[4:6]
    )
    assert len({row["arm"] for row in timed}) == 3
    assert sum(row["amount"] for row in timed) == pytest.approx(
        table["mean_ms"].clip(lower=0).sum(), abs=1e-3
    )
    assert {row["arm"] for row in counted} == {
        f"toy_cnn-fp32, emulated, SME2 {sme2}" for sme2 in ("off", "on")
    }
    on_unit = [row for row in counted if row.get("where") == "on the SME unit"]
    assert (
        sum(row["amount"] for row in on_unit)
        == table[table["fidelity"] == "emulated"]["sme2_operators"].sum()
    )


def test_another_thread_count_or_device_is_a_row_of_its_own(tmp_path: Path):
    made = Store(tmp_path)
    warehouse = Warehouse(made.warehouse)
    alone = [
        MadeRun(session_id=f"s{number}", sequence=number, rounds=1, iterations=1, **differing)
        for number, differing in enumerate(({}, {"threads": 4}, {"device": "another"}, {"threads": 4}))
    ]
    ingest(warehouse, *(run.write(made.runs) for run in alone))
    warehouse.publish()
    rows, _ = write_overview(made, warehouse)
    assert list(zip(rows["device"], rows["threads"], strict=True)) == [
        ("a-cpu-0a1b2c", 1),
        ("a-cpu-0a1b2c", 4),
        ("another", 1),
    ]
    page = made.reports / "some" / "report.html"
    chosen = str(rows["session_id"].iloc[0])
    rows, [_, written, *_] = write_overview(made, warehouse, folder=made.reports, pages={chosen: page})
    assert rows["session_id"].tolist() == [chosen]
    assert "some/report.html" not in written.read_text(), "a page that is not there is not linked"


def test_report_all_writes_the_overview_and_the_pages_it_leads_to(store: Store):
    shown = sme2(store, "report", "--all").stdout
    assert shown.splitlines()[0].startswith("1 model in 2 variants on 2 platforms: ")
    assert shown.splitlines()[1:] == [f"overview: {(store.reports / 'index.html').as_uri()}"]
    text = (store.reports / "index.md").read_text()
    assert f"[{VARIANT}]({VARIANT}/linux/a-cpu-0a1b2c-t1/report.html)" in text
    page = (store.reports / "index.html").read_text()
    links = [link for link in parsed(page).links if link.endswith("report.html")]
    assert len(links) == 3
    assert all((store.reports / link).is_file() for link in links)
    pages = {link: (store.reports / link).stat().st_mtime_ns for link in links}
    told = json.loads(sme2(store, "report", "--all", "--json").stdout)
    assert [row["verdict"] for row in told] == ["not comparable", "faster", None]
    assert {link: (store.reports / link).stat().st_mtime_ns for link in links} == pages, "they are up to date"


def test_a_report_is_written_in_the_format_asked_for_and_opened(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    opened = tmp_path / "opened"
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" >> {opened}\n')
    browser.chmod(0o755)
    monkeypatch.setenv("BROWSER", str(browser))
    words = ("report", VARIANT, "--platform", "linux", "--format", "html")
    [page] = (store.reports / VARIANT / "linux").glob("*/report.html")
    page.unlink(missing_ok=True)
    [told] = json.loads(sme2(store, *words, "--open", "--json").stdout)
    assert opened.read_text().strip() == page.as_uri()
    assert (told["verdict"], told["files"]) == ("faster", [str(page)])


@pytest.mark.parametrize(
    "words", [(), (VARIANT, "--all"), ("--all", "--platform", "linux"), (VARIANT, "--open", "--format", "md")]
)
def test_what_makes_no_sense_is_refused(store: Store, words: tuple[str, ...]):
    assert "Usage:" in sme2(store, "report", *words, code=2).output


def test_the_overview_asset_shows_what_it_wrote(store: Store):
    with dg.instance_for_test() as instance:
        lab = Lab(data_root=str(store.root))
        made = dg.materialize([overview], resources={"lab": lab}, instance=instance)
        [event] = made.asset_materializations_for_node("overview")
    assert event.metadata["html"].value == str(store.reports / "index.html")
    assert "1 faster" in str(event.metadata["overview"].value)
