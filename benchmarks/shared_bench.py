"""What a shared store costs: a session given, found, fetched, the tables published, after ever more runs.

    python -m benchmarks.shared_bench [--runs 10 100 1000]

The store is a folder, or what `$SME2_STORE` names; it must be empty. Requests are counted at fsspec.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.etdump_bench import Table, progress
from benchmarks.growth_bench import best_of
from sme2_assets.evidence.shared import VARIABLE, SharedRun, SharedSession, SharedStore
from sme2_assets.store import Store
from sme2_assets.warehouse.shared import CURRENT, publish_shared
from sme2_assets_tests.made.history import History
from sme2_assets_tests.made.run_folder import MadeRun

T = TypeVar("T")
METHODS = ("exists", "find", "cat_file", "get_file", "put_file", "pipe_file", "mv", "rm_file")


def silent(_: str) -> None: ...


def timed(work: Callable[[], T]) -> tuple[float, T]:
    return best_of(work, 1)


def counting(shared: SharedStore) -> Counter[str]:
    """Counts what is asked of the store from now on."""
    counts: Counter[str] = Counter()

    def counted(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            counts[name] += 1
            return real(*arguments, **named)

        return call

    for name in METHODS:
        setattr(shared.fs, name, counted(name, getattr(type(shared.fs), name).__get__(shared.fs)))
    return counts


def fill(shared: SharedStore, entries: int) -> None:
    """Entries of sessions that nobody fetches here: only how many there are matters."""
    for number in range(shared._end(), entries + 1):
        run = SharedRun(archive=f"runs/{number}", sha256="0" * 64, evidence="0" * 64)
        entry = SharedSession(sequence=number, runs={f"run-{number}": run})
        shared.create(shared._name(number), entry.to_json().encode())


def row(folder: Path, runs: int) -> list[str]:
    giver, fetcher = Store(folder / f"giver{runs}"), Store(folder / f"fetcher{runs}")
    shared = SharedStore.of(giver)
    assert shared is not None
    fill(shared, runs)
    counts = counting(shared)
    found_s, _ = timed(shared.newest)
    found = counts.total()
    off = MadeRun(session_id=f"20260101T{runs:06d}-aaaaaa")
    for run in (off, replace(off, sme2="on")):
        run.write(giver.runs)
    size = sum(path.stat().st_size for path in giver.runs.rglob("*") if path.is_file())
    counts.clear()
    given_s, _ = timed(lambda: shared.push(giver.runs, silent))
    given = counts.total()
    reader = SharedStore(shared.url, fetcher.root / "shared")
    counts = counting(reader)
    entry = reader._entry(reader._end() - 1)
    counts.clear()
    fetched_s, _ = timed(lambda: reader._fetched(entry, fetcher.runs, silent))
    return [
        f"{runs:,}",
        *(f"{found}", f"{found_s * 1e3:.0f}"),
        *(f"{size / 1e6:.2f}", f"{given}", f"{given_s * 1e3:.0f}"),
        *(f"{counts.total()}", f"{fetched_s * 1e3:.0f}"),
        *published(folder, runs),
    ]


def published(folder: Path, runs: int) -> list[str]:
    """One more session, published to the store after so many others."""
    store = Store(folder / f"lab{runs}")
    history = History(store.root)
    history.grow_to(runs)
    publish_shared(store, silent)
    history.add_session()
    local_s, _ = timed(history.warehouse.publish)
    shared = SharedStore.of(store)
    assert shared is not None
    counts = counting(shared)
    shared_s, address = timed(lambda: publish_shared(store, silent))
    size = shared.fs.size(f"{shared.root}/{str(address).removeprefix(shared.url + '/')}")
    assert shared.fs.exists(f"{shared.root}/{CURRENT}")
    return [f"{local_s * 1e3:.0f}", f"{size / 1e6:.1f}", f"{counts.total()}", f"{shared_s * 1e3:.0f}"]


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.shared_bench", description="What a shared store costs as it grows."
    )
    parser.add_argument("--runs", type=int, nargs="+", default=[10, 100, 1000], help="runs that are there")
    counts = sorted(parser.parse_args().runs)
    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault(VARIABLE, f"file://{folder}/store")
        rows = []
        for runs in counts:
            progress(f"after {runs:,} runs")
            rows.append(row(Path(folder), runs))
        print(
            Table(
                title=f"A shared store: {os.environ[VARIABLE].partition(':')[0]}",
                header=[
                    *("runs there", "requests to find the end", "ms", "session MB", "requests to give it"),
                    *("ms", "requests to fetch it", "ms", "publish here ms", "DuckDB file MB"),
                    *("requests to publish there", "ms"),
                ],
                rows=rows,
                footnotes=["A pair of small runs; the end is looked for by somebody who knows nothing yet."],
            )
        )


if __name__ == "__main__":
    main()
