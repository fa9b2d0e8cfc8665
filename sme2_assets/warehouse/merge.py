"""Old runs in fewer files: the rows that many runs have in a table become one file.

A view names each of its files and a query looks at each of them, so their number is what makes a long history
slow. Rows do not change. The runs' own files stay for readers of an earlier state, as all superseded ones do.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout

from sme2_assets.store import sha256_of_text
from sme2_assets.warehouse.commits import TableFile, add_group
from sme2_assets.warehouse.schema import RUN_ID, TABLES, Table
from sme2_assets.warehouse.sql import typed
from sme2_assets.warehouse.summaries import summary_tables

if TYPE_CHECKING:
    from sme2_assets.warehouse.store import Warehouse

# How many runs have files of their own before they are merged.
MERGE_AT = 128
# Limits of a group: small enough to keep damage cheap and merging short, large enough to keep files few.
LARGEST_GROUP_RUNS = 128
LARGEST_GROUP_BYTES = 64_000_000


def merge_runs(warehouse: Warehouse) -> bool:
    """Merges published runs that have files of their own; returns whether any were. One process at a time."""
    try:
        with FileLock(warehouse.root / "merge.lock", timeout=0):
            return sum(_merge_group(warehouse, runs) for runs in list(_groups(warehouse))) > 0
    except Timeout:
        return False


def _tables() -> list[Table]:
    return [table for table in (*TABLES, *summary_tables()) if RUN_ID in table.keys]


def _groups(warehouse: Warehouse) -> Iterator[dict[str, list[TableFile]]]:
    """Files of runs, in the order of their ids, in groups that are worth a file."""
    columns = {table.name: sha256_of_text(typed(table.columns))[:8] for table in _tables()}
    files: dict[str, list[TableFile]] = defaultdict(list)
    rows = warehouse.query(
        "SELECT path, sha256, columns, run_id FROM publishing.files WHERE run_id IS NOT NULL "
        "ORDER BY run_id, path"
    )
    for path, sha256, stored, run in rows.itertuples(index=False):
        files[run].append(TableFile(path, sha256, stored))
    group: dict[str, list[TableFile]] = {}
    size = 0
    for run, of_run in files.items():
        # Files of other code stay as they are until they are rebuilt: it must remain visible which columns
        # they lack.
        if any(columns[file.table] != file.columns for file in of_run):
            continue
        bytes_ = sum((warehouse.tables / file.path).stat().st_size for file in of_run)
        if bytes_ > LARGEST_GROUP_BYTES / 2:
            continue
        group[run] = of_run
        size += bytes_
        if len(group) >= LARGEST_GROUP_RUNS or size >= LARGEST_GROUP_BYTES:
            yield group
            group, size = {}, 0


def _merge_group(warehouse: Warehouse, runs: dict[str, list[TableFile]]) -> bool:
    [[last]] = warehouse.query("SELECT last_commit FROM publishing.layout").to_numpy()
    if not all(file.is_whole(warehouse.tables) for files in runs.values() for file in files):
        return False
    group = uuid.uuid4().hex[:16]
    merged = [
        warehouse.merged(
            table, [file for each in runs.values() for file in each if file.table == table.name], group, runs
        )
        for table in _tables()
    ]
    return add_group(warehouse.tables, merged, group, list(runs), last)
