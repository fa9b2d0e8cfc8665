"""Traces and run folders with known content: what tests and benchmarks both measure or read.

Belongs here: what writes such files, and the documented questions that both ask. Does not: assertions,
fixtures of pytest.
"""

from collections.abc import Callable
from pathlib import Path

# The fixture `made_once`: a folder by its name, filled by the first worker that asks for it.
MadeOnce = Callable[[str, Callable[[Path], object]], Path]
