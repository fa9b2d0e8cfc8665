"""From the bytes of an ETDump to `Events`.

The field numbers below follow the order of fields in ExecuTorch's `etdump_schema_flatcc.fbs` (identifier
ED00). A newer ExecuTorch may add fields at the end of a table: they are ignored and do no harm.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sme2_assets.errors import TraceError
from sme2_assets.etdump.events import EventKind, Events
from sme2_assets.etdump.flatbuffer import (
    Buffer,
    Malformed,
    Tables,
    Texts,
    Vectors,
    require,
)
from sme2_assets.etdump.structure import structure_of

_IDENTIFIER = b"ED00"
_LARGEST_FILE_BYTES = 2**31 - 1  # FlatBuffer offsets are 32 bits, some of them signed
_CHUNK_EVENTS = 65_536
_CHUNK_BLOCKS = 65_536
PART_EVENTS = 500_000
LONGEST_NAME = 10_000
_LATEST_NS = np.uint64(2**63 - 1)

# Widths of each table's fields, by field number. A reference takes four bytes.
_ETDUMP = (4, 4)
_ETDUMP_RUN_DATA = 1
_RUN = (4, 4, 4, 4)
_RUN_NAME, _RUN_BUNDLED_INPUT_INDEX, _RUN_EVENTS = 0, 1, 3
_EVENT = (4, 4, 4)
_EVENT_PROFILE, _EVENT_ALLOCATION, _EVENT_DEBUG = 0, 1, 2
_PROFILE = (4, 4, 4, 4, 4, 4, 8, 8)
(
    _PROFILE_NAME,
    _PROFILE_CHAIN_INDEX,
    _PROFILE_INSTRUCTION_ID,
    _PROFILE_DELEGATE_ID_INT,
    _PROFILE_DELEGATE_ID_STR,
    _PROFILE_DELEGATE_METADATA,
    _PROFILE_START_TIME,
    _PROFILE_END_TIME,
) = range(8)

_KIND_OF_NAME = {
    "Method::execute": EventKind.METHOD_EXECUTE,
    "DELEGATE_CALL": EventKind.DELEGATE_CALL,
    "OPERATOR_CALL": EventKind.OPERATOR_CALL,
}
_NATIVE_CALL_PREFIX = "native_call_"

_NO_EVENTS_REMEDY = (
    "The runtime was most likely built without the event tracer, as the executorch wheels 1.0 to 1.4 are: "
    "build the runner against executorch 1.5.1 or newer, and run at least one inference in the etdump pass."
)
_BROKEN_REMEDY = "Profile again; if it was copied from a device, check that the copy is complete."
_FOREIGN_REMEDY = "Give the .etdump file that the runner wrote in its etdump pass."


def read_etdump(source: Path | bytes) -> Events:
    """Decode an ETDump, with or without the 4-byte size in front.

    Raises `TraceError`, and nothing else, for a file that is missing, empty, cut off, in another format, or
    malicious. Memory and time stay in proportion to the size of the file, whatever it says.
    """
    [events] = _parts(source, most_events=None)
    return events


def read_etdump_in_parts(source: Path | bytes, most_events: int = PART_EVENTS) -> Iterator[Events]:
    """Like `read_etdump`, a few blocks at a time: a long trace never has to be in memory as a whole.

    Each part has whole blocks, numbered within the part, and more than `most_events` events only if a single
    block has. The code of a name is the same in all parts. The next one is decoded while this one is used.
    """
    parts = _parts(source, most_events)
    with ThreadPoolExecutor(1) as decoder:
        coming = decoder.submit(next, parts, None)
        while (events := coming.result()) is not None:
            coming = decoder.submit(next, parts, None)
            yield events


def _parts(source: Path | bytes, most_events: int | None) -> Iterator[Events]:
    label = "the ETDump" if isinstance(source, bytes) else f"ETDump {source}"
    buffer = _load(source, label)
    if buffer.size == 0:
        raise TraceError(f"{label} is empty: the runtime recorded no event.", _NO_EVENTS_REMEDY)
    root = _root_reference(buffer, label)
    empty = True
    try:
        for events in _decode(buffer, root, most_events):
            if len(events):
                empty = False
                yield events
    except Malformed as error:
        raise TraceError(f"{label} is damaged: {error}.", _BROKEN_REMEDY) from None
    if empty:
        raise TraceError(f"{label} holds no profile event.", _NO_EVENTS_REMEDY)


def _load(source: Path | bytes, label: str) -> Buffer:
    try:
        if isinstance(source, Path) and not source.is_file():
            raise TraceError(f"{label} is not a file.", _FOREIGN_REMEDY)
        size = len(source) if isinstance(source, bytes) else source.stat().st_size
        if size > _LARGEST_FILE_BYTES:
            raise TraceError(
                f"{label} has {size} bytes, more than an ETDump can have.",
                "Profile with fewer iterations per run.",
            )
        return Buffer(source)
    except OSError as error:
        raise TraceError(f"{label} cannot be read: {error.strerror}.", _FOREIGN_REMEDY) from error


def _root_reference(buffer: Buffer, label: str) -> int:
    """Position of the reference to the root table: after the size prefix, if there is one."""
    if buffer.u8[8:12].tobytes() == _IDENTIFIER:
        promised, there = int(buffer.u32[0]), buffer.size - 4
        if promised > there:
            raise TraceError(f"{label} is cut off: {there} of {promised} bytes are there.", _BROKEN_REMEDY)
        if promised < there:
            raise TraceError(
                f"{label} says it has {promised} bytes, but {there} follow: something was written after it.",
                "Profile again, one ETDump per file.",
            )
        return 4
    if buffer.u8[4:8].tobytes() == _IDENTIFIER:
        return 0
    if buffer.size < 12:
        raise TraceError(f"{label} is cut off: {buffer.size} bytes are there.", _BROKEN_REMEDY)
    raise TraceError(f"{label} is not an ETDump: the identifier ED00 is not in it.", _FOREIGN_REMEDY)


@dataclass
class _Columns:
    """What the file says about each event, before events are related to one another."""

    is_profile: NDArray[np.bool_]
    is_allocation: NDArray[np.bool_]
    is_debug: NDArray[np.bool_]
    # From here on: only for profile events.
    name: NDArray[np.int32]
    is_delegate_op: NDArray[np.bool_]
    start_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    chain_index: NDArray[np.int32]
    instruction_id: NDArray[np.int32]
    delegate_debug_id_int: NDArray[np.int32]
    has_delegate_metadata: NDArray[np.bool_]


def _decode(buffer: Buffer, root_reference: int, most_events: int | None) -> Iterator[Events]:
    root = Tables(buffer, buffer.follow(np.array([root_reference]), "the root"), _ETDUMP, "the root")
    run_references = buffer.vectors(root.targets(_ETDUMP_RUN_DATA, "the blocks"), "blocks").elements()
    codes = _NameCodes()
    first_inference = listed = 0
    # Blocks lie among their events, so that looking at all of them would read all of the file.
    at_once = _CHUNK_BLOCKS if most_events is not None else max(len(run_references), 1)
    for first_block in range(0, max(len(run_references), 1), at_once):
        references = run_references[first_block : first_block + at_once]
        runs = Tables(buffer, buffer.follow(references, "a block"), _RUN, "a block")
        names = _strings(buffer.texts(runs.targets(_RUN_NAME, "the name of a block"), "the name of a block"))
        bundled_inputs = runs.int32(_RUN_BUNDLED_INPUT_INDEX, -1)
        vectors = buffer.vectors(runs.targets(_RUN_EVENTS, "the events of a block"), "events")
        listed += int(vectors.count.sum())
        require(4 * listed <= buffer.size, "the vectors of events are together longer than the file")
        for blocks in _ranges(vectors.count, most_events):
            of_blocks = Vectors(vectors.first[blocks], vectors.count[blocks])
            columns = _in_chunks(buffer, of_blocks.elements(), codes)
            block_offsets = _profile_offsets(of_blocks, columns.is_profile)
            block = np.repeat(np.arange(len(of_blocks.count)), np.diff(block_offsets))
            kind = _kinds_of(codes.names).take(columns.name)
            kind[columns.is_delegate_op] = EventKind.DELEGATE_OP
            structure = structure_of(
                kind, block, block_offsets, columns.instruction_id, first_block + blocks.start
            )
            yield Events(
                block=block.astype(np.int32),
                event=(np.arange(len(block)) - block_offsets.take(block)).astype(np.int32),
                kind=kind,
                parent=structure.parent,
                delegate_call=structure.delegate_call,
                position=structure.position,
                name=columns.name,
                start_ns=columns.start_ns,
                end_ns=columns.end_ns,
                chain_index=columns.chain_index,
                instruction_id=columns.instruction_id,
                delegate_debug_id_int=columns.delegate_debug_id_int,
                has_delegate_metadata=columns.has_delegate_metadata,
                names=codes.names,
                block_names=names[blocks],
                block_bundled_input_index=bundled_inputs[blocks],
                block_offsets=block_offsets,
                allocation_events=int(columns.is_allocation.sum()),
                debug_events=int(columns.is_debug.sum()),
                first_inference=first_inference,
            )
            first_inference += int(np.count_nonzero(kind == EventKind.METHOD_EXECUTE))
            buffer.let_go()


def _ranges(counts: NDArray[np.int64], most_events: int | None) -> Iterator[slice]:
    """Blocks in order, as many together as have at most so many events, and at least one."""
    if most_events is None:
        yield slice(0, len(counts))
        return
    ends = np.cumsum(counts)
    first = 0
    while first < len(counts):
        before = int(ends[first - 1]) if first else 0
        last = max(int(np.searchsorted(ends, before + most_events, side="right")), first + 1)
        yield slice(first, last)
        first = last


def _in_chunks(buffer: Buffer, references: NDArray[np.int64], codes: _NameCodes) -> _Columns:
    """The columns of all events, in chunks: otherwise intermediate arrays would outgrow the columns."""
    starts = range(0, max(len(references), 1), _CHUNK_EVENTS)
    chunks = [_columns(buffer, references[start : start + _CHUNK_EVENTS], codes) for start in starts]
    return _Columns(
        **{
            field.name: np.concatenate([getattr(chunk, field.name) for chunk in chunks])
            for field in fields(_Columns)
        }
    )


def _columns(buffer: Buffer, references: NDArray[np.int64], codes: _NameCodes) -> _Columns:
    wrappers = Tables(buffer, buffer.follow(references, "an event"), _EVENT, "an event")
    is_profile = wrappers.has(_EVENT_PROFILE)
    is_allocation = ~is_profile & wrappers.has(_EVENT_ALLOCATION)
    is_debug = ~is_profile & ~is_allocation & wrappers.has(_EVENT_DEBUG)
    require(
        (is_profile | is_allocation | is_debug).all(), "an event is none of a time, an allocation, a value"
    )
    targets = wrappers.targets(_EVENT_PROFILE, "a profile event")[is_profile]
    profiles = Tables(buffer, targets, _PROFILE, "a profile event")
    delegate_id_int = profiles.int32(_PROFILE_DELEGATE_ID_INT, -1)
    name, is_delegate_op = _names(buffer, profiles, delegate_id_int, codes)
    start_ns, end_ns = _times(profiles)
    metadata = profiles.targets(_PROFILE_DELEGATE_METADATA, "delegate metadata")
    return _Columns(
        is_profile=is_profile,
        is_allocation=is_allocation,
        is_debug=is_debug,
        name=name,
        is_delegate_op=is_delegate_op,
        start_ns=start_ns,
        end_ns=end_ns,
        chain_index=profiles.int32(_PROFILE_CHAIN_INDEX, 0),
        instruction_id=profiles.int32(_PROFILE_INSTRUCTION_ID, -1),
        delegate_debug_id_int=delegate_id_int,
        has_delegate_metadata=buffer.holds_bytes(metadata, "delegate metadata"),
    )


def _profile_offsets(vectors: Vectors, is_profile: NDArray[np.bool_]) -> NDArray[np.int64]:
    """The row where each block starts (and the last one ends), counting only profile events as rows."""
    profiles_before = np.concatenate([[0], np.cumsum(is_profile)])
    return profiles_before.take(np.concatenate([[0], np.cumsum(vectors.count)]))


def _times(profiles: Tables) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    start, end = profiles.uint64(_PROFILE_START_TIME, 0), profiles.uint64(_PROFILE_END_TIME, 0)
    require((start <= end).all(), "an event ends before it starts")
    require((end <= _LATEST_NS).all(), "an event has an impossible time")
    return start.view(np.int64), end.view(np.int64)


def _names(
    buffer: Buffer, profiles: Tables, delegate_id_int: NDArray[np.int32], codes: _NameCodes
) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
    """Name codes, and which rows a delegate wrote, by the Inspector's rule.

    A row with an identifier from a delegate is the delegate's and is named by it: by the integer if there is
    one, else by the string. An empty string is not an identifier.
    """
    what = "the name of an event"
    has_text_id = profiles.has(_PROFILE_DELEGATE_ID_STR)
    name = codes.of(buffer.texts(profiles.first_of((_PROFILE_DELEGATE_ID_STR, _PROFILE_NAME), what), what))
    is_delegate_op = has_text_id & (name != codes.empty)

    unidentified = np.flatnonzero(has_text_id & ~is_delegate_op)
    if len(unidentified):
        name[unidentified] = codes.of(buffer.texts(profiles.targets(_PROFILE_NAME, what)[unidentified], what))

    numbered = np.flatnonzero(delegate_id_int != -1)
    if len(numbered):
        numbers, which = np.unique(delegate_id_int[numbered], return_inverse=True)
        name[numbered] = codes.of(Texts(which, [str(number) for number in numbers.tolist()]))
        is_delegate_op[numbered] = True
    return name, is_delegate_op


class _NameCodes:
    """One code per distinct name, across several columns of strings. A missing string is an empty name."""

    def __init__(self) -> None:
        self._codes: dict[str, int] = {}

    @property
    def names(self) -> list[str]:
        return list(self._codes)

    @property
    def empty(self) -> int:
        return self._codes.get("", -1)

    def of(self, texts: Texts) -> NDArray[np.int32]:
        values = [*texts.values, ""] if (texts.code < 0).any() else texts.values
        require(max(map(len, values), default=0) <= LONGEST_NAME, "a name in it is too long to be one")
        codes = [self._codes.setdefault(value, len(self._codes)) for value in values]
        return np.array(codes, dtype=np.int32).take(texts.code)  # code -1 takes the last: the empty name


def _strings(texts: Texts) -> list[str]:
    return [texts.values[code] if code >= 0 else "" for code in texts.code.tolist()]


def _kinds_of(names: list[str]) -> NDArray[np.int8]:
    return np.array(
        [
            EventKind.NATIVE_CALL
            if name.startswith(_NATIVE_CALL_PREFIX)
            else _KIND_OF_NAME.get(name, EventKind.OTHER)
            for name in names
        ],
        dtype=np.int8,
    )
