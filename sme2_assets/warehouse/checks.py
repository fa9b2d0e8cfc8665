"""What must hold in the warehouse: each function names the fault of a run, or returns None."""

from __future__ import annotations

from typing import Any

import pandas as pd

from sme2_assets.analysis.comparison import why_not_a_pair, why_outputs_differ
from sme2_assets.analysis.confidence import noise
from sme2_assets.analysis.conservation import CLOCK_NS
from sme2_assets.analysis.passes import passes_fault
from sme2_assets.analysis.unit import ENOUGH_SAMPLES
from sme2_assets.warehouse.read import conditions, run_of_id
from sme2_assets.warehouse.store import Warehouse

# Twenty ticks of the sampler's timer.
LONG_ENOUGH_NS = 10_000_000
# More elements than any tile of a kernel has in a direction at a vector length of 512 bits, and more than any
# kernel rounds the depth of a product up by.
LARGEST_TILE, LARGEST_DEPTH = 64, 32
# If a smaller share of operators has a place in the model, reports by module mislead.
LEAST_ATTRIBUTED = 0.9


def conservation_faults(warehouse: Warehouse, run: dict[str, Any]) -> str | None:
    """Timeline rows of each inference against Method::execute and the runner's own clock.

    The sum must be exact, and every planned inference must be there: an empty sum proves nothing. Overhead is
    what is left and makes every sum match. What it cannot hide: no row appears twice, operators are within
    the execution and do not overlap, a delegate's overhead is negative by one tick of XNNPACK's clock at most
    and the framework's never, and the runner's clock, which runs around Method::execute, never shows less.
    """
    broken = warehouse.query(
        """
        WITH rows AS (
            SELECT *, start_ns + duration_ns AS end_ns,
                lag(start_ns + duration_ns) OVER (
                    PARTITION BY round, iteration, kind = 'operator' ORDER BY start_ns, duration_ns, position
                ) AS previous_end_ns
            FROM (SELECT * REPLACE (coalesce(duration_ns, emulated_ns) AS duration_ns) FROM timeline)
            WHERE run_id = $run_id
        ), summed AS (
            SELECT round, iteration, sum(duration_ns) AS total_ns,
                count(*) - count(DISTINCT (kind, backend, delegate, position)) AS rows_twice,
                min(start_ns) AS first_start_ns, max(end_ns) AS last_end_ns,
                max(previous_end_ns - start_ns) AS overlap_ns,
                min(duration_ns) FILTER (kind = 'delegate_overhead') AS delegate_overhead_ns,
                min(duration_ns) FILTER (kind = 'framework_overhead') AS framework_overhead_ns
            FROM rows GROUP BY round, iteration
        ), traced AS (
            SELECT round, iteration, coalesce(execute_ns, emulated_execute_ns) AS execute_ns,
                coalesce(duration_ns, emulated_ns) AS duration_ns
            -- Warm-up that is not traced is counted below 0.
            FROM inferences WHERE run_id = $run_id AND pass = 'etdump' AND iteration >= 0
        )
        SELECT *
        FROM traced FULL JOIN summed USING (round, iteration)
        WHERE total_ns IS NULL
            OR total_ns IS DISTINCT FROM execute_ns
            OR execute_ns > duration_ns
            OR rows_twice > 0
            OR first_start_ns < 0
            OR last_end_ns > execute_ns + $clock_ns
            OR overlap_ns > $clock_ns
            OR delegate_overhead_ns < -$clock_ns
            OR framework_overhead_ns < 0
        ORDER BY round, iteration
        """,
        {"run_id": run["run_id"], "clock_ns": CLOCK_NS},
    )
    if not broken.empty:
        return f"{len(broken)} inferences do not add up, the first: {broken.iloc[0].to_dict()}"
    traced = warehouse.query(
        "SELECT count(*) AS n FROM inferences WHERE run_id = ? AND pass = 'etdump' AND NOT is_warmup",
        [run["run_id"]],
    )["n"].iloc[0]
    planned = run["rounds"] * run["iterations"]
    return None if traced >= planned else f"{traced} traced inferences are there, {planned} were planned"


