"""What is measured for a question of the moment."""

import dagster as dg
from pydantic import Field

from sme2_assets.defs.assets.sessions import inputs_of_session, take_checked
from sme2_assets.defs.assets.support import clear_failures
from sme2_assets.defs.assets.traces import ProfileConfig, place_of
from sme2_assets.defs.checks import output_faults
from sme2_assets.defs.resources import Lab
from sme2_assets.errors import Sme2Error
from sme2_assets.profiling.arms import sme2_arms
from sme2_assets.profiling.session import measure_session
from sme2_assets.warehouse.comparisons import compare_session
from sme2_assets.warehouse.shared import begin


class TrialConfig(ProfileConfig):
    """What to measure, where, and how much."""

    variant: str = Field(description="Model variant, e.g. toy_cnn-fp16; also one that is no partition.")
    platform: str = Field(description="Where to measure: linux, mac, android or emulated.")
    states: list[str] = Field(description="SME2 off, on, or both, as one session.")


# Without upstreams: it is of one model, and would be out of date after the export of any other.
@dg.asset(group_name="results", kinds={"executorch", "duckdb"}, code_version="1")
def trial(context: dg.AssetExecutionContext, config: TrialConfig, lab: Lab) -> dg.MaterializeResult:
    """A session that is no partition: a change to a model, or a model that is held against a baseline.

    Its runs are in all tables of runs. `sme2 gate` and `sme2 advise` request it; what was measured of the
    model's partitions stays as it is.
    """
    with clear_failures():
        target, plan = place_of(config, lab, config.platform, config.states)
        model, runners = inputs_of_session(
            context, lab, config.variant, target, config.states, config.runner, context.log.info
        )
        begin(lab.store)
        manifests = measure_session(
            lab.store, target, model, runners, sme2_arms(config.states), plan, context.log.info
        )
        session_id = take_checked(lab, manifests, context.log.info)
        for manifest in manifests:
            if fault := output_faults(lab, manifest.run_id):
                raise Sme2Error(
                    f"The outputs of {config.variant} are wrong, {fault}",
                    f"`sme2 check-model {config.variant}` finds the operator.",
                )
        if len(manifests) == 2:
            compare_session(lab.warehouse, session_id)
            lab.warehouse.publish()
    return dg.MaterializeResult(
        metadata={
            "measured": f"{config.variant} on {config.platform}, SME2 {' and '.join(config.states)}",
            "session_id": session_id,
            "run_ids": dg.MetadataValue.json([manifest.run_id for manifest in manifests]),
        },
        data_version=dg.DataVersion(session_id),
    )
