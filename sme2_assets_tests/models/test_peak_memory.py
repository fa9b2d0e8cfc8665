"""What a process says about its memory is about itself."""

from __future__ import annotations

import subprocess
import sys

HELD_BYTES = 400_000_000
SAYS_ITS_PEAK = "from sme2_assets.models.progress import peak_memory_bytes; print(peak_memory_bytes())"
# A process that holds much starts one that holds little.
STARTS_ANOTHER = f"""
import subprocess, sys
held = b"1" * {HELD_BYTES}
subprocess.run([sys.executable, "-c", {SAYS_ITS_PEAK!r}], check=True, close_fds=False)
"""


def _said_peak(program: str) -> int:
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    return int(done.stdout)


def test_the_peak_is_not_that_of_the_process_which_started_it():
    assert _said_peak(STARTS_ANOTHER) < HELD_BYTES / 4


def test_the_peak_counts_what_is_no_longer_held():
    assert _said_peak(f"held = b'1' * {HELD_BYTES}; del held; {SAYS_ITS_PEAK}") > HELD_BYTES
