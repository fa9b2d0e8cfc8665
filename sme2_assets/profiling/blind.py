"""Blind measurement: an A/A session whose second arm may be slowed down. Only its times are kept."""

from __future__ import annotations

import secrets
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median

from sme2_assets.evidence.blind import Trial, Truth, write_trial
from sme2_assets.evidence.result import RESULT_FILE, RunnerResult
from sme2_assets.evidence.sequence import next_number
from sme2_assets.models.artifact import ExportedModel
from sme2_assets.profiling.arms import aa_arms
from sme2_assets.profiling.plan import Plan
from sme2_assets.profiling.session import measure_session
from sme2_assets.runner.build import RunnerBinary
from sme2_assets.store import Store, sha256_of_text
from sme2_assets.targets.base import Target

# Besides 0, the placebo.
DOSES_PERCENT = (2.0, 3.0, 5.0, 10.0)


def drawn_dose() -> float:
    """Half of them are placebos, on average."""
    return secrets.choice((0.0, secrets.choice(DOSES_PERCENT)))


def blind_trial(
    store: Store,
    target: Target,
    model: ExportedModel,
    runners: Mapping[str, RunnerBinary],
    dose_percent: float,
    plan: Plan,
    log: Callable[[str], None],
    sme2: str = "off",
) -> Trial:
    """Measures `sme2` against itself, slowed by `dose_percent`, and keeps the trial apart from its truth.

    The run folders are not kept: they reveal the dose, and what they measure is not a real model.
    """
    truth = Truth(dose_percent=dose_percent, salt=secrets.token_hex(16))
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="sme2-") as folder:
        scratch = Store(Path(folder))
        # The lease must also hold against everybody who uses the real data folder.
        store.leases.mkdir(parents=True, exist_ok=True)
        scratch.leases.symlink_to(store.leases.resolve())
        manifests = measure_session(scratch, target, model, runners, aa_arms(sme2, dose_percent), plan, log)
        results = [
            [
                RunnerResult.read(scratch.run_dir(manifest.run_id) / process.directory / RESULT_FILE)
                for process in manifest.info.processes
                if process.pass_kind == "latency"
            ]
            for manifest in manifests
        ]
    identity, context = manifests[0].identity, manifests[0].context
    a_ns, b_ns = ([float(median(result.iteration_ns)) for result in arm] for arm in results)
    trial = Trial(
        session_id=manifests[0].session_id,
        # From the real data folder, not the one that is thrown away.
        sequence=next_number(store.runs),
        variant=identity.variant,
        platform=identity.platform,
        sme2=identity.sme2,
        device=context.device,
        arch=context.arch,
        fidelity=context.fidelity,
        threads=identity.threads,
        cpus=identity.cpus,
        power_mode=identity.power_mode,
        started_at=manifests[0].info.started_at,
        seconds=time.monotonic() - started,
        inference_seconds=sum(
            (result.warmup_wall_ns or 0) + (result.timed_wall_ns or 0) for arm in results for result in arm
        )
        / 1e9,
        a_ns=a_ns,
        b_ns=b_ns,
        truth_sha256=sha256_of_text(truth.to_json()),
    )
    write_trial(store.blind, trial, truth)
    return trial
