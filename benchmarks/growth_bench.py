"""How the warehouse grows: one more session is published, and questions are asked, after ever more runs.

    python -m benchmarks.growth_bench [--runs 100 1000] [--writers 4]

Runs have 57 operators and 10,080 rows of `timeline` each, so 10,000 of them are 100 million rows, which takes
half an hour. Then several processes write and publish sessions at once, as when devices are measured side by
side. Peers, with the same rows of a hundred runs: SQLite with an index, and CSV files read by pandas. All
must find the same times, else there is no table.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import TypeVar
from unittest.mock import patch

import pandas as pd

from benchmarks.etdump_bench import Table, progress
from sme2_assets.warehouse import Warehouse, store
from sme2_assets.warehouse.merge import MERGE_AT, merge_runs
from sme2_assets_tests.made.history import History
from sme2_assets_tests.made.questions import questions
from sme2_assets_tests.made.run_folder import MadeRun, ingest

T = TypeVar("T")
REPEAT = 3
PEER_RUNS = 100
SESSIONS_EACH = 5
# For one of the writers to end: longer means that another one failed.
MOST_S = 600
ONE_RUN = "SELECT * FROM timeline WHERE run_id = ?"
TOTALS = (
    "SELECT category, sum(total_ns)::BIGINT AS ns FROM category_times GROUP BY category ORDER BY category"
)
OVER_EVENTS = (
    "SELECT coalesce(category, 'Overhead') AS category, sum(duration_ns) AS ns FROM timeline "
    "WHERE NOT is_warmup GROUP BY 1 ORDER BY 1"
)


def best_of(work: Callable[[], T], repeat: int = REPEAT) -> tuple[float, T]:
    taken = []
    for _ in range(repeat):
        started = time.perf_counter()
        result = work()
        taken.append(time.perf_counter() - started)
    return min(taken), result


def ask(warehouse: Warehouse, sql: str, parameters: list[object] | None = None) -> pd.DataFrame:
    with warehouse.connect() as connection:
        return connection.execute(sql, parameters or []).df()


def row(history: History, runs: int) -> list[str]:
    warehouse = history.warehouse
    # A history grows by publications, which merge its runs.
    while history.runs < runs:
        history.grow_to(min(runs, history.runs + MERGE_AT))
        warehouse.publish()
    published = []
    for _ in range(REPEAT):
        newest = history.add_session()[-1]
        published.append(best_of(warehouse.publish, 1)[0])
    asked = {number: best_of(partial(ask, warehouse, sql))[0] for number, sql in questions().items()}
    slowest = max(asked, key=lambda number: asked[number])
    missed, _ = best_of(lambda: ask(warehouse, "FROM missed_sme2 WHERE run_id = ?", [newest]))
    files = warehouse.query("SELECT count(*) AS n FROM publishing.files WHERE table_name = 'timeline'")["n"]
    return [
        f"{history.runs:,}",
        f"{min(published) * 1e3:.0f}",
        f"{best_of(lambda: ask(warehouse, ONE_RUN, [newest]))[0] * 1e3:.0f}",
        f"{missed * 1e3:.0f}",
        f"{best_of(lambda: ask(warehouse, TOTALS))[0] * 1e3:.0f}",
        f"{asked[slowest] * 1e3:.0f} (question {slowest})",
        f"{warehouse.link.stat().st_size / 1e6:.0f}",
        f"{int(files.iloc[0])}",
    ]


@dataclass(frozen=True)
class _Waited:
    """The seconds that one session took."""

    to_write: float
    to_publish: float
    # By whoever publishes when enough runs have files of their own; nobody else waits for it.
    to_merge: float | None


def _write_sessions(folder: Path, writer: int, begin: Barrier, done: Queue[list[_Waited]]) -> None:
    warehouse = Warehouse(folder / "warehouse")
    sessions = [
        MadeRun(session_id=f"20270101T{writer:02d}{number:02d}00-aaaaaa", seed=writer, depth=8, iterations=27)
        for number in range(SESSIONS_EACH)
    ]
    # Before they begin: a device makes them, not this machine.
    measured = [
        [replace(session, sme2=sme2).write(folder / f"runs_{writer}") for sme2 in ("off", "on")]
        for session in sessions
    ]
    merges: list[float] = []

    def merge(warehouse: Warehouse) -> bool:
        seconds, merged = best_of(partial(merge_runs, warehouse), 1)
        merges.append(seconds)
        return merged

    taken = []
    begin.wait()
    with patch.object(store, "merge_runs", merge):
        for arms in measured:
            merges.clear()
            to_write, _ = best_of(partial(ingest, warehouse, *arms), 1)
            to_publish, _ = best_of(warehouse.publish, 1)
            to_merge = sum(merges)
            taken.append(_Waited(to_write, to_publish - to_merge, to_merge or None))
    done.put(taken)


def writers_table(folder: Path, runs: int, writers: int) -> Table:
    context = multiprocessing.get_context("spawn")
    begin, done = context.Barrier(writers), context.Queue()
    processes = [
        context.Process(target=_write_sessions, args=(folder, writer, begin, done), daemon=True)
        for writer in range(writers)
    ]
    for process in processes:
        process.start()
    taken = [each for _ in processes for each in done.get(timeout=MOST_S)]
    for process in processes:
        process.join()
    merges = [each.to_merge for each in taken if each.to_merge is not None]
    return Table(
        title=f"{writers} processes that write sessions at once, after {runs:,} runs",
        header=["", "median s", "worst s"],
        rows=[
            [what, f"{statistics.median(seconds):.2f}", f"{max(seconds):.2f}"]
            for what, seconds in (
                ("rows of a session", [each.to_write for each in taken]),
                ("until it is published", [each.to_publish for each in taken]),
                ("merging old runs then", merges),
            )
            if seconds
        ],
        footnotes=[
            f"{SESSIONS_EACH} sessions each, one after the other, on {os.cpu_count()} CPUs. "
            f"{len(merges)} of {len(taken)} publications merged runs, for which nobody else waits."
        ],
    )


def peers(warehouse: Warehouse, folder: Path) -> Table:
    """The same rows elsewhere: those of one run, and category totals over all."""
    runs = warehouse.query("SELECT run_id FROM runs WHERE fidelity = 'hardware' ORDER BY run_id")["run_id"]
    some = runs.head(PEER_RUNS).tolist()
    columns = "run_id, round, iteration, is_warmup, name, category, duration_ns"
    database = sqlite3.connect(folder / "peer.sqlite")
    csv = folder / "csv"
    csv.mkdir()
    for run in some:
        rows = warehouse.query(f"SELECT {columns} FROM timeline WHERE run_id = ?", [run])
        rows.to_sql("timeline", database, if_exists="append", index=False)
        rows.to_csv(csv / f"{run}.csv", index=False)
    database.execute("CREATE INDEX of_run ON timeline (run_id)")
    one = some[-1]

    def of_csv() -> pd.DataFrame:
        frames = pd.concat(pd.read_csv(path) for path in sorted(csv.iterdir()))
        timed = frames[~frames["is_warmup"]]
        return timed.groupby(timed["category"].fillna("Overhead"))["duration_ns"].sum().reset_index(name="ns")

    listed = ", ".join(f"'{run}'" for run in some)
    ours = f"SELECT category, sum(total_ns)::BIGINT AS ns FROM category_times WHERE run_id IN ({listed}) "
    ways: dict[str, tuple[Callable[[], object], Callable[[], pd.DataFrame]]] = {
        "warehouse": (
            lambda: ask(warehouse, ONE_RUN, [one]),
            lambda: ask(warehouse, ours + "GROUP BY category ORDER BY category"),
        ),
        "SQLite": (
            lambda: pd.read_sql(ONE_RUN, database, params=[one]),
            lambda: pd.read_sql(OVER_EVENTS, database),
        ),
        "CSV and pandas": (lambda: pd.read_csv(csv / f"{one}.csv"), of_csv),
    }
    rows, found = [], []
    for name, (one_run, totals) in ways.items():
        totals_s, answer = best_of(totals, 1)
        found.append(dict(zip(answer["category"], answer["ns"].astype(int), strict=True)))
        rows.append([name, f"{best_of(one_run)[0] * 1e3:.0f}", f"{totals_s * 1e3:.0f}"])
    if found[1:] != found[:-1]:
        raise SystemExit(f"they disagree: {found}")
    return Table(
        title=f"The same rows of {len(some)} runs elsewhere",
        header=["way", "rows of one run ms", "category totals ms"],
        rows=rows,
        footnotes=["All found the same times."],
    )


def growth_tables(counts: list[int], writers: int, folder: Path) -> list[Table]:
    history = History(folder)
    rows = []
    for runs in sorted(counts):
        progress(f"{runs:,} runs")
        rows.append(row(history, runs))
    growth = Table(
        title="One more session in the warehouse, and questions",
        header=[
            *("runs", "publish ms", "rows of one run ms", "missed_sme2 of one run ms", "category totals ms"),
            *("slowest question ms", "published MB", "timeline files"),
        ],
        rows=rows,
        footnotes=[f"Best of {REPEAT}."],
    )
    progress(f"{writers} writers")
    return [growth, writers_table(folder, history.runs, writers), peers(history.warehouse, folder)]


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.growth_bench",
        description="Publishing and asking after ever more runs, with SQLite and CSV files beside it.",
    )
    parser.add_argument("--runs", type=int, nargs="+", default=[100, 1000], help="runs that are there")
    parser.add_argument("--writers", type=int, default=4, help="processes that write at once")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for table in growth_tables(arguments.runs, arguments.writers, Path(folder)):
            print(table, end="\n\n")


if __name__ == "__main__":
    main()
