"""The report of each pair."""

import dagster as dg

from sme2_assets.assets.support import clear_failures
from sme2_assets.partitions import pair_partitions, parse_pair_key
from sme2_assets.report.files import write_report
from sme2_assets.report.markdown import comparison_report
from sme2_assets.resources import Lab
from sme2_assets.store import sha256_of_text


@dg.asset(
    deps=["sme2_comparison"],
    partitions_def=pair_partitions,
    backfill_policy=dg.BackfillPolicy.multi_run(max_partitions_per_run=1),
    group_name="results",
    kinds={"markdown"},
    code_version="1",
)
def report(context: dg.AssetExecutionContext, lab: Lab) -> dg.MaterializeResult:
    """The comparison as a Markdown file with its picture: verdict first, then what it rests on."""
    variant, platform_name = parse_pair_key(context.partition_key)
    with clear_failures():
        made = comparison_report(lab.warehouse, variant, platform_name)
        path = write_report(lab.store.report_dir(variant, platform_name), made)
    return dg.MaterializeResult(
        metadata={"path": dg.MetadataValue.path(str(path)), "report": dg.MetadataValue.md(made.text)},
        data_version=dg.DataVersion(sha256_of_text(made.text)[:16]),
    )
