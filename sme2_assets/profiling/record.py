"""The record of an arm: facts that all its processes must agree on, and the hash of every file."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from datetime import datetime

import numpy as np

import sme2_assets
from sme2_assets.errors import RunnerError
from sme2_assets.evidence.arms import ArmsNumerics
from sme2_assets.evidence.manifest import Info, Moment
from sme2_assets.evidence.numerics import MINIMUM_SQNR_DB, compare_outputs, first_fault, worst_agreement
from sme2_assets.evidence.result import RunnerResult
from sme2_assets.models.artifact import read_manifest
from sme2_assets.profiling.arms import Arm
from sme2_assets.profiling.between_arms import outputs_of
from sme2_assets.store import sha256_of_file

LEAST_STEADY_SHARE = 0.9


def cpu_of(arm: Arm) -> dict[str, object]:
    """The CPU facts of the arm, on which all its processes must agree."""
    facts = {json.dumps(result.cpu.as_json(), sort_keys=True) for result in arm.results}
    if len(facts) != 1:
        raise RunnerError(
            f"The processes of SME2 {arm.spec.sme2} report different CPU facts: {sorted(facts)}.",
            "Pin the measurement to one kind of core.",
        )
    return json.loads(facts.pop())


def info_of(
    arm: Arm,
    seed: int,
    started: datetime,
    finished: datetime,
    environment: list[Moment],
    between: ArmsNumerics | None,
) -> Info:
    outputs = [outputs_of(arm.directory / process.directory / "outputs") for process in arm.processes]
    hashes = {_hash_of(arrays) for arrays in outputs}
    if len(hashes) != 1:
        raise RunnerError(
            f"The outputs with SME2 {arm.spec.sme2} differ from process to process on the same inputs.",
            "The model or a kernel is not deterministic: such a run cannot be compared.",
        )
    model, plan = arm.model, arm.plan
    exported = read_manifest(model.manifest)
    expected = [np.load(path) for path in model.expected_outputs]
    # A program that came without its model can only be compared with its own other arm.
    agreements = (
        compare_outputs(expected, outputs[0], classifier=exported.is_classifier, rankings=model.rankings)
        if expected
        else []
    )
    worst = worst_agreement(agreements)
    wheel = arm.runner.executorch_record_sha256
    return Info(
        started_at=started.isoformat(),
        finished_at=finished.isoformat(),
        seed=seed,
        plan={**asdict(plan), "passes": list(plan.passes)},
        versions={
            **arm.results[0].versions.as_json(),
            "sme2_assets": sme2_assets.__version__,
            **({"executorch_record_sha256": wheel} if wheel else {}),
        },
        agreements=[asdict(agreement) for agreement in agreements],
        sqnr_db=worst.sqnr_db if worst else None,
        sqnr_threshold_db=exported.tolerance.minimum_db if agreements else min(MINIMUM_SQNR_DB.values()),
        eager_fault=first_fault(agreements, exported.tolerance.minimum_db, exact=not exported.tolerance.own),
        arms_sqnr_db=None if between is None else between.sqnr_db,
        output_sha256=hashes.pop(),
        steady=ended_steady(arm.results),
        processes=arm.processes,
        environment=environment,
        file_sha256={
            str(path.relative_to(arm.directory)): sha256_of_file(path)
            for path in sorted(arm.directory.rglob("*"))
            if path.is_file()
        },
    )


def _hash_of(arrays: list[np.ndarray]) -> str:
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.dtype}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def ended_steady(results: list[RunnerResult]) -> bool | None:
    """Whether nearly every warm-up ended steady; None if none was judged.

    A clock that still rises does so in every process; one process in ten may simply have been disturbed.
    """
    judged = [result.steady for result in results if result.steady is not None]
    return sum(judged) >= LEAST_STEADY_SHARE * len(judged) if judged else None
