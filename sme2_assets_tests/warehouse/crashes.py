"""Kills the process that takes a session in, at every step that the disk sees, and says what is left.

    python -m sme2_assets_tests.warehouse.crashes FOLDER KILLS

From the first file of a run folder to the published comparison: a process is killed (SIGKILL) just before the
n-th time that it creates, syncs or renames something, for one n after the other. After each kill what is
published is looked at; at the end everything that was measured is taken in. Processes are forks, because
starting Python takes longer than all that they do.
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

from sme2_assets.evidence.folder import run_folders
from sme2_assets.evidence.manifest import MANIFEST_FILE
from sme2_assets.store import Store, new_directories, write_text_atomically
from sme2_assets.warehouse.check import check_store
from sme2_assets.warehouse.comparisons import compare_session
from sme2_assets.warehouse.rebuild import sync
from sme2_assets.warehouse.sessions import take_session
from sme2_assets.warehouse.store import Warehouse
from sme2_assets_tests.made.run_folder import MadeRun

STEPS = ("fsync", "rename", "replace", "mkdir", "symlink")
HALF = """
    SELECT session_id FROM runs GROUP BY session_id HAVING count(*) <> 2
    UNION ALL
    SELECT session_id FROM runs WHERE run_id NOT IN (SELECT run_id FROM kernel_samples)
        OR run_id NOT IN (SELECT run_id FROM timeline) OR run_id NOT IN (SELECT run_id FROM inferences)
"""


def forked(work: Callable[[], Any]) -> Any:
    """What `work` gives in a process of its own; None where that was killed."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(writing, json.dumps(work()).encode())
            os._exit(0)
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
            os._exit(1)
    os.close(writing)
    with os.fdopen(reading) as answer:
        text = answer.read()
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        return None
    assert status == 0, "a step failed instead of being killed"
    return json.loads(text)


def die_at(step: int | None) -> list[int]:
    """Plants the kill; gives a counter of the steps so far."""
    count = [0]

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            count[0] += 1
            if count[0] == step:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*arguments, **named)

        return call

    for name in STEPS:
        setattr(os, name, counted(getattr(os, name)))
    return count


def measure(store: Store, made: Path, off: MadeRun, step: int | None) -> int:
    """A session as it is measured, taken in and compared; gives how many steps that took."""
    count = die_at(step)
    runs = [off, replace(off, sme2="on")]
    with new_directories([store.run_dir(run.run_id) for run in runs]) as stagings:
        for run, staging in zip(runs, stagings, strict=True):
            shutil.copytree(
                made / run.run_id, staging, dirs_exist_ok=True, ignore=shutil.ignore_patterns(MANIFEST_FILE)
            )
        for run, staging in zip(runs, stagings, strict=True):
            write_text_atomically(staging / MANIFEST_FILE, (made / run.run_id / MANIFEST_FILE).read_text())
    warehouse = Warehouse(store.warehouse)
    take_session(store, warehouse, store.run_dir(off.run_id))
    warehouse.publish()
    compare_session(warehouse, off.session_id)
    warehouse.publish()
    return count[0]


def session(number: int) -> MadeRun:
    return MadeRun(session_id=f"20260101T{number:06d}-aaaaaa", sequence=number, rounds=1, iterations=1)


def write_session(made: Path, number: int) -> MadeRun:
    off = session(number)
    for run in (off, replace(off, sme2="on")):
        run.write(made)
    return off


def seen(store: Store) -> dict[str, list[str]]:
    warehouse = Warehouse(store.warehouse)
    return {
        "sessions": sorted(set(warehouse.query("SELECT session_id FROM runs")["session_id"])),
        "half": sorted(set(warehouse.query(HALF)["session_id"])),
    }


def measured(store: Store, off: MadeRun) -> bool:
    """Whether the evidence was whole when the process was killed: both manifests, under whichever names."""
    folders = [path for path in store.runs.iterdir() if path.name.lstrip(".").startswith(off.session_id)]
    return sum((path / MANIFEST_FILE).is_file() for path in folders) == 2


def main(folder: Path, kills: int) -> dict[str, Any]:
    store, made = Store(folder / "data"), folder / "made"
    # The first one has more steps than those that follow: it makes the folders of the tables.
    whole = [write_session(made, number) for number in range(2)]
    _, steps = (forked(lambda off=off: measure(store, made, off, None)) for off in whole)  # type: ignore[misc]
    half: set[str] = set()
    for number in range(2, kills + 2):
        off = write_session(made, number)
        # Spread over all steps, and every one of them in time.
        step = 1 + (number * 37) % steps
        answer = forked(lambda off=off, step=step: measure(store, made, off, step))  # type: ignore[misc]
        assert answer is None, f"step {step} of {steps} was not reached"
        if measured(store, off):
            whole.append(off)
        half |= set(forked(lambda: seen(store))["half"])
        shutil.rmtree(made)
    refused = forked(lambda: [each.what for each in sync(store, lambda _: None).refused])
    after = forked(lambda: seen(store))
    return {
        "steps": steps,
        "kills": kills,
        "measured": len(whole),
        "unfinished": kills + 2 - len(whole),
        "half": sorted(half | set(after["half"])),
        "lost": sorted({off.session_id for off in whole} - set(after["sessions"])),
        "not measured": sorted(set(after["sessions"]) - {off.session_id for off in whole}),
        "compared": forked(
            lambda: (
                Warehouse(store.warehouse)
                .query("SELECT DISTINCT session_id FROM comparisons")["session_id"]
                .tolist()
            )
        ),
        "run folders": len(run_folders(store.runs)),
        "refused": refused,
        "findings": forked(lambda: [each.what for each in check_store(store, lambda _: None)]),
    }


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), int(sys.argv[2]))))
