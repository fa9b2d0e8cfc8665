"""The exported model of each variant."""

from collections.abc import Callable
from typing import Any

import dagster as dg

from sme2_assets.defs.assets.support import (
    clear_failures,
    content_version,
    device_to_measure_on,
    making,
    plotted,
)
from sme2_assets.defs.partitions import pair_per_run, parse_run_key, run_partitions, sessions_in
from sme2_assets.defs.resources import Lab
from sme2_assets.evidence.delegation import DelegationReport
from sme2_assets.models.artifact import (
    EXPORT_CODE_VERSION,
    ExportedModel,
    ModelManifest,
    TensorFacts,
    read_manifest,
)
from sme2_assets.report.models import delegation_table
from sme2_assets.report.tables import TextTable


@dg.asset(
    partitions_def=run_partitions,
    backfill_policy=pair_per_run,
    group_name="measure",
    kinds={"pytorch", "executorch"},
    code_version=str(EXPORT_CODE_VERSION),
)
def exported_model(context: dg.AssetExecutionContext, lab: Lab) -> dg.MaterializeResult:
    """A model at one precision as a `.pte` with XNNPACK delegation, its ETRecord, inputs and eager outputs.

    The inputs are seeded random numbers, the expected outputs are those of the eager fp32 model. It is the
    same file for every target: the same model, options and versions are not exported again. How close the
    outputs are to the eager ones is known once it runs: see `etdump_traces`.
    """
    variants = {key: parse_run_key(key)[0] for key in context.partition_keys}
    with clear_failures():
        _refuse_what_cannot_be_measured(context, lab)
        exports = {it: current_export(lab, it, context.log.info) for it in dict.fromkeys(variants.values())}
    for key, variant in variants.items():
        context.add_asset_metadata(model_metadata(exports[variant]), partition_key=key)
    return dg.MaterializeResult(data_version=content_version(it.pte_sha256 for it in exports.values()))


def _refuse_what_cannot_be_measured(context: dg.AssetExecutionContext, lab: Lab) -> None:
    """An export may take minutes: it is not begun for a measurement on a platform that is not here."""
    if dg.AssetKey("etdump_traces") in (context.run.asset_selection or ()):
        for (_, platform), states in sessions_in(context.partition_keys).items():
            lab.require(platform, states, device_to_measure_on(context))


def current_export(lab: Lab, variant: str, log: Callable[[str], None]) -> ExportedModel:
    """The export of the model as its code is now; an existing one is reused."""
    # Imported here: exporting needs torch, loading the definitions must not.
    from sme2_assets.models.export import export_variant

    with making(lab, log):
        exported = export_variant(variant, lab.store.artifacts, log=log)
        lab.store.set_current("model", variant, exported.directory.name)
    return exported


def model_metadata(exported: ExportedModel) -> dict[str, Any]:
    """What the UI shows about an export."""
    manifest = read_manifest(exported.manifest)
    delegation = DelegationReport.read(exported.delegation)
    operators, share = manifest.operators, manifest.delegated_share
    return {
        "model": dg.MetadataValue.md(_model_table(manifest).markdown()),
        "outside of XNNPACK": dg.MetadataValue.md(_outside_text(delegation)),
        "delegation": dg.MetadataValue.md(delegation_table(delegation).markdown()),
        # Numbers on their own, so that the UI plots them over the exports.
        "size MB": plotted(exported.pte.stat().st_size / 1e6),
        **({} if share is None else {"delegated share": plotted(share)}),
        "delegates": operators.delegates,
        "portable operators": operators.portable_total,
        "export seconds": plotted(manifest.export_seconds),
        "export peak memory MB": plotted(manifest.export_peak_memory_bytes / 1e6),
        "from cache": exported.cached,
        "versions": dg.MetadataValue.json(manifest.versions),
        "sha256": exported.pte_sha256,
        "path": dg.MetadataValue.path(str(exported.pte)),
    }


def _model_table(manifest: ModelManifest) -> TextTable:
    """What people want to know first about a model file."""
    operators = manifest.operators
    total = operators.delegated_total + operators.portable_total
    share = "" if manifest.delegated_share is None else f" ({manifest.delegated_share:.0%})"
    return TextTable.of(
        ["what", "value"],
        [
            ["model", manifest.description],
            ["parameters", _count_text(manifest.parameters, "not known: the program came without its model")],
            ["multiply-accumulates", _count_text(manifest.macs, "no operator's are counted")],
            ["inputs", _tensors_text(manifest.inputs)],
            ["outputs", _tensors_text(manifest.outputs)],
            ["operators in XNNPACK", f"{operators.delegated_total} of {total}{share}"],
            ["delegate calls", operators.delegates],
            ["outputs must reach", f"{manifest.tolerance.minimum_db:.0f} dB against {manifest.expected}"],
        ],
    )


def _outside_text(delegation: DelegationReport) -> str:
    outside = [row for row in delegation.rows if not row.delegated]
    if not outside:
        return "Nothing: XNNPACK took every operator."
    return delegation_table(DelegationReport(rows=outside)).markdown()


def _count_text(count: int | None, unknown: str) -> str:
    return unknown if count is None else f"{count:,}"


def _tensors_text(tensors: list[TensorFacts]) -> str:
    return ", ".join(f"{tensor.dtype} {'x'.join(map(str, tensor.shape))}" for tensor in tensors)
