"""What an experiment measures on this machine: its sessions, each once.

Belongs here: models, platforms and numbers of an experiment as sessions of `launch.profile`, and how much
work they are. Does not: whether everything they need is there (check), and measuring them (run).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sme2_assets.defs.resources import Lab
from sme2_assets.errors import ExportError, Sme2Error, did_you_mean
from sme2_assets.experiments.load import Loaded
from sme2_assets.experiments.schema import AUTO, Comparison, Entry, Platform
from sme2_assets.models.registry import catalogue, model_spec, requested
from sme2_assets.models.sources.pte import SUFFIX, program_at
from sme2_assets.models.spec import AS_IS, ModelSpec, Variant
from sme2_assets.profiling.plan import Plan, plan_for
from sme2_assets.profiling.requests import ProfileRequest, platforms_here
from sme2_assets.targets import SME2_STATES
from sme2_assets.written.problems import Place, Problem, line_of

# Settings that are about times, which mean nothing on an emulated CPU.
OF_TIMES = ("rounds", "budget_s", "iterations", "warmup")
OF_THE_PLAN = (*OF_TIMES, "timeout_s", "quiet_patience_s")
OF_THE_DEVICE = ("device", "cpus", "qos", "power")
# What the plan of a session does not depend on.
_NOT_OF_THE_PLAN = ("device", "runner")


@dataclass(frozen=True)
class Chosen:
    """A variant that an experiment asks for."""

    key: str
    spec: ModelSpec
    # A .pte that was named by its path, and may not be in a models folder yet.
    program: Path | None = None

    @property
    def file(self) -> Path | None:
        """The program itself, by whatever way it was named; None for a model that is exported here."""
        return self.program or (self.spec.pte and self.spec.pte.resolve())


@dataclass(frozen=True)
class Session:
    """One call of `launch.profile`: a model on a platform in one or both states, with its settings."""

    variant: str
    platform: str
    states: tuple[str, ...]
    settings: tuple[tuple[str, Any], ...]
    program: Path | None = None
    entries: tuple[str, ...] = field(default=(), compare=False)
    # What the states are called in exported files, where the file names them.
    arms: tuple[tuple[str, str], ...] = field(default=(), compare=False)
    place: Place = field(default=(), compare=False)

    def as_json(self) -> dict[str, Any]:
        return {
            "variant": self.variant,
            "platform": self.platform,
            "sme2": list(self.states),
            "settings": self.wishes,
            "entries": list(self.entries),
        }

    @property
    def request(self) -> ProfileRequest:
        return ProfileRequest(self.variant, self.platform, self.states)

    @property
    def wishes(self) -> dict[str, Any]:
        return dict(self.settings)

    @property
    def threads(self) -> int:
        return int(self.wishes["threads"])

    @property
    def device(self) -> str | None:
        return self.wishes.get("device")

    @property
    def paired(self) -> bool:
        return len(self.states) == 2

    @property
    def title(self) -> str:
        chosen = [f"{self.threads} thread{'s' if self.threads > 1 else ''}"]
        chosen += [f"{key} {self.wishes[key]}" for key in OF_THE_DEVICE if key in self.wishes]
        return f"{self.variant} on {self.platform}, {', '.join(chosen)}"

    def plan(self, lab: Lab) -> Plan:
        """How much is measured, defaults included."""
        wishes = {key: value for key, value in self.settings if key not in _NOT_OF_THE_PLAN}
        return plan_for(
            lab.target(self.platform, self.device).fidelity,
            paired=self.paired,
            **wishes,
        )


@dataclass(frozen=True)
class Shown:
    """A session that is compared at the end, and what the comparison is called."""

    session: Session
    label: str | None = None


@dataclass
class Planned:
    """The sessions of an experiment; if there are problems, none of them may be run."""

    sessions: list[Session] = field(default_factory=list)
    shown: list[Shown] = field(default_factory=list)
    chosen: dict[str, Chosen] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def planned(loaded: Loaded, lab: Lab) -> Planned:
    """Everything an experiment asks for, as far as it can be understood; nothing is built or written."""
    plan = Planned()
    planner = _Planner(loaded, lab, plan)
    sessions: list[Session] = []
    for index, part in enumerate(loaded.experiment.parts()):
        place: Place = ("entries", index) if loaded.experiment.entries else ()
        sessions += planner.sessions(part, place)
    plan.sessions = list(_merged(sessions))
    plan.shown = list(planner.shown(plan.sessions))
    plan.notes = list(dict.fromkeys(plan.notes))
    return plan


def chosen_of(plan: Planned, names: Sequence[str]) -> Planned:
    """The sessions of entries with these names, or in which a state of SME2 is called so."""
    named = [(it, {*it.entries, *dict(it.arms).values()}) for it in plan.sessions]
    known = sorted({name for _, its in named for name in its})
    for name in names:
        if name not in known:
            raise Sme2Error(
                f"Nothing in the file is called {name!r}{did_you_mean(name, known)}.",
                f"Its names are {', '.join(known)}." if known else "Give its entries names.",
            )
    sessions = [session for session, its in named if its & {*names}]
    shown = [it for it in plan.shown if it.session in sessions]
    variants = {session.variant for session in sessions}
    chosen = {key: one for key, one in plan.chosen.items() if key in variants}
    return replace(plan, sessions=sessions, shown=shown, chosen=chosen)


def chosen_models(text: str, precisions: Sequence[str] | None, folder: Path) -> list[Chosen]:
    """The variants that a model of an experiment file means; paths are relative to `folder`."""
    if text.endswith(SUFFIX):
        path = folder / Path(text).expanduser()
        spec = program_at(path)
        _require_free_name(spec, path)
        return [Chosen(Variant(spec.key, AS_IS).key, spec, path.resolve())]
    variants = requested(text)
    spec = model_spec(variants[0].model)
    named = len(variants) == 1 and text.endswith(f"-{variants[0].precision}")
    if precisions is not None and not named and spec.pte is None:
        missing = [precision for precision in precisions if precision not in spec.precisions]
        if missing:
            raise ExportError(
                f"{spec.title} is not offered at {' and '.join(missing)}.",
                f"Use {', '.join(spec.precisions)}, or give the precision with each model, as in "
                f"{spec.title}-{spec.precisions[0]}.",
            )
        variants = [variant for variant in variants if variant.precision in precisions]
    return [Chosen(variant.key, spec) for variant in variants]


def _require_free_name(spec: ModelSpec, path: Path) -> None:
    """A program is named after its file, so no other model may have that name."""
    for other in catalogue().specs:
        if other.name == spec.name and Path(other.place).resolve() != path.resolve():
            raise ExportError(
                f"{path.name} would be the model {spec.name!r}, but there is already one: {other.place}.",
                "Rename the .pte.",
            )


def _merged(sessions: Iterable[Session]) -> Iterator[Session]:
    """Each session once; identical ones become one, under all their names."""
    by_work: dict[Session, list[Session]] = {}
    for session in sessions:
        by_work.setdefault(session, []).append(session)
    for same in by_work.values():
        names = dict.fromkeys(name for session in same for name in session.entries)
        yield replace(same[0], entries=tuple(names))


class _Planner:
    """Problems are collected, so that a person sees all of them at once."""

    def __init__(self, loaded: Loaded, lab: Lab, plan: Planned) -> None:
        self.loaded = loaded
        self.lab = lab
        self.plan = plan

    def sessions(self, part: Entry, place: Place) -> Iterator[Session]:
        states = SME2_STATES if (part.sme2 or "both") == "both" else (str(part.sme2),)
        chosen = [
            one
            for index, text in enumerate(part.models or ())
            for one in self._chosen(text, part, index, place)
        ]
        for platform in part.platforms or [Platform(name="auto")]:
            for name, given in self._places(platform, states, place):
                for one in chosen:
                    if platform.name == AUTO and name == "emulated" and one.spec.large:
                        self.plan.notes.append(
                            f"{one.key} on emulated is left out: it would take minutes. Ask for it with "
                            "platforms: [emulated]"
                        )
                        continue
                    for threads in part.threads or [1]:
                        yield Session(
                            one.key,
                            name,
                            given,
                            tuple(sorted(self._settings(part, platform, name, threads).items())),
                            one.program,
                            (part.name,) if part.name else (),
                            tuple(part.arms.model_dump(exclude_none=True).items()) if part.arms else (),
                            place,
                        )

    def _chosen(self, text: str, part: Entry, index: int, place: Place) -> list[Chosen]:
        try:
            found = chosen_models(text, part.precisions, self.loaded.path.resolve().parent)
        except Sme2Error as error:
            self._problem((*place, "models", index), error)
            return []
        for one in found:
            # Under whichever name it was given first, so that it is measured once.
            first = self.plan.chosen.setdefault(one.key, one)
            if first.file != one.file:
                same = Sme2Error(
                    f"{one.file} would be the model {one.spec.name!r}, as would {first.file}.",
                    "Rename one of them: results are kept under the name of the program.",
                )
                self._problem((*place, "models", index), same)
                return []
        return [self.plan.chosen[one.key] for one in found]

    def _places(
        self, platform: Platform, states: tuple[str, ...], place: Place
    ) -> list[tuple[str, tuple[str, ...]]]:
        """The platform in the states asked for; for auto, all that work here in the states they offer."""
        if platform.name != AUTO:
            return [(platform.name, states)]
        try:
            here = platforms_here(self.lab.store, states)
        except Sme2Error as error:
            self._problem((*place, "platforms"), error)
            return []
        self.plan.notes += [*here.notes, *map(str, here.left_out)]
        return list(here.platforms.items())

    def _settings(self, part: Entry, platform: Platform, name: str, threads: int) -> dict[str, Any]:
        wishes = {key: getattr(part, key) for key in OF_THE_PLAN}
        if name == "emulated" and any(wishes[key] is not None for key in OF_TIMES):
            self.plan.notes.append(
                "rounds, budget, iterations and warm-up are not used on emulated: its times mean nothing, "
                "and one inference shows kernels and outputs"
            )
            wishes |= dict.fromkeys(OF_TIMES)
        if part.passes is not None and "kernels" not in part.passes:
            wishes["kernel_rounds"] = 0
        wishes |= {key: getattr(platform, key) for key in OF_THE_DEVICE}
        wishes["runner"] = part.runner
        return {"threads": threads, **{key: value for key, value in wishes.items() if value is not None}}

    def shown(self, sessions: Sequence[Session]) -> Iterator[Shown]:
        """What is compared at the end: all pairs, or those that the file names."""
        if self.loaded.experiment.comparisons is None:
            yield from (Shown(session) for session in sessions if session.paired)
            return
        for index, comparison in enumerate(self.loaded.experiment.comparisons):
            matching = [session for session in sessions if self._matches(comparison, session)]
            pairs = [session for session in matching if session.paired]
            if not pairs and not self.plan.problems:
                why = (
                    "only one state of SME2 is measured there, and a comparison needs both"
                    if matching
                    else "no session fits it"
                )
                self._problem(("comparisons", index), Sme2Error(f"compares nothing: {why}."))
            yield from (Shown(session, comparison.label) for session in pairs)

    def _matches(self, comparison: Comparison, session: Session) -> bool:
        if comparison.threads not in (None, session.threads):
            return False
        if comparison.platform not in (None, AUTO, session.platform):
            return False
        if comparison.entry not in (None, *session.entries):
            return False
        if comparison.model is None:
            return True
        try:
            named = chosen_models(comparison.model, None, self.loaded.path.resolve().parent)
        except Sme2Error:
            return False
        return session.variant in [one.key for one in named]

    def _problem(self, place: Place, error: Sme2Error) -> None:
        problem = Problem(place, error.what, error.remedy, line_of(place, self.loaded.lines))
        if problem not in self.plan.problems:
            self.plan.problems.append(problem)


@dataclass(frozen=True)
class Work:
    """How much work a session is: from the fewest rounds to the most."""

    rounds: tuple[int, int]
    processes: tuple[int, int]
    iterations: int
    passes: tuple[str, ...]
    # From the newest session of the same kind here; None if there is none.
    seconds: tuple[float, float] | None


def work_of(session: Session, lab: Lab, seconds_per_round: float | None = None) -> Work:
    """Processes and inferences of a session, and its seconds as far as they are known."""
    plan = session.plan(lab)
    rounds = (plan.rounds, plan.max_rounds if session.paired else plan.rounds)
    passes = tuple(kind for kind in plan.passes if kind != "kernels" or plan.kernel_rounds)
    low, high = (
        len(session.states) * sum(len(plan.passes_of_round(index)) for index in range(count))
        for count in rounds
    )
    seconds = None
    if seconds_per_round is not None:
        shortest, longest = (seconds_per_round * count for count in rounds)
        # A budget ends a session only once it has its fewest rounds.
        seconds = (shortest, max(shortest, min(longest, plan.budget_s)))
    return Work(rounds, (low, high), plan.iterations, passes, seconds)


def seconds_per_round(lab: Lab) -> dict[tuple[str, str, int], float]:
    """What a round took in the newest session of each variant, platform and thread count; empty at first."""
    if not lab.store.warehouse.exists():
        return {}
    rows = lab.warehouse.query(
        "SELECT variant, platform, threads, "
        "arg_max(epoch(finished_at - started_at) / rounds, (coalesce(sequence, 0), started_at)) AS seconds "
        "FROM runs WHERE experiment = 'sme2' GROUP BY ALL"
    )
    return {
        (row["variant"], row["platform"], int(row["threads"])): float(row["seconds"])
        for row in rows.to_dict("records")
    }
