"""The errors a person is meant to read.

Everything the product raises on purpose is an `Sme2Error`: what happened, to which thing, and what
to do next. Assets turn it into `dagster.Failure`, the command line prints it without a traceback.
Any other exception is a defect of ours and keeps its traceback.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence


class Sme2Error(Exception):
    """A failure with a cause and a remedy."""

    def __init__(self, what: str, remedy: str | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.what}\n  What to do: {self.remedy}" if self.remedy else self.what

    def _render_traceback_(self) -> list[str]:
        """What a notebook shows for it."""
        return [f"{type(self).__name__}: {self}"]


class BuildError(Sme2Error):
    """The native runner could not be built."""


class ExportError(Sme2Error):
    """A model could not be turned into a .pte."""


class TraceError(Sme2Error):
    """A file is not an ETDump, or not a complete one."""


class EvidenceError(Sme2Error):
    """A file of a run folder is missing, damaged, or of a version that cannot be read."""


class TargetUnavailable(Sme2Error):
    """A platform or SME2 state that this machine cannot offer."""


class RunnerError(Sme2Error):
    """The runner ran and failed, or left a result that cannot be right."""


class WarehouseError(Sme2Error):
    """The warehouse refused a write or a query."""


class ConnectionLost(RunnerError):
    """A device went away in the middle of something. What it finished before is not in doubt."""


class Refused(TargetUnavailable):
    """A machine answered and does not let us in: waiting will not help."""


class PackagesUnavailable(Sme2Error):
    """Packages of the distribution that this machine cannot fetch."""


_DISK_FAULTS = (
    (
        r"No space left on device|disk is full|Disk quota exceeded",
        "The disk is full",
        "Make room (`sme2 gc` shows what can go)",
    ),
    # SQLite's words for a write that failed, most often because there is no room.
    (
        r"disk I/O error",
        "The disk is full or does not work",
        "Make room (`sme2 gc` shows what can go), or check the disk",
    ),
    (r"Read-only file system|readonly database", "The disk is read-only", "Make it writable"),
    (
        r"Permission denied|unable to open database file",
        "A file may not be read or written",
        "Check who owns the folder",
    ),
    (r"Input/output error", "The disk does not work", "Check it"),
)


def disk_failure(text: str) -> Sme2Error | None:
    """What a disk failure means, by the words of the system, SQLite or DuckDB; None for any other failure.

    Any write can hit one, so they are recognised where errors are reported, not where files are written.
    """
    for words, what, remedy in _DISK_FAULTS:
        if re.search(words, text):
            said = printable(text.strip().splitlines()[0])[:300]
            return Sme2Error(f"{what}: {said}", f"{remedy}, or choose another data folder with --data.")
    return None


def told(error: BaseException) -> Sme2Error | None:
    """What a person is told about an error; None for a defect of ours, which keeps its traceback."""
    if isinstance(error, Sme2Error):
        return error
    # Dagster's storage and DuckDB have their own errors for a failed disk.
    return disk_failure("\n".join(map(str, chain(error))))


def chain(error: BaseException) -> Iterator[BaseException]:
    """The error and what caused it, outermost first."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)


def did_you_mean(given: str, known: Sequence[str]) -> str:
    """The known name closest to an unknown one, as part of a sentence."""
    nearest = difflib.get_close_matches(given, known, n=1)
    return f" (did you mean {nearest[0]!r}?)" if nearest else ""


def first_line(error: BaseException) -> str:
    """What an error says in its first line that says something, or else its name."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def printable(text: str) -> str:
    """Text from outside, made safe for a terminal: unprintable characters are shown by their codes."""
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)
