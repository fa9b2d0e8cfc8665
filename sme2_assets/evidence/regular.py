"""The files of a run folder, which anybody may have made: regular ones, and reached without a link.

A link may lead to something that only this user may read, or to a device that never ends; a pipe may block
for ever. A file is judged after it is opened, so it cannot be swapped for another one.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from sme2_assets.errors import EvidenceError

DAMAGED = "Restore the folder from a copy, or remove it and measure again."
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
# O_NONBLOCK: do not wait for a writer of a pipe.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CHUNK = 1 << 20


def files_in(folder: Path) -> list[str]:
    """The names of all files below a folder; EvidenceError if it holds anything but files and folders."""
    found, waiting = [], [folder]
    while waiting:
        place = waiting.pop()
        try:
            entries = list(place.iterdir())
            kinds = [entry.lstat().st_mode for entry in entries]
        except OSError as error:
            raise EvidenceError(f"{place} cannot be read: {error.strerror}.", DAMAGED) from error
        for entry, kind in zip(entries, kinds, strict=True):
            if stat.S_ISDIR(kind):
                waiting.append(entry)
            elif stat.S_ISREG(kind):
                found.append(entry.relative_to(folder).as_posix())
            else:
                raise _not_regular(entry)
    return sorted(found)


@contextmanager
def opened(folder: Path, name: str) -> Iterator[BinaryIO]:
    """A file of a folder, to read; EvidenceError if it is missing, or not a regular file of that folder."""
    path = folder / name
    try:
        descriptor = _descriptor(folder, name)
    except FileNotFoundError:
        raise EvidenceError(f"{path} is missing.", DAMAGED) from None
    except PermissionError as error:
        raise EvidenceError(f"You may not read {path}.", "Check who owns it.") from error
    except (OSError, ValueError) as error:
        below = [folder.joinpath(*parts) for parts in _beginnings(name)]
        raise _not_regular(next((each for each in below if each.is_symlink()), path)) from error
    with _handle(descriptor, _not_regular(path)) as handle:
        yield handle


@contextmanager
def opened_anywhere(path: Path, remedy: str) -> Iterator[BinaryIO]:
    """A regular file, to read, also behind a link: for what is checked before anything is done with it."""
    descriptor = os.open(path, _FILE & ~os.O_NOFOLLOW)
    with _handle(descriptor, EvidenceError(f"{path} is not a regular file.", remedy)) as handle:
        yield handle


def content_of(path: Path, most_bytes: int, remedy: str) -> bytes:
    """What is in a regular file, also behind a link."""
    with opened_anywhere(path, remedy) as handle:
        # A file that says that it is larger need not be read; and what it says may be wrong by now.
        if os.fstat(handle.fileno()).st_size <= most_bytes:
            content = handle.read(most_bytes + 1)
            if len(content) <= most_bytes:
                return content
    raise EvidenceError(f"{path} is larger than any file of its kind.", remedy)


def sha256_of(folder: Path, name: str) -> str:
    digest = hashlib.sha256()
    with opened(folder, name) as handle:
        while chunk := handle.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def copy_files(source: Path, names: Iterable[str], target: Path) -> None:
    """Copies files of a folder into another one, if there is room for all of them."""
    names = list(names)
    size = sum((source / name).lstat().st_size for name in names)
    free = shutil.disk_usage(target).free
    if size > free:
        raise EvidenceError(
            f"{source} has {size:,} bytes, and {free:,} are free on the disk of {target.parent}.",
            "Make room, or choose another data folder with --data.",
        )
    for name in names:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        with opened(source, name) as handle:
            copy_content(handle, target / name, os.fstat(handle.fileno()).st_size)


def copy_content(handle: BinaryIO, target: Path, size: int) -> None:
    """A new file with what a file holds; if that grows during the copy, with the size that it had."""
    left = size
    with target.open("xb") as copy:
        while left > 0 and (chunk := handle.read(min(left, _CHUNK))):
            copy.write(chunk)
            left -= len(chunk)


@contextmanager
def _handle(descriptor: int, otherwise: EvidenceError) -> Iterator[BinaryIO]:
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise otherwise
        with open(descriptor, "rb", closefd=False) as handle:
            yield handle
    finally:
        os.close(descriptor)


def _descriptor(folder: Path, name: str) -> int:
    """Opens one folder after the other, so that no link among them is followed."""
    parts = PurePosixPath(name).parts
    if not parts:
        raise IsADirectoryError
    # The folder itself may be a link: to where it lies is the choice of whoever named it.
    at = os.open(folder, _FOLDER)
    try:
        for part in parts[:-1]:
            inner = os.open(part, _FOLDER | os.O_NOFOLLOW, dir_fd=at)
            os.close(at)
            at = inner
        return os.open(parts[-1], _FILE, dir_fd=at)
    finally:
        os.close(at)


def _beginnings(name: str) -> Iterator[tuple[str, ...]]:
    parts = PurePosixPath(name).parts
    return (parts[:count] for count in range(1, len(parts) + 1))


def _not_regular(path: Path) -> EvidenceError:
    what = "a symbolic link" if path.is_symlink() else "not a regular file"
    return EvidenceError(
        f"{path} is {what}, and a run folder holds nothing but files.",
        "Put the file that belongs there in its place; if nothing does, remove it.",
    )
