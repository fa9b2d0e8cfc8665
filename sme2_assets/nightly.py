"""A night: every model variant on every platform of this machine, pair by pair, and what came of it.

Belongs here: the order of a night, its record on disk, and how the record reads. Does not: when a night
starts and who is told (automation.py), how a message travels (notify.py).

The record is `data/nightly/<night>.json`, with the same in Markdown beside it. It is replaced as a whole
before and after every pair, and a lock is held for as long as the night runs. So a record that says
`running` while nobody holds the lock is of a night that was killed; what it had measured is in the
warehouse, and the record says which pairs that is.
"""

from __future__ import annotations

import json
import platform as host
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime, tzinfo
from itertools import takewhile
from pathlib import Path
from typing import Any, TypeVar

import dagster as dg
from filelock import FileLock, Timeout

from sme2_assets import launch
from sme2_assets.errors import Sme2Error
from sme2_assets.launch import ProfileRequest
from sme2_assets.models.registry import is_large, parse_variant
from sme2_assets.models.registry import variants as registered_variants
from sme2_assets.report.tables import TextTable, arm_text, fidelity_note, speedup_text
from sme2_assets.resources import Lab
from sme2_assets.store import Store, write_json, write_text_atomically
from sme2_assets.targets import SME2_STATES
from sme2_assets.warehouse import Warehouse
from sme2_assets.warehouse.read import comparison_of_session, rows_of_view, run_of_id

Log = Callable[[str], None]
Profile = Callable[[Lab, dg.DagsterInstance, Sequence[ProfileRequest], dict[str, Any], Log], launch.Profiled]
T = TypeVar("T")

RETRIES = 2
# Long enough for a device to come back, short against a session.
RETRY_PAUSE_S = 20.0
# A sensor looks for killed nights with the same lock, and holds it for milliseconds.
LOCK_PATIENCE_S = 5.0


@dataclass
class PairResult:
    """One model variant on one platform. Emulated pairs have no times."""

    variant: str
    platform: str
    states: list[str]
    status: str = "waiting"
    """waiting, running, measured, failed, or interrupted (the night was killed meanwhile)."""
    attempts: int = 0
    seconds: float = 0.0
    session_id: str | None = None
    verdict: str | None = None
    """None where one state was measured alone."""
    reason: str | None = None
    speedup: str | None = None
    """With its interval and n."""
    latency_ms: dict[str, float] = field(default_factory=dict)
    """Median per SME2 state, from the pass without tracer."""
    failure: str | None = None
    """What the last failed attempt said, also when a later one succeeded."""
    remedy: str | None = None

    @property
    def name(self) -> str:
        return f"{self.variant} on {self.platform}"


@dataclass(frozen=True)
class Regression:
    """A row of `regressions` in the warehouse."""

    variant: str
    platform: str
    threads: int
    sme2: str
    category: str | None
    night: str
    before_ns: float
    after_ns: float
    ratio: float
    p_value: float | None
    # Records of older nights have none of these.
    device: str = ""
    arch: str = ""
    fidelity: str = "hardware"

    def __str__(self) -> str:
        chance = "" if self.p_value is None else f", p = {self.p_value:.2g}"
        return (
            f"{self.variant} on {self.platform}{self.device and ', '}{self.device}, {arm_text(vars(self))}, "
            f"threads {self.threads}, "
            f"{self.category or 'whole model'}: {self.ratio - 1:.1%} slower since {self.night} "
            f"({self.before_ns / 1e6:.3f} -> {self.after_ns / 1e6:.3f} ms{chance})"
        )


