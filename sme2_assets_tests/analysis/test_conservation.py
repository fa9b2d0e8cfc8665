"""Traces whose events cannot be parts of one another give no timeline, and say which event it is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sme2_assets.analysis.timeline import Timeline, timeline_rows
from sme2_assets.diagnostics.evidence_checks import trace_steps
from sme2_assets.diagnostics.steps import FAILED, Checkup
from sme2_assets.errors import TraceError
from sme2_assets.etdump import read_etdump, read_etdump_in_parts
from sme2_assets_tests.made.build_trace import Block, Profile, build_trace
from sme2_assets_tests.made.traces import Delegate, Portable, inference, trace

CONV, ADD = "Convolution (NHWC, F32) IGEMM #1", "Add (ND) #1"
MEAN = "native_call_mean.out"


def sound() -> list[Profile]:
    """CONV, ADD, their call, a kernel, its call, Method::execute."""
    calls = [Delegate([(CONV, 7000), (ADD, 2000)], 12_000), Portable(MEAN, 3000, 4000)]
    return list(inference(calls, 20_000).events)


def rows_50_times_their_call() -> list[Profile]:
    conv, add, *rest = sound()
    return [
        replace(conv, end=conv.start + 600_000),
        replace(add, start=conv.start + 600_000, end=conv.start + 601_000),
        *rest,
    ]


def a_total_beside_its_parts() -> list[Profile]:
    conv, *rest = sound()
    return [replace(conv, end=conv.start + 9000), *rest]


def a_part_beside_its_total() -> list[Profile]:
    """The sum would fit into the call: only the nesting tells."""
    conv, *rest = sound()
    return [
        conv,
        replace(conv, delegate_str="Convert (NC) #1", start=conv.start + 1000, end=conv.start + 2000),
        *rest,
    ]


def a_kernel_inside_a_kernel() -> list[Profile]:
    *before, kernel, call, execute = sound()
    inner = replace(kernel, name="native_call_sum.out", start=kernel.start + 1000, end=kernel.end - 1000)
    return [*before, inner, kernel, call, execute]


def a_call_twice() -> list[Profile]:
    conv, add, call, *rest = sound()
    return [conv, add, call, call, *rest]


def a_row_twice() -> list[Profile]:
    conv, add, *rest = sound()
    return [conv, add, replace(add, start=add.end, end=add.end + 2000), *rest]


def an_operator_after_the_execution() -> list[Profile]:
    *before, kernel, call, execute = sound()
    late = [replace(row, start=row.start + 30_000, end=row.end + 30_000) for row in (kernel, call)]
    return [*before, *late, execute]


def a_call_before_the_execution() -> list[Profile]:
    conv, add, call, *rest, execute = sound()
    return [conv, add, call, *rest, replace(execute, start=execute.start + 1)]


def a_row_before_its_call() -> list[Profile]:
    conv, *rest = sound()
    return [replace(conv, start=conv.start - 2000, end=conv.end - 2000), *rest]


def a_microsecond_more_than_the_call() -> list[Profile]:
    """Two rows may miss two microseconds by flooring; together they exceed their call by one tick at most."""
    conv, add, call, *rest = sound()
    return [conv, add, replace(call, end=call.start + 7999), *rest]


REFUSED = {
    rows_50_times_their_call: r"DELEGATE_CALL took 12 us, but the 2 rows inside 601 us",
    a_total_beside_its_parts: r"Add \(ND\) #1 lies inside Convolution",
    a_part_beside_its_total: r"Convert \(NC\) #1 lies inside Convolution",
    a_kernel_inside_a_kernel: r"native_call_sum.out lies inside native_call_mean.out",
    a_call_twice: r"DELEGATE_CALL appears twice",
    a_row_twice: r"Add \(ND\) #1 appears twice",
    an_operator_after_the_execution: r"OPERATOR_CALL lies outside Method::execute",
    a_call_before_the_execution: r"DELEGATE_CALL lies outside Method::execute",
    a_row_before_its_call: r"Convolution .* lies outside DELEGATE_CALL",
    a_microsecond_more_than_the_call: r"DELEGATE_CALL took 7.999 us, but the 2 rows inside 9 us",
}


@pytest.mark.parametrize("made", REFUSED, ids=lambda made: made.__name__)
def test_what_cannot_be_is_refused_by_name_with_a_remedy(made):
    events = trace(Block("Execute", sound()), Block("Execute", made()))
    with pytest.raises(TraceError, match=f"Inference 1, instruction [01]: {REFUSED[made]}") as refused:
        timeline_rows(events, 0)
    assert "Profile again" in str(refused.value.remedy)


@pytest.mark.parametrize("made", REFUSED, ids=lambda made: made.__name__)
def test_validation_fails_in_its_step(made, tmp_path: Path):
    path = tmp_path / "trace.etdump"
    path.write_bytes(build_trace([Block("Execute", made())]))
    checkup = Checkup("trace", "trace")
    trace_steps(checkup, path)
    assert [step.name for step in checkup.steps if step.status == FAILED] == ["nanoseconds"]


def test_an_inference_that_is_there_twice_is_refused():
    block = Block("Execute", sound())
    trace_of_two = build_trace([block, block])
    with pytest.raises(TraceError, match=r"Inference 1: Method::execute begins before another"):
        timeline_rows(read_etdump(trace_of_two), 0)
    # They are told apart from each other even if each is read for itself.
    with pytest.raises(TraceError, match=r"Inference 1: Method::execute begins before another"):
        list(Timeline(0).of_parts(read_etdump_in_parts(trace_of_two, most_events=1)))


def test_what_a_clock_of_whole_microseconds_adds_is_accepted():
    conv, add, call, *rest = sound()
    events = trace(Block("Execute", [conv, add, replace(call, end=call.start + 8000), *rest]))
    rows = timeline_rows(events, 0)
    assert rows[rows["kind"] == "delegate_overhead"]["duration_ns"].tolist() == [-1000]


def other_delegate(*names: str, duration_ns: int = 2000) -> Block:
    return inference(
        [Delegate([(name, duration_ns) for name in names], 7000), Delegate([(CONV, 5)], 9)], 10_000
    )


def test_rows_of_another_delegate_are_not_called_xnnpack():
    rows = timeline_rows(trace(other_delegate("Convolution (NHWC, PF32) IGEMM", "conv2d")), 0)
    strange, known = rows[rows["delegate"] == 0], rows[rows["delegate"] == 1]
    assert set(strange["backend"]) == {"other delegate", "framework"}
    assert set(known["backend"]) == {"xnnpack", "framework"}
    operators = strange[strange["kind"] == "operator"]
    assert not operators["known"].any()
    assert set(operators["category"]) == {"Other"}
    assert set(operators["sme2_evidence"]) == {"none"}


def test_totals_of_another_delegate_are_refused_and_say_that_they_are_not_understood():
    with pytest.raises(TraceError, match="took 7 us, but the 2 rows inside 12 us") as refused:
        timeline_rows(trace(other_delegate("accelerator total", "conv2d", duration_ns=6000)), 0)
    assert "Only XNNPACK's rows are understood" in str(refused.value.remedy)


def test_another_delegate_may_give_two_rows_one_name():
    block = other_delegate("conv2d", "relu")
    first, second, *rest = block.events
    events = trace(Block("Execute", [first, replace(second, delegate_str="conv2d"), *rest]))
    assert (timeline_rows(events, 0)["name"] == "conv2d").sum() == 2


def test_a_fault_in_a_later_part_is_told_with_the_inference_of_the_whole_trace():
    conv, add, call, *rest = sound()
    late = replace(conv, start=call.start - 5000, end=call.start - 4000)
    blocks = [Block("Default", [])]
    for place in range(3):
        events = [late, add, call, *rest] if place == 2 else [conv, add, call, *rest]
        later = place * 10**7
        moved = [replace(each, start=each.start + later, end=each.end + later) for each in events]
        blocks.append(Block("Execute", moved))
    with pytest.raises(TraceError, match=r"Inference 2, .* lies outside"):
        list(Timeline(0).of_parts(read_etdump_in_parts(build_trace(blocks), most_events=1)))
