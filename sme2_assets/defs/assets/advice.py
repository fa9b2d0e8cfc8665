"""What changes to a model bring onto the SME unit."""

import dagster as dg
from pydantic import Field

from sme2_assets.defs.assets.support import clear_failures
from sme2_assets.defs.partitions import model_partitions
from sme2_assets.defs.resources import Lab
from sme2_assets.errors import Sme2Error
from sme2_assets.gate.advice import Candidate, Change, advice_of
from sme2_assets.gate.changes import first_changes, try_changes
from sme2_assets.gate.take import taken_of
from sme2_assets.models.registry import parse_variant
from sme2_assets.store import safe_name, sha256_of_text, write_text_atomically
from sme2_assets.warehouse import Warehouse
from sme2_assets.warehouse.advice import write_advice
from sme2_assets.warehouse.read import latest_runs


class Tried(dg.Config):
    """What somebody has just tried."""

    # The variants; None: whatever has been measured.
    variants: list[str] | None = None
    # Those that could not be measured, and why.
    problems: dict[str, str] = Field(default_factory=dict)


@dg.asset(
    deps=[
        # What is tried of it is no partition, and other models' sessions do not make its advice old.
        dg.AssetDep(asset, partition_mapping=dg.MultiToSingleDimensionPartitionMapping("model"))
        for asset in ("etdump_traces", "timeline", "kernel_evidence")
    ],
    partitions_def=model_partitions,
    group_name="results",
    kinds={"duckdb"},
    code_version="4",
)
def advice(context: dg.AssetExecutionContext, config: Tried, lab: Lab) -> dg.MaterializeResult:
    """Table `advice`: which changes to a model bring more of its work onto the SME unit, from what ran.

    It uses the existing emulated runs with SME2 on, of the model and of changes to the same version of it.
    `sme2 advise` measures them first.
    """
    warehouse = lab.warehouse
    with clear_failures():
        variant = parse_variant(context.partition_key)
        run_id = _run_of(warehouse, variant.key)
        taken = taken_of(lab.store, run_id)
        base = taken.facts

        def measured(change: Change) -> Candidate | None:
            if config.variants is not None and change.key not in config.variants:
                return None
            if problem := config.problems.get(change.key):
                return Candidate(change, None, problem)
            try:
                of_change = _run_of(warehouse, change.key)
                it = taken_of(lab.store, of_change)
                if not it.is_made_like(taken):
                    raise Sme2Error(
                        "it was measured with other code of the model, or other versions of what exports it",
                        f"Run `sme2 advise {variant.key}`.",
                    )
                code = "\n".join(filter(None, (change.code, *it.rewritten))) or None
                return Candidate(change._replace(code=code), it.facts, run_id=of_change)
            except Sme2Error as error:
                # It was never measured, or with another version of the model, or its program is gone.
                context.log.info(f"{change.name} is left out: {error}")
                return None

        tried = try_changes(variant, base, first_changes(variant), measured)
        found = advice_of(variant.key, base, run_id, tried)
        write_text_atomically(lab.store.advice / f"{safe_name(variant.key)}.json", found.to_json())
        write_advice(lab.store, warehouse)
        warehouse.publish()
    gains = [change for change in found.changes if change.recommended]
    return dg.MaterializeResult(
        metadata={
            "tried": len(tried),
            "recommended": [change.change for change in gains],
            "dagster/row_count": len(found.changes),
        },
        data_version=dg.DataVersion(sha256_of_text(found.to_json())[:16]),
    )


def _run_of(warehouse: Warehouse, variant: str) -> str:
    """The emulated run of a variant with SME2 on."""
    if runs := latest_runs(warehouse, variant, "emulated", "on"):
        return str(runs[0]["run_id"])
    raise Sme2Error(
        f"{variant} has not been measured emulated with SME2 on.",
        "`sme2 advise` with the model's name measures it, and what could be changed about it.",
    )
