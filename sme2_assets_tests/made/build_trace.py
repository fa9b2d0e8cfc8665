"""A writer of ETDump bytes for the cases that no real run gives: other backends, damage with intent.

Tables are plain lists of fields; the writer lays them out one after the other, references always forward.
It shares nothing with the reader, so a misreading of the format would have to be made twice.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass
class Profile:
    name: str | bytes | None = None
    start: int = 0
    end: int = 0
    instruction: int = 0
    chain: int = 0
    delegate_int: int = -1
    delegate_str: str | None = None
    metadata: bytes | None = None


@dataclass
class Allocation:
    size: int = 64


@dataclass
class Debug:
    pass


@dataclass
class Nothing:
    """An event of a kind that the schema does not have."""


@dataclass
class Block:
    name: str | None
    events: Sequence[Profile | Allocation | Debug | Nothing] = ()
    bundled_input_index: int | None = None


class _Writer:
    def __init__(self) -> None:
        self.out = bytearray()

    def align(self, to: int = 4) -> None:
        self.out += bytes(-len(self.out) % to)

    def point(self, reference: int) -> None:
        struct.pack_into("<I", self.out, reference, len(self.out) - reference)

    def text(self, reference: int, text: str | bytes) -> None:
        raw = text.encode() if isinstance(text, str) else text
        self.align()
        self.point(reference)
        self.out += struct.pack("<I", len(raw)) + raw + b"\0"

    def vector(self, reference: int, count: int) -> list[int]:
        self.align()
        self.point(reference)
        self.out += struct.pack("<I", count) + bytes(4 * count)
        return [len(self.out) - 4 * (count - i) for i in range(count)]

    def table(self, reference: int | None, fields: list[bytes | None]) -> list[int]:
        """Writes a vtable and its table; gives the position of each field (0 where there is none)."""
        offsets, size = [], 4
        for value in fields:
            offsets.append(0 if value is None else size)
            size += 0 if value is None else len(value)
        self.align()
        vtable = len(self.out)
        self.out += struct.pack(f"<HH{len(fields)}H", 4 + 2 * len(fields), size, *offsets)
        self.align()
        start = len(self.out)
        if reference is not None:
            self.point(reference)
        self.out += struct.pack("<i", start - vtable) + b"".join(value for value in fields if value)
        return [start + offset if offset else 0 for offset in offsets]


_REFERENCE = bytes(4)


def build_trace(blocks: list[Block], *, size_prefix: bool = True) -> bytes:
    writer = _Writer()
    writer.out += _REFERENCE + b"ED00"
    _, runs = writer.table(0, [None, _REFERENCE])
    for reference, block in zip(writer.vector(runs, len(blocks)), blocks, strict=True):
        _build_block(writer, reference, block)
    writer.align()
    return (struct.pack("<I", len(writer.out)) if size_prefix else b"") + bytes(writer.out)


def _build_block(writer: _Writer, reference: int, block: Block) -> None:
    bundled = None if block.bundled_input_index is None else struct.pack("<i", block.bundled_input_index)
    name, _, _, events = writer.table(
        reference, [None if block.name is None else _REFERENCE, bundled, None, _REFERENCE]
    )
    if block.name is not None:
        writer.text(name, block.name)
    for element, event in zip(writer.vector(events, len(block.events)), block.events, strict=True):
        kinds = [isinstance(event, kind) for kind in (Profile, Allocation, Debug)]
        profile, allocation, debug = writer.table(element, [_REFERENCE if kind else None for kind in kinds])
        if isinstance(event, Profile):
            _build_profile(writer, profile, event)
        elif isinstance(event, Allocation):
            writer.table(allocation, [struct.pack("<i", 0), struct.pack("<Q", event.size)])
        elif isinstance(event, Debug):
            writer.table(debug, [])


def _build_profile(writer: _Writer, reference: int, event: Profile) -> None:
    name, _, _, _, delegate_str, metadata, _, _ = writer.table(
        reference,
        [
            None if event.name is None else _REFERENCE,
            struct.pack("<i", event.chain),
            struct.pack("<i", event.instruction),
            None if event.delegate_int == -1 else struct.pack("<i", event.delegate_int),
            None if event.delegate_str is None else _REFERENCE,
            None if event.metadata is None else _REFERENCE,
            struct.pack("<Q", event.start) if event.start else None,
            struct.pack("<Q", event.end) if event.end else None,
        ],
    )
    if event.name is not None:
        writer.text(name, event.name)
    if event.delegate_str is not None:
        writer.text(delegate_str, event.delegate_str)
    if event.metadata is not None:
        writer.text(metadata, event.metadata)
