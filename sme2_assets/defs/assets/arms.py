"""Sessions for a question of the moment, whatever their arms differ in."""

from string import ascii_lowercase

import dagster as dg
import pandas as pd
from pydantic import Field

from sme2_assets.analysis.factors import SME2, arm_names
from sme2_assets.defs.assets.runners import runner_of_version
from sme2_assets.defs.assets.sessions import session_inputs, take_checked
from sme2_assets.defs.assets.support import clear_failures, plotted
from sme2_assets.defs.assets.traces import ProfileConfig, place_of
from sme2_assets.defs.resources import Lab
from sme2_assets.profiling.arms import ArmSpec
from sme2_assets.profiling.session import measure_session
from sme2_assets.report.arms import arms_table, verdict_of_arms
from sme2_assets.warehouse.comparisons import compare_session
from sme2_assets.warehouse.shared import begin


class ArmConfig(dg.Config):
    """One arm: a model, and how it is run."""

    variant: str = Field(description="Model variant, e.g. toy_cnn-fp16.")
    threads: int = Field(1, description="Threads of the runner's pool.")
    cpus: str = Field("", description="CPUs to run on; empty: the system decides.")
    power: str = Field("", description="Android: power mode while the arm runs; empty: as it is.")
    sme2: str = Field(description="on or off, the same in all arms but of the factor sme2.")
    executorch: str = Field("", description="ExecuTorch version that runs it; empty: the installed one.")


class ArmsConfig(ProfileConfig):
    """How much to measure, where, and the arms; for threads, CPUs and power, the arms' settings count."""

    factor: str = Field(
        description="What the arms differ in: sme2, precision, option, model, change, executorch, threads, "
        "cpus or power."
    )
    platform: str = Field(description="Where to measure: linux, mac, android or emulated.")
    arms: list[ArmConfig] = Field(description="Each is compared with the first.")


# Without upstreams: it is of some models, and would be out of date after the export of any other.
@dg.asset(group_name="results", kinds={"executorch", "duckdb"}, code_version="1")
def arms_comparison(context: dg.AssetExecutionContext, config: ArmsConfig, lab: Lab) -> dg.MaterializeResult:
    """A session that is no partition: its runs, and rows of `comparisons` if it has several arms.

    Measured interleaved and judged like SME2 on against off, which is one of the factors; arms that differ in
    anything else are refused. `sme2 compare`, `scale`, `gate` and `advise` request it; what was measured of
    the partitions of these models stays as it is.
    """
    states = sorted({arm.sme2 for arm in config.arms})
    with clear_failures():
        target, plan = place_of(config, lab, config.platform, states)
        # Before any export: the wheel of a version may not exist, or not fit.
        versions = dict.fromkeys(arm.executorch for arm in config.arms if arm.executorch)
        runners_of = {it: runner_of_version(lab, target, it, context.log.info) for it in versions}
        inputs = {
            arm.variant: session_inputs(lab, arm.variant, target, states, config.runner, context.log.info)
            for arm in config.arms
        }
        model, runners = inputs[config.arms[0].variant]
        specs = [
            ArmSpec(
                arm.sme2 if config.factor == SME2.name else label,
                arm.sme2,
                model=inputs[arm.variant][0],
                runner=runners_of.get(arm.executorch),
                settings={"threads": arm.threads, "cpus": arm.cpus, "power": arm.power},
            )
            for label, arm in zip(ascii_lowercase, config.arms, strict=False)
        ]
        begin(lab.store)
        manifests = measure_session(
            lab.store, target, model, runners, specs, plan, context.log.info, config.factor
        )
        session_id = take_checked(lab, manifests, context.log.info)
        verdicts = _compared(lab, session_id) if len(manifests) > 1 else {}
    measured = f"{', '.join(inputs)} on {config.platform}, SME2 {' and '.join(states)}"
    return dg.MaterializeResult(
        metadata={
            "measured": measured,
            **verdicts,
            "factor": config.factor,
            "session_id": session_id,
            "run_ids": dg.MetadataValue.json([manifest.run_id for manifest in manifests]),
        },
        data_version=dg.DataVersion(session_id),
    )


def _compared(lab: Lab, session_id: str) -> dict[str, dg.MetadataValue]:
    """Compares the arms with the first, and shows how they did."""
    rows = compare_session(lab.warehouse, session_id)
    lab.warehouse.publish()
    models = rows[rows["level"] == "model"].to_dict("records")
    said = [verdict_of_arms(row) for row in models]
    ratios = {f"speedup of {arm_names(row)[1]}": row["speedup"] for row in models}
    return {
        "verdict": dg.MetadataValue.md("\n\n".join(said)),
        "arms": dg.MetadataValue.md(arms_table(lab.warehouse, session_id).markdown()),
        **{name: plotted(value) for name, value in ratios.items() if pd.notna(value)},
    }
