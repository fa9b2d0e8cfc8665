"""Whether outputs are right, in a few words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from sme2_assets.evidence.digits import beside
from sme2_assets.report import claims
from sme2_assets.report.tables import arm_text


def outputs_are_wrong(runs: Sequence[dict[Any, Any]]) -> bool:
    """Whether an arm's outputs do not match the eager model's, or the arms' outputs each other."""
    return any(
        run["sqnr_db"] < run["sqnr_threshold_db"]
        or pd.notna(run["eager_fault"])
        or pd.notna(run["arms_fault"])
        for run in runs
    )


def numerics_text(runs: Sequence[dict[Any, Any]]) -> str:
    """Whether the outputs are right, in a few words."""
    said = []
    for run in runs:
        if pd.isna(run["sqnr_db"]):
            said.append(claims.NO_EAGER.say(run_id=run["run_id"], arm=arm_text(run)))
            continue
        fault = run["eager_fault"]
        right = run["sqnr_db"] >= run["sqnr_threshold_db"] and pd.isna(fault)
        said.append(
            claims.AGAINST_EAGER.say(
                run_id=run["run_id"],
                arm=arm_text(run),
                judged="right" if right else "WRONG",
                sqnr=run["sqnr_db"],
                needed=run["sqnr_threshold_db"],
                reached=beside(run["sqnr_db"], run["sqnr_threshold_db"], 1),
                fault="" if pd.isna(fault) else f"; {fault}",
            )
        )
    if len(runs) == 2 and not pd.isna(runs[-1]["arms_sqnr_db"]):
        said.append(_between_arms_text(runs[-1]))
    return "; ".join(said)


def _between_arms_text(run: dict[Any, Any]) -> str:
    between = {"run_id": run["run_id"], "sqnr": run["arms_sqnr_db"]}
    if pd.isna(run["arms_values"]):
        return claims.ARMS_UNBOUNDED.say(**between)
    if not pd.isna(run["arms_fault"]):
        return claims.ARMS_WRONG.say(**between, fault=run["arms_fault"])
    values = int(run["arms_values"])
    between |= {"values": values, "counted": counted(values, "value")}
    if run["arms_of_bound"] == 0:
        return claims.ARMS_EQUAL.say(**between)
    return claims.ARMS_WITHIN.say(**between, of_bound=run["arms_of_bound"])


def counted(number: Any, thing: str) -> str:
    return f"{int(number)} {thing}" + ("" if int(number) == 1 else "s")
