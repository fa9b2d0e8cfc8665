"""Whether a run can be relied on: one of our own, or an ingested one.

Anything that only affects how to read a result, such as a run measured alone, is a note.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from sme2_assets.analysis.comparison import why_not_a_pair, why_outputs_differ
from sme2_assets.analysis.factors import SME2, factor_of
from sme2_assets.diagnostics.evidence_checks import (
    AGAIN,
    check_conservation,
    check_hashes,
    require,
    trace_steps,
)
from sme2_assets.diagnostics.steps import CheckStep, Checkup
from sme2_assets.errors import Sme2Error
from sme2_assets.evidence.folder import TRACE_FILE, RunFolder
from sme2_assets.evidence.foreign import FOREIGN_FILE, ForeignStatement
from sme2_assets.evidence.manifest import Manifest
from sme2_assets.store import Store
from sme2_assets.warehouse import checks
from sme2_assets.warehouse.ingest import rows_of_run
from sme2_assets.warehouse.read import run_of_id, runs_of_session
from sme2_assets.warehouse.store import Warehouse


def validate_run(folder: Path, store: Store) -> Checkup:
    made = Checkup(folder.name, "run")
    manifest = None
    with made.step("manifest") as step:
        manifest = RunFolder.open(folder).manifest
        step.detail = (
            f"{manifest.identity.variant} on {manifest.identity.platform}, SME2 {manifest.identity.sme2}"
        )
    if manifest is None:
        return made
    with made.step("files") as step:
        step.detail = check_hashes(folder, manifest.info.file_sha256)
    with made.step("processes") as step:
        failed = [process for process in manifest.info.processes if process.exit_code != 0]
        require(not failed, f"{len(failed)} processes ended with an error.", AGAIN)
        step.detail = f"{len(manifest.info.processes)} ended well"
    rows = None
    with made.step("traces") as step:
        rows = rows_of_run(folder)
        samples = int(rows.kernel_samples["samples"].sum())
        step.detail = f"{len(rows.timeline):,} timeline rows, {samples:,} samples"
    if rows is not None:
        with made.step("nanoseconds") as step:
            step.detail = check_conservation(rows.timeline, rows.inferences)
        with made.step("metrics") as step:
            _check_run_metrics(step, manifest, rows.inferences)
    run = run_in_warehouse(manifest.run_id, store)
    with made.step("warehouse") as step:
        if run is None:
            step.note("The run is not in this warehouse.", "Materialise timeline and what follows for it.")
        elif rows is not None:
            _check_in_warehouse(step, Warehouse(store.warehouse), run, len(rows.timeline))
    if run is not None:
        _check_pair(made, Warehouse(store.warehouse), run)
    return made


def _check_run_metrics(step: CheckStep, manifest: Manifest, inferences: pd.DataFrame) -> None:
    require(bool((inferences["duration_ns"] > 0).all()), "An inference took no time.", AGAIN)
    info = manifest.info
    require(
        info.wrong is None,
        f"The outputs are wrong: {info.wrong}, against eager.",
        "Look at the numerics of the run: another precision may be needed.",
    )
    timed = inferences[(inferences["pass"] == "latency") & ~inferences["is_warmup"]]
    rounds = timed.groupby("round")["duration_ns"].median()
    step.detail = f"{len(timed)} timed inferences in {len(rounds)} rounds"
    if manifest.context.fidelity != "emulated":
        step.detail += f", median {rounds.median() / 1e6:.4g} ms"
        if info.flags:
            step.note("The machine was not quiet: " + "; ".join(info.flags), "Measure again when it is.")


def _check_in_warehouse(
    step: CheckStep, warehouse: Warehouse, run: dict[str, Any], timeline_rows: int
) -> None:
    stored = warehouse.query("SELECT count(*) AS n FROM timeline WHERE run_id = ?", [run["run_id"]])[
        "n"
    ].iloc[0]
    require(
        stored == timeline_rows,
        f"It has {stored} timeline rows of this run, the evidence gives {timeline_rows}.",
        "Materialise timeline for this partition again.",
    )
    for check in (checks.conservation_faults, checks.sme2_evidence_faults, checks.executed_kernel_faults):
        fault = check(warehouse, run)
        require(fault is None, f"{fault}.", "See docs/measuring.md and docs/kernels.md. " + AGAIN)
    soft = [
        fault
        for check in (checks.noise_faults, checks.unknown_operators, checks.attribution_faults)
        if (fault := check(warehouse, run)) is not None
    ]
    step.detail = f"{stored} timeline rows, as in the evidence"
    if soft:
        step.note("; ".join(soft))


def _check_pair(made: Checkup, warehouse: Warehouse, run: dict[str, Any]) -> None:
    """Whether the arms agree, and what their comparison says, or why they were not compared."""
    with made.step("arms") as step:
        if not run["paired"]:
            step.note("The run was measured alone: it is compared with nothing.")
            return
        first, *others = runs_of_session(warehouse, run["session_id"])
        if not others:
            step.note("The other arm of the session is not in this warehouse.", AGAIN)
            return
        for other in others:
            fault = why_not_a_pair(first, other) or why_outputs_differ(first, other)
            require(fault is None, f"{fault}", "Measure both in one session: `sme2 profile`, `sme2 compare`.")
        factor = factor_of(first)
        same = " and compute the same" if factor is None or factor.one_program else ""
        in_what = "nothing" if factor is None else "SME2 alone" if factor is SME2 else f"{factor.name} alone"
        names = " and ".join(each["run_id"] for each in (first, *others))
        step.detail = f"{names} differ in {in_what}{same}"
    with made.step("comparison") as step:
        rows = warehouse.query(
            "SELECT verdict, reason FROM comparisons WHERE session_id = $session AND level = 'model' "
            "AND $run IN (a_run_id, b_run_id) ORDER BY b_run_id",
            {"session": run["session_id"], "run": run["run_id"]},
        )
        if rows.empty:
            step.note("The pair has not been compared yet.", "Run `sme2 warehouse sync`.")
        elif rows["verdict"].iloc[0] in ("not comparable", "insufficient data"):
            step.note(f"{rows['verdict'].iloc[0]}: {rows['reason'].iloc[0]}")
        else:
            step.detail = f"{rows['verdict'].iloc[0]}: {rows['reason'].iloc[0]}"


def validate_foreign_run(folder: Path, store: Store) -> Checkup:
    made = Checkup(folder.name, "foreign run")
    statement = None
    with made.step("manifest") as step:
        statement = ForeignStatement.read(folder / FOREIGN_FILE)
        step.detail = f"from {statement.source}"
    with made.step("files") as step:
        step.detail = check_hashes(folder, statement.file_sha256 if statement else {})
    trace_steps(made, folder / TRACE_FILE)
    run = run_in_warehouse(folder.name, store)
    with made.step("warehouse") as step:
        if run is None:
            step.note("The run is not in this warehouse.", "Ingest the trace again.")
        else:
            warehouse = Warehouse(store.warehouse)
            fault = checks.conservation_faults(warehouse, run)
            require(fault is None, f"{fault}.", "Ingest the trace again.")
            step.detail = f"{run['variant']} as {run['target']}"
    with made.step("comparison") as step:
        step.note("A foreign run has no other arm and unknown provenance: it supports no verdict.")
    return made


def run_in_warehouse(run_id: str, store: Store) -> dict[str, Any] | None:
    if not store.warehouse.is_dir():
        return None
    try:
        return run_of_id(Warehouse(store.warehouse), run_id)
    except Sme2Error:
        return None
