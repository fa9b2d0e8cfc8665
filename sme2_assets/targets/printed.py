"""What a program prints, read until it ends, its time is up, or it is more than any run has to say."""

from __future__ import annotations

import os
import selectors
import subprocess
import time
from typing import Literal, NamedTuple

from sme2_assets.errors import RunnerError

#: How much a program may print. A run prints a few lines; ExecuTorch more when every operator complains.
MOST_BYTES = 16 << 20


class Printed(NamedTuple):
    out: bytes
    err: bytes
    #: What the program has too much of and still runs, if it does.
    excess: Literal["time", "text"] | None


def printed_by(process: subprocess.Popen[bytes], deadline: float) -> Printed:
    """Waits until the program ends or has too much of something; the caller kills it then."""
    assert process.stdout is not None
    assert process.stderr is not None
    out, err = bytearray(), bytearray()
    said = {process.stdout.fileno(): out, process.stderr.fileno(): err}
    with selectors.DefaultSelector() as waiting:
        for stream in said:
            waiting.register(stream, selectors.EVENT_READ)
        while waiting.get_map():
            left = deadline - time.monotonic()
            if left <= 0:
                return Printed(bytes(out), bytes(err), "time")
            for key, _ in waiting.select(left):
                chunk = os.read(key.fd, 1 << 16)
                said[key.fd] += chunk
                if not chunk:
                    waiting.unregister(key.fd)
                if len(said[key.fd]) > MOST_BYTES:
                    return Printed(bytes(out), bytes(err), "text")
    try:
        process.wait(max(deadline - time.monotonic(), 0))
    except subprocess.TimeoutExpired:
        return Printed(bytes(out), bytes(err), "time")
    return Printed(bytes(out), bytes(err), None)


def too_much_text(program: str) -> RunnerError:
    return RunnerError(
        f"{program} printed more than {MOST_BYTES >> 20} MiB and was killed.",
        "The model's file may be damaged: export it again.",
    )
