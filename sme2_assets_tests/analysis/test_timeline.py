from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sme2_assets.analysis.conservation import LONGEST_INFERENCE_NS
from sme2_assets.analysis.timeline import execute_durations, timeline_rows
from sme2_assets.errors import TraceError
from sme2_assets.etdump import read_etdump
from sme2_assets.models.artifact import ExportedModel
from sme2_assets.runner.build import RunnerBinary
from sme2_assets_tests.made.build_trace import Block, Profile
from sme2_assets_tests.made.traces import Call, Delegate, Portable, inference, sound, trace

CONV = "Convolution (NHWC, F32) IGEMM #1"
SME2_CONV = "Convolution (NHWC, PF32) IGEMM #1"
TRANSPOSE = "Transpose (ND, X32) #1"
MEAN = "native_call_mean.out"

nanoseconds = st.integers(0, 10**7)
delegates = st.builds(
    Delegate,
    st.lists(
        st.tuples(st.sampled_from([CONV, SME2_CONV, TRANSPOSE, "Nobody Knows (NC) #1"]), nanoseconds),
        max_size=5,
    ),
    nanoseconds,
)
portables = st.builds(
    Portable, st.sampled_from([MEAN, "native_call_cumsum.out", None]), nanoseconds, nanoseconds
)
calls = st.lists(st.one_of(delegates, portables), max_size=6)


def totals(rows: pd.DataFrame) -> list[int]:
    return rows.groupby("iteration")["duration_ns"].sum().tolist()


def one(rows: pd.DataFrame, **wanted: object) -> pd.Series:
    for column, value in wanted.items():
        rows = rows[rows[column] == value]
    assert len(rows) == 1, rows
    return rows.iloc[0]


@settings(max_examples=60)
@given(
    st.lists(st.tuples(calls, st.integers(0, 10**9), st.integers(0, 2**40)), min_size=1, max_size=4),
    st.integers(0, 5),
)
def test_the_rows_of_every_inference_add_up_to_its_execution(inferences, warmup):
    inferences = [(*sound(made, spare_ns), start_ns) for made, spare_ns, start_ns in inferences]
    events = trace(*(inference(*each) for each in inferences))
    rows = timeline_rows(events, warmup)
    assert totals(rows) == execute_durations(events).tolist() == [each[1] for each in inferences]
    assert (rows["is_warmup"] == (rows["iteration"] < warmup)).all()
    for number, (made, _, _) in enumerate(inferences):
        of_inference = rows[rows["iteration"] == number]
        # A call without rows is an operator itself.
        expected = sum(max(len(call.operators), 1) if isinstance(call, Delegate) else 1 for call in made)
        assert (of_inference["kind"] == "operator").sum() == expected
        assert (of_inference["kind"] == "framework_overhead").sum() == 1
        assert (of_inference["kind"] == "delegate_overhead").sum() == sum(
            isinstance(call, Delegate) for call in made
        )


@settings(max_examples=60)
@given(calls, st.integers(0, 10**9))
def test_an_operator_is_identified_by_backend_delegate_and_position(made, spare_ns):
    operators = timeline_rows(trace(inference(*sound(made, spare_ns))), 0).query("kind == 'operator'")
    assert not operators.duplicated(["backend", "delegate", "position"]).any()


def test_the_longest_inference_that_is_believed_adds_up_to_the_nanosecond():
    longest = LONGEST_INFERENCE_NS
    parts = [Delegate([(CONV, longest - 7), (CONV, 2)], longest - 2)]
    rows = timeline_rows(trace(inference(parts, longest)), 0)
    assert totals(rows) == [longest]
    assert one(rows, kind="delegate_overhead")["duration_ns"] == 3
    with pytest.raises(TraceError, match="which no inference does"):
        timeline_rows(trace(inference(parts, longest + 1)), 0)


