"""Old runs in fewer files: the rows that many runs have in a table become one file.

A view names each of its files and a query looks at each of them, so their number is what makes a long history
slow. Runs are merged into small groups, so that few have files of their own, and small groups into large
ones. Rows do not change. The files that were merged stay for readers of an earlier state, as all superseded
ones do.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sme2_assets.errors import WarehouseError
from sme2_assets.warehouse.commits import TableFile, add_group, groups_now
from sme2_assets.warehouse.schema import RUN_ID, TABLES, Table
from sme2_assets.warehouse.sql import layout_of
from sme2_assets.warehouse.summaries import summary_tables

if TYPE_CHECKING:
    from sme2_assets.warehouse.store import Warehouse

# How many runs have files of their own before they are merged.
MERGE_AT = 32
# Limits of groups: small enough to keep damage cheap and merging short, large enough to keep files few.
SMALL_GROUP_RUNS, LARGEST_GROUP_RUNS = 32, 256
LARGEST_GROUP_BYTES = 64_000_000
# Somebody waits for it: a history with many small groups takes several publications.
MOST_OF_GROUPS_AT_ONCE = 2


@dataclass(frozen=True)
class _Mergeable:
    """All files with the rows of a run, or those of a group."""

    files: tuple[TableFile, ...]
    runs: tuple[str, ...]
    group: str | None
    bytes: int


def merge_runs(warehouse: Warehouse) -> bool:
    """Merges published runs that have files of their own, and groups; returns whether there were enough."""
    # Asked before the files are: a run that changes after this commit is not merged.
    [[last]] = warehouse.query("SELECT last_commit FROM publishing.layout").to_numpy()
    there = _mergeable(warehouse)
    # Many at once, as after a rebuild, need not be merged twice.
    large, rest = _filled((each for each in there if each.group is None), LARGEST_GROUP_RUNS)
    small, _ = _filled(rest, SMALL_GROUP_RUNS)
    of_groups, _ = _filled((each for each in there if each.group is not None), LARGEST_GROUP_RUNS)
    wanted = (*large, *small, *of_groups[:MOST_OF_GROUPS_AT_ONCE])
    return sum(_merge(warehouse, each, last) for each in wanted) > 0


def _tables() -> list[Table]:
    return [table for table in (*TABLES, *summary_tables()) if RUN_ID in table.keys]


def _mergeable(warehouse: Warehouse) -> list[_Mergeable]:
    """In the order of run ids, which begin with a date: so each group has a time of its own."""
    # Files of other code stay as they are until they are rebuilt: it must remain visible which columns they
    # lack. A file of several runs also has the keys in it.
    layouts = {
        (table.name, is_of_group): layout_of(columns)
        for table in _tables()
        for is_of_group, columns in ((False, table.columns), (True, table.all_columns))
    }
    members = groups_now(warehouse.tables)
    files: dict[tuple[tuple[str, ...], str | None], list[TableFile]] = defaultdict(list)
    rows = warehouse.query("SELECT path, sha256, columns FROM publishing.files ORDER BY path")
    for file in (TableFile(*row) for row in rows.itertuples(index=False)):
        if file.run_id is not None:
            files[(file.run_id,), None].append(file)
        elif file.group is not None:
            files[members.get(file.group, ()), file.group].append(file)
    return [
        _Mergeable(tuple(some), runs, group, sum(_size(warehouse.tables / file.path) for file in some))
        for (runs, group), some in sorted(files.items(), key=lambda item: item[0][0])
        if runs and all(layouts.get((file.table, group is not None)) == file.columns for file in some)
    ]


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        # Superseded since, and removed. What it was to be merged with is found not to be whole.
        return 0


def _filled(there: Iterable[_Mergeable], most_runs: int) -> tuple[list[list[_Mergeable]], list[_Mergeable]]:
    """What fills groups, and what is left for later, so that nothing is merged again and again."""
    groups: list[list[_Mergeable]] = []
    rest: list[_Mergeable] = []
    for each in there:
        if each.bytes > LARGEST_GROUP_BYTES / 2 or len(each.runs) > most_runs / 2:
            continue
        rest.append(each)
        if (
            sum(len(some.runs) for some in rest) >= most_runs
            or sum(some.bytes for some in rest) >= LARGEST_GROUP_BYTES
        ):
            groups.append(rest)
            rest = []
    return groups, rest


def _merge(warehouse: Warehouse, parts: list[_Mergeable], last_commit: str) -> bool:
    files = [file for part in parts for file in part.files]
    runs = [run for part in parts for run in part.runs]
    group = uuid.uuid4().hex[:16]

    def are_whole() -> bool:
        return all(file.is_whole(warehouse.tables) for file in files)

    if not are_whole():
        return False
    merged: list[TableFile] = []
    added = False
    try:
        for table in _tables():
            of_table = [file for file in files if file.table == table.name]
            merged.append(warehouse.merged(table, of_table, group, runs))
        replaced = [part.group for part in parts if part.group is not None]
        added = add_group(warehouse.tables, merged, group, runs, replaced, last_commit)
    except WarehouseError:
        # A run that is ingested again or removed while this goes on takes its files with it, in the end.
        if are_whole():
            raise
    finally:
        if not added:
            for file in merged:
                (warehouse.tables / file.path).unlink(missing_ok=True)
    return added
