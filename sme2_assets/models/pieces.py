"""A program that repeats most of another one, kept as what is new in it.

The program with taps has all the weights of the one that is measured. ExecuTorch writes a program piece by
piece, and each tensor of weights is a piece of its own: pieces that the first program has are kept as the
place where they are in its file.
"""

from __future__ import annotations

import hashlib
import zipfile
import zlib
from pathlib import Path
from typing import BinaryIO

import numpy as np

from sme2_assets.errors import ExportError, first_line

# A smaller piece takes no less room as a reference than as it is.
_LEAST_BYTES = 64
_NEW = -1
_AT_ONCE = 16 << 20


class PieceIndex:
    """A file to write a program to, which remembers where each piece of it is."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._at = 0
        self._places: dict[bytes, int] = {}

    def write(self, piece: bytes) -> int:
        if len(piece) >= _LEAST_BYTES:
            self._places.setdefault(hashlib.sha256(piece).digest(), self._at)
        self._at += len(piece)
        return self._file.write(piece)

    def place_of(self, piece: bytes) -> int | None:
        """Where the file has these bytes; None if they are not a piece of it."""
        if len(piece) < _LEAST_BYTES:
            return None
        return self._places.get(hashlib.sha256(piece).digest())


class Difference:
    """A file to write the other program to, which keeps what the first one lacks."""

    def __init__(self, first: PieceIndex) -> None:
        self._first = first
        self._pieces: list[tuple[int, int]] = []
        self._new = bytearray()

    def write(self, piece: bytes) -> int:
        place = self._first.place_of(piece)
        if place is None:
            self._new += piece
        self._pieces.append((_NEW if place is None else place, len(piece)))
        return len(piece)

    def save(self, path: Path) -> None:
        pieces = np.array(self._pieces, dtype=np.int64).reshape(-1, 2)
        np.savez_compressed(path, pieces=pieces, new=np.frombuffer(self._new, np.uint8))


def write_restored(first: Path, difference: Path, to: Path) -> None:
    """Write the other program, byte for byte as it was."""
    try:
        with np.load(difference, allow_pickle=False) as kept:
            pieces, new = kept["pieces"].tolist(), kept["new"].tobytes()
    except (ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise ExportError(
            f"{difference} is damaged: {first_line(error)}", "delete its folder and export the model again"
        ) from error
    with first.open("rb") as source, to.open("wb") as target:
        used = 0
        for place, length in pieces:
            if place == _NEW:
                target.write(new[used : used + length])
                used += length
                continue
            source.seek(place)
            for start in range(0, length, _AT_ONCE):
                target.write(source.read(min(_AT_ONCE, length - start)))
