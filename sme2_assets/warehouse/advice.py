"""Advice as rows: what changes to each model gained when they were tried."""

from __future__ import annotations

import pandas as pd

from sme2_assets.errors import Sme2Error
from sme2_assets.evidence.advice import Advice, advice_files
from sme2_assets.store import Store
from sme2_assets.warehouse.schema import ADVICE
from sme2_assets.warehouse.store import Warehouse


def write_advice(store: Store, warehouse: Warehouse) -> dict[str, Sme2Error]:
    """Stores all advice of the data folder; returns the files that cannot be read, and why."""
    rows, refused = [], {}
    for path in advice_files(store.advice):
        try:
            advice = Advice.read(path)
            rows += [
                {"variant": advice.variant, "rank": rank, **change.as_json()}
                for rank, change in enumerate(advice.changes)
            ]
        except Sme2Error as error:
            refused[path.name] = error
    # Advice that was removed loses its rows; a folder that never had any gets no table.
    if rows or refused or (warehouse.tables / ADVICE.name).is_dir():
        warehouse.write(ADVICE, pd.DataFrame(rows, columns=[column.name for column in ADVICE.columns]), {})
    return refused
