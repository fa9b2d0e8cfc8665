"""Kills a machine while it gives a session to a shared store, or fetches one, and says what is left.

    SME2_STORE=s3://bucket/prefix python -m sme2_assets_tests.warehouse.shared_crashes FOLDER KILLS

A process is killed (SIGKILL) just before the n-th time that it puts something into the store or notes
something on its own disk, or in the middle of what it puts there, for one n after the other. After each kill
another machine looks at the store. At the end the first machine goes on, as if it had been started again.
The same is done to a machine that fetches sessions and takes them into its tables.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from sme2_assets.evidence.shared import SharedStore
from sme2_assets.store import Store
from sme2_assets.warehouse.shared import catch_up, publish_shared
from sme2_assets.warehouse.store import Warehouse
from sme2_assets_tests.warehouse.crashes import forked, seen, session, write_session


def die_at(shared: SharedStore, step: int | None) -> list[int]:
    """Plants the kill; gives a counter of the steps so far."""
    count = [0]

    def counted(real: Callable[..., Any], half: Callable[..., Any] | None = None) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            count[0] += 1
            if count[0] == step:
                os.kill(os.getpid(), signal.SIGKILL)
            if half is not None:
                count[0] += 1
                if count[0] == step:
                    half(*arguments)
                    os.kill(os.getpid(), signal.SIGKILL)
            return real(*arguments, **named)

        return call

    def put_half(source: str, target: str) -> None:
        shared.fs.pipe_file(target, Path(source).read_bytes()[: Path(source).stat().st_size // 2])

    fs: Any = shared.fs
    # What is half put under a name that an entry has not named yet must not matter either.
    fs.put_file = counted(fs.put_file, put_half)
    fs.pipe_file = counted(fs.pipe_file)
    fs.get_file = counted(fs.get_file)
    for name in ("replace", "link", "rename", "fsync"):
        setattr(os, name, counted(getattr(os, name)))
    Path.touch = counted(Path.touch)  # type: ignore[method-assign]
    return count


def give(store: Store, step: int | None) -> int:
    shared = SharedStore.of(store)
    assert shared is not None
    count = die_at(shared, step)
    shared.push(store.runs, lambda _: None)
    return count[0]


def fetch(store: Store, step: int | None) -> int:
    shared = SharedStore.of(store)
    assert shared is not None
    count = die_at(shared, step)
    catch_up(store, lambda _: None)
    return count[0]


def take(store: Store) -> dict[str, Any]:
    pulled = catch_up(store, lambda _: None)
    return {**seen(store), "refused": {what: str(error) for what, error in pulled.refused.items()}}


def rows(store: Store) -> list[list[Any]]:
    counted = Warehouse(store.warehouse).query("SELECT session_id, count(*) AS n FROM runs GROUP BY ALL")
    return [[str(name), int(n)] for name, n in counted.itertuples(index=False)]


def measure(store: Store, made: Path, number: int) -> str:
    off = write_session(made, number)
    for run in (off, replace(off, sme2="on")):
        shutil.copytree(made / run.run_id, store.run_dir(run.run_id))
    shutil.rmtree(made)
    return off.session_id


def main(folder: Path, kills: int) -> dict[str, Any]:
    worker, reader, made = Store(folder / "worker"), Store(folder / "reader"), folder / "made"
    measured = []
    # The first one has more steps: it gives the store its id.
    for number in (0, 1):
        measured.append(measure(worker, made, number))
        steps = forked(lambda: give(worker, None))
    half: set[str] = set()
    refused: dict[str, str] = {}
    invisible = 0
    for number in range(2, kills + 2):
        measured.append(measure(worker, made, number))
        step = 1 + (number * 37) % steps
        answer = forked(lambda step=step: give(worker, step))  # type: ignore[misc]
        assert answer is None, f"step {step} of {steps} was not reached"
        found = forked(lambda: take(reader))
        half |= set(found["half"])
        refused |= found["refused"]
        invisible += measured[-1] not in found["sessions"]
        if number % 3 == 0:
            forked(lambda: give(worker, None))
    forked(lambda: give(worker, None))
    forked(lambda: take(reader))
    # How many steps there are to one session.
    measured.append(measure(worker, made, kills + 2))
    forked(lambda: give(worker, None))
    fetching = forked(lambda: fetch(reader, None))
    for number in range(kills + 3, 2 * kills + 3):
        measured.append(measure(worker, made, number))
        forked(lambda: give(worker, None))
        step = 1 + (number * 37) % fetching
        answer = forked(lambda step=step: fetch(reader, step))  # type: ignore[misc]
        assert answer is None, f"step {step} of {fetching} was not reached"
        half |= set(forked(lambda: seen(reader))["half"])
    after = forked(lambda: take(reader))
    forked(lambda: publish_shared(reader, lambda _: None))
    counted = forked(lambda: rows(reader))
    return {
        "steps": [steps, fetching],
        "kills": 2 * kills,
        "invisible after the kill": invisible,
        "half": sorted(half | set(after["half"])),
        "lost": sorted(set(measured) - set(after["sessions"])),
        "not measured": sorted(set(after["sessions"]) - set(measured)),
        "not once": [name for name, n in counted if n != 2],
        "refused": {**refused, **after["refused"]},
        "entries": forked(lambda: entries(worker)),
        "sessions": len(measured),
        "in the tables": len(after["sessions"]),
    }


def entries(store: Store) -> int:
    shared = SharedStore.of(store)
    assert shared is not None
    return shared._end() - 1


if __name__ == "__main__":
    assert session(1).sequence == 1
    print(json.dumps(main(Path(sys.argv[1]), int(sys.argv[2]))))
