"""Which event lies inside which call."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from sme2_assets.errors import TraceError
from sme2_assets.etdump import EventKind, Events, read_etdump, read_etdump_in_parts, reader
from sme2_assets_tests.etdump.conftest import INFERENCES
from sme2_assets_tests.made.build_trace import Allocation, Block, Debug, Nothing, Profile, build_trace

PARENT_KIND = {
    EventKind.DELEGATE_OP: EventKind.DELEGATE_CALL,
    EventKind.NATIVE_CALL: EventKind.OPERATOR_CALL,
    EventKind.DELEGATE_CALL: EventKind.METHOD_EXECUTE,
    EventKind.OPERATOR_CALL: EventKind.METHOD_EXECUTE,
}


def test_every_kind_of_event_is_in_the_real_trace(events: Events) -> None:
    assert set(events.kind.tolist()) == set(EventKind)


def test_every_inference_is_an_execute_block(events: Events) -> None:
    blocks = events.execute_blocks
    assert blocks.tolist() == list(range(1, INFERENCES + 1))
    assert events.block_names == ["Default"] + ["Execute"] * INFERENCES
    assert len({events.block_rows(block).stop - events.block_rows(block).start for block in blocks}) == 1


def test_every_row_lies_within_its_parent(events: Events) -> None:
    parents = events.parent_rows
    for row, parent in enumerate(parents.tolist()):
        kind = EventKind(events.kind[row])
        if kind not in PARENT_KIND:
            assert parent == -1
            continue
        assert EventKind(events.kind[parent]) == PARENT_KIND[kind]
        assert events.block[parent] == events.block[row]
        assert events.event[parent] == events.parent[row]
        assert events.start_ns[parent] <= events.start_ns[row]
        assert events.end_ns[row] <= events.end_ns[parent]


def test_children_never_take_longer_than_their_parent(events: Events) -> None:
    parents = events.parent_rows
    inside = np.zeros(len(events), dtype=np.int64)
    np.add.at(inside, parents[parents >= 0], events.duration_ns[parents >= 0])
    assert (inside <= events.duration_ns).all()


def test_positions_count_siblings_from_zero(events: Events) -> None:
    siblings = defaultdict(list)
    for block, parent, position in zip(events.block, events.parent, events.position, strict=True):
        siblings[block, parent].append(position)
    assert all(positions == list(range(len(positions))) for positions in siblings.values())


def test_delegate_calls_are_numbered_within_the_inference(events: Events) -> None:
    for block in events.execute_blocks:
        rows = events.block_rows(block)
        kind, call = events.kind[rows], events.delegate_call[rows]
        assert call[kind == EventKind.DELEGATE_CALL].tolist() == [0, 1, 2]
        assert (call[~np.isin(kind, [EventKind.DELEGATE_CALL, EventKind.DELEGATE_OP])] == -1).all()
        inside = kind == EventKind.DELEGATE_OP
        assert (call[inside] == call[events.parent[rows][inside]]).all()


def test_columns_cannot_be_written_to(events: Events) -> None:
    with pytest.raises(ValueError, match="read-only"):
        events.start_ns[0] = 0


def inference(*, instruction: int = 0, at: int = 0) -> list[Profile]:
    return [
        Profile(delegate_str="Convolution #1", instruction=instruction, start=at + 1, end=at + 3),
        Profile(delegate_str="Add #1", instruction=instruction, start=at + 3, end=at + 5),
        Profile("DELEGATE_CALL", instruction=instruction, start=at, end=at + 6),
        Profile("native_call_cumsum.out", instruction=instruction + 1, start=at + 6, end=at + 7),
        Profile("OPERATOR_CALL", instruction=instruction + 1, start=at + 6, end=at + 8),
        Profile("Method::execute", chain=-1, start=at, end=at + 9),
    ]


def test_two_executions_in_one_block_keep_their_own_children() -> None:
    events = read_etdump(build_trace([Block("Execute", [*inference(), *inference(at=10)])]))
    assert events.parent.tolist() == [2, 2, 5, 4, 5, -1, 8, 8, 11, 10, 11, -1]
    assert events.position.tolist() == [0, 1, 0, 0, 1, 0, 0, 1, 0, 0, 1, 1]
    assert events.delegate_call.tolist() == [0, 0, 0, -1, -1, -1, 1, 1, 1, -1, -1, -1]
    assert events.execute_blocks.tolist() == [0]


def test_events_without_a_time_are_counted_and_not_listed() -> None:
    first, *rest = inference()
    blocks = [
        Block("Default", [Allocation()]),
        Block("Execute", [Allocation(), first, Debug(), *rest, Allocation()], bundled_input_index=3),
    ]
    events = read_etdump(build_trace(blocks))
    assert len(events) == len(rest) + 1
    assert events.event.tolist() == list(range(len(events)))
    assert events.block.tolist() == [1] * len(events)
    assert events.parent.tolist() == [2, 2, 5, 4, 5, -1]
    assert (events.allocation_events, events.debug_events) == (3, 1)
    assert events.block_bundled_input_index.tolist() == [-1, 3]


def test_an_event_of_nothing_is_damage_as_it_is_for_executorch() -> None:
    with pytest.raises(TraceError, match="is damaged"):
        read_etdump(build_trace([Block("Execute", [*inference(), Nothing()])]))


def test_an_unknown_event_in_an_inference_is_nobodys_child() -> None:
    *children, execute = inference()
    events = read_etdump(build_trace([Block("Execute", [*children, Profile("Something::new"), execute])]))
    assert EventKind(events.kind[5]) == EventKind.OTHER
    assert events.parent[5] == -1
    assert events.position.tolist() == [0, 1, 0, 0, 1, 0, 1]


def test_events_do_not_depend_on_where_chunks_end(
    events: Events, real_trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "_CHUNK_EVENTS", 7)
    chunked = read_etdump(real_trace)
    for field in fields(Events):
        assert np.array_equal(getattr(chunked, field.name), getattr(events, field.name)), field.name


def test_names_are_listed_once(events: Events) -> None:
    assert len(set(events.names)) == len(events.names)
    assert len(set(events.name_strings())) == len(events.names)


def test_long_names_are_told_apart_by_their_last_letter() -> None:
    names = ["x" * length + end for length in (3, 4, 7, 8, 127, 128, 129, 5000) for end in "ab"]
    events = read_etdump(build_trace([Block("Default", [Profile(name) for name in names * 2])]))
    assert events.name_strings().tolist() == names * 2
    assert sorted(events.names) == sorted(names)


def test_thousands_of_distinct_names_stay_distinct() -> None:
    names = [f"operator {number}" for number in range(3000)]
    events = read_etdump(build_trace([Block("Default", [Profile(name) for name in names])]))
    assert events.name_strings().tolist() == names


def test_a_delegate_row_whose_call_is_missing_makes_the_inference_unusable() -> None:
    rows = inference()
    without_call = [row for row in rows if row.name != "DELEGATE_CALL"]
    with pytest.raises(TraceError, match="DELEGATE_OP row without the call"):
        read_etdump(build_trace([Block("Execute", without_call)]))


def test_a_delegate_row_is_not_given_to_the_call_of_another_instruction() -> None:
    lost_call = [row for row in inference(instruction=0)[:5] if row.name != "DELEGATE_CALL"]
    with pytest.raises(TraceError, match="row of instruction 0 inside the call of instruction 7"):
        read_etdump(build_trace([Block("Execute", [*lost_call, *inference(instruction=7)])]))


def test_a_call_after_the_last_execution_of_a_block_is_an_error() -> None:
    with pytest.raises(TraceError, match="DELEGATE_CALL row without the call"):
        read_etdump(build_trace([Block("Execute", [*inference(), *inference(at=10)[:3]])]))


def test_rows_of_an_inference_that_never_ended_have_no_parent_above_them() -> None:
    events = read_etdump(build_trace([Block("Execute", inference()[:4])]))
    assert events.parent.tolist() == [2, 2, -1, -1]
    assert events.delegate_call.tolist() == [0, 0, 0, -1]
    assert events.position.tolist() == [0, 1, 0, 1]
    assert events.execute_blocks.tolist() == []


@pytest.mark.parametrize("blocks_at_once", [1, 2, 65_536])
@pytest.mark.parametrize("most_events", [1, 30, 100, 10**6])
def test_the_parts_of_a_trace_are_the_whole_trace(
    most_events: int, blocks_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "_CHUNK_BLOCKS", blocks_at_once)
    data = (Path(__file__).parent / "data" / "small.etdump").read_bytes()
    whole, parts = read_etdump(data), list(read_etdump_in_parts(data, most_events))
    assert sum(len(part) <= most_events or len(part.block_names) == 1 for part in parts) == len(parts)
    assert [name for part in parts for name in part.block_names] == whole.block_names
    assert np.array_equal(np.concatenate([part.name_strings() for part in parts]), whole.name_strings())
    in_block = ("event", "kind", "parent", "delegate_call", "position", "name", "start_ns", "end_ns")
    for column in (*in_block, "chain_index", "instruction_id", "block_bundled_input_index"):
        joined = np.concatenate([getattr(part, column) for part in parts])
        assert np.array_equal(joined, getattr(whole, column)), column
    executions = np.cumsum([0] + [len(part.execute_blocks) for part in parts])
    assert [part.first_inference for part in parts] == executions[:-1].tolist()


def test_a_fault_in_a_later_part_names_the_block_of_the_file() -> None:
    whole = [Profile("native_call_x", 1, 2), Profile("OPERATOR_CALL", 1, 3), Profile("Method::execute", 1, 4)]
    cut = [Profile("native_call_x", 5, 6), Profile("Method::execute", 5, 7)]
    data = build_trace([Block("Execute", whole), Block("Execute", whole), Block("Execute", cut)])
    for read in (lambda: read_etdump(data), lambda: list(read_etdump_in_parts(data, 1))):
        with pytest.raises(TraceError, match="block 2 has a NATIVE_CALL row without the call"):
            read()
