from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sme2_assets.analysis.paths import Paths
from sme2_assets.analysis.timeline import Timeline, timeline_rows
from sme2_assets.etdump import read_etdump, read_etdump_in_parts
from sme2_assets.warehouse import Warehouse
from sme2_assets_tests.made.run_folder import ingest, run_with_trace
from sme2_assets_tests.made.traces import Call, Delegate, Portable, inference, sound, trace, trace_bytes

MATRIX = "Fully Connected (NC, F32) GEMM #1"
MM = Portable("native_call_mm.out", 250_000, 251_000)
ADD = Portable("native_call_add.out", 1_000, 2_000)
ENCODE: list[Call] = [Delegate([(MATRIX, 40_000)], 41_000), MM]
DECODE: list[Call] = [ADD, Delegate([("Softmax (NC, F32) #1", 5_000), (MATRIX, 7_000)], 13_000)]


def test_two_methods_of_one_trace_do_not_share_places():
    """The first portable operator is `mm` of the one and `add` of the other."""
    events = trace(inference(ENCODE, 300_000), inference(DECODE, 20_000), inference(ENCODE, 300_000))
    assert Paths.of(events).of_inference.tolist() == [0, 1, 0]
    rows = timeline_rows(events, warmup=0)
    operators = rows[rows["kind"] == "operator"]
    places = operators.groupby(["backend", "delegate", "position"], dropna=False, observed=True)["name"]
    assert places.nunique().max() == 1
    assert len(places) == 5


@pytest.fixture
def of_two_methods(tmp_path: Path) -> Warehouse:
    warehouse = Warehouse(tmp_path / "warehouse")
    path = tmp_path / "two.etdump"
    blocks = [inference(ENCODE, 300_000), inference(DECODE, 20_000)]
    path.write_bytes(trace_bytes(*blocks, *blocks, blocks[1]))
    ingest(warehouse, run_with_trace(tmp_path / "runs", path))
    warehouse.publish()
    return warehouse


def test_every_operator_of_every_method_has_its_own_name_and_time(of_two_methods: Warehouse):
    rows = of_two_methods.query("SELECT name, median_ns, mean_ns, inferences FROM operator_summary")
    assert {tuple(row) for row in rows.itertuples(index=False)} == {
        (MATRIX, 40_000, 40_000, 2),
        ("native_call_mm.out", 250_000, 250_000, 2),
        ("native_call_add.out", 1_000, 1_000, 3),
        ("Softmax (NC, F32) #1", 5_000, 5_000, 3),
        (MATRIX, 7_000, 7_000, 3),
    }


def test_shares_and_categories_of_several_methods_still_add_up(of_two_methods: Warehouse):
    assert of_two_methods.query("SELECT paths FROM runs")["paths"].tolist() == [2]
    total = 2 * 300_000 + 3 * 20_000
    [shares] = of_two_methods.query("SELECT sum(share) FROM operator_summary").iloc[0]
    assert shares == pytest.approx((2 * 290_000 + 3 * 13_000) / total)
    categories = of_two_methods.query(
        "SELECT sum(mean_ns) AS mean_ns, sum(share) AS share FROM category_summary"
    )
    assert categories.iloc[0].tolist() == pytest.approx([total / 5, 1])


@settings(max_examples=50)
@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=6), st.data())
def test_a_place_stands_for_one_operator_whatever_the_inferences_do(order: list[str], data: st.DataObject):
    call = st.one_of(
        st.builds(Portable, st.sampled_from(["native_call_mm.out", None]), st.just(5), st.just(2)),
        st.builds(Delegate, st.lists(st.tuples(st.just(MATRIX), st.just(1000)), max_size=3), st.just(9)),
    )
    ways = {name: data.draw(st.lists(call, max_size=4), label=name) for name in "abc"}
    events = trace(*(inference(*sound(ways[name], 10)) for name in order))
    rows = timeline_rows(events, warmup=0)
    rows["path"] = Paths.of(events).of_inference[rows["iteration"]]
    operators = rows[rows["kind"] == "operator"]
    by_place = operators.groupby(["backend", "delegate", "position"], dropna=False, observed=True)
    assert (by_place["name"].nunique() <= 1).all()
    assert (by_place["path"].nunique() <= 1).all()
    assert not operators.duplicated(["iteration", "backend", "delegate", "position"]).any()


@settings(max_examples=30)
@given(st.lists(st.sampled_from([0, 1]), min_size=1, max_size=8), st.integers(1, 30))
def test_a_trace_in_parts_has_the_rows_of_the_whole(order: list[int], most_events: int):
    blocks = [inference(ENCODE, 300_000), inference(DECODE, 20_000)]
    data = trace_bytes(*(blocks[way] for way in order))
    whole = timeline_rows(read_etdump(data), warmup=2)
    timeline = Timeline(warmup=2)
    parts = [rows for _, rows in timeline.of_parts(read_etdump_in_parts(data, most_events))]
    places = ["iteration", "kind", "delegate", "position"]
    texts = dict.fromkeys(whole.select_dtypes("category"), "str")
    found, expected = (
        rows.astype(texts).sort_values(places, ignore_index=True) for rows in (pd.concat(parts), whole)
    )
    pd.testing.assert_frame_equal(found, expected, check_dtype=False)
    assert timeline.signatures == Paths.of(read_etdump(data)).signatures
    assert len(timeline.execute_ns) == len(order)
