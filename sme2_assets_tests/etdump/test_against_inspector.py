"""ExecuTorch's own decoder is the judge of ours."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest

from sme2_assets.etdump import EventKind, Events, read_etdump
from sme2_assets_tests.made.build_trace import Block, Profile, build_trace

Row = tuple[int, str, bool, int, int, int]


def inspector_rows(**source: Any) -> list[Row]:
    """(block, name, delegated, instruction, start, duration) of every event, runs that it merged taken apart.

    The Inspector merges blocks of equal events into one whose events have a list of times: the i-th time is
    that of the i-th merged block. Here only the first block (loading) and the others (inferences) differ.
    """
    from executorch.devtools import Inspector
    from executorch.devtools.inspector import TimeScale

    inspector = Inspector(source_time_scale=TimeScale.NS, target_time_scale=TimeScale.NS, **source)
    rows = []
    block = 0
    for merged in inspector.event_blocks:
        runs = len(merged.events[0].perf_data.raw)
        for run in range(runs):
            for event in merged.events:
                assert len(event.perf_data.raw) == runs
                duration = event.perf_data.raw[run]
                assert duration == int(duration)
                rows.append(
                    (
                        block + run,
                        event.name,
                        bool(event.is_delegated_op),
                        int(event._instruction_id),
                        int(event.start_time[run]),
                        int(duration),
                    )
                )
        block += runs
    return rows


def our_rows(events: Events) -> list[Row]:
    columns = (
        events.block,
        events.name_strings(),
        events.kind == EventKind.DELEGATE_OP,
        events.instruction_id,
        events.start_ns,
        events.duration_ns,
    )
    return list(zip(*(column.tolist() for column in columns), strict=True))


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_inspector_gives_the_same_events_in_the_same_order(real_trace: Path, events: Events) -> None:
    assert our_rows(events) == inspector_rows(etdump_path=str(real_trace))


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_inspector_agrees_on_other_ways_to_name_a_row() -> None:
    trace = build_trace(
        [
            Block(
                "Execute",
                [
                    Profile(delegate_int=0, start=1, end=2, instruction=4),
                    Profile(delegate_int=7, delegate_str="ignored", start=1, end=2, instruction=4),
                    Profile("own name", delegate_str="", start=1, end=2, instruction=9),
                    Profile(delegate_str="named by the delegate", start=2, end=5, instruction=4),
                    Profile("both", delegate_str="the delegate wins", start=5, end=5, instruction=4),
                    Profile("DELEGATE_CALL", start=1, end=6, instruction=4),
                    Profile("Größe in µs", start=1, end=6, instruction=5),
                    Profile(None, start=1, end=6, instruction=6),
                    Profile("Method::execute", start=0, end=10, instruction=-1),
                ],
            )
        ]
    )
    assert our_rows(read_etdump(trace)) == [
        (0, name, delegated, -1 if instruction is None else instruction, start, duration)
        for (_, name, delegated, instruction, start, duration) in inspector_rows(etdump_data=trace)
    ]


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_schema_compiler_sees_the_same_raw_fields(real_trace: Path, events: Events) -> None:
    from executorch.devtools.etdump.serialize import deserialize_from_etdump_flatcc

    runs = deserialize_from_etdump_flatcc(real_trace.read_bytes()).run_data
    assert events.block_names == [run.name for run in runs]
    assert events.block_bundled_input_index.tolist() == [run.bundled_input_index for run in runs]
    profiles = [event.profile_event for run in runs for event in run.events]
    assert events.start_ns.tolist() == [profile.start_time for profile in profiles]
    assert events.end_ns.tolist() == [profile.end_time for profile in profiles]
    assert events.chain_index.tolist() == [profile.chain_index for profile in profiles]
    assert events.instruction_id.tolist() == [profile.instruction_id for profile in profiles]
    assert events.delegate_debug_id_int.tolist() == [profile.delegate_debug_id_int for profile in profiles]
    assert events.has_delegate_metadata.tolist() == [
        bool(profile.delegate_debug_metadata) for profile in profiles
    ]


def test_times_are_nanoseconds(events: Events) -> None:
    from executorch.devtools import Inspector
    from executorch.devtools.inspector import TimeScale

    assert inspect.signature(Inspector).parameters["source_time_scale"].default is TimeScale.NS
    # XNNPACK's profiler counts whole microseconds; the runtime's own clock is finer.
    inside = events.kind == EventKind.DELEGATE_OP
    assert not (events.duration_ns[inside] % 1000).any()
    assert (events.duration_ns[~inside] % 1000).any()
