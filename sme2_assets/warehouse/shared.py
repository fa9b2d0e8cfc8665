"""How a warehouse works with the store that several machines share (evidence/shared.py).

Belongs here: making rows from what was fetched, and putting the published DuckDB file and its tables there,
for people with nothing but a DuckDB client. Does not: how evidence gets there.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from sme2_assets.errors import EvidenceError
from sme2_assets.evidence.shared import Pulled, SharedStore
from sme2_assets.store import Store, sha256_of_file, write_text_atomically
from sme2_assets.warehouse.commits import commits_after
from sme2_assets.warehouse.publish import SNAPSHOTS_KEPT, write_for_readers_elsewhere
from sme2_assets.warehouse.sessions import take_session
from sme2_assets.warehouse.store import Warehouse

Log = Callable[[str], None]

# Names the published files, newest first: the only object there that is ever overwritten.
CURRENT = "published.json"
_SHARED_TABLES = "published_after.txt"


def begin(store: Store) -> None:
    """Before a session: makes sure that it counts as newer than all in the shared store."""
    if shared := SharedStore.of(store):
        shared.count_on(store.runs)


def give(store: Store, log: Log) -> None:
    """After a session: what was measured here goes to the shared store."""
    if shared := SharedStore.of(store):
        shared.push(store.runs, log)


def exchange(store: Store, log: Log, take: Callable[[Path], object] = lambda folder: None) -> Pulled:
    """Gives what was measured here to the shared store, and fetches what was measured elsewhere."""
    shared = SharedStore.of(store)
    if shared is None:
        return Pulled()
    shared.push(store.runs, log)
    return shared.pull(store.runs, log, take)


def catch_up(store: Store, log: Log) -> Pulled:
    """The same, and adds what was fetched to the tables."""
    warehouse = Warehouse(store.warehouse)
    pulled = exchange(store, log, lambda folder: take_session(store, warehouse, folder))
    if pulled.folders:
        warehouse.publish()
    for what, why in pulled.refused.items():
        log(f"{what} was left out: {why}")
    return pulled


def publish_shared(store: Store, log: Log) -> str | None:
    """Puts the published file there, after the tables' files that its views name; returns its address."""
    shared = SharedStore.of(store)
    if shared is None:
        return None
    warehouse = Warehouse(store.warehouse)
    published = warehouse.publish()
    with shared.reached():
        note = shared.here / _SHARED_TABLES
        last = note.read_text().strip() if note.is_file() else None
        commits = commits_after(warehouse.tables, last or None)
        if commits is None:
            commits = commits_after(warehouse.tables, None) or []
        for file in (file for commit in commits for file in commit.files):
            # Files superseded since then are no longer in any table.
            if (path := warehouse.tables / file.path).is_file():
                shared.put(path, f"tables/{file.path}")
        with tempfile.TemporaryDirectory() as folder:
            made = Path(folder) / "warehouse.duckdb"
            tables = f"{shared.root if shared.is_folder else shared.url}/tables"
            write_for_readers_elsewhere(published, made, tables, warehouse.tables)
            name = f"published/warehouse-{sha256_of_file(made)[:16]}.duckdb"
            shared.put(made, name)
            kept = [name, *(each for each in _published(shared, log) if each != name)]
            pointer = Path(folder) / CURRENT
            write_text_atomically(pointer, json.dumps({"files": kept[:SNAPSHOTS_KEPT]}) + "\n")
            shared.put(pointer, CURRENT)
            for old in kept[SNAPSHOTS_KEPT:]:
                # Somebody else who publishes may have removed it.
                with suppress(FileNotFoundError):
                    shared.fs.rm_file(f"{shared.root}/{old}")
        if commits:
            write_text_atomically(note, commits[-1].name)
    log(f"published {shared.url}/{name}")
    return f"{shared.url}/{name}"


def _published(shared: SharedStore, log: Log) -> list[str]:
    """The published files that the store names; a list that cannot be read counts as empty."""
    try:
        return list(json.loads(shared.read(f"{shared.root}/{CURRENT}"))["files"])
    except FileNotFoundError:
        return []
    except (EvidenceError, ValueError, LookupError, TypeError) as error:
        log(f"{shared.url}/{CURRENT} is not a list of published files, and is written anew: {error}")
        return []
