"""The noise of a device: both arms the same."""

from dataclasses import replace
from typing import Any

import dagster as dg
import pandas as pd
from pydantic import Field

from sme2_assets.defs.assets.sessions import session_inputs, take_rows
from sme2_assets.defs.assets.support import clear_failures, content_version, plotted
from sme2_assets.defs.assets.traces import ProfileConfig, place_of
from sme2_assets.defs.partitions import pair_per_run, parse_run_key, run_partitions
from sme2_assets.defs.resources import Lab
from sme2_assets.errors import Sme2Error
from sme2_assets.profiling.arms import aa_arms
from sme2_assets.profiling.blind import blind_trial, drawn_dose
from sme2_assets.profiling.plan import plan_for
from sme2_assets.profiling.session import measure_session
from sme2_assets.report.tables import speedup_text
from sme2_assets.targets import TargetKey
from sme2_assets.warehouse.blind import blind_rates_text, write_blind_trials
from sme2_assets.warehouse.comparisons import compare_session, device_noise_floor
from sme2_assets.warehouse.read import run_of_id
from sme2_assets.warehouse.shared import begin


class NoiseConfig(ProfileConfig):
    """How much to measure, and how many blind trials to add."""

    blind_trials: int = Field(
        0, ge=0, description="Further sessions with a hidden slow-down, to see whether it is found."
    )


@dg.asset(
    deps=["runner_binary", "exported_model"],
    partitions_def=run_partitions,
    backfill_policy=pair_per_run,
    group_name="noise",
    kinds={"executorch", "duckdb"},
    code_version="2",
)
def aa_noise(context: dg.AssetExecutionContext, config: NoiseConfig, lab: Lab) -> dg.MaterializeResult:
    """An A/A session: both arms run the same binary, model and SME2 state, so every difference is noise.

    Ten such sessions of a device make its noise floor, which the verdicts of `sme2_comparison` use. Blind
    trials, if asked for, go to the table `blind_trials`.
    """
    with clear_failures():
        facts = {key: _noise_of(context, config, lab, *parse_run_key(key)) for key in context.partition_keys}
    for key, metadata in facts.items():
        context.add_asset_metadata(metadata, partition_key=key)
    return dg.MaterializeResult(data_version=content_version(it["session_id"] for it in facts.values()))


def _noise_of(
    context: dg.AssetExecutionContext, config: NoiseConfig, lab: Lab, variant: str, key: TargetKey
) -> dict[str, Any]:
    """Measures a target against itself; returns what the UI shows of it."""
    warehouse, log = lab.warehouse, context.log.info
    target, _ = place_of(config, lab, key.platform, [key.sme2])
    if target.fidelity == "emulated":
        raise Sme2Error(
            f"{key} has no noise to measure: emulated times mean nothing.",
            "Measure the noise of a native target, e.g. linux-sme2_off.",
        )
    model, runners = session_inputs(lab, variant, target, [key.sme2], config.runner, context.log.debug)
    # Samples say nothing about noise.
    plan = plan_for(target.fidelity, **{**config.plan_wishes(), "kernel_rounds": 0})
    begin(lab.store)
    manifests = measure_session(lab.store, target, model, runners, aa_arms(key.sme2), plan, log)
    take_rows(lab, [manifests[0].run_id], log)
    compared = compare_session(warehouse, manifests[0].session_id)
    warehouse.publish()
    run = run_of_id(warehouse, manifests[0].run_id)
    floor = device_noise_floor(warehouse, run)
    timed = replace(plan, passes=("latency",))
    for _ in range(config.blind_trials):
        blind_trial(lab.store, target, model, runners, drawn_dose(), timed, log, sme2=key.sme2)
    if config.blind_trials:
        for what, error in write_blind_trials(lab.store, warehouse).items():
            context.log.warning(f"{what}: {error}")
        warehouse.publish()
    model_row = dict(compared[compared["level"] == "model"].iloc[0])
    ratio = model_row["speedup"]
    return {
        "verdict": model_row["verdict"],
        "reason": model_row["reason"],
        "speedup of identical arms": speedup_text(model_row),
        "noise floor of the device": f"{floor:.3f}x" if floor else "not known yet: needs 10 A/A sessions",
        # Numbers on their own, so that the UI plots them over the sessions.
        **({} if pd.isna(ratio) else {"ratio of identical arms": plotted(ratio)}),
        **({"noise floor": plotted(floor)} if floor else {}),
        "blind trials": blind_rates_text(warehouse, run) or "none on this device",
        "session_id": manifests[0].session_id,
        "run_ids": dg.MetadataValue.json([manifest.run_id for manifest in manifests]),
    }
