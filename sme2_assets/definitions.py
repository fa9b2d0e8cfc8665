"""The product in one object: assets, checks, automation, resources. Loads without torch."""

from __future__ import annotations

from collections.abc import Mapping

import dagster as dg

from sme2_assets import automation, checks
from sme2_assets.assets import (
    comparison,
    history,
    kernels,
    models,
    noise,
    reports,
    runners,
    timeline,
    traces,
)
from sme2_assets.assets.guide import guided
from sme2_assets.resources import Lab


def _presented(spec: dg.AssetSpec) -> dg.AssetSpec:
    """What the UI says of an asset besides its own words. What every night makes is overdue without one."""
    spec = guided(spec)
    if spec.key.to_user_string() in automation.NIGHT_FRESH_ASSETS:
        return dg.apply_freshness_policy(spec, automation.NIGHT_FRESHNESS)
    return spec


def build_definitions(
    lab: Lab | None = None, extra_loggers: Mapping[str, dg.LoggerDefinition] | None = None
) -> dg.Definitions:
    """All definitions, over the default data folder or a given one."""
    return dg.Definitions(
        assets=dg.map_asset_specs(
            _presented,
            [
                runners.runner_binary,
                runners.source_runner,
                models.exported_model,
                traces.etdump_traces,
                noise.aa_noise,
                timeline.timeline,
                kernels.kernel_samples,
                comparison.sme2_comparison,
                reports.report,
                reports.overview,
                history.regressions,
            ],
        ),
        asset_checks=[
            checks.of_traces,
            checks.of_timeline,
            checks.of_kernels,
            checks.arms_are_one_pair,
            checks.every_run_is_in_the_warehouse,
            checks.no_regression,
            checks.source_pair_differs_in_sme_only,
            checks.sme2_kernels_in_binary,
        ],
        jobs=automation.JOBS,
        schedules=automation.SCHEDULES,
        sensors=automation.SENSORS,
        resources={"lab": lab or Lab()},
        executor=dg.in_process_executor,
        loggers={"console": dg.colored_console_logger, **(extra_loggers or {})},
    )


defs = build_definitions()