@dataclass
class NightSummary:
    """What a night did so far."""

    night: str
    """The date it started, with a number from the second night of a date on."""
    started_at: str
    machine: str
    status: str = "running"
    """running, finished or killed. A finished night may have failed pairs."""
    finished_at: str | None = None
    seconds: float | None = None
    pairs: list[PairResult] = field(default_factory=list)
    regressions: list[Regression] = field(default_factory=list)
    """Not acknowledged ones, as the warehouse showed them at the end of the night."""
    notes: list[str] = field(default_factory=list)
    """What was left out and why; nights before that were missed or killed."""
    problem: str | None = None
    """Why nothing could be measured, or why the night ended early."""

    def having(self, status: str) -> list[PairResult]:
        return [pair for pair in self.pairs if pair.status == status]

    @property
    def ok(self) -> bool:
        """Finished, and every pair measured. Says nothing about regressions."""
        return (
            self.status == "finished"
            and self.problem is None
            and len(self.having("measured")) == len(self.pairs)
        )

    @property
    def headline(self) -> str:
        counts = f"{len(self.having('measured'))} of {len(self.pairs)} pairs measured"
        if failed := len(self.having("failed")):
            counts += f", {failed} failed"
        took = "" if self.seconds is None else f" after {_duration(self.seconds)}"
        return f"Night {self.night} on {self.machine}: {self.status}{took}, {counts}"

    @classmethod
    def read(cls, path: Path) -> NightSummary:
        stored = json.loads(path.read_text())
        return _known(
            cls,
            stored
            | {
                "pairs": [_known(PairResult, pair) for pair in stored["pairs"]],
                "regressions": [_known(Regression, row) for row in stored["regressions"]],
            },
        )

    def write(self, folder: Path) -> None:
        write_json(folder / f"{self.night}.json", asdict(self))
        write_text_atomically(folder / f"{self.night}.md", self.markdown())

    def message(self) -> str:
        """The night in a few lines, for a chat."""
        lines = [self.headline]
        lines += [f"- failed: {_failure_text(pair)}" for pair in self.having("failed")]
        lines += [
            f"- {pair.verdict}: {pair.name}, {pair.speedup}"
            for pair in self.having("measured")
            if pair.verdict in ("faster", "slower")
        ]
        lines += [f"- regression: {regression}" for regression in self.regressions]
        lines += [f"- {note}" for note in [*([self.problem] if self.problem else []), *self.notes]]
        return "\n".join([*lines, f"Summary: nightly/{self.night}.md in the data folder"])

    def markdown(self) -> str:
        parts = [f"# {self.headline}", f"{self.started_at} to {self.finished_at or '...'}"]
        if self.problem:
            parts.append(f"**{self.problem}**")
        parts.append(
            TextTable.of(
                ["model", "platform", "SME2", "status", "verdict", "speedup", "median ms", "attempts", "s"],
                [
                    [
                        pair.variant,
                        pair.platform,
                        ", ".join(pair.states),
                        pair.status,
                        pair.verdict,
                        pair.speedup,
                        ", ".join(f"{sme2} {value:.3f}" for sme2, value in pair.latency_ms.items()) or None,
                        pair.attempts,
                        f"{pair.seconds:.1f}",
                    ]
                    for pair in self.pairs
                ],
            ).markdown()
        )
        parts += _section("Failures", [_failure_text(pair) for pair in self.pairs if pair.failure])
        parts += _section("Why", [f"{pair.name}: {pair.reason}" for pair in self.pairs if pair.reason])
        parts += _section("Regressions", [str(regression) for regression in self.regressions])
        parts += _section("Notes", self.notes)
        return "\n\n".join(part.rstrip() for part in parts) + "\n"


def nightly(
    lab: Lab,
    instance: dg.DagsterInstance,
    *,
    log: Log,
    profile: Profile = launch.profile,
    variants: Sequence[str] = (),
    platforms: Sequence[str] = (),
    settings: dict[str, Any] | None = None,
    retries: int = RETRIES,
    retry_pause_s: float = RETRY_PAUSE_S,
    afterwards: Callable[[], None] | None = None,
    zone: tzinfo = UTC,
    notes: Sequence[str] = (),
) -> NightSummary:
    """Measures all variants on all platforms (or those given) in the states this machine really gives.

    A pair that fails is tried again and then left; the others are measured all the same. `afterwards` is
    what follows from all of them, e.g. the search for regressions; it must not cost the night either. Only
    a second night at the same time is refused.
    """
    folder = night_folder(lab.store)
    with _the_only_night(folder):
        _mark_killed(folder, instance, log)
        summary = _new_summary(lab.store, zone, notes)
        started = time.monotonic()
        try:
            try:
                requests, left_out = _requests(lab, variants, platforms)
                summary.notes += left_out
                summary.pairs = [
                    PairResult(request.variant, request.platform, list(request.states))
                    for request in requests
                ]
            except Sme2Error as error:
                requests, summary.problem = [], str(error)
            summary.write(folder)
            for index, (pair, request) in enumerate(zip(summary.pairs, requests, strict=True), start=1):
                log(f"night {summary.night}: {pair.name}, {index} of {len(requests)}")
                pair.status = "running"
                summary.write(folder)
                _measure(
                    pair,
                    lambda request=request: profile(lab, instance, [request], dict(settings or {}), log),  # type: ignore[misc]
                    lab.warehouse,
                    retries,
                    retry_pause_s,
                    log,
                )
                summary.seconds = round(time.monotonic() - started, 1)
                summary.write(folder)
            _follow_up(summary, afterwards, lab.warehouse, log)
            summary.status = "finished"
        except BaseException as stopped:
            # The run was terminated, or a defect of ours: either way the night did not get to its end.
            _end_early(summary, f"The night ended early: {_words(stopped)[0]}")
            raise
        finally:
            summary.finished_at = _now().isoformat()
            summary.seconds = round(time.monotonic() - started, 1)
            summary.write(folder)
    log(summary.headline)
    return summary


