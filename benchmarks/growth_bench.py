"""How the warehouse grows: one more run is published, and one is asked about, after ever more runs.

    python -m benchmarks.growth_bench [--runs 10 100 1000]

Peers, on the same Parquet files: a published file that is made anew from all of them, and DuckDB asked over
the files themselves, without a warehouse in between. Both must find the same times, else there is no table.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TypeVar

import duckdb

from benchmarks.etdump_bench import Table, progress
from benchmarks.made.run_folder import MadeRun, ingest
from sme2_assets.warehouse import Warehouse
from sme2_assets.warehouse.commits import TableFile, add_commit, files_now
from sme2_assets.warehouse.ingest import RUN_TABLES

T = TypeVar("T")
REPEAT = 5
# Mean time of each category in the traced inferences of a run: what `category_summary` has, from the events.
OVER_FILES = """
    SELECT category, avg(ns) AS mean_ns
    FROM (
        SELECT round, iteration, coalesce(category, 'Overhead') AS category, sum(duration_ns) AS ns
        FROM read_parquet('{files}', hive_partitioning = true, union_by_name = true)
        WHERE run_id = ? AND NOT is_warmup
        GROUP BY ALL
    )
    GROUP BY category
    ORDER BY category
"""
EVENTS = "SELECT count(*), sum(duration_ns) FROM timeline WHERE run_id = ?"
OVER_WAREHOUSE = "SELECT category, mean_ns FROM category_summary WHERE run_id = ? ORDER BY category"


def timed(work: Callable[[], T]) -> tuple[float, T]:
    started = time.perf_counter()
    result = work()
    return time.perf_counter() - started, result


def best_of(work: Callable[[], T]) -> tuple[float, T]:
    return min((timed(work) for _ in range(REPEAT)), key=lambda each: each[0])


def copies_of(warehouse: Warehouse, run: MadeRun, run_ids: list[str]) -> None:
    """The same rows as other runs; links, because what is in the files does not matter."""
    files = []
    for path in warehouse.tables.rglob(f"run_id={run.run_id}/*.parquet"):
        [listed] = [file for file in _files(warehouse) if warehouse.tables / file.path == path]
        for run_id in run_ids:
            copied = path.parent.with_name(f"run_id={run_id}") / path.name
            copied.parent.mkdir()
            os.link(path, copied)
            files.append(replace(listed, path=str(copied.relative_to(warehouse.tables))))
    add_commit(warehouse.tables, files, run_ids)


@cache
def _files(warehouse: Warehouse) -> list[TableFile]:
    """Those of the run that all others are copies of."""
    return files_now(warehouse.tables)


def row(warehouse: Warehouse, run: MadeRun, runs: int) -> list[str]:
    there = len(files_now(warehouse.tables)) // len(RUN_TABLES)
    copies_of(warehouse, run, [f"{run.run_id}-{number:06d}" for number in range(there, runs)])
    warehouse.publish()
    newest = f"{run.run_id}-one-more-after-{runs}"
    copies_of(warehouse, run, [newest])
    published_s, _ = timed(warehouse.publish)
    asked_s, rows = best_of(lambda: warehouse.query(OVER_WAREHOUSE, [newest]))
    events_s, _ = best_of(lambda: warehouse.query(EVENTS, [newest]))

    shutil.rmtree(warehouse.snapshots)
    anew_s, _ = timed(warehouse.publish)
    over_files = OVER_FILES.format(files=f"{warehouse.tables}/timeline/**/*.parquet")
    with duckdb.connect() as connection:
        files_s, expected = best_of(lambda: connection.execute(over_files, [newest]).df())
    if rows.round(6).to_dict() != expected.round(6).to_dict():
        raise SystemExit(f"they disagree after {runs} runs:\n{rows}\n{expected}")
    return [
        f"{runs:,}",
        *(f"{published_s * 1e3:.0f}", f"{anew_s * 1e3:.0f}", f"{anew_s / published_s:.0f}x"),
        *(f"{asked_s * 1e3:.0f}", f"{files_s * 1e3:.0f}", f"{files_s / asked_s:.1f}x"),
        f"{events_s * 1e3:.0f}",
    ]


def growth_table(counts: list[int]) -> Table:
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        warehouse, run = Warehouse(Path(folder) / "warehouse"), MadeRun()
        ingest(warehouse, run.write(Path(folder) / "runs"))
        for runs in sorted(counts):
            progress(f"after {runs:,} runs")
            rows.append(row(warehouse, run, runs))
    return Table(
        title="One more run in the warehouse, and a question about it",
        header=[
            *("runs there", "publish ms", "made anew ms", "times faster"),
            *("ask ms", "over Parquet ms", "times faster", "its events ms"),
        ],
        rows=rows,
        footnotes=[
            f"Asked for the category times of one run, best of {REPEAT}. Small runs: 8 operators each."
        ],
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.growth_bench",
        description="Publishing and asking after ever more runs, against reading all Parquet files.",
    )
    parser.add_argument("--runs", type=int, nargs="+", default=[10, 100, 1000], help="runs that are there")
    print(growth_table(parser.parse_args().runs))


if __name__ == "__main__":
    main()
