"""Measures an experiment: session after session, through the same assets as everything else.

Belongs here: the order of the sessions, the outcome of each, the files in the output folder. Does not:
measuring (launch), printing (cli).
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import dagster as dg

from sme2_assets import launch
from sme2_assets.defs.resources import Lab
from sme2_assets.errors import Sme2Error
from sme2_assets.exchange.export import export_run
from sme2_assets.experiments.plan import Session
from sme2_assets.report.files import PAGE_NAME, report_folder, write_overview
from sme2_assets.store import Store, write_json
from sme2_assets.warehouse.read import run_of_id

EXPERIMENT_TAG = "sme2/experiment"
SUMMARY_FILE = "experiment.json"
# What people can open without sme2. Parquet and raw traces are in the data folder.
OUTPUT_FORMATS = ("csv", "json", "markdown", "perfetto")


@dataclass(frozen=True)
class Outcome:
    """The outcome of a session."""

    session: Session
    seconds: float
    # By state of SME2; empty if it failed.
    run_ids: dict[str, str] = field(default_factory=dict)
    session_id: str | None = None
    error: Sme2Error | None = None
    # Why its files are not in the output folder; the measurement itself is not in doubt.
    output_error: Sme2Error | None = None

    @property
    def ok(self) -> bool:
        return self.error is None


def run_sessions(
    lab: Lab,
    instance: dg.DagsterInstance,
    sessions: Sequence[Session],
    name: str,
    log: Callable[[str], None],
    output: Path | None = None,
    reached: Callable[[float], None] = lambda share: None,
) -> list[Outcome]:
    """Measures every session; one that fails does not stop the others."""
    outcomes = []
    for index, session in enumerate(sessions):
        reached(index / len(sessions))
        log(f"session {index + 1} of {len(sessions)}: {session.title}")
        outcome = _measured(lab, instance, session, name, log)
        if outcome.error is not None:
            log(f"{session.title} failed: {outcome.error.what}")
        elif output is not None:
            # At once: the next session of this model and platform writes its report to the same folder.
            try:
                write_output(lab, outcome, output, log)
            except Sme2Error as error:
                outcome = replace(outcome, output_error=error)
        outcomes.append(outcome)
    if output is not None:
        pages = {
            it.session_id: output / output_name(it.session) / "report" / PAGE_NAME
            for it in outcomes
            if it.session_id is not None
        }
        if pages:
            write_overview(lab.store, lab.warehouse, folder=output, pages=pages)
        write_json(output / SUMMARY_FILE, {"experiment": name, "sessions": [as_json(it) for it in outcomes]})
    return outcomes


def _measured(
    lab: Lab, instance: dg.DagsterInstance, session: Session, name: str, log: Callable[[str], None]
) -> Outcome:
    started = time.monotonic()
    try:
        if session.program is not None:
            link_program(lab.store, session.program)
        tags = {EXPERIMENT_TAG: name}
        done = launch.profile(lab, instance, [session.request], session.wishes, log, tags=tags)
    except Sme2Error as error:
        return Outcome(session, time.monotonic() - started, error=error)
    [measured] = done.sessions
    run_ids = dict(zip(session.states, measured.run_ids, strict=True))
    return Outcome(session, time.monotonic() - started, run_ids, measured.session_id)


def link_program(store: Store, program: Path) -> None:
    """Makes a .pte a model of the data folder, so that the UI and every command know it from now on.

    A link, not a copy: the file remains the user's. The export keeps a copy of what was measured.
    """
    folder = store.root / "models"
    folder.mkdir(parents=True, exist_ok=True)
    beside = [program.with_suffix(".etrecord"), *sorted(program.parent.glob(f"{program.stem}.input_*.npy"))]
    for file in (program, *(path for path in beside if path.is_file())):
        link = folder / file.name
        if link.exists() and link.resolve() == file.resolve():
            continue
        if link.exists() and not link.is_symlink():
            raise Sme2Error(f"{link} is not the same file as {file}.", "Rename one of them.")
        link.unlink(missing_ok=True)
        link.symlink_to(file.resolve())


def write_output(lab: Lab, outcome: Outcome, output: Path, log: Callable[[str], None]) -> None:
    """The exports of a session's runs, and its report if it is a pair, in their own folder."""
    session = outcome.session
    folder = output / output_name(session)
    run = run_of_id(lab.warehouse, outcome.run_ids[session.states[-1]])
    export_run(lab.store, run, OUTPUT_FORMATS, folder / "export", log=log)
    report = report_folder(lab.store, run)
    if session.paired and report.is_dir():
        shutil.copytree(report, folder / "report", dirs_exist_ok=True)


def output_name(session: Session) -> str:
    """The folder of a session; different sessions have different folders."""
    chosen = [f"{key}_{session.wishes[key]}" for key in ("device", "cpus", "power") if key in session.wishes]
    name = "-".join([session.variant, session.platform, f"t{session.threads}", *chosen, *session.entries[:1]])
    return re.sub(r"[^A-Za-z0-9._-]", "_", name)[:200]


def as_json(outcome: Outcome) -> dict[str, Any]:
    """A session and its outcome, for programs."""
    error = outcome.error
    return {
        **outcome.session.as_json(),
        "ok": outcome.ok,
        "seconds": round(outcome.seconds, 1),
        "session_id": outcome.session_id,
        "run_ids": outcome.run_ids,
        "error": None if error is None else {"what": error.what, "remedy": error.remedy},
        "output_error": None if outcome.output_error is None else str(outcome.output_error),
    }
