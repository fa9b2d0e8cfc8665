"""The exported model of each variant."""

import dagster as dg

from sme2_assets.assets.support import clear_failures
from sme2_assets.models.artifact import read_manifest
from sme2_assets.models.delegation import read_delegation
from sme2_assets.partitions import model_partitions
from sme2_assets.report.models import delegation_table
from sme2_assets.report.tables import TextTable
from sme2_assets.resources import Lab


@dg.asset(
    partitions_def=model_partitions,
    backfill_policy=dg.BackfillPolicy.multi_run(max_partitions_per_run=1),
    group_name="build",
    kinds={"pytorch", "executorch"},
    code_version="1",
    pool="host_cpu",
)
def exported_model(context: dg.AssetExecutionContext, lab: Lab) -> dg.MaterializeResult:
    """A model at one precision as a `.pte` with XNNPACK delegation, its ETRecord, inputs and eager outputs.

    The inputs are seeded random numbers, the expected outputs are those of the eager fp32 model. The
    same model, options and versions are not exported again.
    """
    # Imported here: exporting needs torch, loading the definitions must not.
    from sme2_assets.models.export import export_variant

    variant = context.partition_key
    with clear_failures():
        exported = export_variant(variant, lab.store.artifacts, log=context.log.info)
        manifest = read_manifest(exported.manifest)
        delegation = read_delegation(exported.delegation)
        lab.store.set_current("model", variant, exported.directory.name)
    operators = manifest.operators
    return dg.MaterializeResult(
        metadata={
            "path": dg.MetadataValue.path(str(exported.pte)),
            "sha256": exported.pte_sha256,
            "size bytes": exported.pte.stat().st_size,
            "parameters": manifest.parameters,
            "MACs": manifest.macs,
            "delegates": operators.delegates,
            "delegated operators": operators.delegated_total,
            "delegated share": manifest.delegated_share,
            "portable operators": operators.portable_total,
            "operators": dg.MetadataValue.md(
                TextTable.of(
                    ["operator", "where", "count"],
                    [[name, "XNNPACK", count] for name, count in operators.delegated.items()]
                    + [[name, "portable", count] for name, count in operators.portable.items()],
                ).markdown()
            ),
            "delegation": dg.MetadataValue.md(delegation_table(delegation).markdown()),
            "export seconds": manifest.export_seconds,
            "export peak memory bytes": manifest.export_peak_memory_bytes,
            "versions": dg.MetadataValue.json(manifest.versions),
            "from cache": exported.cached,
        },
        data_version=dg.DataVersion(exported.pte_sha256[:16]),
    )
