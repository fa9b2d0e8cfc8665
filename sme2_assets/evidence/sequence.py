"""Which session came first: by a number that each gets when its evidence is complete, never by a clock.

A number is larger than all that are in the data folder by then, including those of sessions merged from other
labs. So a session that could have seen another comes after it, a clock that was wrong for a while changes
nothing, and two labs that merge each other's runs agree on the order. Sessions of two labs may have the same
number: neither saw the other, and their names decide. They also decide among sessions that are measured after
the largest number that can be was merged, which only somebody who made it up can have given.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from filelock import FileLock

from sme2_assets.errors import EvidenceError
from sme2_assets.evidence.documents import LARGEST_SEQUENCE
from sme2_assets.evidence.folder import run_folders
from sme2_assets.evidence.manifest import MANIFEST_FILE, Manifest
from sme2_assets.store import write_text_atomically

# File next to the run folders: the number that was given last.
_LAST = "sequence"


def next_number(runs: Path) -> int:
    """A number for a session below `runs` that no other session gets, as long as there are any."""
    with _counting(runs):
        number = min(_last(runs) + 1, LARGEST_SEQUENCE)
        write_text_atomically(runs.parent / _LAST, f"{number}\n")
    return number


def count_from(runs: Path, number: int) -> None:
    """Makes all numbers given from now on larger than that one."""
    with _counting(runs):
        if number > _last(runs):
            write_text_atomically(runs.parent / _LAST, f"{number}\n")


def _counting(runs: Path) -> FileLock:
    runs.parent.mkdir(parents=True, exist_ok=True)
    return FileLock(runs.parent / f".{_LAST}.lock")


def _last(runs: Path) -> int:
    """The largest number given so far; found from all manifests if it was not kept."""
    with suppress(FileNotFoundError, ValueError):
        # Earlier releases kept any number that was merged.
        if (kept := int((runs.parent / _LAST).read_text())) <= LARGEST_SEQUENCE:
            return kept
    return max(map(_number_of, run_folders(runs)), default=0)


def _number_of(folder: Path) -> int:
    try:
        return Manifest.read(folder / MANIFEST_FILE).sequence
    except EvidenceError:
        # A foreign run, or a damaged one: it has no place in the order.
        return 0