def test_overhead_that_rounding_makes_negative_is_kept():
    # Two operators of 1.6 us each are reported as 2 us, more than the call took.
    rows = timeline_rows(trace(inference([Delegate([(CONV, 2000), (TRANSPOSE, 2000)], 3300)], 4000)), 0)
    assert one(rows, kind="delegate_overhead")["duration_ns"] == -700
    assert one(rows, kind="framework_overhead")["duration_ns"] == 700
    assert totals(rows) == [4000]


def test_an_operator_call_without_kernel_is_an_unknown_operator():
    rows = timeline_rows(trace(inference([Portable(None, 0, 900), Portable(MEAN, 500, 800)], 2000)), 0)
    nameless = one(rows, name="OPERATOR_CALL")
    assert (nameless["backend"], nameless["duration_ns"], nameless["position"]) == ("portable", 900, 0)
    assert (nameless["category"], nameless["known"]) == ("Other", False)
    named = one(rows, name=MEAN)
    assert (named["duration_ns"], named["position"], named["known"]) == (500, 1, True)
    # 300 ns of the second call are not its kernel's.
    assert one(rows, kind="framework_overhead")["duration_ns"] == 2000 - 900 - 500


def test_a_delegate_call_without_rows_is_an_unknown_operator_and_no_overhead():
    made = [Delegate([(CONV, 2000)], 3000), Delegate([], 640_000), Portable(MEAN, 500, 800)]
    rows = timeline_rows(trace(inference(made, 650_000)), 0)
    opaque = one(rows, name="DELEGATE_CALL")
    assert (opaque["kind"], opaque["backend"], opaque["duration_ns"]) == (
        "operator",
        "other delegate",
        640_000,
    )
    assert (opaque["delegate"], opaque["position"]) == (1, 0)
    assert (opaque["category"], opaque["known"], opaque["sme2_evidence"]) == ("Other", False, "none")
    overhead = rows[rows["kind"] == "delegate_overhead"].set_index("delegate")["duration_ns"]
    assert overhead.to_dict() == {0: 1000, 1: 0}
    assert totals(rows) == [650_000]


def test_operators_of_several_delegates_keep_their_delegate_and_position():
    first = Delegate([(CONV, 1000), (TRANSPOSE, 2000)], 3500)
    second = Delegate([(CONV, 4000)], 4100)
    rows = timeline_rows(trace(inference([first, Portable(MEAN, 50, 60), second], 9000)), 0)
    conv = rows[rows["name"] == CONV]
    assert conv[["delegate", "position", "duration_ns"]].to_numpy().tolist() == [[0, 0, 1000], [1, 0, 4000]]
    transpose = one(rows, name=TRANSPOSE)
    assert (transpose["delegate"], transpose["position"]) == (0, 1)
    overhead = rows[rows["kind"] == "delegate_overhead"]
    assert overhead[["delegate", "duration_ns"]].to_numpy().tolist() == [[0, 500], [1, 100]]


def test_portable_operators_are_counted_anew_in_every_inference():
    made: list[Call] = [Portable(MEAN, 5, 9), Delegate([(CONV, 5)], 9), Portable(MEAN, 6, 9)]
    rows = timeline_rows(trace(*(inference(made, 100) for _ in range(3))), 0)
    portable = rows[rows["backend"] == "portable"].sort_values(["iteration", "position"])
    assert portable["position"].tolist() == [0, 1] * 3
    assert portable["delegate"].isna().all()
    assert portable["duration_ns"].tolist() == [5, 6] * 3


def test_loading_is_no_part_of_the_timeline():
    rows = timeline_rows(trace(inference([], 10)), 0)
    assert rows["name"].tolist() == ["Framework overhead"]
    assert rows["iteration"].tolist() == [0]


def test_an_inference_that_died_is_no_part_of_the_timeline():
    died = inference([Delegate([(CONV, 1000)], 1500)], 3000)
    died.events = died.events[:-1]
    rows = timeline_rows(trace(died, inference([Delegate([(CONV, 700)], 800)], 900)), 0)
    assert totals(rows) == [900]


def test_a_trace_without_inferences_gives_no_rows():
    assert timeline_rows(trace(), 0).empty


