"""Measures an experiment: session after session, through the same assets as everything else.

Belongs here: the order of the sessions, the outcome of each, the files in the output folder. Does not:
measuring (launch), printing (cli).
"""

from __future__ import annotations

import itertools
import re
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import dagster as dg

from sme2_assets import launch
from sme2_assets.defs.resources import Lab
from sme2_assets.errors import Sme2Error
from sme2_assets.exchange.export import export_run
from sme2_assets.exchange.outputs import EXPORT, SUMMARY_FILE, write_kit_files
from sme2_assets.experiments.plan import OF_THE_DEVICE, Session
from sme2_assets.report.files import PAGE_NAME, REPORT_NAME, report_folder, write_overview
from sme2_assets.report.html import stamp_in, stamp_of
from sme2_assets.store import Store, write_json
from sme2_assets.warehouse.read import run_of_id

EXPERIMENT_TAG = "sme2/experiment"
# The folder of a session's report in the output folder.
REPORT = "report"
# What people can open without sme2, and what the kit's own tools read.
OUTPUT_FORMATS = ("csv", "json", "markdown", "perfetto", "etdump")


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
    config: Path | None = None,
    reached: Callable[[float], None] = lambda share: None,
) -> list[Outcome]:
    """Measures every session; one that fails does not stop the others. `config` is the experiment's file."""
    outcomes: list[Outcome] = []
    folders = {} if output is None else {it: output / made for it, made in output_names(sessions).items()}
    try:
        for index, session in enumerate(sessions):
            reached(index / len(sessions))
            log(f"session {index + 1} of {len(sessions)}: {session.title}")
            outcome = _measured(lab, instance, session, name, log)
            outcomes.append(outcome)
            if outcome.error is not None:
                log(f"{session.title} failed: {outcome.error.what}")
            elif output is not None:
                # True until its files are there.
                outcomes[-1] = replace(outcome, output_error=_stopped("its files were written"))
                # At once: the next session of this model and platform writes its report to the same folder.
                try:
                    write_output(lab, outcome, folders[session], log, config)
                    outcomes[-1] = outcome
                except Sme2Error as error:
                    outcomes[-1] = replace(outcome, output_error=error)
    finally:
        # Also when somebody stops it: what was measured until then is measured.
        if output is not None and outcomes:
            _sum_up(lab, name, outcomes, sessions[len(outcomes) :], output, folders)
    return outcomes


def _sum_up(
    lab: Lab,
    name: str,
    outcomes: Sequence[Outcome],
    missing: Sequence[Session],
    output: Path,
    folders: Mapping[Session, Path],
) -> None:
    """The overview and the summary of what was measured; the summary also has what was not reached."""
    pages = {
        it.session_id: folders[it.session] / REPORT / PAGE_NAME
        for it in outcomes
        if it.session_id is not None
    }
    if pages:
        write_overview(lab.store, lab.warehouse, folder=output, pages=pages)
    told = [*outcomes, *(Outcome(it, 0.0, error=_stopped("this session was measured")) for it in missing)]
    written = [folders[it.session] for it in outcomes if it.ok and it.output_error is None]
    write_kit_files(output, written)
    write_json(output / SUMMARY_FILE, {"experiment": name, "sessions": [as_json(it) for it in told]})


def _stopped(before: str) -> Sme2Error:
    return Sme2Error(f"The experiment was stopped before {before}.", "Run it again.")


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
    files = {folder / it.name: it.resolve() for it in (program, *_beside(program)) if it.is_file()}
    for link, file in files.items():
        if link.exists() and not link.is_symlink() and link.resolve() != file:
            raise Sme2Error(f"{link} is not the same file as {file}.", "Rename one of them.")
    # Links of an earlier program of this name: this one would be run with its inputs, or explained by its
    # ETRecord.
    for link in _beside(folder / program.name):
        if link.is_symlink() and link not in files:
            link.unlink()
    for link, file in files.items():
        if link.resolve() != file or not link.exists():
            link.unlink(missing_ok=True)
            link.symlink_to(file)


def _beside(program: Path) -> list[Path]:
    """Where the files that go with a program are, if it has any: ETRecord, external weights, inputs."""
    named = [program.with_suffix(suffix) for suffix in (".etrecord", ".ptd")]
    return [*named, *sorted(program.parent.glob(f"{program.stem}.input_*.npy"))]


def write_output(
    lab: Lab, outcome: Outcome, folder: Path, log: Callable[[str], None], config: Path | None = None
) -> None:
    """The exports of a session's runs, and its report if it is a pair, in the folder of the session."""
    session = outcome.session
    copy = folder / REPORT
    # First, as what follows can fail: a report that is left there would be taken for that of this session.
    if any((copy / name).is_file() for name in (PAGE_NAME, REPORT_NAME)):
        shutil.rmtree(copy)
    run = run_of_id(lab.warehouse, outcome.run_ids[session.states[-1]])
    called = dict(session.arms)
    export_run(lab.store, run, OUTPUT_FORMATS, folder / EXPORT, log=log, called=called, config=config)
    report = report_folder(lab.store, run)
    if stamp_in(report / PAGE_NAME) == stamp_of(str(outcome.session_id)):
        shutil.copytree(report, copy, dirs_exist_ok=True)


def output_names(sessions: Sequence[Session]) -> dict[Session, str]:
    """The folder of each session: what people know it by, and what else tells it from the others."""
    plain = {session: _output_name(session) for session in sessions}
    names: dict[Session, str] = {}
    for session, name in plain.items():
        alike = [_settings(other) for other, its in plain.items() if its == name]
        differing = {key for each in alike for key in each if any(each[key] != it.get(key) for it in alike)}
        given = _settings(session)
        parts = [name, *(f"{key}_{given.get(key, 'default')}" for key in sorted(differing))]
        made = unnumbered = _safe("-".join(parts))
        # Where the difference was cut off, or has no characters that a name may have.
        for number in itertools.count(2):
            if made.lower() not in {it.lower() for it in names.values()}:
                break
            made = f"{unnumbered}-{number}"
        names[session] = made
    return names


def _output_name(session: Session) -> str:
    chosen = [f"{key}_{session.wishes[key]}" for key in OF_THE_DEVICE if key in session.wishes]
    parts = [session.variant, session.platform, f"t{session.threads}", *chosen, *session.entries[:1]]
    return _safe("-".join(parts))


def _settings(session: Session) -> dict[str, Any]:
    return {"sme2": "_".join(session.states), **session.wishes}


def _safe(name: str) -> str:
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
