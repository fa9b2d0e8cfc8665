"""Archives become files here and nowhere else: plain files and folders, below one folder, within limits.

Belongs here: which members of an archive are taken, and how much. Does not: where archives come from, and
what is in the files.

Python's own filters for that came with 3.11.4, and Debian 12 has 3.11.2; nor do they have limits.
"""

from __future__ import annotations

import gzip
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Self

from sme2_assets.errors import disk_failure

#: No result, run folder or wheel is larger, or has more files.
MOST_BYTES = 32 << 30
MOST_MEMBERS = 100_000
#: How much is read at once.
_PIECE_BYTES = 1 << 20
# What is said of the next file beyond its header, its long name above all.
_READ_AS_A_WHOLE = (
    *(tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK),
    *(tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE),
)


class BadArchive(Exception):
    """It is damaged, or was made to do harm."""


class NotPlain(BadArchive):
    """It is whole, and has something that is neither a file nor a folder below its own."""


class TooLarge(BadArchive):
    """It has more than there is room for."""


@dataclass(frozen=True)
class Member:
    """A file of an archive, or a folder, which has no content; `oddity` says what it is instead."""

    name: str
    size_bytes: int
    content: IO[bytes] | None
    oddity: str = ""


def unpack(members: Iterable[Member], folder: Path) -> None:
    """Writes files and folders below `folder`. An OSError is the disk's fault, a BadArchive the archive's."""
    try:
        _unpack(members, folder)
    except OSError as error:
        if disk_failure(str(error)):
            raise
        raise BadArchive(str(error)) from error
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, ValueError, RecursionError) as error:
        raise BadArchive(str(error)) from error


def _unpack(members: Iterable[Member], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    inside, count, total = folder.resolve(), 0, 0
    for member in members:
        count, total = count + 1, total + member.size_bytes
        if count > MOST_MEMBERS:
            raise BadArchive(f"it has more than {MOST_MEMBERS:,} files")
        if total > MOST_BYTES:
            raise BadArchive(f"it has more than {MOST_BYTES:,} bytes")
        if member.oddity:
            raise NotPlain(f"{member.name!r} is {member.oddity}")
        path = folder / member.name
        if "\0" in member.name or not path.resolve().is_relative_to(inside):
            raise NotPlain(f"{member.name!r} cannot be the name of something in this folder")
        if member.content is None:
            path.mkdir(parents=True, exist_ok=True)
            continue
        free = shutil.disk_usage(folder).free
        if member.size_bytes > free:
            raise TooLarge(f"{member.name!r} has {member.size_bytes:,} bytes, and {free:,} are free")
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("xb") as target:
            shutil.copyfileobj(member.content, target, _PIECE_BYTES)


def tar_members(packed: IO[bytes] | gzip.GzipFile) -> Iterator[Member]:
    """The members of a tar archive that is not, or not any more, compressed; it may be a pipe."""
    with tarfile.open(fileobj=packed, mode="r|", bufsize=_PIECE_BYTES, tarinfo=_Header) as archive:
        for member in archive:
            content = archive.extractfile(member) if member.isreg() else None
            yield Member(member.name, member.size, content, _oddity(member))


def _oddity(member: tarfile.TarInfo) -> str:
    if not (member.isreg() or member.isdir()):
        return "a link" if member.issym() or member.islnk() else "a special file"
    # `tar` was not asked for that; a few bytes of it could fill the disk.
    return "sparse" if member.issparse() else ""


class _Header(tarfile.TarInfo):
    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        header = super().frombuf(buf, encoding, errors)
        if header.type in _READ_AS_A_WHOLE and header.size > _PIECE_BYTES:
            raise BadArchive("a header in it is too large")
        return header


def zip_members(archive: zipfile.ZipFile) -> Iterator[Member]:
    for info in archive.infolist():
        if info.is_dir():
            yield Member(info.filename, 0, None)
        else:
            with archive.open(info) as content:
                yield Member(info.filename, info.file_size, content)