def test_warm_up_inferences_are_flagged():
    rows = timeline_rows(trace(*(inference([Delegate([(CONV, 5)], 9)], 20) for _ in range(3))), 2)
    assert rows.groupby("iteration")["is_warmup"].unique().map(list).tolist() == [[True], [True], [False]]


def test_starts_count_from_the_start_of_the_inference():
    made: list[Call] = [Portable(MEAN, 50, 60), Delegate([(CONV, 1000), (TRANSPOSE, 2000)], 3500)]
    rows = timeline_rows(trace(inference(made, 9000, start_ns=77_000)), 0)
    assert one(rows, name=MEAN)["start_ns"] == 0
    assert one(rows, name=CONV)["start_ns"] == 60
    assert one(rows, name=TRANSPOSE)["start_ns"] == 1060
    assert rows[rows["kind"] != "operator"]["start_ns"].isna().all()


def test_names_decide_category_type_and_evidence():
    made = [Delegate([(SME2_CONV, 5), (TRANSPOSE, 5)], 10), Portable("native_call_addmm.out", 5, 5)]
    rows = timeline_rows(trace(inference(made, 30)), 0)
    conv = one(rows, name=SME2_CONV)
    assert (conv["op_type"], conv["data_type"]) == ("Convolution", "PF32")
    assert (conv["category"], conv["backend"], conv["sme2_evidence"]) == ("CONV", "xnnpack", "name")
    assert one(rows, name=TRANSPOSE)["sme2_evidence"] == "none"
    assert one(rows, name="native_call_addmm.out")["category"] == "GEMM"
    overhead = rows[rows["kind"] != "operator"]
    assert overhead["category"].isna().all()
    assert overhead["op_type"].isna().all()
    assert (overhead["backend"] == "framework").all()


def test_unknown_names_are_other_and_counted():
    made = [Delegate([("Frobnicate (NC, F32) #1", 5)], 10), Portable("native_call_frobnicate.out", 5, 5)]
    rows = timeline_rows(trace(inference(made, 30), inference(made, 30)), 0)
    unknown = rows[~rows["known"]]
    assert len(unknown) == 4
    assert (unknown["category"] == "Other").all()


def test_two_executions_in_one_block_are_refused():
    block = inference([], 10)
    twice = Block("Execute", [*block.events, Profile("Method::execute", 2_000_000, 2_000_010, chain=-1)])
    with pytest.raises(TraceError, match="more than one Method::execute"):
        timeline_rows(trace(twice), 0)


@pytest.mark.parametrize("variant", ["toy_cnn-fp32", "toy_cnn-int8"])
def test_a_real_trace_adds_up_to_the_nanosecond(
    variant: str,
    exported: Callable[[str], ExportedModel],
    runner_binary: RunnerBinary,
    tmp_path: Path,
):
    model = exported(variant)
    subprocess.run(
        [
            *(runner_binary.path, "--model", model.pte, "--input", model.inputs[0], "--pass", "etdump"),
            *("--warmup", "2", "--iterations", "5", "--threads", "1", "--result", tmp_path / "result.json"),
            *("--outputs", tmp_path / "outputs", "--etdump", tmp_path / "trace.etdump"),
        ],
        check=True,
        capture_output=True,
    )
    events = read_etdump(tmp_path / "trace.etdump")
    rows = timeline_rows(events, 0)
    assert totals(rows) == execute_durations(events).tolist()
    assert len(totals(rows)) == 5, "the warm-up is not traced"
    assert rows.groupby("iteration").size().nunique() == 1
    assert rows["known"].all()
    # The model has both kinds of operators.
    assert set(rows["backend"]) == {"xnnpack", "portable", "framework"}
    assert (rows[rows["backend"] == "portable"]["name"] == MEAN).any()
    delegate_overhead = rows[rows["kind"] == "delegate_overhead"]["duration_ns"]
    operators = (rows["kind"] == "operator").sum() / 5
    assert (delegate_overhead >= -1000 * operators).all()
    assert (rows[rows["kind"] == "framework_overhead"]["duration_ns"] >= 0).all()
    assert np.issubdtype(rows["duration_ns"].dtype, np.integer)
