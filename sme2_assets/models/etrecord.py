"""The ETRecord of an export: graphs and debug handles, as ExecuTorch's Inspector reads them, without weights.

ExecuTorch writes the weights of the exported program and of the edge program into it, uncompressed: twice
the model's size, next to a program that already has them. Nothing that is read from it needs them.
"""

from __future__ import annotations

import contextlib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def save_without_weights(etrecord: Any, path: Path) -> None:
    """Write the record, compressed; the weights of the programs in it are restored afterwards."""
    plain = path.with_name(f"{path.name}.plain")
    with _emptied(etrecord):
        etrecord.save(str(plain))
    with zipfile.ZipFile(plain) as saved, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        for entry in saved.namelist():
            packed.writestr(entry, saved.read(entry))
    plain.unlink()


@contextlib.contextmanager
def _emptied(etrecord: Any) -> Iterator[None]:
    edge = etrecord.edge_dialect_program
    programs = [etrecord.exported_program, *(edge.values() if isinstance(edge, dict) else [edge])]
    held = [(program, program._state_dict) for program in programs if program is not None]
    try:
        for program, _ in held:
            program._state_dict = {}
        yield
    finally:
        for program, weights in held:
            program._state_dict = weights
