"""SME2 on against off."""

from typing import Any

import dagster as dg
import pandas as pd
from pydantic import Field

from sme2_assets.defs.assets.summaries import answer_metadata
from sme2_assets.defs.assets.support import clear_failures, plotted, runs_of
from sme2_assets.defs.partitions import PARTITION, both_states, pair_partitions, parse_pair_key, run_key
from sme2_assets.defs.resources import Lab
from sme2_assets.errors import Sme2Error
from sme2_assets.heartbeat import heartbeat
from sme2_assets.report.answer import session_answer
from sme2_assets.report.explain import explain
from sme2_assets.report.glance import category_glance
from sme2_assets.report.insights import insight_table
from sme2_assets.report.operators import operators_in_short
from sme2_assets.report.pictures.chart import data_uri_markdown
from sme2_assets.report.pictures.modules import module_pictures
from sme2_assets.report.pictures.work import category_spec
from sme2_assets.report.tables import (
    categories_of_pair,
    confidence_text,
    device_cell,
    placebo_text,
    speedup_text,
)
from sme2_assets.store import sha256_of_text
from sme2_assets.targets import SME2_STATES, TargetKey
from sme2_assets.warehouse import Warehouse
from sme2_assets.warehouse.checks import executed_kernel_faults
from sme2_assets.warehouse.comparisons import compare_pair
from sme2_assets.warehouse.read import rows_of_view, run_of_id, runs_of_session
from sme2_assets.warehouse.shared import catch_up

# A run of one partition measured one state alone: a baseline, which is compared with nothing. This does not
# look at runs in progress, as `eager` does: one whose process was killed would be in progress for ever.
_noise = dg.AssetSelection.assets("aa_noise")
_both_are_new: dg.AutomationCondition[Any] = dg.AutomationCondition.any_deps_match(
    dg.AutomationCondition.newly_updated()
    & ~dg.AutomationCondition.any_new_update_has_run_tags(tag_keys={PARTITION})
).ignore(_noise) & ~dg.AutomationCondition.any_deps_missing().ignore(_noise)
# The checks of a run end some seconds after its rows: the daemon may look in between.
measured_together = (
    _both_are_new.since_last_handled() & dg.AutomationCondition.all_deps_blocking_checks_passed()
).with_label("both states were measured together")


class ComparisonConfig(dg.Config):
    """Which session to compare."""

    session: str = Field("", description="Default: the newest that measured both states.")


@dg.asset(
    deps=[
        # With the noise of the device, which the verdicts depend on.
        dg.AssetDep(asset, partition_mapping=both_states)
        for asset in ("timeline", "kernel_evidence", "category_summary", "aa_noise")
    ],
    partitions_def=pair_partitions,
    backfill_policy=dg.BackfillPolicy.multi_run(max_partitions_per_run=1),
    group_name="results",
    kinds={"duckdb"},
    code_version="1",
    automation_condition=measured_together,
)
def sme2_comparison(
    context: dg.AssetExecutionContext, config: ComparisonConfig, lab: Lab
) -> dg.MaterializeResult:
    """Table `comparisons`, view `sme2_comparison`: speedup, interval and verdict; which operators took SME2.

    Compares only what was measured together: two runs of one session with the same model file, runner,
    device and thread count. Emulated pairs are compared in kernels, never in time.
    """
    variant, platform_name = parse_pair_key(context.partition_key)
    keys = [run_key(variant, TargetKey(platform_name, sme2)) for sme2 in SME2_STATES]
    warehouse = lab.warehouse
    with clear_failures(), heartbeat(context.log.info, f"comparing {variant} on {platform_name}"):
        catch_up(lab.store, context.log.info)
        off, on = _arms(context, warehouse, keys, config.session)
        for run in (off, on):
            # The check of `kernel_evidence` ends the run that measured, but not what follows automatically.
            if fault := executed_kernel_faults(warehouse, run):
                raise Sme2Error(
                    f"{run['run_id']} is not compared: {fault}",
                    "See the check sme2_kernels_executed in the UI.",
                )
        rows = compare_pair(warehouse, off["run_id"], on["run_id"])
        warehouse.publish()
        categories = pd.concat(
            [rows_of_view(warehouse, "category_summary", rows[f"{arm}_run_id"].iloc[0]) for arm in ("a", "b")]
        )
        explanation = explain(warehouse, rows["session_id"].iloc[0])
        answer = session_answer(warehouse, explanation, rows)
    model = rows[rows["level"] == "model"].iloc[0]
    modules = module_pictures(explanation.modules, explanation.subject.bottlenecks)
    return dg.MaterializeResult(
        metadata={
            **answer_metadata(answer),
            **({"speedup off / on": speedup_text(dict(model))} if pd.notna(model["speedup"]) else {}),
            **({"confidence": confidence} if (confidence := confidence_text(dict(model))) else {}),
            **({"placebo": placebo} if (placebo := placebo_text(dict(model))) else {}),
            "shift at a glance": dg.MetadataValue.md(category_glance(categories)),
            "category shift": dg.MetadataValue.md(
                data_uri_markdown(category_spec(categories), "category shift")
            ),
            "categories": dg.MetadataValue.md(categories_of_pair(rows, categories).markdown()),
            "operators": dg.MetadataValue.md(operators_in_short(explanation, rows).markdown()),
            "all findings": dg.MetadataValue.md(insight_table(explanation.insights).markdown()),
            **{
                picture.name: dg.MetadataValue.md(data_uri_markdown(picture.spec, picture.alternative))
                for picture in modules
            },
            **_numbers(model),
            "fidelity": model["fidelity"],
            "device": device_cell(dict(model)),
            "session_id": model["session_id"],
            "off_run_id": model["a_run_id"],
            "on_run_id": model["b_run_id"],
        },
        data_version=dg.DataVersion(sha256_of_text(model["a_run_id"], model["b_run_id"])[:16]),
    )


def _arms(
    context: dg.AssetExecutionContext, warehouse: Warehouse, keys: list[str], session_id: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The runs of the session to compare: the one that was asked for, else the newest of these.

    Two devices may measure the same model at once, and their arms become partitions in any order.
    """
    if session_id:
        found = runs_of_session(warehouse, session_id)
    else:
        last = [run_of_id(warehouse, run_id) for run_id in runs_of(context, "timeline", keys).values()]
        # A state may have been measured alone since.
        pairs = [(int(run["sequence"]), run["session_id"]) for run in last if run["paired"]]
        found = runs_of_session(warehouse, max(pairs)[1]) if pairs else last
    off, on = found
    return off, on


_TIMES = {"off": "a_ns", "on": "b_ns"}


def _numbers(model: pd.Series) -> dict[str, dg.MetadataValue]:
    """What the UI plots over the sessions; what a pair cannot show is left out: 0 would be wrong."""
    times = {
        "speedup": model["speedup"],
        "speedup, lower end": model["speedup_low"],
        "speedup, upper end": model["speedup_high"],
        **{f"latency {sme2} ms": _milliseconds(model[column]) for sme2, column in _TIMES.items()},
    }
    counts = {
        "CONV and GEMM in all": model["matrix_operators"],
        "CONV and GEMM on the SME unit": model["sme2_operators_b"],
        "CONV and GEMM unit unknown": model["sme2_operators_unknown"],
    }
    return {
        **{name: plotted(value) for name, value in times.items() if value is not None and pd.notna(value)},
        **{name: dg.MetadataValue.int(int(value)) for name, value in counts.items() if pd.notna(value)},
    }


def _milliseconds(ns: float | None) -> float | None:
    return None if ns is None or pd.isna(ns) else float(ns) / 1e6
