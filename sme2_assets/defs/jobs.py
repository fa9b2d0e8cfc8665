"""The jobs: what the UI, the nights and the command line run, under names that people recognise."""

from collections.abc import Mapping
from typing import Any

import dagster as dg

# What a measurement needs: there at once when nothing changed.
INPUT_ASSETS = ("runner_binary", "exported_model")
RUN_ASSETS = (*INPUT_ASSETS, "etdump_traces", "timeline", "kernel_evidence", "category_summary")
PAIR_ASSETS = ("sme2_comparison", "report")


def measuring(asset: str, settings: Mapping[str, Any]) -> list[dg.AssetKey]:
    """What a run with these settings needs of the assets of a measurement: none of the wheel's runner if it
    uses those from source."""
    assets = RUN_ASSETS if asset in RUN_ASSETS else (*INPUT_ASSETS, asset)
    left_out = {"runner_binary"} if settings.get("runner") == "source" else set()
    return [dg.AssetKey(it) for it in assets if it not in left_out]


profile_job = dg.define_asset_job(
    "profile",
    dg.AssetSelection.assets(*RUN_ASSETS),
    description="Measures a model on a target: what nights and the command line run. In the UI, materialise "
    "its assets instead, and choose both SME2 states of a platform: they are measured as one "
    "session, and the comparison, the report and the overview follow automatically.",
)
compare_job = dg.define_asset_job(
    "compare",
    dg.AssetSelection.assets(*PAIR_ASSETS),
    description="Compares the states of a pair and writes its report. It follows `profile` automatically.",
)
noise_job = dg.define_asset_job(
    "noise",
    dg.AssetSelection.assets(*INPUT_ASSETS, "aa_noise"),
    description="Measures a target against itself: the noise of the device.",
)
arms_job = dg.define_asset_job(
    "compare_arms",
    dg.AssetSelection.assets("arms_comparison"),
    description="Measures arms that differ in one thing, and compares them, for `sme2 compare`, `gate` and "
    "`advise`; no partition is made or changed.",
)
advise_job = dg.define_asset_job(
    "advise",
    dg.AssetSelection.assets("advice"),
    description="Which changes to a model bring more of it onto the SME unit, from the emulated runs that "
    "exist. `sme2 advise` measures them first.",
)
regressions_job = dg.define_asset_job(
    "look_for_regressions",
    dg.AssetSelection.assets("regressions"),
    description="Looks for slow-downs in the whole history. Runs after a night.",
)
summary_job = dg.define_asset_job(
    "sum_up_night",
    dg.AssetSelection.assets("night_summary"),
    description="Sums up a night and tells people. Runs after everything else in the night.",
)

JOBS = [profile_job, compare_job, noise_job, arms_job, advise_job, regressions_job, summary_job]
