"""Checks that everything in the data folder is still what was written: evidence, tables, published files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sme2_assets.errors import EvidenceError, Sme2Error
from sme2_assets.evidence.folder import (
    RunFolder,
    arms_of_session,
    identity_of,
    open_verified,
    run_folders,
)
from sme2_assets.evidence.shared import SharedStore
from sme2_assets.store import Store
from sme2_assets.warehouse.commits import COMMITS, damaged_commits, require_commits
from sme2_assets.warehouse.publish import is_undamaged
from sme2_assets.warehouse.read import evidence_in_tables
from sme2_assets.warehouse.rebuild import Log, damaged_files, runs_in_no_table, runs_without_folder
from sme2_assets.warehouse.store import Warehouse


@dataclass(frozen=True)
class Finding:
    """Something that is not what was written, and what to do about it."""

    what: str
    remedy: str


def check_store(store: Store, log: Log) -> Iterator[Finding]:
    """Yields what is wrong as it is found. Reads every file once and never touches measurements."""
    warehouse = Warehouse(store.warehouse)
    require_commits(warehouse.tables)
    unlisted = [warehouse.tables / COMMITS / name for name in damaged_commits(warehouse.tables)]
    for path in unlisted:
        yield Finding(_said(path), "Run `sme2 warehouse rebuild`: it makes all tables again.")
    damaged = [warehouse.tables / file.path for file in damaged_files(warehouse, log)]
    for path in damaged:
        yield Finding(_said(path), "Run `sme2 warehouse sync`: it makes the rows again.")
    # Files of earlier releases have no hash in their names.
    published = [path for path in warehouse.published() if path.stem.count("-") == 2]
    log(f"looking at {len(published)} published files")
    broken = [path for path in published if not is_undamaged(path)]
    for path in broken:
        if path == published[-1]:
            yield Finding(_said(path), "Run `sme2 warehouse sync`: it publishes the tables again.")
        else:
            yield Finding(_said(path), "Remove it: it is an earlier state, which nothing needs.")
    known = {} if broken or damaged or unlisted else evidence_in_tables(warehouse)
    folders, faulty = run_folders(store.runs), set()
    for number, path in enumerate(folders, start=1):
        log(f"run folder {number} of {len(folders)}: {path.name}")
        try:
            if isinstance(open_verified(path), RunFolder):
                arms_of_session(path)
            if known.get(path.name, identity_of(path)) != identity_of(path):
                raise EvidenceError(
                    f"{path} is not the folder that the tables were made from.",
                    "Restore it from a copy; if it was replaced on purpose, run `sme2 warehouse rebuild`.",
                )
        except Sme2Error as error:
            faulty.add(path)
            yield Finding(error.what, error.remedy or "Restore it from a copy.")
    for path in [] if broken else runs_in_no_table(store):
        if path not in faulty:
            remedy = "Run `sme2 warehouse sync`: it adds the run, or says why it cannot."
            yield Finding(f"{path} is in no table.", remedy)
    for run in runs_without_folder(store):
        yield Finding(
            f"The evidence of run {run} is gone: it has rows, and there is no folder {store.run_dir(run)}.",
            "Restore it from a copy; if it was removed on purpose, `sme2 warehouse rebuild` drops its rows.",
        )
    if shared := SharedStore.of(store):
        for damage in shared.damage(log):
            yield Finding(damage.what, damage.remedy or "Restore it from a copy.")


def _said(path: Path) -> str:
    if not path.exists():
        return f"{path} is missing."
    return f"{path} is damaged: its content is not what was written."
