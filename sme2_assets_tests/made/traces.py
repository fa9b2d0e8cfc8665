"""Traces whose times are known, written as ETDump bytes and read by the real reader."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sme2_assets.etdump import Events, read_etdump
from sme2_assets_tests.made.build_trace import Block, Profile, build_trace


@dataclass(frozen=True)
class Delegate:
    """A call into XNNPACK: its operators with their times, and the time of the whole call."""

    operators: Sequence[tuple[str, int]]
    call_ns: int

    @property
    def times(self) -> list[int]:
        return [duration for _, duration in self.operators]


@dataclass(frozen=True)
class Portable:
    """A portable operator. Without a name the runtime recorded the call and not the kernel."""

    name: str | None
    kernel_ns: int
    call_ns: int


Call = Delegate | Portable

LOADING = Block(
    "Default",
    [Profile("Method::init", 10, 400, chain=-1), Profile("Program::load_method", 0, 500, chain=-1)],
)


def inference(calls: Sequence[Call], execute_ns: int, start_ns: int = 1_000_000) -> Block:
    """The events of one Method::execute, children before parents, as the runtime writes them."""
    events: list[Profile] = []
    now = start_ns
    for instruction, call in enumerate(calls):
        if isinstance(call, Delegate):
            started = now
            for name, duration in zip(
                _numbered([name for name, _ in call.operators]), call.times, strict=True
            ):
                events.append(
                    Profile(None, started, started + duration, instruction=instruction, delegate_str=name)
                )
                started += duration
            events.append(Profile("DELEGATE_CALL", now, now + call.call_ns, instruction=instruction))
        else:
            if call.name is not None:
                events.append(Profile(call.name, now, now + call.kernel_ns, instruction=instruction))
            events.append(Profile("OPERATOR_CALL", now, now + call.call_ns, instruction=instruction))
        now += call.call_ns
    events.append(Profile("Method::execute", start_ns, start_ns + execute_ns, chain=-1))
    return Block("Execute", events)


def _numbered(names: list[str]) -> list[str]:
    """A name that comes again has the next number, as from XNNPACK."""
    return [
        f"{name.rpartition('#')[0]}#{names[: i + 1].count(name)}" if names[:i].count(name) else name
        for i, name in enumerate(names)
    ]


def sound(calls: Sequence[Call], spare_ns: int) -> tuple[list[Call], int]:
    """Calls that last as long as told beyond what is inside them, and an execution with so much to spare."""
    made: list[Call] = [
        replace(
            call, call_ns=call.call_ns + (sum(call.times) if isinstance(call, Delegate) else call.kernel_ns)
        )
        for call in calls
    ]
    return made, sum(call.call_ns for call in made) + spare_ns


def trace_bytes(*inferences: Block) -> bytes:
    """Inferences one after the other: one that would begin too early is moved behind the one before."""
    blocks, now = [LOADING], 0
    for block in inferences:
        times = [event for event in block.events if isinstance(event, Profile)]
        later = max(now - min(event.start for event in times), 0) if times else 0
        moved = [replace(event, start=event.start + later, end=event.end + later) for event in times]
        now = max((event.end for event in moved), default=now)
        blocks.append(replace(block, events=moved))
    return build_trace(blocks)


def trace(*inferences: Block) -> Events:
    return read_etdump(trace_bytes(*inferences))
