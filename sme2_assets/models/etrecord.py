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


def save_without_weights(exported_program: Any, edge_program: Any, executorch: Any, path: Path) -> None:
    """Write the record, compressed; the exported program gets its weights back afterwards."""
    from executorch.devtools.etrecord import ETRecord

    etrecord = ETRecord(edge_dialect_program=edge_program)
    etrecord.add_exported_program(exported_program)
    etrecord.add_executorch_program(executorch)
    plain = path.with_name(f"{path.name}.plain")
    try:
        with _emptied(exported_program), _emptied(edge_program):
            etrecord.save(str(plain))
        with zipfile.ZipFile(plain) as saved, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
            for entry in saved.namelist():
                packed.writestr(entry, saved.read(entry))
    finally:
        plain.unlink(missing_ok=True)


@contextlib.contextmanager
def _emptied(program: Any) -> Iterator[None]:
    weights = program._state_dict
    try:
        program._state_dict = {}
        yield
    finally:
        program._state_dict = weights
