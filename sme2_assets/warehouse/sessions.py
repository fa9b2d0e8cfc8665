"""Sessions become rows: whole, or not at all."""

from __future__ import annotations

from pathlib import Path

from sme2_assets.evidence.folder import ForeignFolder, arms_of_session
from sme2_assets.evidence.foreign import FOREIGN_FILE
from sme2_assets.evidence.sequence import count_from
from sme2_assets.store import Store
from sme2_assets.warehouse.foreign import ForeignReader, write_foreign
from sme2_assets.warehouse.ingest import RunReader, annotation, write_runs
from sme2_assets.warehouse.store import Warehouse


def take_session(store: Store, warehouse: Warehouse, folder: Path) -> list[str]:
    """Stores the session that a run folder belongs to, all arms with all their tables; returns its run ids.

    If one of its folders cannot be read, that is an error and nothing is stored.
    """
    if (folder / FOREIGN_FILE).is_file():
        added = annotation(store, folder.name)
        write_foreign(warehouse, ForeignReader(ForeignFolder.verified(folder), added))
        return [folder.name]
    runs = [RunReader(path, annotation(store, path.name)) for path in arms_of_session(folder)]
    # It may have been copied here by hand, or restored: anything measured from now on is newer.
    count_from(store.runs, runs[0].manifest.sequence)
    write_runs(warehouse, *runs)
    return [run.manifest.run_id for run in runs]
