"""The report of each pair, and the overview of them all."""

import dagster as dg

from sme2_assets.defs.assets.summaries import answer_metadata
from sme2_assets.defs.assets.support import clear_failures, materialised
from sme2_assets.defs.partitions import pair_partitions
from sme2_assets.defs.resources import Lab
from sme2_assets.heartbeat import heartbeat
from sme2_assets.report.files import page_address, write_overview, write_session_report
from sme2_assets.store import sha256_of_text
from sme2_assets.warehouse.shared import publish_shared


# A report follows its comparison, in the same run if both are asked for. Neither condition here looks at
# runs in progress: one whose process was killed would be in progress for ever.
@dg.asset(
    deps=[
        "sme2_comparison",
        dg.AssetDep("advice", partition_mapping=dg.MultiToSingleDimensionPartitionMapping("model")),
    ],
    partitions_def=pair_partitions,
    backfill_policy=dg.BackfillPolicy.multi_run(max_partitions_per_run=1),
    group_name="results",
    kinds={"markdown", "html"},
    code_version="2",
    # Advice is for a model on all platforms, most of which were never measured.
    automation_condition=dg.AutomationCondition.any_deps_updated()
    .ignore(dg.AssetSelection.assets("advice"))
    .since_last_handled(),
)
def report(context: dg.AssetExecutionContext, lab: Lab) -> dg.MaterializeResult:
    """The comparison to read: `report.html`, one file that needs no network, and `report.md` with pictures.

    The answer first, then the evidence for it. docs/reports.md says how to read it.
    """
    with clear_failures(), heartbeat(context.log.info, "writing the report"):
        session_id = materialised(context, "sme2_comparison", context.partition_key, "session_id")
        document, [markdown, page] = write_session_report(lab.store, lab.warehouse, session_id)
    text = markdown.read_text()
    assert document.answer is not None
    return dg.MaterializeResult(
        metadata={
            **answer_metadata(document.answer),
            "session_id": session_id,
            "open": dg.MetadataValue.url(page_address(lab.store, page)),
            "html": dg.MetadataValue.path(str(page)),
            "path": dg.MetadataValue.path(str(markdown)),
            "report": dg.MetadataValue.md(text),
        },
        data_version=dg.DataVersion(sha256_of_text(text)[:16]),
    )


# Any new report makes the overview old, and so do reports from before the sensor first ran. It uses what is
# there: most pairs are never measured, so waiting for all of them, as `eager` does, would take for ever.
overview_is_old = dg.AutomationCondition.any_deps_updated() | (
    dg.AutomationCondition.missing()
    & dg.AutomationCondition.any_deps_match(~dg.AutomationCondition.missing())
).newly_true().with_label("there are reports and no overview")


@dg.asset(
    deps=[dg.AssetDep("report", partition_mapping=dg.AllPartitionMapping())],
    group_name="results",
    kinds={"markdown", "html"},
    code_version="1",
    automation_condition=overview_is_old,
)
def overview(context: dg.AssetExecutionContext, lab: Lab) -> dg.MaterializeResult:
    """All models on all platforms, one row each: `data/reports/index.html` and `index.md`.

    `sme2 report --all` writes the same, and the pages of baselines.
    """
    with clear_failures(), heartbeat(context.log.info, "writing the overview"):
        rows, [markdown, page, *_] = write_overview(lab.store, lab.warehouse)
        publish_shared(lab.store, context.log.info)
    text = markdown.read_text()
    return dg.MaterializeResult(
        metadata={
            "open": dg.MetadataValue.url(page_address(lab.store, page)),
            "html": dg.MetadataValue.path(str(page)),
            "overview": dg.MetadataValue.md(text),
            "dagster/row_count": len(rows),
        },
        data_version=dg.DataVersion(sha256_of_text(text)[:16]),
    )
