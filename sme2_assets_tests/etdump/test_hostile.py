"""Files that are not what they should be: an error that says so, and nothing else."""

from __future__ import annotations

import random
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sme2_assets.errors import TraceError
from sme2_assets.etdump import Events, read_etdump
from sme2_assets_tests.made.build_trace import Block, Profile, build_trace

SMALL_TRACE = (Path(__file__).parent / "data" / "small.etdump").read_bytes()


def events_or_trace_error(data: bytes) -> Events | None:
    try:
        events = read_etdump(data)
    except TraceError:
        return None
    assert len(events) == len(events.parent) == len(events.start_ns) == len(events.name_strings())
    assert (events.duration_ns >= 0).all()
    return events


def test_an_empty_file_points_to_a_runtime_without_tracer(tmp_path: Path) -> None:
    path = tmp_path / "trace.etdump"
    path.touch()
    with pytest.raises(TraceError, match="is empty") as error:
        read_etdump(path)
    assert str(path) in error.value.what
    assert "without the event tracer" in (error.value.remedy or "")


@pytest.mark.parametrize("blocks", [[], [Block("Default")]])
def test_a_trace_without_events_is_treated_as_empty(blocks: list[Block]) -> None:
    with pytest.raises(TraceError, match="no profile event") as error:
        read_etdump(build_trace(blocks))
    assert "without the event tracer" in (error.value.remedy or "")


@pytest.mark.parametrize(
    "data", [b"\x7fELF" + bytes(200), b"PK\x03\x04" + bytes(200), b'{"traceEvents": []}' * 20, bytes(4096)]
)
def test_a_foreign_file_is_refused(data: bytes) -> None:
    with pytest.raises(TraceError, match="not an ETDump"):
        read_etdump(data)


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing.etdump"):
        with pytest.raises(TraceError, match="is not a file"):
            read_etdump(path)


def test_a_file_and_its_bytes_give_the_same_events(tmp_path: Path, small_trace: bytes) -> None:
    path = tmp_path / "trace.etdump"
    path.write_bytes(small_trace)
    assert read_etdump(path).end_ns.tolist() == read_etdump(small_trace).end_ns.tolist()


def test_the_size_prefix_may_be_missing(small_trace: bytes) -> None:
    bare, prefixed = read_etdump(small_trace[4:]), read_etdump(small_trace)
    assert bare.name_strings().tolist() == prefixed.name_strings().tolist()
    assert bare.start_ns.tolist() == prefixed.start_ns.tolist()
    assert bare.parent.tolist() == prefixed.parent.tolist()


@pytest.mark.parametrize(("promised", "message"), [(1, "cut off"), (2**31, "cut off"), (-4, "after it")])
def test_a_size_prefix_that_lies_is_refused(small_trace: bytes, promised: int, message: str) -> None:
    prefix = struct.pack("<I", len(small_trace) - 4 + promised)
    with pytest.raises(TraceError, match=message):
        read_etdump(prefix + small_trace[4:])


def test_every_truncation_is_noticed(small_trace: bytes) -> None:
    for length in range(len(small_trace)):
        assert events_or_trace_error(small_trace[:length]) is None, length


def test_every_truncation_that_the_size_prefix_does_not_tell_is_noticed(small_trace: bytes) -> None:
    bare = small_trace[4:]
    # The last bytes are padding: a file without them is whole.
    noticed = [length for length in range(len(bare)) if events_or_trace_error(bare[:length]) is None]
    assert noticed[-1] >= len(bare) - 4
    assert noticed == list(range(len(noticed)))


@settings(max_examples=400)
@given(st.lists(st.tuples(st.integers(0, len(SMALL_TRACE) - 1), st.integers(0, 255)), min_size=1, max_size=8))
def test_flipped_bytes_give_events_or_a_trace_error(flips: list[tuple[int, int]]) -> None:
    data = bytearray(SMALL_TRACE)
    for position, value in flips:
        data[position] = value
    events_or_trace_error(bytes(data))


EXTREMES = [0, 1, 2, 3, 4, 7, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0xFFFFFFFC, 0x3FFFFFFF, len(SMALL_TRACE)]


