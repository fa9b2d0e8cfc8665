"""A program on this host that may have been given a hostile file: bounded in time, memory and output.

It is the first to be killed when memory runs out, leaves no core file, ends with this process (the runner
asks for that itself, `native/src/parent.h`), and holds the leases of this process for as long as it runs.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Literal, NamedTuple, TypeVar

from sme2_assets.errors import RunnerError
from sme2_assets.targets.lease import held_leases

#: A FlatBuffer, and so a trace, ends at 2 GiB; nothing that the runner writes is larger than twice that.
LARGEST_FILE_BYTES = 4 << 30
#: How much a program may print. A run prints a few lines; ExecuTorch more when every operator complains.
MOST_BYTES = 16 << 20

Returned = TypeVar("Returned")
_RUNNING: set[subprocess.Popen[bytes]] = set()


def run_contained(
    command: Sequence[str],
    env: Mapping[str, str],
    folder: Path,
    timeout_s: float,
    inherited: Sequence[int] = (),
) -> tuple[int, str, str]:
    """Exit code, standard output and standard error; RunnerError if it exceeds the time or output limit.

    `inherited`: descriptors that stay open in it.
    """
    leases = held_leases()
    try:
        process = subprocess.Popen(
            command,
            env={**os.environ, **env, "SME2_RUNNER_PARENT": str(os.getpid())},
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=[*leases, *inherited],
        )
    except OSError as error:
        raise RunnerError(f"{command[0]} could not be started: {error}", "Run `sme2 doctor`.") from error
    _RUNNING.add(process)
    with process:
        try:
            _limit(process.pid)
            out, err, excess = printed_by(process, time.monotonic() + timeout_s)
        finally:
            process.kill()
            _RUNNING.discard(process)
    if excess == "time":
        raise RunnerError(
            f"The runner did not end within {timeout_s:.0f} s and was killed.",
            "Ask for fewer iterations, or raise `timeout_s` in the run configuration.",
        )
    if excess == "text":
        raise too_much_text("The runner")
    return process.returncode, out.decode("utf-8", "replace"), err.decode("utf-8", "replace")


def side_by_side(tasks: Sequence[Callable[[], Returned]]) -> list[Returned]:
    """What they return, in their order; each runs contained programs in a thread of its own.

    A failure is raised only once all have ended, so no process is left behind.
    """
    with ThreadPoolExecutor(len(tasks)) as threads:
        running = [threads.submit(task) for task in tasks]
        try:
            wait(running)
        except BaseException:
            # Only the main thread hears that this process shall stop.
            for process in tuple(_RUNNING):
                process.kill()
            raise
    return [each.result() for each in running]


def _limit(pid: int) -> None:
    """Sets limits from outside, because an emulator does not pass on those its program asks for."""
    if sys.platform != "linux":
        return
    import resource

    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = {
        resource.RLIMIT_DATA: memory,
        resource.RLIMIT_FSIZE: LARGEST_FILE_BYTES,
        resource.RLIMIT_CORE: 0,
    }
    # A process that has ended needs no limits.
    with contextlib.suppress(ProcessLookupError, FileNotFoundError, PermissionError):
        for kind, most in limits.items():
            _, hard = resource.prlimit(pid, kind)
            most = most if hard == resource.RLIM_INFINITY else min(most, hard)
            resource.prlimit(pid, kind, (most, most))
        Path(f"/proc/{pid}/oom_score_adj").write_text("1000")


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
