"""CONV and GEMM operators that stay off the SME unit, by reason, and those for which it is unknown."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from sme2_assets.analysis.insights import claims
from sme2_assets.analysis.insights.insight import ArmRows, Insight, Row, seen
from sme2_assets.analysis.insights.operators import operator_rows
from sme2_assets.analysis.insights.values import ms, plural
from sme2_assets.analysis.unit import ON, UNKNOWN


def missed_kernels(subject: ArmRows) -> Iterator[Insight]:
    """One insight per reason. With SME2 off alone, it is what to expect; the view says on what basis.

    Where it is unknown whether operators are on the unit, no win is certain.
    """
    missed = subject.missed_sme2
    for (reason, basis), members in missed.groupby(["reason", "basis"], sort=True):
        unknown = reason == UNKNOWN
        took_ns = float(members["per_inference_ns"].sum()) if subject.timed and not unknown else None
        verb = "would stay" if subject.run["sme2"] == "off" else "stayed"
        these = {"run_id": subject.run["run_id"], "reason": reason, "basis": basis}
        which = {"count": len(members), "operators": plural(members, "operator")}
        emulated = basis == "emulated" or (basis == "observed" and not subject.timed)
        evidence = []
        if basis == "emulated":
            evidence.append(claims.AS_EMULATED.say(evidence_run_id=members["evidence_run_id"].iloc[0]))
        if basis == "predicted":
            evidence.append("predicted from the operators' types: no run with SME2 on shows it")
        evidence += _evidence(members, these)
        yield subject.insight(
            "missed_sme2",
            claims.UNIT_UNKNOWN.say(**which, **these)
            if unknown
            else claims.STAYED.say(
                **which, **these, verb=verb, predicted=" (predicted)" if basis == "predicted" else ""
            ),
            " ".join(dict.fromkeys(members["because"]))
            + ("" if took_ns is None else claims.MISSED_TIME.say(ms=ms(took_ns), **these)),
            _rest_of_matrix(subject),
            win_ns=None if took_ns is None else took_ns + subject.hidden_ns(members),
            evidence=tuple(evidence),
            basis=seen(members) if emulated else None if basis == "observed" else basis,
            rows=operator_rows(members),
        )


def _evidence(members: pd.DataFrame, these: Row) -> list[str]:
    if members["macs_executed"].notna().all():
        done = {name: int(members[name].sum()) for name in ("macs_executed", "macs_on_unit")}
        return [claims.MISSED_WORK.say(**done, **these)]
    told, sme = int(members["telling_samples"].sum()), int(members["certain_sme_samples"].sum())
    return [claims.MISSED_SAMPLES.say(sme=sme, told=told, **these)] if told else []


def _rest_of_matrix(subject: ArmRows) -> str:
    total, rest = len(subject.matrix), len(subject.matrix) - len(subject.missed_sme2)
    run_id = subject.run["run_id"]
    if subject.run["sme2"] == "on":
        on = subject.matrix_on(ON)
        executed = int((on["sme2_evidence"] == "executed").sum())
        return claims.NOT_MISSED.say(
            run_id=run_id, count=len(on), total=total, executed=executed, named=len(on) - executed
        )
    if subject.evidence_run_id is not None:
        return claims.REST_UNDER_EMULATION.say(
            run_id=run_id, count=rest, total=total, evidence_run_id=subject.evidence_run_id
        )
    return claims.REST_NOT_SHOWN.say(run_id=run_id, count=rest, total=total)
