"""A specification drawn by Vega, in a process of its own, within limits of time and size.

The renderer aborts its process on text that it cannot take, and needs minutes for very many labels. What it
cannot draw costs that picture alone.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from functools import cache
from threading import Lock
from typing import Any

# Of a specification, and of what is drawn from it.
MOST_BYTES = 4 << 20
MOST_SECONDS = 30

# The alarm ends the process whatever the renderer does, even if nobody waits for it any more.
_RENDERER = """
import json, signal, sys, vl_convert
for line in sys.stdin:
    seconds, spec = json.loads(line)
    signal.alarm(seconds)
    draw = vl_convert.vegalite_to_svg if "vega-lite" in spec["$schema"] else vl_convert.vega_to_svg
    print(json.dumps(draw(spec)), flush=True)
    signal.alarm(0)
"""
_one_at_a_time = Lock()


class NotDrawnError(Exception):
    """Why there is no picture, as what follows "because"."""


def drawn(spec: dict[str, Any]) -> str:
    """The specification as SVG."""
    request = json.dumps([MOST_SECONDS, spec])
    if len(request) > MOST_BYTES:
        raise NotDrawnError("there is too much to show")
    with _one_at_a_time:
        renderer, answer = _renderer(os.getpid()), ""
        assert renderer.stdin is not None
        assert renderer.stdout is not None
        try:
            with suppress(BrokenPipeError):
                renderer.stdin.write(f"{request}\n")
                renderer.stdin.flush()
            answer = renderer.stdout.readline(MOST_BYTES)
        finally:
            # Also after an interrupt: the answer to this request must not be taken for the next one's.
            if not answer.endswith("\n"):
                _renderer.cache_clear()
                renderer.kill()
                renderer.wait()
    if answer.endswith("\n"):
        return str(json.loads(answer))
    if answer:
        raise NotDrawnError("there is too much to show")
    if renderer.returncode == -signal.SIGALRM:
        raise NotDrawnError(f"drawing it takes more than {MOST_SECONDS} seconds")
    raise NotDrawnError("the renderer failed")


@cache
def _renderer(owner: int) -> subprocess.Popen[str]:
    """The process that draws for this one, and ends with it; a forked process has its own."""
    return subprocess.Popen(
        [sys.executable, "-P", "-c", _RENDERER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
