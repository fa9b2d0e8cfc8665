"""The most that people can ask for, in a file or as an option. Nothing heavy is imported here."""

from __future__ import annotations

MOST_THREADS = 1024
MOST_ROUNDS = 1000
# Of one process, timed or to warm up.
MOST_INFERENCES = 100_000
