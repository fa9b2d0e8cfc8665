"""How fast an ETDump becomes columns: our reader against ExecuTorch's Inspector, on one file, in one run.

    python -m benchmarks.etdump_bench [--events 260000] [--repeat 3]

The file is real: a small model with XNNPACK delegates and portable operators, run thousands of times with
the tracer attached. Each decoder runs in a fresh process, so that neither's imports and memory count for the
other. Both must find the same number of events and the same total of durations, else there is no table.
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

from sme2_assets.models.progress import peak_memory_bytes

REPOSITORY = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Measurement:
    """One decoder on one file."""

    events: int
    total_duration_ns: int
    import_seconds: float
    import_memory_bytes: int
    decode_seconds: list[float]
    peak_memory_bytes: int

    @property
    def best_seconds(self) -> float:
        return min(self.decode_seconds)


@dataclass(frozen=True)
class Table:
    """What the benchmark prints: a title, a header, rows of text."""

    title: str
    header: list[str]
    rows: list[list[str]]
    footnotes: list[str]

    def __str__(self) -> str:
        lines = [self.header, *self.rows]
        widths = [max(len(line[column]) for line in lines) for column in range(len(self.header))]
        text = [
            "  ".join(
                cell.ljust(width) if column == 0 else cell.rjust(width)
                for column, (cell, width) in enumerate(zip(line, widths, strict=True))
            )
            for line in lines
        ]
        rule = "-" * len(text[0])
        return "\n".join([self.title, rule, text[0], rule, *text[1:], rule, *self.footnotes])


def measure_reader(path: Path, repeat: int) -> Measurement:
    def load() -> Callable[[], tuple[int, int]]:
        from sme2_assets.etdump import read_etdump

        def decode() -> tuple[int, int]:
            events = read_etdump(path)
            return len(events), int(events.duration_ns.sum())

        return decode

    return _measure(load, repeat)


def measure_inspector(path: Path, repeat: int) -> Measurement:
    def load() -> Callable[[], tuple[int, int]]:
        from executorch.devtools import Inspector
        from executorch.devtools.inspector import TimeScale

        def decode() -> tuple[int, int]:
            inspector = Inspector(
                etdump_path=str(path), source_time_scale=TimeScale.NS, target_time_scale=TimeScale.NS
            )
            durations = [event.perf_data.raw for block in inspector.event_blocks for event in block.events]
            return sum(map(len, durations)), int(sum(map(sum, durations)))

        return decode

    return _measure(load, repeat)


DECODERS = {"reader": measure_reader, "inspector": measure_inspector}


def _measure(load: Callable[[], Callable[[], tuple[int, int]]], repeat: int) -> Measurement:
    started = time.perf_counter()
    decode = load()
    import_seconds = time.perf_counter() - started
    import_memory = peak_memory_bytes()
    seconds = []
    for _ in range(repeat):
        started = time.perf_counter()
        events, total_duration_ns = decode()
        seconds.append(time.perf_counter() - started)
    return Measurement(events, total_duration_ns, import_seconds, import_memory, seconds, peak_memory_bytes())


def in_fresh_process(decoder: str, path: Path, repeat: int) -> Measurement:
    with tempfile.NamedTemporaryFile("r", suffix=".json") as answer:
        arguments = [
            "--measure",
            decoder,
            "--trace",
            str(path),
            "--repeat",
            str(repeat),
            "--answer",
            answer.name,
        ]
        _run_module("benchmarks.etdump_bench", *arguments)
        return Measurement(**json.load(answer))


def make_trace(path: Path, events: int) -> None:
    _run_module("sme2_assets_tests.made.real_trace", str(path), "--events", str(events))


def _run_module(module: str, *arguments: str) -> None:
    run = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    if run.returncode != 0:
        raise SystemExit(f"{module} failed:\n{run.stderr}")


def decoding_table(path: Path, repeat: int, inspector_repeat: int) -> Table:
    """ETDump -> columns."""
    progress("decoding with our reader")
    ours = in_fresh_process("reader", path, repeat)
    progress(f"decoding with ExecuTorch's Inspector {inspector_repeat} times, some twenty seconds each")
    theirs = in_fresh_process("inspector", path, inspector_repeat)
    if (ours.events, ours.total_duration_ns) != (theirs.events, theirs.total_duration_ns):
        raise SystemExit(
            f"the decoders disagree: {ours.events} events of {ours.total_duration_ns} ns in all, "
            f"the Inspector has {theirs.events} of {theirs.total_duration_ns} ns"
        )
    megabytes = path.stat().st_size / 1e6
    ratio = theirs.best_seconds / ours.best_seconds
    return Table(
        title=f"ETDump to columns: {ours.events:,} events, {megabytes:.1f} MB",
        header=[
            "decoder",
            "decode s",
            "events/s",
            "peak MB",
            "of it imports MB",
            "imports s",
            "times faster",
        ],
        rows=[
            _decoder_row("sme2_assets.etdump", ours, f"{ratio:.0f}x"),
            _decoder_row("ExecuTorch Inspector", theirs, "1x"),
        ],
        footnotes=[
            f"decode s: best of {repeat} (reader), of {inspector_repeat} (Inspector), imports not counted.",
            f"Both found {ours.events:,} events with {ours.total_duration_ns:,} ns in all.",
        ],
    )


def _decoder_row(name: str, measured: Measurement, ratio: str) -> list[str]:
    return [
        name,
        f"{measured.best_seconds:.3f}",
        f"{measured.events / measured.best_seconds:,.0f}",
        f"{measured.peak_memory_bytes / 1e6:.0f}",
        f"{measured.import_memory_bytes / 1e6:.0f}",
        f"{measured.import_seconds:.2f}",
        ratio,
    ]


def progress(message: str) -> None:
    print(f"... {message}", file=sys.stderr, flush=True)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.etdump_bench",
        description="Our ETDump reader against ExecuTorch's Inspector.",
    )
    parser.add_argument("--events", type=int, default=260_000, help="events of the trace to make, at least")
    parser.add_argument("--repeat", type=int, default=3, help="how often each decodes it; the best counts")
    parser.add_argument("--inspector-repeat", type=int, help="another number for the slow one")
    parser.add_argument("--trace", type=Path, help="decode this ETDump and make none")
    parser.add_argument("--measure", choices=sorted(DECODERS), help=argparse.SUPPRESS)
    parser.add_argument("--answer", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    if arguments.measure:
        measured = DECODERS[arguments.measure](arguments.trace, arguments.repeat)
        arguments.answer.write_text(json.dumps(asdict(measured)))
        return
    with tempfile.TemporaryDirectory() as folder:
        trace = arguments.trace
        if trace is None:
            trace = Path(folder) / "trace.etdump"
            progress(f"making a real trace of {arguments.events:,} events")
            make_trace(trace, arguments.events)
        print(decoding_table(trace, arguments.repeat, arguments.inspector_repeat or arguments.repeat))


if __name__ == "__main__":
    main()
