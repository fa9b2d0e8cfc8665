"""How fast an ETDump becomes a warehouse that answers a query, and how much memory that takes.

    python -m benchmarks.warehouse_bench [--events 260000] [--repeat 3]

Ours is the whole way of the asset `timeline`: verify the run folder, decode the trace, make the rows, write
Parquet, publish DuckDB, ask for the category summary. The peer is ExecuTorch's own way to rows: Inspector,
`to_dataframe`, a CSV file. Each runs in a fresh process, on the same file. Both must find the same time in
Method::execute, else there is no table.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.etdump_bench import REPOSITORY, Table, make_trace, progress
from sme2_assets.models.progress import peak_memory_bytes

# What a way does once: gives the time in Method::execute, and the seconds of each step.
Way = Callable[[Path], tuple[int, dict[str, float]]]


@dataclass(frozen=True)
class Measurement:
    """One way from trace to rows; the steps are those of the fastest repetition."""

    execute_ns: int
    import_seconds: float
    import_memory_bytes: int
    steps: dict[str, float]
    peak_memory_bytes: int

    @property
    def seconds(self) -> float:
        return sum(self.steps.values())


class _Steps:
    """Seconds between one call and the next, by name."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def done(self, name: str) -> None:
        now = time.perf_counter()
        self.seconds[name] = now - self._last
        self._last = now


def load_ours() -> Way:
    from sme2_assets.warehouse import Warehouse
    from sme2_assets.warehouse.ingest import RunReader, write_runs

    def run(run_folder: Path) -> tuple[int, dict[str, float]]:
        with tempfile.TemporaryDirectory() as folder:
            steps = _Steps()
            warehouse = Warehouse(Path(folder) / "warehouse")
            write_runs(warehouse, RunReader(run_folder))
            steps.done("rows and Parquet")
            warehouse.publish()
            steps.done("publish")
            assert not warehouse.query("FROM category_summary").empty
            steps.done("first query")
            total = warehouse.query("SELECT sum(duration_ns)::BIGINT AS ns FROM timeline")["ns"].iloc[0]
        return int(total), steps.seconds

    return run


def load_inspector() -> Way:
    from executorch.devtools import Inspector
    from executorch.devtools.inspector import TimeScale

    def run(run_folder: Path) -> tuple[int, dict[str, float]]:
        trace = run_folder / "round_00" / "etdump" / "trace.etdump"
        with tempfile.TemporaryDirectory() as folder:
            steps = _Steps()
            inspector = Inspector(
                etdump_path=str(trace), source_time_scale=TimeScale.NS, target_time_scale=TimeScale.NS
            )
            frame = inspector.to_dataframe()
            steps.done("rows")
            frame.to_csv(Path(folder) / "events.csv")
            steps.done("CSV")
        executions = frame[frame["event_name"] == "Method::execute"]
        return int(sum(sum(raw) for raw in executions["raw"])), steps.seconds

    return run


WAYS: dict[str, Callable[[], Way]] = {"ours": load_ours, "inspector": load_inspector}


def measure(way: str, run_folder: Path, repeat: int) -> Measurement:
    started = time.perf_counter()
    run = WAYS[way]()
    import_seconds, import_memory = time.perf_counter() - started, peak_memory_bytes()
    best: dict[str, float] = {}
    for _ in range(repeat):
        execute_ns, steps = run(run_folder)
        if not best or sum(steps.values()) < sum(best.values()):
            best = steps
    return Measurement(execute_ns, import_seconds, import_memory, best, peak_memory_bytes())


def in_fresh_process(way: str, run_folder: Path, repeat: int) -> Measurement:
    with tempfile.NamedTemporaryFile("r", suffix=".json") as answer:
        command = [sys.executable, "-m", "benchmarks.warehouse_bench", "--measure", way]
        command += ["--trace", str(run_folder), "--repeat", str(repeat), "--answer", answer.name]
        done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SystemExit(f"{way} failed:\n{done.stderr}")
        return Measurement(**json.load(answer))


def warehouse_table(trace: Path, repeat: int, inspector_repeat: int) -> Table:
    from sme2_assets.etdump import read_etdump
    from sme2_assets_tests.made.run_folder import run_with_trace

    events = len(read_etdump(trace))
    with tempfile.TemporaryDirectory() as folder:
        run_folder = run_with_trace(Path(folder), trace)
        progress("from the trace to a warehouse that answers")
        ours = in_fresh_process("ours", run_folder, repeat)
        progress("from the trace to a CSV file by ExecuTorch's Inspector, some thirty seconds")
        theirs = in_fresh_process("inspector", run_folder, inspector_repeat)
    if ours.execute_ns != theirs.execute_ns:
        raise SystemExit(
            f"they disagree: {ours.execute_ns} ns in Method::execute, the Inspector has {theirs.execute_ns}"
        )
    ratio = theirs.seconds / ours.seconds
    return Table(
        title=f"ETDump to queryable rows: {events:,} events, {trace.stat().st_size / 1e6:.1f} MB",
        header=["way", "seconds", "events/s", "peak MB", "of it imports MB", "imports s", "times faster"],
        rows=[
            _row("ETDump -> Parquet -> DuckDB -> query", ours, events, f"{ratio:.0f}x"),
            _row("Inspector -> DataFrame -> CSV", theirs, events, "1x"),
        ],
        footnotes=[
            f"seconds: best of {repeat} (ours), of {inspector_repeat} (Inspector), imports not counted.",
            "ours: " + ", ".join(f"{name} {seconds:.2f} s" for name, seconds in ours.steps.items()) + ".",
            f"Both found {ours.execute_ns:,} ns in Method::execute.",
        ],
    )


def _row(name: str, measured: Measurement, events: int, ratio: str) -> list[str]:
    return [
        name,
        f"{measured.seconds:.2f}",
        f"{events / measured.seconds:,.0f}",
        f"{measured.peak_memory_bytes / 1e6:.0f}",
        f"{measured.import_memory_bytes / 1e6:.0f}",
        f"{measured.import_seconds:.2f}",
        ratio,
    ]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.warehouse_bench",
        description="From an ETDump to a warehouse that answers, against ExecuTorch's Inspector.",
    )
    parser.add_argument("--events", type=int, default=260_000, help="events of the trace to make, at least")
    parser.add_argument("--repeat", type=int, default=3, help="how often ours runs; the best counts")
    parser.add_argument("--inspector-repeat", type=int, default=1, help="how often the slow one runs")
    parser.add_argument("--trace", type=Path, help="take this ETDump and make none")
    parser.add_argument("--measure", choices=sorted(WAYS), help=argparse.SUPPRESS)
    parser.add_argument("--answer", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    if arguments.measure:
        measured = measure(arguments.measure, arguments.trace, arguments.repeat)
        arguments.answer.write_text(json.dumps(asdict(measured)))
        return
    with tempfile.TemporaryDirectory() as folder:
        trace = arguments.trace
        if trace is None:
            trace = Path(folder) / "trace.etdump"
            progress(f"making a real trace of {arguments.events:,} events")
            make_trace(trace, arguments.events)
        print(warehouse_table(trace, arguments.repeat, arguments.inspector_repeat))


if __name__ == "__main__":
    main()
