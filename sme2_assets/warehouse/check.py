"""Checks that everything in the data folder is still what was written: evidence, tables, published files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import duckdb

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
from sme2_assets.warehouse.commits import (
    COMMITS,
    damaged_commits,
    not_commits,
    out_of_order,
    require_commits,
)
from sme2_assets.warehouse.publish import Published
from sme2_assets.warehouse.read import evidence_in_tables
from sme2_assets.warehouse.rebuild import Log, damaged_files, runs_in_no_table, runs_without_folder
from sme2_assets.warehouse.store import Warehouse, is_damaged


@dataclass(frozen=True)
class Finding:
    """Something that is not what was written, and what to do about it."""

    what: str
    remedy: str


def check_store(store: Store, log: Log) -> Iterator[Finding]:
    """Yields what is wrong as it is found. Reads every file once and never touches measurements."""
    warehouse = Warehouse(store.warehouse)
    require_commits(warehouse.tables)
    unlisted = list(_faults_of_commits(warehouse))
    for what in unlisted:
        yield Finding(what, "Run `sme2 warehouse rebuild`: it makes all tables again.")
    for path in (*not_commits(warehouse.tables), *warehouse.not_published()):
        yield Finding(f"{path} is not a file of the warehouse.", "Move it elsewhere: nothing reads it here.")
    damaged = [warehouse.tables / file.path for file in damaged_files(warehouse, log)]
    for path in damaged:
        yield Finding(_said(path), "Run `sme2 warehouse sync`: it makes the rows again.")
    published = warehouse.published()
    log(f"looking at {len(published)} published files")
    # Others may publish meanwhile, and remove old ones.
    broken = [path for path in published if is_damaged(path) and os.path.lexists(path)]
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


def _faults_of_commits(warehouse: Warehouse) -> Iterator[str]:
    """What says that the list of files is not the one that was written."""
    commits = warehouse.tables / COMMITS
    for name in damaged_commits(warehouse.tables):
        yield _said(commits / name)
    for commit in out_of_order(warehouse.tables):
        if (commits / commit.after).exists():
            yield f"{commits / commit.name} does not follow the commit before it: they are not of one list."
        else:
            yield _said(commits / commit.after)
    with duckdb.connect() as instance:
        newest = [Published.read(instance, path) for path in warehouse.published()[-1:]]
    for published in newest:
        if published is not None and published.last_commit and not (commits / published.last_commit).exists():
            yield _said(commits / published.last_commit)


def _said(path: Path) -> str:
    if path.is_symlink() and not path.exists():
        return f"{path} is a link to a file that is not there."
    if not path.exists():
        return f"{path} is missing."
    if path.is_dir():
        return f"{path} is a folder, and not a file."
    return f"{path} is damaged: its content is not what was written."
