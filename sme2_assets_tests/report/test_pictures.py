"""What is drawn is what the warehouse says: sums, medians, differences; and no time that means nothing."""

from __future__ import annotations

import base64
import json
import re
import subprocess
import sys
import tempfile
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sme2_assets.report.document import Document, Picture, Section
from sme2_assets.report.explain import explain
from sme2_assets.report.glance import category_glance
from sme2_assets.report.html import html_of
from sme2_assets.report.markdown import markdown_report
from sme2_assets.report.pictures import drawing
from sme2_assets.report.pictures.chart import (
    coloured,
    data_uri_markdown,
    inline_svg,
    library,
    lite,
    named,
    number,
    svg,
    vega,
)
from sme2_assets.report.pictures.drawing import MOST_BYTES, NotDrawnError
from sme2_assets.report.pictures.drawing import drawn as drawn_svg
from sme2_assets.report.pictures.graph import _lay_out, graph_pictures, graph_rows, graph_spec
from sme2_assets.report.pictures.modules import icicle_rows, module_pictures
from sme2_assets.report.pictures.overview import overview_pictures
from sme2_assets.report.pictures.rounds import (
    history_spec,
    ratios_of,
    round_pictures,
    rounds_of,
    speedup_pictures,
)
from sme2_assets.report.pictures.status import COLOURS, MISSED, ON_UNIT, OUTSIDE, status_scales
from sme2_assets.report.pictures.style import CATEGORIES, luminance
from sme2_assets.report.pictures.work import (
    LEFT,
    MOST_STEPS,
    category_pictures,
    category_spec,
    inference_of,
    intensity_of,
    roofline_pictures,
    roofline_rows,
    timeline_pictures,
    waterfall_rows,
)
from sme2_assets.warehouse import Warehouse
from sme2_assets_tests.claims.test_claims import operators
from sme2_assets_tests.claims.zoo import random_warehouse
from sme2_assets_tests.made.run_folder import MadeRun, ingest
from sme2_assets_tests.warehouse.made_operators import made_warehouse
from sme2_assets_tests.warehouse.newest import newest_session

NO_TENSORS = pd.DataFrame(columns=["backend", "delegate", "position", "reads", "writes"])


def rows(warehouse: Warehouse, view: str, platform: str = "linux", sme2: str = "on") -> pd.DataFrame:
    return warehouse.query(
        f"FROM {view} WHERE platform = ? AND sme2 = ? AND variant IN ('made-fp32', 'toy_cnn-fp32')",
        [platform, sme2],
    )


def drawn(picture: Any) -> list[dict[str, Any]]:
    return list(picture.spec["data"]["values"])