@settings(max_examples=400)
@given(st.integers(0, len(SMALL_TRACE) // 4 - 1), st.sampled_from(EXTREMES))
@example(1, 0xFFFFFFFC)
def test_extreme_words_give_events_or_a_trace_error(word: int, value: int) -> None:
    data = bytearray(SMALL_TRACE)
    struct.pack_into("<I", data, 4 * word, value)
    events_or_trace_error(bytes(data))


@settings(max_examples=200)
@given(st.binary(max_size=600))
def test_random_bytes_behind_a_good_header_give_events_or_a_trace_error(body: bytes) -> None:
    header = struct.pack("<II4s", len(body) + 8, 8, b"ED00")
    events_or_trace_error(header + body)


def test_every_single_word_can_be_wrong() -> None:
    chance = random.Random(0)
    for word in range(len(SMALL_TRACE) // 4):
        data = bytearray(SMALL_TRACE)
        struct.pack_into("<I", data, 4 * word, chance.getrandbits(chance.choice([4, 12, 32])))
        events_or_trace_error(bytes(data))


def test_a_name_that_is_not_utf8_is_refused() -> None:
    with pytest.raises(TraceError, match="not UTF-8"):
        read_etdump(build_trace([Block("Default", [Profile(b"\xff\xfe\xfd")])]))


def test_an_event_that_ends_before_it_starts_is_refused() -> None:
    with pytest.raises(TraceError, match="ends before it starts"):
        read_etdump(build_trace([Block("Default", [Profile("late", start=9, end=8)])]))


def test_a_time_beyond_the_clock_is_refused() -> None:
    with pytest.raises(TraceError, match="impossible time"):
        read_etdump(build_trace([Block("Default", [Profile("never", start=1, end=2**63)])]))


def header(size: int) -> bytearray:
    """The start of a bare ETDump: root table at 16 with its vtable at 8, its vector reference at 20."""
    data = bytearray(size)
    struct.pack_into("<I4sHHHHi", data, 0, 16, b"ED00", 8, 8, 0, 4, 8)
    return data


def point(data: bytearray, reference: int, target: int) -> None:
    struct.pack_into("<I", data, reference, (target - reference) % 2**32)


def test_a_vector_longer_than_the_file_is_refused() -> None:
    for count in (2**32 - 1, 2**31, 1000):
        data = header(64)
        point(data, 20, 24)
        struct.pack_into("<I", data, 24, count)
        with pytest.raises(TraceError, match="longer than the file"):
            read_etdump(bytes(data))


def test_a_reference_to_itself_is_refused_and_does_not_hang() -> None:
    data = header(64)
    point(data, 20, 20)
    assert events_or_trace_error(bytes(data)) is None
    data = header(64)
    point(data, 20, 24)
    struct.pack_into("<II", data, 24, 1, 0)
    assert events_or_trace_error(bytes(data)) is None


def test_a_table_whose_layout_lies_outside_the_file_is_refused() -> None:
    for distance in (-(2**31), 2**31 - 1, 17, -60, 9):
        data = header(64)
        struct.pack_into("<i", data, 16, distance)
        with pytest.raises(TraceError, match="damaged"):
            read_etdump(bytes(data))


def test_blocks_that_all_share_one_huge_vector_are_refused() -> None:
    """A few hundred kilobytes that, believed, would ask for billions of events."""
    blocks, elements = 20_000, 20_000
    data = header(200_000)
    point(data, 20, 24)
    struct.pack_into("<I", data, 24, blocks)
    run_vtable = 28 + 4 * blocks
    struct.pack_into("<HHHHHH", data, run_vtable, 12, 8, 0, 0, 0, 4)
    run = run_vtable + 12
    struct.pack_into("<i", data, run, 12)
    for index in range(blocks):
        point(data, 28 + 4 * index, run)
    point(data, run + 4, run + 8)
    struct.pack_into("<I", data, run + 8, elements)
    with pytest.raises(TraceError, match="together longer than the file"):
        read_etdump(bytes(data))


def test_names_that_overlap_to_make_work_are_refused() -> None:
    """Each name starts four bytes after the last one and runs to the end: small file, quadratic work."""
    count = 4000
    trace = bytearray(build_trace([Block("Default", [Profile("") for _ in range(count)])], size_prefix=False))
    start = len(trace)
    total = 12 * count
    trace += bytes(total)
    for index in range(count):
        struct.pack_into("<I", trace, start + 4 * index, total - 4 * index - 5)
    references = empty_name_references(bytes(trace[:start]), count)
    for index, reference in enumerate(references):
        point(trace, reference, start + 4 * index)
    with pytest.raises(TraceError, match="overlaps"):
        read_etdump(bytes(trace))


def empty_name_references(trace: bytes, count: int) -> list[int]:
    """The name references of `Profile("")`: first field, behind the table's 20-byte vtable."""
    vtable = struct.pack("<HHHHHHHHHH", 20, 16, 4, 8, 12, 0, 0, 0, 0, 0)
    places, found = [], trace.find(vtable)
    while found >= 0:
        places.append(found + len(vtable) + 4)
        found = trace.find(vtable, found + 1)
    assert len(places) == count
    return places


def test_reading_imports_nothing_heavy() -> None:
    check = (
        "import sys, sme2_assets.etdump\n"
        "heavy = {'torch', 'executorch', 'pandas', 'dagster', 'flatbuffers', 'duckdb'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    root = Path(__file__).parents[2]
    run = subprocess.run([sys.executable, "-c", check], cwd=root, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
