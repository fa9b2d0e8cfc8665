"""All benchmarks that end in a few minutes: `python -m benchmarks`.

`benchmarks.measurement_bench` takes half an hour of a quiet machine and is run by `make trust`.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.etdump_bench import REPOSITORY, make_trace, progress

EVENTS = 260_000
BENCHMARKS = ("benchmarks.etdump_bench", "benchmarks.warehouse_bench")


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.etdump"
        progress(f"making a real trace of {EVENTS:,} events")
        make_trace(trace, EVENTS)
        # Each in a process of its own, so that no benchmark's memory counts for the next.
        for module in BENCHMARKS:
            done = subprocess.run([sys.executable, "-m", module, "--trace", str(trace)], cwd=REPOSITORY)
            if done.returncode != 0:
                return done.returncode
            print(flush=True)
    for module in ("benchmarks.growth_bench", "benchmarks.kernels_bench", "benchmarks.regressions_bench"):
        done = subprocess.run([sys.executable, "-m", module], cwd=REPOSITORY)
        if done.returncode != 0:
            return done.returncode
        print(flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