@settings(max_examples=6, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(operators, st.sampled_from(["hardware", "emulated", "reference"]))
def test_boxes_of_modules_are_as_wide_as_the_warehouse_says(ops: list[Any], fidelity: str):
    with tempfile.TemporaryDirectory() as folder:
        warehouse = random_warehouse(Path(folder), ops, fidelity, "both")
        [run_id] = warehouse.query("SELECT run_id FROM runs WHERE sme2 = 'on'")["run_id"]
        modules, facts = (
            warehouse.query(f"FROM {view} WHERE run_id = ?", [run_id])
            for view in ("module_summary", "bottlenecks")
        )
        check_icicle(modules, facts, "mean_ns" if fidelity == "hardware" else "macs")


def check_icicle(modules: pd.DataFrame, facts: pd.DataFrame, column: str) -> None:
    boxes = icicle_rows(modules, facts)
    per = 1e6 if column == "mean_ns" else 1
    whole = float(modules.loc[modules["depth"] == 0, column].fillna(0).iloc[0]) / per
    if whole == 0:
        assert boxes == []
        return
    assert boxes[0]["end"] == pytest.approx(whole)
    told = modules.set_index("module")[column].fillna(0) / per
    for box in boxes[1:]:
        if box["path"] in told.index:
            assert box["end"] - box["start"] == pytest.approx(max(told[box["path"]], 0), abs=1e-9), box[
                "path"
            ]
    # Each box holds the boxes below it, and the lowest ones fill the whole.
    leaves = [
        box for at, box in enumerate(boxes) if at + 1 == len(boxes) or boxes[at + 1]["depth"] <= box["depth"]
    ]
    assert sum(box["end"] - box["start"] for box in leaves) == pytest.approx(whole)
    for before, after in pairwise(leaves):
        assert after["start"] == pytest.approx(before["end"])


@pytest.mark.parametrize(("platform", "column"), [("linux", "mean_ns"), ("emulated", "macs")])
@pytest.mark.parametrize("sme2", ["off", "on"])
def test_modules_of_a_network_add_up(platform: str, column: str, sme2: str):
    made = made_warehouse()
    check_icicle(
        rows(made, "module_summary", platform, sme2), rows(made, "bottlenecks", platform, sme2), column
    )


def test_the_colours_of_modules_tell_where_they_run():
    made = made_warehouse()
    boxes = icicle_rows(rows(made, "module_summary"), rows(made, "bottlenecks"))
    kinds = {box["kind"] for box in boxes}
    assert {ON_UNIT, MISSED, OUTSIDE} <= kinds
    off = icicle_rows(rows(made, "module_summary", sme2="off"), rows(made, "bottlenecks", sme2="off"))
    assert not {ON_UNIT, MISSED} & {box["kind"] for box in off}, "nothing is said of the unit"


savings = st.lists(
    st.tuples(st.one_of(st.none(), st.integers(0, 900)), st.one_of(st.none(), st.integers(0, 900))),
    min_size=1,
    max_size=2 * MOST_STEPS,
)


def comparison(pairs: list[tuple[int | None, int | None]], off: int, on: int, **model: Any) -> pd.DataFrame:
    common = {"fidelity": "hardware", "verdict": "faster"}
    operators = [
        {**common, "level": "operator", "a_name": f"op {at}", "b_name": f"op {at}"}
        | {"a_ns": None if a is None else 1e3 * a, "b_ns": None if b is None else 1e3 * b}
        for at, (a, b) in enumerate(pairs)
    ]
    return pd.DataFrame(
        [{**common, "level": "model", "a_ns": 1e3 * off, "b_ns": 1e3 * on, **model}, *operators]
    )


@given(savings, st.integers(1, 90_000), st.integers(1, 90_000))
def test_the_steps_of_the_waterfall_add_up_to_the_difference_of_the_medians(pairs: Any, off: int, on: int):
    first, *steps, last = waterfall_rows(comparison(pairs, off, on))
    assert (first["end"], last["end"]) == (off / 1e3, on / 1e3)
    assert sum(step["saved"] for step in steps) == pytest.approx((off - on) / 1e3)
    assert steps[-1]["step"] == LEFT
    assert steps[-1]["end"] == pytest.approx(last["end"])
    assert sum(step["saved"] for step in steps[:-1]) == pytest.approx(
        sum((a or 0) - (b or 0) for a, b in pairs) / 1e3
    )
    named = [step["saved"] for step in steps[:-1] if step["step"].startswith("op ")]
    assert named == sorted(named, reverse=True)
    assert len(steps) <= MOST_STEPS + 1


def test_there_is_no_waterfall_of_what_does_not_compare():
    pairs = [(5, 3), (None, 1)]
    assert waterfall_rows(comparison(pairs, 9, 5)) != []
    for fidelity in ("emulated", "reference"):
        assert waterfall_rows(comparison(pairs, 9, 5).assign(fidelity=fidelity)) == []
    assert waterfall_rows(comparison(pairs, 9, 5, verdict="not comparable")) == []
    assert waterfall_rows(comparison(pairs, 9, 5)[:1]) == [], "and none without operators"


def test_the_waterfall_of_a_pair_is_that_of_its_rows(paired: Warehouse):
    session = newest_session(paired, "toy_cnn-fp32", "linux")
    compared = paired.query("FROM comparisons WHERE session_id = ?", [session])
    first, *steps, last = waterfall_rows(compared)
    summary = paired.query(
        "SELECT sme2, median_ns / 1e6 AS ms FROM latency_summary WHERE session_id = ?", [session]
    )
    medians = summary.set_index("sme2")["ms"]
    assert (first["end"], last["end"]) == pytest.approx((medians["off"], medians["on"]))
    assert first["end"] - sum(step["saved"] for step in steps) == pytest.approx(last["end"])


def test_rounds_are_those_of_the_warehouse_with_their_interval(paired: Warehouse):
    session = newest_session(paired, "toy_cnn-fp32", "linux")
    runs = paired.query("SELECT run_id, sme2 FROM runs WHERE session_id = ?", [session])
    rounds = rounds_of(paired, runs["run_id"].tolist())
    for run_id, sme2 in runs.itertuples(index=False):
        told = paired.query(
            "SELECT round + 1 AS round, median_ns / 1e6 AS ms FROM latency_rounds WHERE run_id = ?", [run_id]
        )
        drawn_medians = rounds[rounds["sme2"] == sme2].set_index("round")["median"]
        assert drawn_medians.to_dict() == pytest.approx(told.set_index("round")["ms"].to_dict())
    [model] = paired.query("FROM comparisons WHERE session_id = ? AND level = 'model'", [session]).to_dict(
        "records"
    )
    *_, ratios = round_pictures(rounds, model)
    band = ratios.spec["layer"][0]["data"]["values"][0]
    assert (band["speedup_low"], band["speedup_high"]) == (model["speedup_low"], model["speedup_high"])
    assert len(ratios_of(rounds)) == model["n"]


def test_disturbed_rounds_are_marked(paired: Warehouse):
    run_ids = paired.query("SELECT run_id FROM runs WHERE platform = 'linux'")["run_id"].tolist()
    rounds = rounds_of(paired, run_ids)
    rounds["disturbed"] = (rounds["sme2"] == "off") & (rounds["round"] == 2)
    off, on = round_pictures(rounds, None)
    assert [row["round"] for row in drawn(off) if row["state"] == "disturbed"] == [2]
    crosses = [svg(picture.spec, "").count("\u2715") for picture in (off, on)]
    assert crosses == [1, 0]
    assert ratios_of(rounds)["disturbed"].sum() == 1, "one arm is enough"


def test_one_inference_is_a_traced_one_in_order(paired: Warehouse):
    run_id = paired.query("SELECT run_id FROM runs WHERE platform = 'linux' AND sme2 = 'on'")["run_id"].item()
    inference = inference_of(paired, run_id)
    [execute_ns] = set(inference["execute_ns"])
    traced = paired.query(
        "SELECT execute_ns FROM inferences WHERE run_id = ? AND pass = 'etdump' AND NOT is_warmup", [run_id]
    )["execute_ns"]
    assert abs(execute_ns - traced.median()) == (traced - traced.median()).abs().min()
    [picture] = timeline_pictures([inference])
    bars = drawn(picture)
    assert [bar["start"] for bar in bars] == sorted(bar["start"] for bar in bars)
    assert sum(bar["ms"] for bar in bars) == pytest.approx(inference["duration_ns"].sum() / 1e6)
    assert max(bar["end"] for bar in bars) <= execute_ns / 1e6 + 1e-9


def test_the_roofline_has_the_rates_of_the_warehouse_and_bytes_by_hand(paired: Warehouse):
    both = pd.concat([rows(paired, "bottlenecks", sme2=sme2) for sme2 in ("off", "on")])
    told = {(row["sme2"], row["name"], row["gops"]) for row in both.to_dict("records")}
    points = roofline_rows(both)
    assert points
    assert all((point["place"][0], point["name"], point["gops"]) in told for point in points)
    [picture] = roofline_pictures(both)
    assert "No roofs are drawn" in picture.caption
    middle = sorted(point["intensity"] for point in points)[len(points) // 2]
    [roofed] = roofline_pictures(both, (20.0 * middle, 20.0))
    assert "SME unit may exceed it" in roofed.caption
    rise, ridge, flat = roofed.spec["layer"][0]["data"]["values"]
    assert rise["gops"] == pytest.approx(20.0 * rise["intensity"])
    assert ridge == {"intensity": pytest.approx(middle), "gops": pytest.approx(flat["gops"])}
    operator = {
        "data_type": "PQS8, QS8, QC8W",
        "node_kind": "XNNConv2d",
        "input_shape": "1x8x8x4",
        "output_shape": "1x8x8x16",
        "macs": 8 * 8 * 16 * 9 * 4,
    }
    # 256 bytes in, 1024 out, 3 x 3 x 4 x 16 weights.
    assert intensity_of(operator) == pytest.approx(2 * 36_864 / (256 + 1024 + 576))
    assert intensity_of({**operator, "data_type": "F32, QC8W"}) is None, "bytes are not known"
    assert intensity_of({**operator, "macs": None}) is None
    product = {
        **operator,
        "data_type": "F32",
        "node_kind": "XNNBatchMatrixMultiply",
        "input_shape": "6x5x7",
        "output_shape": "6x5x9",
        "macs": 6 * 5 * 9 * 7,
    }
    assert intensity_of(product) == pytest.approx(2 * 1890 / (4 * (6 * 5 * 7 + 6 * 7 * 9 + 6 * 5 * 9)))


@pytest.mark.parametrize("fidelity", ["emulated", "reference"])
def test_no_time_is_drawn_that_means_nothing(paired: Warehouse, fidelity: str):
    """Neither an emulator's times nor those of another instruction set: nothing changes with them."""
    made = made_warehouse()
    modules, facts, categories = (
        rows(made, view).assign(fidelity=fidelity, arch="x86_64")
        for view in ("module_summary", "bottlenecks", "category_summary")
    )
    if fidelity == "reference":
        categories[["sme2_operators", "sme2_unknown_operators"]] = None
    assert roofline_pictures(facts) == []
    pictures = [
        *module_pictures(modules, facts),
        *category_pictures(categories),
        *graph_pictures(facts, NO_TENSORS),
    ]
    assert len(pictures) == 3
    slower = [frame.copy() for frame in (modules, facts, categories)]
    for frame in slower:
        times = [name for name in frame if name.endswith("_ns") or name in ("share", "gops")]
        frame[times] = frame[times] * 7 + 3
    again = [
        *module_pictures(slower[0], slower[1]),
        *category_pictures(slower[2]),
        *graph_pictures(slower[1], NO_TENSORS),
    ]
    assert [picture.spec for picture in again] == [picture.spec for picture in pictures]
    text = json.dumps([picture.spec for picture in pictures])
    assert not re.search(r"\bms\b", text)
    if fidelity == "reference":
        said = " ".join(f"{each.title} {each.caption} {json.dumps(each.spec)}" for each in pictures)
        assert "SME" not in said
    run_ids = paired.query("SELECT run_id FROM runs WHERE platform = 'emulated'")["run_id"].tolist()
    assert round_pictures(rounds_of(paired, run_ids), None) == []
    assert timeline_pictures([inference_of(paired, run_id) for run_id in run_ids]) == []
    compared = paired.query("FROM comparisons WHERE platform = 'emulated'")
    assert speedup_pictures(compared.assign(speedup_low=1.0), 1.02) == []


def test_bars_of_categories_are_as_long_as_the_warehouse_says(paired: Warehouse):
    times = rows(paired, "category_summary")
    bars = category_spec(times)["data"]["values"]
    assert {bar["category"]: bar["amount"] * 1e6 for bar in bars} == pytest.approx(
        times.set_index("category")["mean_ns"].clip(lower=0).to_dict()
    )
    counted = rows(paired, "category_summary", "emulated")
    bars = category_spec(counted)["data"]["values"]
    assert sum(bar["amount"] for bar in bars) == counted["operators"].sum()
    on = sum(bar["amount"] for bar in bars if bar["where"] == "on the SME unit")
    assert on == counted["sme2_operators"].sum() > 0


def check_layers(boxes: list[dict[str, Any]], edges: list[dict[str, Any]]) -> None:
    assert all(boxes[edge["from"]]["layer"] < boxes[edge["to"]]["layer"] for edge in edges)
    places = [(box["layer"], box["lane"]) for box in boxes]
    assert len(set(places)) == len(places), "no box covers another"


def test_a_graph_of_which_nothing_tells_is_in_the_order_of_the_run(paired: Warehouse):
    facts = rows(paired, "bottlenecks")
    boxes, edges, flows = graph_rows(facts, NO_TENSORS)
    assert not flows
    assert [box["name"] for box in boxes] == facts.sort_values("execution_order")["name"].tolist()
    assert len(edges) == len(boxes) - 1
    check_layers(boxes, edges)
    [picture] = graph_pictures(facts, NO_TENSORS)
    assert "does not say which reads from which" in picture.caption


@given(st.lists(st.lists(st.integers(0, 30), max_size=3), min_size=1, max_size=12), st.randoms())
def test_edges_are_what_flows_between_operators(reads: list[list[int]], random: Any):
    """Of any program: operator n writes tensor n, and reads some that were written before it, and inputs."""
    places = [{"backend": "xnnpack", "delegate": 0, "position": n} for n in range(len(reads))]
    tensors = [
        {
            **place,
            "writes": [f"t{n}"],
            "reads": [f"t{each}" if each < n else f"input {each}" for each in given],
        }
        for n, (place, given) in enumerate(zip(places, reads, strict=True))
    ]
    common = {
        "op_type": "Add",
        "module": None,
        "category": "Elementwise",
        "sme2": "on",
        "node_kind": "XNNAdd",
        "edge_ops": [],
    }
    common |= {"fidelity": "hardware", "input_shape": None, "output_shape": None, "macs": None}
    facts = [
        {**place, **common, "name": f"op {n}", "execution_order": n + 1} for n, place in enumerate(places)
    ]
    random.shuffle(facts)
    boxes, edges, flows = graph_rows(pd.DataFrame(facts), pd.DataFrame(tensors))
    assert flows
    expected = {(each, n) for n, given in enumerate(reads) for each in given if each < n}
    assert {(edge["from"], edge["to"]) for edge in edges} == expected
    check_layers(boxes, edges)


def test_a_label_is_as_long_as_its_box_and_a_narrow_box_has_none():
    # One operator, 25 side by side that read what it writes, and two that read what one of these writes.
    sources = [None, *[0] * 25, 1, 1]
    boxes = [
        {"id": at, "label": f"Kind{at}" + "y" * 200, "kind": OUTSIDE, "name": "", "module": ""}
        for at in range(len(sources))
    ]
    edges = [(source, at) for at, source in enumerate(sources) if source is not None]
    _lay_out(boxes, edges)
    still = svg(graph_spec(boxes, [{"from": start, "to": end} for start, end in edges]), "")
    labels = re.findall(">([^<>]*)\u2026<", still)
    assert [label.rstrip("y") for label in labels] == ["Kind0", "Kind26", "Kind27"]
    assert 40 < len(labels[1]) == len(labels[2]) < len(labels[0]) < 200


def test_a_legend_beside_long_names_is_whole_on_a_phone():
    phone = 358
    rows = [{"where": name, "share": 1, "model": "mobilenet_v3_small-fp32"} for name in COLOURS]
    encoding = {"y": named("model"), "x": number("share"), "color": coloured("where", COLOURS, rows)}
    spec = lite(rows, 100, [{"mark": "bar"}], encoding=encoding)
    spec |= {"width": phone, "params": [{"name": "narrow", "value": True}]}
    still = svg(spec, "")
    names_end = float(re.search(r"<g [^>]*translate\((\d+)", still)[1])
    legend = float(re.search(r'role-legend".*?<path class="background"[^>]* d="M0,0h([\d.]+)', still)[1])
    assert names_end > phone / 3
    assert names_end + legend <= phone


def test_a_picture_that_would_never_be_drawn_is_given_up(monkeypatch: pytest.MonkeyPatch):
    endless = f"test(/(a+)+$/, '{'a' * 60}!')"
    with monkeypatch.context() as patch:
        patch.setattr(drawing, "MOST_SECONDS", 1)
        with pytest.raises(NotDrawnError, match="takes more than 1 seconds"):
            drawn_svg(vega(10, signals=[{"name": "endless", "update": endless}]))
    assert drawn_svg(vega(10)).startswith("<svg ")


NO_LETTER = {"type": "text", "encode": {"enter": {"text": {"value": "\0"}}}}
UNDRAWABLE = {
    "too much to show": vega(10, usermeta="x" * MOST_BYTES),
    "the renderer failed": {**vega(10), "marks": [NO_LETTER]},
}


@pytest.mark.parametrize("why", UNDRAWABLE)
def test_a_picture_that_cannot_be_drawn_costs_nothing_else(why: str):
    bad = Picture("bad", "A bad one", "", "", UNDRAWABLE[why])
    good = Picture("good", "A good one", "", "", vega(10))
    document = Document("a page", None, [Section("A section", [bad, good])])
    report, page = markdown_report(document), html_of(document)
    for text in (report.text, page):
        assert "A bad one" in text
        assert why in text
    assert list(report.pictures) == ["good.svg"]
    assert "bad.svg" not in report.text
    assert page.replace(library(), "").count("<svg ") == 1
    assert why in data_uri_markdown(bad.spec, "")


def test_the_overview_draws_what_unit_use_and_latency_summary_say(paired: Warehouse):
    sessions = paired.query("SELECT DISTINCT session_id FROM runs")["session_id"].tolist()
    work, latencies, *_ = overview_pictures(paired, sessions)
    told = paired.query("SELECT macs_on_unit FROM unit_use WHERE sme2 = 'on'")["macs_on_unit"].tolist()
    assert [row["share"] for row in drawn(work) if row["where"] == ON_UNIT] == pytest.approx(told)
    for name in {row["series"] for row in drawn(work)}:
        assert sum(row["share"] for row in drawn(work) if row["series"] == name) == pytest.approx(1)
    medians = paired.query(
        "SELECT median_ns / 1e6 AS ms FROM latency_summary WHERE fidelity = 'hardware' ORDER BY sme2"
    )
    assert [row["median"] for row in drawn(latencies)] == pytest.approx(medians["ms"].tolist())
    assert "emulated" not in {row["series"].split(", ")[1] for row in drawn(latencies)}


def test_the_overview_draws_other_settings_of_a_model_apart(warehouse: Warehouse, tmp_path: Path):
    small = MadeRun(sme2="on", rounds=1, iterations=1, paired=False)
    pinned = replace(small, cpus="4-7", session_id="20260102T000000-bbbbbb")
    ingest(warehouse, *(run.write(tmp_path) for run in (small, pinned)))
    warehouse.publish()
    for picture in overview_pictures(warehouse, [small.session_id, pinned.session_id]):
        names = {(row.get("series") or row["arm"]).removesuffix(", SME2 on") for row in drawn(picture)}
        assert names == {"toy_cnn-fp32, linux", "toy_cnn-fp32, linux, CPUs 4-7"}


def test_a_still_picture_is_the_same_every_time_and_dark_where_the_system_is(documents: dict[str, Any]):
    for picture in documents["faster"].pictures():
        once, again = (svg(picture.spec, picture.alternative) for _ in range(2))
        assert once == again, picture.name
        assert once.startswith('<svg role="img" aria-label=')
        assert "prefers-color-scheme:dark" in once
        assert not re.search(r'href="(?!#)|url\((?!#)|<script', once)
        assert all((picture.title, picture.caption, picture.alternative))


def test_the_ui_gets_the_picture_inline(paired: Warehouse):
    text = data_uri_markdown(category_spec(rows(paired, "category_summary")), "shift")
    assert text.startswith("![shift](data:image/svg+xml;base64,")


def test_a_history_is_drawn_with_the_night_it_became_slower():
    nights = pd.date_range("2026-01-01", periods=20, tz="UTC")
    history = pd.DataFrame({"started_at": nights, "median_ns": [1e6] * 10 + [2e6] * 10})
    assert "slower since" not in inline_svg(history_spec(history, []), "")
    assert "slower since" in inline_svg(history_spec(history, [nights[10]]), "")


def test_what_draws_is_loaded_only_to_draw():
    code = "import sys, sme2_assets.cli, sme2_assets.definitions; print('vl_convert' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith("False")


def test_explaining_a_session_and_drawing_it_agree(paired: Warehouse):
    explanation = explain(paired, newest_session(paired, "toy_cnn-fp32", "linux"))
    boxes = icicle_rows(explanation.modules, explanation.subject.bottlenecks)
    assert boxes[0]["operators"] == len(explanation.subject.bottlenecks)


def contrast(one: str, other: str) -> float:
    low, high = sorted(luminance(colour) for colour in (one, other))
    return (high + 0.05) / (low + 0.05)


def test_letters_on_a_colour_can_be_read():
    colour, letters = status_scales({"domain": list(COLOURS), "range": list(COLOURS.values())})
    for ground, ink in zip(colour["range"], letters["range"], strict=True):
        assert contrast(ground, ink) > 4.5
    rows = [
        {"sme2": "on", "category": name, "mean_ns": 1e6, "operators": 1, "fidelity": "hardware"}
        for name in CATEGORIES
    ]
    glance = category_glance(pd.DataFrame(rows).assign(sme2_operators=1, sme2_unknown_operators=0))
    drawn = base64.b64decode(glance.partition("base64,")[2].rstrip(")")).decode()
    words = {
        word: fill or "#000000"
        for fill, word in re.findall(r"<text x[^>]*?(?:fill='([^']+)')?>(\w+)<", drawn)
    }
    assert {"CONV", "GEMM"} <= words.keys()
    for word, ink in words.items():
        assert contrast(CATEGORIES[word], ink) > 4.5, word