def sme2_evidence_faults(warehouse: Warehouse, run: dict[str, Any]) -> str | None:
    """SME2 kernels by name where there must be none, or nothing that shows one where there must be some.

    A model need not have any: depthwise convolutions have no such kernel, nor do some data types. QP8 is the
    name of kernels with and without SME2, so only samples can tell there.
    """
    operators = warehouse.query(
        "SELECT name FROM operator_summary WHERE run_id = $run_id AND sme2_evidence <> 'none' ORDER BY name",
        {"run_id": run["run_id"]},
    )["name"]
    if run["sme2"] == "off" and len(operators):
        return f"SME2 is off, but these operators have SME2 kernels: {', '.join(operators)}"
    if run["sme2"] == "on" and operators.empty:
        eligible = warehouse.query(
            "SELECT name, on_sme_unit FROM operator_facts WHERE run_id = ? AND on_sme_unit IS NOT NULL "
            "AND (on_sme_unit = 'on' OR sme2_obstacle IS NULL AND element IS DISTINCT FROM 'QP8') "
            "ORDER BY name",
            [run["run_id"]],
        )
        if len(eligible) and (eligible["on_sme_unit"] != "on").all():
            return f"SME2 is on, but nothing shows an SME2 kernel, not even in {', '.join(eligible['name'])}"
    return None


def executed_kernel_faults(warehouse: Warehouse, run: dict[str, Any]) -> str | None:
    """SME kernels that ran where there must be none, or none where names promise them.

    An operator whose name implies an SME2 kernel must have been seen in one, if it was counted or has enough
    samples.
    """
    operators = warehouse.query(
        "SELECT name, sme2_evidence, on_sme_unit, instructions, "
        "samples - near_boundary_samples AS certain_samples "
        "FROM operator_facts WHERE run_id = ? AND on_sme_unit IS NOT NULL",
        [run["run_id"]],
    )
    if operators["instructions"].notna().any():
        return _counted_kernel_faults(warehouse, run, operators)
    sampled = warehouse.query(
        "SELECT coalesce(sum(samples), 0)::BIGINT AS samples, "
        "coalesce(sum(samples) FILTER (is_sme), 0)::BIGINT AS sme_samples "
        "FROM judged_samples WHERE run_id = ?",
        [run["run_id"]],
    ).iloc[0]
    if not sampled["samples"]:
        return _why_no_samples(warehouse, run)
    if run["sme2"] == "off":
        count = sampled["sme_samples"]
        return f"SME2 is off, but {count} samples are in SME kernels" if count else None
    promised = operators[operators["sme2_evidence"].isin(["executed", "name"])]
    at_odds = promised[promised["on_sme_unit"] == "unknown"]
    if not at_odds.empty:
        return f"these names imply SME2, but no sample shows it: {', '.join(at_odds['name'])}"
    seen = (promised["sme2_evidence"] == "executed").any()
    if not seen and promised["certain_samples"].sum() >= ENOUGH_SAMPLES:
        return f"{len(promised)} operators have SME2 names, but no sample is in an SME kernel"
    return None


def _counted_kernel_faults(warehouse: Warehouse, run: dict[str, Any], operators: pd.DataFrame) -> str | None:
    if run["sme2"] == "on":
        by_name_alone = operators.loc[operators["sme2_evidence"] == "name", "name"]
        wrong = ", ".join(by_name_alone)
        return f"these names imply SME2, but none of their instructions does: {wrong}" if wrong else None
    on_sme = warehouse.query(
        "SELECT coalesce(sum(instructions), 0)::BIGINT AS n FROM operator_work "
        "WHERE run_id = ? AND (unit = 'SME' OR class = 'streaming entry')",
        [run["run_id"]],
    )["n"].iloc[0]
    return f"SME2 is off, but {on_sme:,} instructions of SME were executed" if on_sme else None


