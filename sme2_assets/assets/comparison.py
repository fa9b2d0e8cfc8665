"""SME2 on against off."""

import dagster as dg
import pandas as pd

from sme2_assets.assets.support import clear_failures, plotted, runs_of
from sme2_assets.partitions import both_states, pair_partitions, parse_pair_key, run_key
from sme2_assets.report.explain import explain
from sme2_assets.report.glance import category_glance
from sme2_assets.report.insights import insight_table
from sme2_assets.report.module_plots import module_picture
from sme2_assets.report.plots import category_picture, data_uri_markdown
from sme2_assets.report.tables import comparison_table, device_cell, speedup_text
from sme2_assets.resources import Lab
from sme2_assets.store import sha256_of_text
from sme2_assets.targets import SME2_STATES, TargetKey
from sme2_assets.warehouse.comparisons import compare_pair
from sme2_assets.warehouse.read import rows_of_view


@dg.asset(
    deps=[
        dg.AssetDep("timeline", partition_mapping=both_states),
        dg.AssetDep("kernel_samples", partition_mapping=both_states),
    ],
    partitions_def=pair_partitions,
    backfill_policy=dg.BackfillPolicy.multi_run(max_partitions_per_run=1),
    group_name="results",
    kinds={"duckdb"},
    code_version="1",
)
def sme2_comparison(context: dg.AssetExecutionContext, lab: Lab) -> dg.MaterializeResult:
    """Table `comparisons`, view `sme2_comparison`: speedup, interval and verdict; which operators took SME2.

    Compares only what was measured together: two runs of one session with the same model file, runner,
    device and thread count. Emulated pairs are compared in kernels, never in time.
    """
    variant, platform_name = parse_pair_key(context.partition_key)
    keys = [run_key(variant, TargetKey(platform_name, sme2)) for sme2 in SME2_STATES]
    warehouse = lab.warehouse
    with clear_failures():
        rows = compare_pair(warehouse, *runs_of(context, "timeline", keys).values())
        warehouse.publish()
        categories = pd.concat(
            [
                rows_of_view(warehouse, "category_summary", rows[f"{sme2}_run_id"].iloc[0])
                for sme2 in ("off", "on")
            ]
        )
        explanation = explain(warehouse, rows["session_id"].iloc[0])
    model = rows[rows["level"] == "model"].iloc[0]
    picture = category_picture(categories, f"{variant} on {platform_name}: the category shift")
    return dg.MaterializeResult(
        metadata={
            "verdict": model["verdict"],
            "reason": model["reason"],
            **({"speedup off / on": speedup_text(dict(model))} if pd.notna(model["speedup"]) else {}),
            "shift at a glance": dg.MetadataValue.md(category_glance(categories)),
            "category shift": dg.MetadataValue.md(data_uri_markdown(picture, "category shift")),
            "categories": dg.MetadataValue.md(comparison_table(rows, "category").markdown()),
            "operators": dg.MetadataValue.md(comparison_table(rows, "operator").markdown()),
            "what to do next": dg.MetadataValue.md(insight_table(explanation.insights).markdown()),
            "modules": dg.MetadataValue.md(
                data_uri_markdown(module_picture(explanation.modules, f"{variant}: modules"), "modules")
            ),
            **_numbers(model),
            "fidelity": model["fidelity"],
            "device": device_cell(dict(model)),
            "session_id": model["session_id"],
            "off_run_id": model["off_run_id"],
            "on_run_id": model["on_run_id"],
        },
        data_version=dg.DataVersion(sha256_of_text(model["off_run_id"], model["on_run_id"])[:16]),
    )


def _numbers(model: pd.Series) -> dict[str, dg.MetadataValue]:
    """What the UI plots over the sessions; what emulation cannot tell is left out, for 0 would be a lie."""
    times = {
        "speedup": model["speedup"],
        "speedup, lower end": model["speedup_low"],
        "speedup, upper end": model["speedup_high"],
        **{f"latency {arm} ms": _milliseconds(model[f"{arm}_ns"]) for arm in ("off", "on")},
    }
    counts = {
        "operators in all": model["operators"],
        "SME2 operators with SME2 on": model["sme2_operators_on"],
    }
    return {
        **{name: plotted(value) for name, value in times.items() if value is not None and pd.notna(value)},
        **{name: dg.MetadataValue.int(int(value)) for name, value in counts.items()},
    }


def _milliseconds(ns: float | None) -> float | None:
    return None if ns is None or pd.isna(ns) else float(ns) / 1e6
