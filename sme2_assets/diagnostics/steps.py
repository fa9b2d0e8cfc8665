"""The one way to take a step that people watch: how it ended, what it found, and if it failed, what to do."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from sme2_assets.errors import Sme2Error

if TYPE_CHECKING:
    from sme2_assets.toolchain import Availability

PASSED, FAILED, NOTE, NOT_REACHED = "passed", "failed", "note", "not reached"


@dataclass
class CheckStep:
    """One step. A note is worth knowing, but not a failure."""

    name: str
    status: str = NOT_REACHED
    seconds: float = 0.0
    detail: str = ""
    problem: str | None = None
    remedy: str | None = None

    @property
    def ok(self) -> bool:
        return self.status in (PASSED, NOTE)

    def note(self, problem: str, remedy: str | None = None) -> None:
        self.status, self.problem, self.remedy = NOTE, problem, remedy


class _Stopped(Exception):
    """A step failed that the others depend on."""


@dataclass
class Checkup:
    """All steps of one thing, in order. `watch` gets each as it ends."""

    what: str
    kind: str
    watch: Callable[[CheckStep], None] = lambda step: None
    steps: list[CheckStep] = field(default_factory=list)
    _stops: bool = False

    @property
    def ok(self) -> bool:
        return bool(self.steps) and all(step.ok for step in self.steps)

    @property
    def failed(self) -> list[CheckStep]:
        return [step for step in self.steps if step.status == FAILED]

    @property
    def seconds(self) -> float:
        return round(sum(step.seconds for step in self.steps), 3)

    def expect(self, *names: str) -> None:
        """Names the steps to come; if an earlier one stops the checkup, they stay not reached."""
        known = {step.name for step in self.steps}
        self.steps += [CheckStep(name) for name in names if name not in known]

    @contextmanager
    def step(self, name: str, *, optional: bool = False) -> Iterator[CheckStep]:
        """Takes a step: it fails on an Sme2Error, and otherwise passes unless the block says something else.

        An optional step that fails is a note.
        """
        step = next((it for it in self.steps if it.name == name and it.status == NOT_REACHED), None)
        if step is None:
            step = CheckStep(name)
            self.steps.append(step)
        begun = time.perf_counter()
        try:
            yield step
            if step.status == NOT_REACHED:
                step.status = PASSED
        except Sme2Error as error:
            step.status = NOTE if optional else FAILED
            step.problem, step.remedy = error.what, error.remedy
        step.seconds = round(step.seconds or time.perf_counter() - begun, 3)
        self.watch(step)
        if self._stops and step.status == FAILED:
            raise _Stopped

    @contextmanager
    def until_a_failure(self) -> Iterator[None]:
        """Within the block, the first step that fails is the last one."""
        self._stops = True
        try:
            yield
        except _Stopped:
            for step in self.steps:
                if step.status == NOT_REACHED:
                    self.watch(step)
        finally:
            self._stops = False

    def as_json(self) -> dict[str, Any]:
        steps = [asdict(step) for step in self.steps]
        return {"what": self.what, "kind": self.kind, "ok": self.ok, "seconds": self.seconds, "steps": steps}


def detail_of(found: Availability) -> str:
    """The detail of an availability; an error with its remedy if the thing is missing."""
    if not found.ok:
        raise Sme2Error(found.detail, found.remedy)
    return found.detail