def night_folder(store: Store) -> Path:
    return store.root / "nightly"


def nights(store: Store) -> list[NightSummary]:
    """All recorded nights, oldest first. A file that is no record is passed over."""
    found = []
    for path in night_folder(store).glob("*.json"):
        try:
            found.append(NightSummary.read(path))
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return sorted(found, key=lambda summary: summary.started_at)


def newly_killed_nights(store: Store, instance: dg.DagsterInstance, log: Log) -> list[NightSummary]:
    """Marks nights that were killed, ends their runs, and gives them; none while a night is running."""
    folder = night_folder(store)
    if not folder.is_dir():
        return []
    try:
        with FileLock(folder / "night.lock", timeout=0):
            return _mark_killed(folder, instance, log)
    except Timeout:
        return []


def open_regressions(warehouse: Warehouse) -> list[Regression]:
    """Regressions that nobody has acknowledged; none where the warehouse was published without them."""
    if not warehouse.link.exists():
        return []
    if warehouse.query("SELECT 1 FROM information_schema.tables WHERE table_name = 'regressions'").empty:
        return []
    rows = warehouse.query("SELECT * FROM regressions WHERE NOT coalesce(acknowledged, false)")
    rows = rows.astype(object).where(rows.notna(), None)
    found = [
        Regression(
            variant=row["variant"],
            platform=row["platform"],
            threads=int(row["threads"]),
            sme2=row["sme2"],
            category=row["category"],
            night=str(row["night"])[:10],
            before_ns=float(row["before_ns"]),
            after_ns=float(row["after_ns"]),
            ratio=float(row["ratio"]),
            p_value=None if row["p_value"] is None else float(row["p_value"]),
            device=row["device"],
            arch=row["arch"],
            fidelity=row["fidelity"],
        )
        for row in rows.to_dict("records")
    ]
    return sorted(found, key=lambda regression: -regression.ratio)


