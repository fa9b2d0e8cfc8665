"""Evidence becomes rows of the warehouse: three assets of one step, because a session is stored whole."""

from collections.abc import Iterator
from typing import Any

import dagster as dg
import pandas as pd

from sme2_assets.analysis.insights.insight import device_text
from sme2_assets.defs.assets.sessions import take_rows
from sme2_assets.defs.assets.summaries import (
    category_metadata,
    kernel_metadata,
    latency_metadata,
    operator_metadata,
)
from sme2_assets.defs.assets.support import clear_failures, content_version, runs_of
from sme2_assets.defs.partitions import pair_per_run, run_partitions
from sme2_assets.defs.resources import Lab
from sme2_assets.report.tables import TextTable
from sme2_assets.warehouse import Warehouse
from sme2_assets.warehouse.read import run_of_id


def _spec(name: str, description: str) -> dg.AssetSpec:
    return dg.AssetSpec(
        name,
        deps=["etdump_traces"],
        description=description,
        group_name="measure",
        kinds={"parquet", "duckdb"},
        code_version="3",
        partitions_def=run_partitions,
    )


@dg.multi_asset(
    name="rows_of_session",
    specs=[
        _spec(
            "timeline",
            "Table `timeline`: every nanosecond of an inference in exactly one row; with it `runs`, "
            "`inferences` and `operators`. History is kept: a new run adds rows. Shown with the views "
            "`latency_summary` and `operator_summary`.",
        ),
        _spec(
            "kernel_evidence",
            "View `kernel_usage`: what ran, by operator, function and unit. On hardware program counters are "
            "sampled (`kernel_samples`), under emulation instructions are counted (`operator_work`). Kernels "
            "that XNNPACK's log registered, of a runner built with that log, are in `registered_kernels`.",
        ),
        _spec(
            "category_summary",
            "View `category_summary`: how much of an inference each category of operators takes.",
        ),
    ],
    backfill_policy=pair_per_run,
)
def rows_of_session(context: dg.AssetExecutionContext, lab: Lab) -> Iterator[dg.MaterializeResult]:
    """Reads what etdump_traces made of a session, writes Parquet, and publishes the DuckDB file."""
    warehouse = lab.warehouse
    with clear_failures():
        run_ids = runs_of(context, "etdump_traces", context.partition_keys)
        take_rows(lab, run_ids.values(), context.log.info)
    shown = {
        "timeline": ("timeline", _timeline_metadata),
        "kernel_evidence": ("kernel_usage", _kernel_metadata),
        "category_summary": ("category_summary", category_metadata),
    }
    for asset, (relation, metadata) in shown.items():
        for key, run_id in run_ids.items():
            facts = {**metadata(warehouse, run_id), **_relation_metadata(warehouse, relation, run_id)}
            context.add_asset_metadata(facts, asset_key=asset, partition_key=key)
        yield dg.MaterializeResult(asset_key=asset, data_version=content_version(run_ids.values()))


def _relation_metadata(warehouse: Warehouse, relation: str, run_id: str) -> dict[str, Any]:
    """What the UI shows of any table: its name, its columns with their comments, the rows of this run."""
    columns = warehouse.query(
        "SELECT column_name AS name, data_type AS type, comment AS description FROM duckdb_columns() "
        "WHERE table_name = ? AND database_name = 'warehouse' ORDER BY column_index",
        [relation],
    )
    rows = warehouse.query(f"SELECT count(*) AS n FROM {relation} WHERE run_id = ?", [run_id])
    return {
        "run_id": run_id,
        "dagster/table_name": relation,
        "dagster/row_count": int(rows["n"].iloc[0]),
        "dagster/column_schema": dg.TableSchema([dg.TableColumn(**it) for it in columns.to_dict("records")]),
    }


def _timeline_metadata(warehouse: Warehouse, run_id: str) -> dict[str, Any]:
    run = run_of_id(warehouse, run_id)
    [counts] = warehouse.query(
        "SELECT "
        "(SELECT sum(coalesce(duration_ns, emulated_ns)) FROM timeline WHERE run_id = $run) AS accounted_ns, "
        "count(*) AS inferences, count(coalesce(execute_ns, emulated_execute_ns)) "
        "FILTER (pass = 'etdump') AS traced, sum(coalesce(execute_ns, emulated_execute_ns)) "
        "FILTER (pass = 'etdump') AS traced_ns FROM inferences WHERE run_id = $run",
        {"run": run_id},
    ).to_dict("records")
    # The share of the traced time that is in a row. The check looks at each inference.
    share = counts["accounted_ns"] / max(counts["traced_ns"], 1)
    return {
        **latency_metadata(warehouse, run_id),
        **operator_metadata(warehouse, run_id),
        "accounted for": f"{share:.4%} of Method::execute in {counts['traced']} traced inferences",
        "inferences": int(counts["inferences"]),
        "operators in the model's code": dg.MetadataValue.md(
            _attribution_table(warehouse, run_id).markdown()
        ),
        "fidelity": run["fidelity"],
        "device": device_text(run),
        "warehouse": dg.MetadataValue.path(str(warehouse.link)),
    }


def _attribution_table(warehouse: Warehouse, run_id: str) -> TextTable:
    """How many operators were found in the model's code, and how surely."""
    counts = warehouse.query(
        "SELECT attribution, count(*) AS n FROM operators WHERE run_id = ? GROUP BY ALL ORDER BY n DESC, 1",
        [run_id],
    )
    return TextTable.of(["attribution", "operators"], counts.to_numpy().tolist())


def _kernel_metadata(warehouse: Warehouse, run_id: str) -> dict[str, Any]:
    ran = warehouse.query(
        "SELECT kind, thread_kind, samples, instructions, weight FROM executed_functions WHERE run_id = ?",
        [run_id],
    )
    registered = warehouse.query("SELECT count(*) AS n FROM registered_kernels WHERE run_id = ?", [run_id])
    measure = "instructions" if ran["instructions"].sum() else "samples"
    outside = ran[ran["kind"] != "operator"]
    return {
        **kernel_metadata(warehouse, run_id),
        measure: int(ran["weight"].sum()),
        f"{measure} outside operators": int(outside["weight"].sum()),
        f"{measure} by what was executing": dg.MetadataValue.md(_kinds_table(ran, measure).markdown())
        if len(ran)
        else "Neither sampled nor counted: kernel_rounds was 0, or this platform can do neither.",
        "registered kernels": int(registered["n"].iloc[0]),
    }


def _kinds_table(ran: pd.DataFrame, measure: str) -> TextTable:
    counts = ran.groupby(["kind", "thread_kind"])["weight"].sum().sort_values(ascending=False)
    return TextTable.of(
        ["executing", "thread", measure],
        [[kind, thread, f"{int(count):,}"] for (kind, thread), count in counts.items()],
    )
