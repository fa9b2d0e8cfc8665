"""The history of every series, and the slow-downs in it."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import pandas as pd

from sme2_assets.analysis.change_points import regressions, what_could_be_found
from sme2_assets.warehouse import read
from sme2_assets.warehouse.ingest import DERIVATION
from sme2_assets.warehouse.schema import REGRESSIONS
from sme2_assets.warehouse.store import Warehouse

SERIES = [*read.SERIES, "sme2", "category"]


def series_of(warehouse: Warehouse) -> dict[tuple, pd.DataFrame]:
    """Every series of the view `history`, oldest run first.

    XNNPACK tells whole microseconds: a category that takes less has no time to compare. Where the code that
    makes categories changed, runs whose rows were made by other code have none here until they are rebuilt:
    a new category of an operator is no change of its time.
    """
    rows = warehouse.query(
        "SELECT * FROM history WHERE category = 'latency' OR derivation = ? ORDER BY sequence, started_at",
        [DERIVATION],
    )
    rows["median_ns"] = rows["median_ns"].where(rows["median_ns"] > 0)
    return {key: group.reset_index(drop=True) for key, group in rows.groupby(SERIES, sort=True)}


def find_regressions(warehouse: Warehouse, acknowledged: Path) -> pd.DataFrame:
    """Looks for slow-downs in all series and stores what is found, in place of what was found before."""
    series = series_of(warehouse)
    found = regressions({key: rows["median_ns"].tolist() for key, rows in series.items()})
    known = _acknowledged(acknowledged)
    records = []
    for key, changes in found.items():
        for change in changes:
            first_slow = series[key].iloc[change.index]
            records.append(
                {
                    **dict(zip(SERIES, key, strict=True)),
                    "fidelity": first_slow["fidelity"],
                    "night": first_slow["started_at"],
                    "run_id": first_slow["run_id"],
                    "before_ns": change.before,
                    "after_ns": change.after,
                    "ratio": change.ratio,
                    "p_value": change.p_value,
                    "acknowledged": first_slow["run_id"] in known,
                }
            )
    frame = pd.DataFrame(records, columns=[column.name for column in REGRESSIONS.columns])
    warehouse.write(REGRESSIONS, frame, {})
    return frame


def no_slow_down_text(warehouse: Warehouse, variants: Collection[str] | None = None) -> str:
    """What may be said of these variants, or of all, where no slow-down was found."""
    return what_could_be_found(
        int(rows["median_ns"].notna().sum())
        for key, rows in series_of(warehouse).items()
        if variants is None or key[SERIES.index("variant")] in variants
    )


def _acknowledged(path: Path) -> set[str]:
    """The run ids that a person listed, one a line; what follows a # is a remark."""
    if not path.is_file():
        return set()
    lines = (line.split("#")[0].strip() for line in path.read_text().splitlines())
    return {line for line in lines if line}
