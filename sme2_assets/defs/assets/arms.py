"""Arms that differ in something other than SME2."""

from collections.abc import Callable
from string import ascii_lowercase

import dagster as dg
import pandas as pd
from pydantic import Field

from sme2_assets.defs.assets.runners import runner_of_version
from sme2_assets.defs.assets.sessions import inputs_of_session, measuring, take_checked
from sme2_assets.defs.assets.support import clear_failures, plotted
from sme2_assets.defs.assets.traces import ProfileConfig
from sme2_assets.defs.resources import Lab
from sme2_assets.profiling.arms import ArmSpec
from sme2_assets.profiling.plan import plan_for
from sme2_assets.profiling.session import measure_session
from sme2_assets.report.arms import arms_table, verdict_of_arms
from sme2_assets.runner.build import RunnerBinary
from sme2_assets.targets import Target
from sme2_assets.warehouse.comparisons import compare_session
from sme2_assets.warehouse.shared import begin


class ArmConfig(dg.Config):
    """One arm: a model, and how it is run."""

    variant: str = Field(description="Model variant, e.g. toy_cnn-fp16.")
    threads: int = Field(1, description="Threads of the runner's pool.")
    cpus: str = Field("", description="CPUs to run on; empty: the system decides.")
    power: str = Field("", description="Android: power mode while the arm runs; empty: as it is.")
    sme2: str = Field(description="on or off, the same in all arms.")
    executorch: str = Field("", description="ExecuTorch version that runs it; empty: the installed one.")


class ArmsConfig(ProfileConfig):
    """How much to measure, where, and the arms; for threads, CPUs and power, the arms' settings count."""

    factor: str = Field(
        description="What the arms differ in: precision, option, model, change, executorch, threads, cpus or "
        "power."
    )
    platform: str = Field(description="Where to measure: linux, mac, android or emulated.")
    arms: list[ArmConfig] = Field(description="Two or more; each is compared with the first.")


def _make_inputs(context: dg.AssetExecutionContext, config: ArmsConfig, lab: Lab) -> None:
    with clear_failures():
        target = lab.require(config.platform, _states(config), config.device)
        # Before any export: the wheel of a version may not exist, or not fit.
        _runners_of_versions(config, lab, target, context.log.info)
        for variant in _variants(config):
            inputs_of_session(context, lab, variant, target, _states(config), config.runner, context.log.info)


@measuring(
    _make_inputs,
    ArmsConfig,
    partition_mapping=dg.AllPartitionMapping(),
    group_name="results",
    kinds={"executorch", "duckdb"},
    code_version="1",
)
def arms_comparison(context: dg.AssetExecutionContext, config: ArmsConfig, lab: Lab) -> dg.MaterializeResult:
    """Table `comparisons`: arms of one session that differ in one thing, such as precision or threads.

    Measured interleaved and judged like SME2 on against off; arms that differ in anything else are refused.
    `sme2 compare` and `sme2 scale` request it.
    """
    warehouse = lab.warehouse
    with clear_failures():
        states = _states(config)
        target = lab.require(config.platform, states, config.device)
        runners_of = _runners_of_versions(config, lab, target, context.log.debug)
        inputs = {
            variant: inputs_of_session(
                context, lab, variant, target, states, config.runner, context.log.debug
            )
            for variant in _variants(config)
        }
        model, runners = inputs[config.arms[0].variant]
        specs = [
            ArmSpec(
                label,
                arm.sme2,
                model=inputs[arm.variant][0],
                runner=runners_of.get(arm.executorch),
                settings={"threads": arm.threads, "cpus": arm.cpus, "power": arm.power},
            )
            for label, arm in zip(ascii_lowercase, config.arms, strict=False)
        ]
        begin(lab.store)
        plan = plan_for(target.fidelity, **config.plan_wishes())
        manifests = measure_session(
            lab.store, target, model, runners, specs, plan, context.log.info, config.factor
        )
        session_id = take_checked(lab, manifests, context.log.info)
        rows = compare_session(warehouse, session_id)
        warehouse.publish()
        models = rows[rows["level"] == "model"].to_dict("records")
        said = [verdict_of_arms(row) for row in models]
        table = arms_table(warehouse, session_id)
    ratios = {f"speedup of {row['on_arm']}": row["speedup"] for row in models}
    return dg.MaterializeResult(
        metadata={
            "verdict": dg.MetadataValue.md("\n\n".join(said)),
            "arms": dg.MetadataValue.md(table.markdown()),
            **{name: plotted(value) for name, value in ratios.items() if pd.notna(value)},
            "factor": config.factor,
            "session_id": session_id,
            "run_ids": dg.MetadataValue.json([manifest.run_id for manifest in manifests]),
        },
        data_version=dg.DataVersion(session_id),
    )


def _states(config: ArmsConfig) -> list[str]:
    return sorted({arm.sme2 for arm in config.arms})


def _variants(config: ArmsConfig) -> list[str]:
    return list(dict.fromkeys(arm.variant for arm in config.arms))


def _runners_of_versions(
    config: ArmsConfig, lab: Lab, target: Target, log: Callable[[str], None]
) -> dict[str, RunnerBinary]:
    """The runner of each ExecuTorch version that an arm names."""
    versions = dict.fromkeys(arm.executorch for arm in config.arms if arm.executorch)
    return {version: runner_of_version(lab, target, version, log) for version in versions}