def work_faults(warehouse: Warehouse, run: dict[str, Any]) -> str | None:
    """Counted multiply-accumulates against the model's, operator by operator.

    A kernel cannot do fewer. It does more, because tiles and vectors are filled up, and the bias may be one
    more product: but not more than tiles of LARGEST_TILE by LARGEST_TILE explain, whose depth is rounded up.
    """
    unattributed = warehouse.query(
        "SELECT coalesce(sum(instructions), 0)::BIGINT AS n FROM operator_work "
        "WHERE run_id = ? AND kind = 'unattributed'",
        [run["run_id"]],
    )["n"].iloc[0]
    if unattributed:
        return (
            f"{unattributed:,} instructions were counted, and none belongs to an operator for certain: "
            "the operators that the log of the emulator shows are not those of the trace"
        )
    strange = warehouse.query(
        """
        WITH shapes AS (
            SELECT name, module, execution_order, macs, macs_executed, coalesce(groups, 1) AS groups,
                string_split(output_shape, 'x')::BIGINT[] AS output
            FROM operator_facts
            WHERE run_id = $run_id AND macs > 0 AND macs_executed IS NOT NULL AND on_sme_unit IS NOT NULL
        ), filled AS (
            SELECT *,
                list_product(output[:-3]) * ceil(coalesce(output[-2], 1) / $tile) * $tile AS rows,
                groups * ceil(output[-1] / groups / $tile) * $tile AS columns,
                macs / list_product(output) + $depth AS depth
            FROM shapes
        )
        SELECT name, module, macs, macs_executed FROM filled
        WHERE macs_executed < macs OR macs_executed > rows * columns * depth
        ORDER BY execution_order
        """,
        {"run_id": run["run_id"], "tile": LARGEST_TILE, "depth": LARGEST_DEPTH},
    )
    if strange.empty:
        return None
    first = strange.iloc[0]
    return (
        f"the work counted of {len(strange)} operators is not that of the model, the first: "
        f"{first['name']} ({first['module']}) has {first['macs']:,} multiply-accumulates, and "
        f"{first['macs_executed']:,} were counted"
    )


def _why_no_samples(warehouse: Warehouse, run: dict[str, Any]) -> str | None:
    """None for a run without a kernels pass, or with one that was over before the timer could tick."""
    time_ns = warehouse.query(
        "SELECT coalesce(sum(coalesce(duration_ns, emulated_ns)), 0) AS ns FROM inferences "
        "WHERE run_id = ? AND pass = 'kernels' AND NOT is_warmup",
        [run["run_id"]],
    )["ns"].iloc[0]
    return f"nothing was sampled in {time_ns / 1e6:.0f} ms" if time_ns > LONG_ENOUGH_NS else None


def attribution_faults(warehouse: Warehouse, run: dict[str, Any]) -> str | None:
    """Too many operators without a place in the model's code."""
    found = warehouse.query(
        "SELECT operators, attributed_operators, row_coverage FROM attribution_coverage WHERE run_id = ?",
        [run["run_id"]],
    )
    # A program that came without its model has no places to be attributed to.
    if found.empty or pd.isna(found["row_coverage"].iloc[0]):
        return None
    if found["row_coverage"].iloc[0] >= LEAST_ATTRIBUTED:
        return None
    missing = int(found["operators"].iloc[0] - found["attributed_operators"].iloc[0])
    return f"{missing} of {found['operators'].iloc[0]} operators have no single place in the model"


def unknown_operators(warehouse: Warehouse, run: dict[str, Any]) -> str | None:
    names = warehouse.query(
        "SELECT DISTINCT name FROM operator_summary WHERE run_id = $run_id AND NOT known ORDER BY name",
        {"run_id": run["run_id"]},
    )["name"]
    return f"unknown operators, counted as Other: {', '.join(names)}" if len(names) else None


def passes_faults(warehouse: Warehouse, run: dict[str, Any]) -> str | None:
    """How the passes contradict one another."""
    return passes_fault(run)


def noise_faults(warehouse: Warehouse, run: dict[str, Any]) -> str | None:
    """Rounds that scatter, or a machine that was busy."""
    return "; ".join(noise(conditions(warehouse, run))) or None


def pair_faults(warehouse: Warehouse, a_run_id: str, b_run_id: str) -> str | None:
    """Why two runs are not a pair, or computed different things."""
    a, b = (run_of_id(warehouse, run_id) for run_id in (a_run_id, b_run_id))
    return why_not_a_pair(a, b) or why_outputs_differ(a, b)
