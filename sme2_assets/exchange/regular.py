"""Files made by somebody else are read only if they are plain files of a reasonable size.

A link may point to something that only this user may read, or to a device that never ends; a pipe may block
for ever. The file is checked after it is opened, so it cannot be swapped for another one.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from sme2_assets.errors import TraceError
from sme2_assets.evidence.regular import copy_content

#: The size prefix of a trace has four bytes.
LARGEST_TRACE_BYTES = 4 << 30
LARGEST_TEXT_BYTES = 64 << 20


@contextmanager
def opened(path: Path, most_bytes: int) -> Iterator[BinaryIO]:
    """A regular file to read; TraceError for anything else."""
    try:
        # O_NONBLOCK: do not wait for a writer of a pipe.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise TraceError("It is a symbolic link.", "Give the file that it points to.") from None
        raise TraceError(f"It cannot be read: {error.strerror}.", "Check that it is readable.") from error
    with os.fdopen(descriptor, "rb") as handle:
        facts = os.fstat(descriptor)
        if not stat.S_ISREG(facts.st_mode):
            raise TraceError("It is not a regular file.", "Copy what it holds into a file, and give that.")
        if facts.st_size > most_bytes:
            raise TraceError(
                f"It has {facts.st_size:,} bytes, and at most {most_bytes:,} are read.",
                "Trace fewer inferences at once.",
            )
        yield handle


def copy_file(source: Path, target: Path, most_bytes: int) -> None:
    """Copies a regular file, if there is room for it."""
    with opened(source, most_bytes) as handle:
        size = os.fstat(handle.fileno()).st_size
        free = shutil.disk_usage(target.parent).free
        if size > free:
            raise TraceError(
                f"It has {size:,} bytes, and {free:,} are free on the disk of {target.parent.parent}.",
                "Make room, or choose another data folder with --data.",
            )
        copy_content(handle, target, size)