@contextmanager
def _the_only_night(folder: Path) -> Iterator[None]:
    """Held by a night while it runs; the operating system frees it when the process dies."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / "night.lock")
    try:
        lock.acquire(timeout=LOCK_PATIENCE_S)
    except Timeout as busy:
        raise Sme2Error(
            "Another night is still running on this data folder.",
            f"Wait for it to end, or stop its run in the UI; {folder} shows how far it is.",
        ) from busy
    try:
        yield
    finally:
        lock.release()


def _mark_killed(folder: Path, instance: dg.DagsterInstance, log: Log) -> list[NightSummary]:
    """To be called with the lock held: whoever wrote `running` then is gone."""
    killed = []
    for summary in nights(Store(folder.parent)):
        if summary.status == "running":
            launch.end_dead_runs(Store(folder.parent), instance, log)
            _end_early(summary, "The night was killed before its end.")
            summary.write(folder)
            log(summary.headline)
            killed.append(summary)
    return killed


def _end_early(summary: NightSummary, problem: str) -> None:
    summary.status, summary.problem = "killed", problem
    for pair in summary.having("running"):
        pair.status = "interrupted"


def _new_summary(store: Store, zone: tzinfo, notes: Sequence[str]) -> NightSummary:
    now = _now()
    before = nights(store)
    # The date and then date-2, date-3: a night that is started again does not overwrite the first.
    date = now.astimezone(zone).date().isoformat()
    taken = {path.stem for path in night_folder(store).glob("*.json")}
    night, number = date, 2
    while night in taken:
        night, number = f"{date}-{number}", number + 1
    unfinished = list(takewhile(lambda earlier: earlier.status != "finished", reversed(before)))
    killed = [
        f"Night {earlier.night} was killed: {len(earlier.having('measured'))} of {len(earlier.pairs)} pairs "
        "were measured, and are kept."
        for earlier in reversed(unfinished)
    ]
    return NightSummary(night, now.isoformat(), host.node(), notes=[*killed, *notes])


def _requests(
    lab: Lab, variants: Sequence[str], platforms: Sequence[str]
) -> tuple[list[ProfileRequest], list[str]]:
    chosen = [parse_variant(name).key for name in variants] or [
        it.key for it in registered_variants() if not is_large(it.key)
    ]
    wanted = launch.requests_for_this_machine(lab, chosen, SME2_STATES, platforms)
    return wanted.requests, [*wanted.notes, *map(str, wanted.left_out)]


def _measure(
    pair: PairResult,
    profile_it: Callable[[], launch.Profiled],
    warehouse: Warehouse,
    retries: int,
    retry_pause_s: float,
    log: Log,
) -> None:
    """Profiles a pair, again where it fails, and notes what came of it. Raises nothing that is an error."""
    started = time.monotonic()
    for attempt in range(1, retries + 2):
        pair.attempts = attempt
        try:
            [session] = profile_it().sessions
            _take_result(pair, warehouse, session)
            pair.status = "measured"
            break
        except Exception as error:
            pair.status = "failed"
            pair.failure, pair.remedy = _words(error)
            log(f"{pair.name}, attempt {attempt} of {retries + 1}: {error}")
            if not isinstance(error, Sme2Error):
                log(traceback.format_exc())
            if attempt <= retries:
                time.sleep(retry_pause_s)
    pair.seconds = round(time.monotonic() - started, 1)


def _take_result(pair: PairResult, warehouse: Warehouse, session: launch.Measured) -> None:
    """What the warehouse has of this session."""
    pair.session_id = session.session_id
    runs = [run_of_id(warehouse, run_id) for run_id in session.run_ids]
    for run in runs:
        if run["fidelity"] != "emulated":
            [latency] = rows_of_view(warehouse, "latency_summary", run["run_id"]).to_dict("records")
            pair.latency_ms[run["sme2"]] = round(float(latency["median_ns"]) / 1e6, 6)
    if len(runs) < 2:
        alone = f"SME2 {pair.states[0]} alone: a baseline, nothing to compare."
        pair.reason = fidelity_note(runs[0]) or alone
        return
    rows = comparison_of_session(warehouse, session.session_id)
    row = rows[rows["level"] == "model"].iloc[0].to_dict()
    pair.verdict, pair.reason, pair.speedup = row["verdict"], row["reason"], speedup_text(row)


def _follow_up(
    summary: NightSummary, afterwards: Callable[[], None] | None, warehouse: Warehouse, log: Log
) -> None:
    """What comes after the pairs; a failure is the night's problem, and the pairs stay measured."""
    try:
        if afterwards is not None:
            afterwards()
        summary.regressions = open_regressions(warehouse)
    except Exception as error:
        log(traceback.format_exc())
        said = "After the pairs: {} What to do: {}".format(*_words(error))
        summary.problem = f"{summary.problem} {said}" if summary.problem else said


def _words(error: BaseException) -> tuple[str, str]:
    """What happened and what to do."""
    if isinstance(error, Sme2Error):
        return error.what, error.remedy or "See the log of the run."
    said = " ".join(str(error).split())
    return (
        f"{type(error).__name__}: {said}" if said else type(error).__name__,
        "This is a defect or a stop from outside: the log of the run has the stack.",
    )


def _failure_text(pair: PairResult) -> str:
    recovered = f" (measured at attempt {pair.attempts})" if pair.status == "measured" else ""
    return f"{pair.name}{recovered}: {pair.failure} What to do: {pair.remedy}"


def _section(title: str, items: Sequence[str]) -> list[str]:
    return [f"## {title}\n\n" + "\n".join(f"- {' '.join(item.split())}" for item in items)] if items else []


def _known(cls: type[T], stored: dict[str, Any]) -> T:
    """A record of a newer version may have more fields."""
    names = {one.name for one in fields(cls)}  # type: ignore[arg-type]
    return cls(**{name: value for name, value in stored.items() if name in names})


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"


def _now() -> datetime:
    return datetime.now(UTC)
