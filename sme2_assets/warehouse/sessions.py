"""Sessions become rows: whole, or not at all."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from sme2_assets.errors import EvidenceError
from sme2_assets.evidence.documents import first_fault
from sme2_assets.evidence.folder import ForeignFolder, arms_of_session
from sme2_assets.evidence.foreign import FOREIGN_FILE
from sme2_assets.evidence.regular import copy_files, files_in, opened
from sme2_assets.evidence.sequence import count_from
from sme2_assets.store import Store, new_directories
from sme2_assets.warehouse.foreign import ForeignReader, write_foreign
from sme2_assets.warehouse.ingest import RunReader, annotate, annotation, write_runs
from sme2_assets.warehouse.store import Warehouse


def take_session(store: Store, warehouse: Warehouse, folder: Path, theirs: Store | None = None) -> list[str]:
    """Stores the session that a run folder belongs to, all arms with all their tables; returns its run ids.

    If one of its folders cannot be read, that is an error and nothing is stored. A session of another data
    folder, `theirs`, is copied here once all its rows are made: nothing comes here that gives none.
    """
    is_foreign = (folder / FOREIGN_FILE).is_file()
    arms = [folder] if is_foreign else arms_of_session(folder)
    if theirs is not None:
        _require_no_links(arms, theirs)

    def keep() -> None:
        if theirs is not None:
            _copy([arm for arm in arms if not store.run_dir(arm.name).exists()], theirs, store)

    notes = [annotation(theirs or store, arm.name) for arm in arms]
    try:
        if is_foreign:
            write_foreign(warehouse, ForeignReader(ForeignFolder.verified(folder), notes[0]), keep)
        else:
            runs = [RunReader(arm, note) for arm, note in zip(arms, notes, strict=True)]
            # It may have been copied here by hand, or restored: anything measured from now on is newer.
            count_from(store.runs, runs[0].manifest.sequence)
            write_runs(warehouse, *runs, before_commit=keep)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        # Every file is what its manifest vouches for, and yet says something that no session writes.
        raise EvidenceError(
            f"No rows can be made of {folder}: {type(error).__name__}: {first_fault(error)}.",
            "Remove the folders of its session; if it was measured here, report it with its manifest.json.",
        ) from error
    return [arm.name for arm in arms]


def _require_no_links(arms: Sequence[Path], theirs: Store) -> None:
    for arm in arms:
        if arm.is_symlink():
            raise EvidenceError(
                f"{arm} is a symbolic link, and may lead to anything.",
                "Put the run folder itself in its place, or remove it.",
            )
        if os.path.lexists(note := annotation(theirs, arm.name)):
            with opened(theirs.root, note.relative_to(theirs.root).as_posix()):
                pass


def _copy(arms: Sequence[Path], theirs: Store, store: Store) -> None:
    """Copies run folders, which appear together, and the logs that somebody added to them."""
    if not arms:
        return
    with new_directories([store.run_dir(arm.name) for arm in arms]) as stagings:
        for arm, staging in zip(arms, stagings, strict=True):
            facts = arm.stat()
            copy_files(arm, files_in(arm), staging)
            # Its age is that of the evidence.
            os.utime(staging, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    for arm in arms:
        if (note := annotation(theirs, arm.name)).is_file():
            annotate(store, arm.name, note)
