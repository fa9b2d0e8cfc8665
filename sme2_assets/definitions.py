"""The product in one object: assets, checks, automation, resources. Loads without torch."""

from __future__ import annotations

from collections.abc import Mapping

import dagster as dg

from sme2_assets.defs import checks
from sme2_assets.defs.assets import (
    advice,
    arms,
    comparison,
    history,
    models,
    nights,
    noise,
    reports,
    rows,
    runners,
    traces,
)
from sme2_assets.defs.assets.guide import guided
from sme2_assets.defs.jobs import JOBS
from sme2_assets.defs.nights import nightly_schedule
from sme2_assets.defs.resources import Lab, Nights
from sme2_assets.defs.sensors import SENSORS
from sme2_assets.store import UI_PAGES

# What every night makes, and what is overdue without one. Dagster looks at the newest partition, so it
# notices a missing night, but not a pair missing from one: that is in the night's summary.
NIGHT_FRESH_ASSETS = ("etdump_traces", "timeline", "sme2_comparison")


def build_definitions(
    lab: Lab | None = None,
    when: Nights | None = None,
    docs_url: str = UI_PAGES,
    extra_loggers: Mapping[str, dg.LoggerDefinition] | None = None,
) -> dg.Definitions:
    """All definitions, over the default data folder or a given one.

    A deployment with its own nights, or with its documents on the web, has a module of its own that calls
    this: see docs/nightly.md.
    """
    when = when or Nights()
    freshness = when.freshness()

    def _presented(spec: dg.AssetSpec) -> dg.AssetSpec:
        """What the UI says about an asset besides its own words."""
        spec = guided(spec, docs_url)
        if spec.key.to_user_string() in NIGHT_FRESH_ASSETS:
            return dg.apply_freshness_policy(spec, freshness)
        return spec

    return dg.Definitions(
        assets=dg.map_asset_specs(
            _presented,
            [
                runners.runner_binary,
                runners.source_runner,
                models.exported_model,
                traces.etdump_traces,
                noise.aa_noise,
                arms.arms_comparison,
                rows.rows_of_session,
                comparison.sme2_comparison,
                advice.advice,
                reports.report,
                reports.overview,
                history.regressions,
                nights.night_summary,
            ],
        ),
        asset_checks=[
            checks.of_traces,
            checks.of_rows,
            checks.arms_are_one_pair,
            checks.every_run_is_in_the_warehouse,
            checks.no_regression,
            checks.source_pair_differs_in_sme_only,
            checks.sme2_kernels_in_binary,
        ],
        jobs=JOBS,
        schedules=[nightly_schedule(when)],
        sensors=SENSORS,
        resources={"lab": lab or Lab(), "nights": when},
        executor=dg.in_process_executor,
        loggers={"console": dg.colored_console_logger, **(extra_loggers or {})},
    )


defs = build_definitions()
