"""CONV and GEMM operators that stay off the SME unit, by reason, and those of which nobody knows."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from sme2_assets.analysis.insights.insight import ArmRows, Insight
from sme2_assets.analysis.insights.operators import operator_rows
from sme2_assets.analysis.insights.values import counted, ms
from sme2_assets.analysis.unit import ON, UNKNOWN


def missed_kernels(subject: ArmRows) -> Iterator[Insight]:
    """One insight per reason. Off alone, what is to be expected; the view says on what basis.

    Where it is unknown whether operators are on the unit, nothing is to be won for certain.
    """
    missed = subject.missed_sme2
    for (reason, basis), members in missed.groupby(["reason", "basis"], sort=True):
        unknown = reason == UNKNOWN
        win_ns = float(members["mean_ns"].sum()) if subject.timed and not unknown else None
        verb = "would stay" if subject.run["sme2"] == "off" else "stayed"
        which = counted(members, "CONV or GEMM operator")
        evidence = []
        if basis == "emulated":
            evidence.append(f"kernels seen in the emulated run {members['evidence_run_id'].iloc[0]}")
        if basis == "predicted":
            evidence.append("predicted from the operators' types: no run with SME2 on shows it")
        evidence += _sample_evidence(members)
        yield subject.insight(
            "missed_sme2",
            (
                f"Whether {which} run on the SME unit: {reason}"
                if unknown
                else f"{which} {verb} off the SME unit: {reason}"
            )
            + (" (predicted)" if basis == "predicted" else ""),
            " ".join(dict.fromkeys(members["because"]))
            + ("" if win_ns is None else f" Together: {ms(win_ns):.3f} ms."),
            _rest_of_matrix(subject),
            win_ns=win_ns,
            evidence=tuple(evidence),
            basis=None if basis == "observed" else basis,
            rows=operator_rows(members),
        )


def _sample_evidence(members: pd.DataFrame) -> list[str]:
    told, sme = int(members["telling_samples"].sum()), int(members["certain_sme_samples"].sum())
    return [f"{sme} of their {told} samples in kernels that compute are in SME kernels"] if told else []


def _rest_of_matrix(subject: ArmRows) -> str:
    total, rest = len(subject.matrix), len(subject.matrix) - len(subject.missed_sme2)
    if subject.run["sme2"] == "on":
        on = subject.matrix_on(ON)
        executed = int((on["sme2_evidence"] == "executed").sum())
        return (
            f"{len(on)} of {total} CONV and GEMM operators are on the SME unit ({executed} sampled there, "
            f"{len(on) - executed} by name): they are not what is missed."
        )
    if subject.evidence_run_id is not None:
        return f"The other {rest} of {total} CONV and GEMM operators take SME2 kernels under emulation."
    return (
        f"Nothing about the other {rest} of {total} CONV and GEMM operators: only a run with SME2 on can "
        "tell, and emulation has one."
    )
