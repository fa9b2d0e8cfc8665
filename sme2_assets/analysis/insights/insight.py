"""What an insight is, and the rows of a run that insights are drawn from."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any

import pandas as pd

from sme2_assets.analysis.confidence import Basis, Conditions, conditions_of
from sme2_assets.analysis.insights import claims
from sme2_assets.analysis.insights.values import names_in
from sme2_assets.analysis.unit import ON

MATRIX = ("CONV", "GEMM")

Row = dict[str, Any]


@dataclass(frozen=True)
class Insight:
    """One conclusion. `win_ns` and `win_share` are upper bounds, None where no time is known.

    `basis` is what the conclusion rests on: `measured` on hardware; `emulated` for kernels seen under
    emulation; `implied` for kernels that operators are named for, where nothing shows them; `predicted`
    from an operator's type alone; `projection` for arithmetic on published rates.
    """

    kind: str
    title: str
    detail: str
    evidence: tuple[str, ...]
    rules_out: str
    win_ns: float | None
    win_share: float | None
    basis: Basis
    rows: tuple[Row, ...] = ()

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class ArmRows:
    """One run: its `runs` row, and its rows of the views that the fields are named after."""

    run: Row
    bottlenecks: pd.DataFrame
    category_summary: pd.DataFrame
    missed_sme2: pd.DataFrame
    headroom: Row
    # The emulated run with SME2 on that shows this run's kernels, if there is one.
    evidence_run_id: str | None = None
    # Its row in latency_summary; a foreign run has none.
    latency: Row = field(default_factory=dict)

    @property
    def conditions(self) -> Conditions:
        """Those of its traced times, which insights rest on."""
        found = conditions_of(self.run, self.latency, self.headroom)
        return replace(found, rounds=int(self.headroom["rounds"]))

    @property
    def timed(self) -> bool:
        return self.run["fidelity"] != "emulated"

    @property
    def speaks_of_sme2(self) -> bool:
        return self.run["fidelity"] != "reference"

    @property
    def basis(self) -> Basis:
        return "measured" if self.timed else seen(self.bottlenecks if self.matrix.empty else self.matrix)

    @property
    def matrix(self) -> pd.DataFrame:
        return self.bottlenecks[self.bottlenecks["category"].isin(MATRIX)]

    def matrix_on(self, *states: str) -> pd.DataFrame:
        """CONV and GEMM operators by where they run: on the SME unit, off it, or unknown."""
        return self.matrix[self.matrix["on_sme_unit"].isin(states)]

    def hidden_ns(self, operators: pd.DataFrame) -> float:
        """The most that whole microseconds hide of these operators: each of XNNPACK's loses up to one, and
        together no more than the exact times of the calls leave."""
        floored = operators[operators["backend"] == "xnnpack"]
        ran = float((floored["inferences"] / self.headroom["inferences"]).sum())
        return min(1000.0 * ran, max(float(self.headroom["delegate_overhead_ns"]), 0.0))

    def share_of(self, duration_ns: float | None) -> float | None:
        inference_ns = self.headroom["inference_ns"]
        known = duration_ns is not None and self.timed and inference_ns > 0
        return duration_ns / inference_ns if known else None

    def insight(
        self,
        kind: str,
        title: str,
        detail: str,
        rules_out: str,
        *,
        win_ns: float | None = None,
        evidence: tuple[str, ...] = (),
        basis: Basis | None = None,
        rows: tuple[Row, ...] = (),
    ) -> Insight:
        """A conclusion about this arm, with what the arm's numbers rest on as its first evidence."""
        win_ns = None if win_ns is None else float(win_ns)
        known = (self.measurement(), *evidence)
        share = self.share_of(win_ns)
        return Insight(kind, title, detail, known, rules_out, win_ns, share, basis or self.basis, rows)

    def measurement(self) -> str:
        """What its numbers rest on."""
        rounds, inferences = int(self.headroom["rounds"]), int(self.headroom["inferences"])
        if self.timed:
            flags = names_in(self.run.get("flags"))
            odd = self.conditions.disturbed_rounds
            return claims.MEANS.say(
                run_id=self.run["run_id"],
                device=device_text(self.run),
                rounds=rounds,
                disturbed=odd,
                left_out=claims.LEFT_OUT.say(run_id=self.run["run_id"], count=odd) if odd else "",
                inferences=inferences,
                busy=claims.BUSY.say(run_id=self.run["run_id"], kinds=_flag_kinds(flags)) if flags else "",
            )
        return claims.ONLY_KERNELS.say(run_id=self.run["run_id"])


def matters(hidden_ns: float, arm: ArmRows) -> bool:
    """Whether what whole microseconds hide is enough of the inference to be told."""
    return hidden_ns >= 0.01 * float(arm.headroom["inference_ns"])


def seen(operators: pd.DataFrame) -> Basis:
    """Whether counts or samples under emulation show which kernels these operators ran."""
    if operators["instructions"].notna().all():
        return "emulated"
    by_name = (operators["on_sme_unit"] == ON) & (operators["sme2_evidence"] == "name")
    return "implied" if operators["telling_samples"].sum() == 0 or by_name.any() else "emulated"


UNKNOWN_DEVICE = "a device that is not known"


def device_text(run: Row) -> str:
    """The device that a run's times come from. Traces from elsewhere may say little of it, or nothing."""
    device, *facts = (
        None if pd.isna(run[name]) or not run[name] else str(run[name]) for name in ("device", "arch", "cpu")
    )
    known = ", ".join(fact for fact in facts if fact)
    return (device or UNKNOWN_DEVICE) + (f" ({known})" if known else "")


def _flag_kinds(flags: list[str]) -> str:
    """What the flags are about, without their details."""
    return ", ".join(dict.fromkeys(flag.partition(":")[0] for flag in flags))
