"""Traces whose times are known, written as ETDump bytes and read by the real reader."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.made.build_trace import Block, Profile, build_trace
from sme2_assets.etdump import Events, read_etdump


@dataclass(frozen=True)
class Delegate:
    """A call into XNNPACK: its operators with their times, and the time of the whole call."""

    operators: Sequence[tuple[str, int]]
    call_ns: int


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
            for name, duration in call.operators:
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


def trace_bytes(*inferences: Block) -> bytes:
    return build_trace([LOADING, *inferences])


def trace(*inferences: Block) -> Events:
    return read_etdump(trace_bytes(*inferences))
