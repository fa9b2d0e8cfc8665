"""What a session says: insights, ranked, with the tables they rest on.

A plain function on the warehouse. `sme2 explain`, the report and the assets show its result.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from sme2_assets.analysis.insights.insight import ArmRows, Insight
from sme2_assets.analysis.insights.ranking import insights
from sme2_assets.errors import WarehouseError
from sme2_assets.warehouse import Warehouse
from sme2_assets.warehouse.read import runs_of_session

# The views of one run, and the order in which people read their rows.
_ORDER = {
    "bottlenecks": "rank, execution_order",
    "missed_sme2": "reason, delegate NULLS LAST, position",
    "module_summary": "depth, first_operator NULLS LAST, module",
    "category_summary": "mean_ns DESC NULLS LAST, category",
    "headroom": "run_id",
    "latency_summary": "run_id",
}


# The program calls `aten.mean.out` where the partitioner was asked about `aten.mean.dim`.
SAME_OPERATOR = (
    r"list_contains([regexp_replace(op, '\.\w+$', '') FOR op IN facts.edge_ops], "
    r"regexp_replace(refused.operator, '\.\w+$', ''))"
)


@dataclass(frozen=True)
class Explanation:
    """A session of a model on a platform, explained.

    `subject` is the arm the insights are about: SME2 on, or the only one measured; `baseline` is SME2
    off with it, or None. `modules` are the subject's rows of `module_summary`; `refusals` say why XNNPACK
    did not take an operator outside delegates, by its position.
    """

    variant: str
    platform: str
    fidelity: str
    subject: ArmRows
    baseline: ArmRows | None
    insights: list[Insight]
    modules: pd.DataFrame
    refusals: dict[int, str] = field(default_factory=dict)
    # Grave doubts about the session's times, beside the conditions of its arms.
    doubts: tuple[str, ...] = ()

    @property
    def arms(self) -> list[ArmRows]:
        return [arm for arm in (self.baseline, self.subject) if arm is not None]


def explain(warehouse: Warehouse, session_id: str, sme2: str | None = None) -> Explanation:
    """Explains a session; with `sme2`, only that arm, as if the other had not been measured."""
    runs = runs_of_session(warehouse, session_id)
    arms = {run["sme2"]: _arm_rows(warehouse, run) for run in runs if sme2 in (None, run["sme2"])}
    subject = arms.get("on") or arms["off"]
    baseline = arms.get("off") if "on" in arms else None
    return Explanation(
        runs[0]["variant"],
        runs[0]["platform"],
        runs[0]["fidelity"],
        subject,
        baseline,
        insights(subject, baseline),
        _rows(warehouse, "module_summary", subject.run["run_id"]),
        _refusals(warehouse, subject.run["run_id"]),
        _doubts(warehouse, session_id) if baseline is not None else (),
    )


def _doubts(warehouse: Warehouse, session_id: str) -> tuple[str, ...]:
    """A comparison that was refused, or is of low confidence, is a doubt about every time of the session."""
    doubtful = warehouse.query(
        "SELECT 1 FROM comparisons WHERE session_id = ? AND level = 'model' AND fidelity = 'hardware' "
        "AND (verdict = 'not comparable' OR confidence = 'low')",
        [session_id],
    )
    return () if doubtful.empty else ("the comparison of the session's arms is not to be relied on",)


def _refusals(warehouse: Warehouse, run_id: str) -> dict[int, str]:
    rows = warehouse.query(
        "SELECT facts.position, min(refused.reason) AS reason FROM operator_facts AS facts "
        "JOIN delegation_report AS refused ON refused.run_id = facts.run_id AND NOT refused.delegated "
        f"AND {SAME_OPERATOR} "
        "AND refused.module IS NOT DISTINCT FROM facts.module "
        "AND refused.source IS NOT DISTINCT FROM facts.source "
        "WHERE facts.run_id = ? AND facts.backend = 'portable' AND refused.reason IS NOT NULL "
        "GROUP BY facts.position",
        [run_id],
    )
    return dict(zip(rows["position"].tolist(), rows["reason"].tolist(), strict=True))


def _arm_rows(warehouse: Warehouse, run: dict[Any, Any]) -> ArmRows:
    run_id = run["run_id"]
    headroom = _rows(warehouse, "headroom", run_id)
    if headroom.empty:
        raise WarehouseError(
            f"The run {run_id} has no operator times.",
            "Profile the model again; this run cannot be explained.",
        )
    twin = warehouse.query("SELECT evidence_run_id FROM emulated_twin WHERE run_id = ?", [run_id])
    return ArmRows(
        run,
        _rows(warehouse, "bottlenecks", run_id),
        _rows(warehouse, "category_summary", run_id),
        _rows(warehouse, "missed_sme2", run_id),
        headroom.iloc[0].to_dict(),
        None if twin.empty else str(twin["evidence_run_id"].iloc[0]),
        next(iter(_rows(warehouse, "latency_summary", run_id).to_dict("records")), {}),
    )


def _rows(warehouse: Warehouse, view: str, run_id: str) -> pd.DataFrame:
    return warehouse.query(f"SELECT * FROM {view} WHERE run_id = ? ORDER BY {_ORDER[view]}", [run_id])
