"""CONV and GEMM operators that stay off the SME unit, by reason."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from sme2_assets.analysis.insights.insight import ArmRows, Insight
from sme2_assets.analysis.insights.operators import operator_rows
from sme2_assets.analysis.insights.values import counted, ms


def missed_kernels(subject: ArmRows) -> Iterator[Insight]:
    """One insight per reason. Off alone, what is to be expected; the view says on what basis."""
    missed = subject.missed_sme2
    for (reason, basis), members in missed.groupby(["reason", "basis"], sort=True):
        win_ns = float(members["mean_ns"].sum()) if subject.timed else None
        expected = subject.run["sme2"] == "off"
        verb = "would stay" if expected else "stayed"
        evidence = []
        if basis == "emulated":
            evidence.append(f"kernels seen in the emulated run {members['evidence_run_id'].iloc[0]}")
        if basis == "predicted":
            evidence.append("predicted from the operators' types: no run with SME2 on shows it")
        evidence += _sample_evidence(members)
        yield subject.insight(
            "missed_sme2",
            f"{counted(members, 'CONV or GEMM operator')} {verb} off the SME unit: {reason}"
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
    samples, sme = int(members["samples"].sum()), int(members["sme_samples"].sum())
    if not samples:
        return []
    borders = ", all of them at the border to another operator" if sme else ""
    return [f"{sme} of their {samples} samples are in SME kernels{borders}"]


def _rest_of_matrix(subject: ArmRows) -> str:
    total, rest = len(subject.matrix), len(subject.matrix) - len(subject.missed_sme2)
    if subject.run["sme2"] == "on":
        executed = int((subject.proven["sme2_evidence"] == "executed").sum())
        return (
            f"The other {rest} of {total} CONV and GEMM operators have SME2 kernels ({executed} sampled in "
            f"them, {rest - executed} by name): they are not what is missed."
        )
    if subject.evidence_run_id is not None:
        return f"The other {rest} of {total} CONV and GEMM operators take SME2 kernels under emulation."
    return (
        f"Nothing about the other {rest} of {total} CONV and GEMM operators: only a run with SME2 on can "
        "tell, and emulation has one."
    )
