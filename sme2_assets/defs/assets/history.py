"""Slow-downs over the nights, and steps of counted work."""

from itertools import islice

import dagster as dg

from sme2_assets.defs.assets.support import clear_failures
from sme2_assets.defs.resources import Lab
from sme2_assets.report.pictures.chart import data_uri_markdown
from sme2_assets.report.pictures.rounds import history_spec, work_history_spec
from sme2_assets.report.tables import regression_table
from sme2_assets.store import sha256_of_text
from sme2_assets.warehouse.history import (
    SERIES,
    WORK,
    no_slow_down_text,
    series_of,
    work_of,
    write_regressions,
)
from sme2_assets.warehouse.shared import catch_up

# For series that became slower; the table lists them all.
MOST_PICTURES = 6


@dg.asset(
    deps=[
        dg.AssetDep(asset, partition_mapping=dg.AllPartitionMapping())
        for asset in ("timeline", "category_summary")
    ],
    group_name="results",
    kinds={"duckdb"},
    code_version="2",
)
def regressions(context: dg.AssetExecutionContext, lab: Lab) -> dg.MaterializeResult:
    """Table `regressions`: change points in the history of every native series that made it slower, and every
    step of an emulated one to more work.

    A slow-down that is known and accepted is acknowledged by listing its run id in data/acknowledged.txt.
    """
    with clear_failures():
        catch_up(lab.store, context.log.info)
        found = write_regressions(lab.warehouse, lab.store.root / "acknowledged.txt")
        lab.warehouse.publish()
        work = dict(iter(work_of(lab.warehouse).groupby(SERIES)))
        series = series_of(lab.warehouse)
    pictures = {
        " ".join(map(str, key)): dg.MetadataValue.md(
            data_uri_markdown(
                work_history_spec(work[key], changes["night"].tolist())
                if key[-1] == WORK
                else history_spec(series[key], changes["night"].tolist()),
                "history",
            )
        )
        for key, changes in islice(found.groupby(SERIES, sort=True), MOST_PICTURES)
    }
    return dg.MaterializeResult(
        metadata={
            "became slower": dg.MetadataValue.md(
                regression_table(found).markdown() if len(found) else no_slow_down_text(lab.warehouse)
            ),
            **pictures,
            "not acknowledged": int((~found["acknowledged"].astype(bool)).sum()),
            "series watched": len(series) + len(work),
            "dagster/row_count": len(found),
        },
        data_version=dg.DataVersion(sha256_of_text(found.to_json(date_format="iso"))[:16]),
    )
