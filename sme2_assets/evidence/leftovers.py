"""What killed processes left behind: hidden folders and files that nothing will finish.

Nothing is removed that may still be in use: a workspace is judged by its lock, the folder of a run by its
manifest and the leases of the devices, and everything by its age.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from sme2_assets.store import Store, is_unlocked

_WORKSPACE = "sme2-run-"
_OLD_S = 3600
# The form of names that `tempfile` makes from a prefix.
_HIDDEN = re.compile(r"\..+\.[a-z0-9_]{8}")


@contextmanager
def workspace_folder() -> Iterator[Path]:
    """A temporary folder that is marked as in use for as long as this process lives."""
    with tempfile.TemporaryDirectory(prefix=_WORKSPACE, ignore_cleanup_errors=True) as name:
        held = os.open(name, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(held, fcntl.LOCK_EX)
            yield Path(name)
        finally:
            os.close(held)


def leftovers(store: Store) -> list[Path]:
    """What can be removed because the process that made it is dead."""
    # Imported late: targets import this module, and are needed before everything is installed.
    from sme2_assets.evidence.manifest import MANIFEST_FILE

    found = [path for path in _entries(Path(tempfile.gettempdir())) if path.name.startswith(_WORKSPACE)]
    found = [path for path in found if path.stat().st_uid == os.getuid() and is_unlocked(path)]
    places = [store.root, store.leases, store.reports, store.root / "exports"]
    places += _entries(store.root / "current")
    if all(is_unlocked(lock) for lock in store.leases.glob("*.lock")):
        # Nothing is measuring. A complete run that was never renamed is picked up later, not thrown away.
        places.append(store.runs)
    hidden = [path for place in places for path in _entries(place) if _HIDDEN.fullmatch(path.name)]
    found += [path for path in hidden if not (path / MANIFEST_FILE).exists()]
    return [path for path in found if time.time() - _touched(path) > _OLD_S]


def remove_leftovers(store: Store) -> None:
    """Called at the start of a command. What cannot be removed does no harm."""
    with suppress(OSError):
        for path in leftovers(store):
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)


def _entries(folder: Path) -> list[Path]:
    try:
        return [path for path in folder.iterdir() if not path.is_symlink()]
    except OSError:
        return []


def _touched(path: Path) -> float:
    """When anything in it last changed."""
    times = [path.lstat().st_mtime]
    for folder, _, _ in os.walk(path):
        with suppress(OSError):
            times.append(os.lstat(folder).st_mtime)
    return max(times)
