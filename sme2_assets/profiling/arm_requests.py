"""Requests for a comparison: arms that differ in one thing, and where they are measured.

Belongs here: finding what arms differ in before anything is exported, and refusing what gives no verdict.
Does not: measuring them (session), judging them (analysis.comparison).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from string import ascii_lowercase

from sme2_assets.errors import Sme2Error
from sme2_assets.models.registry import model_spec, parse_variant
from sme2_assets.profiling.requests import LeftOut, requests_for, requests_for_this_machine, require_room
from sme2_assets.store import Store
from sme2_assets.targets import SME2_STATES, open_target
from sme2_assets.toolchain.sdk import require_sdk


@dataclass(frozen=True)
class ArmRequest:
    """One arm: a model, and how it is run."""

    variant: str
    threads: int = 1
    cpus: str = ""
    power: str = ""
    # Empty: on, where there is SME2.
    sme2: str = ""
    # The version that runs the program; empty: the installed one.
    executorch: str = ""

    @property
    def things(self) -> dict[str, str]:
        """Everything that could be the factor, under the name people know it by."""
        variant = parse_variant(self.variant)
        spec = model_spec(variant.model)
        return {
            "model": spec.name,
            **{f"option {name}": str(value) for name, value in spec.values},
            "precision": variant.precision,
            "threads": str(self.threads),
            "cpus": self.cpus or "any",
            "power": self.power or "as it is",
            "sme2": self.sme2,
            "executorch": self.executorch,
        }


@dataclass(frozen=True)
class ArmsRequest:
    """Arms to measure as one session on a platform, and the factor they differ in."""

    factor: str
    # Each with an SME2 state.
    arms: tuple[ArmRequest, ...]
    platform: str
    device: str | None = None


def arms_of(
    variants: Sequence[str],
    threads: Sequence[int] = (1,),
    cpus: Sequence[str] = ("",),
    power: Sequence[str] = ("",),
    sme2: Sequence[str] = ("",),
    executorch: Sequence[str] = ("",),
) -> tuple[str, tuple[ArmRequest, ...]]:
    """The one thing that the resulting arms differ in, and the arms in order; otherwise an error."""
    arms = tuple(ArmRequest(*each) for each in product(variants, threads, cpus, power, sme2, executorch))
    things = [arm.things for arm in arms]
    names = dict.fromkeys(name for each in things for name in each)
    values = {name: [each.get(name, "its default") for each in things] for name in names}
    differing = {name: list(dict.fromkeys(found)) for name, found in values.items() if len(set(found)) > 1}
    if not differing:
        raise Sme2Error(
            f"There is nothing to compare: {arms[0].variant} is given alone, or twice.",
            "Give a second model, several precisions, or a list such as --threads 1,2. `sme2 profile` "
            "compares SME2 on with off, and with --aa a model with itself.",
        )
    if len(differing) > 1:
        said = " and ".join(f"{name} ({', '.join(found)})" for name, found in differing.items())
        raise Sme2Error(
            f"The arms differ in {said}: nobody could tell which of these made the difference.",
            "Let them differ in one of these; make a comparison for each.",
        )
    if len(set(arms)) < len(arms):
        raise Sme2Error(
            f"There are {len(arms)} arms, of which only {len(set(arms))} differ.",
            "Give each value of an option, and each model, once.",
        )
    if len(arms) > len(ascii_lowercase):
        raise Sme2Error(
            f"There are {len(arms)} arms: more than {len(ascii_lowercase)} are not measured as one session.",
            "Give fewer; make a comparison of each part.",
        )
    [factor] = differing
    if factor != "executorch" and arms[0].executorch:
        raise Sme2Error(
            f"All arms have ExecuTorch {arms[0].executorch}, and differ in {factor}.",
            "Leave --executorch out, or give one model and two versions: other comparisons are of the "
            "installed version.",
        )
    for arm in arms:
        if arm.executorch:
            require_sdk(arm.executorch)
    return "option" if factor.startswith("option ") else factor, arms


def places_of(
    store: Store,
    arms: Sequence[ArmRequest],
    factor: str,
    platform: str | None = None,
    device: str | None = None,
) -> tuple[list[ArmsRequest], list[str], list[LeftOut]]:
    """Where the arms are measured, with notes and what is left out; an error if nowhere.

    Without a platform: on each one here that says something about SME2. Without a state: with SME2 on where
    the platform has it. All arms have the same state: `sme2 profile` measures arms that differ in it.
    """
    variants = list(dict.fromkeys(arm.variant for arm in arms))
    states = (arms[0].sme2,) if arms[0].sme2 else SME2_STATES
    if platform is None:
        wanted = requests_for_this_machine(store, variants, states)
    else:
        target = open_target(platform, store, device)
        given = tuple(state for state in states if target.availability(state).ok)
        wanted = requests_for(store, variants, platform, given or states[-1:], device)
    places = []
    for name in dict.fromkeys(request.platform for request in wanted.requests):
        here = [request for request in wanted.requests if request.platform == name]
        # A variant that is too large for the emulator leaves nothing to compare the others with.
        if len(here) == len(variants):
            state = here[0].states[-1]
            target = open_target(name, store, device)
            # Of several devices one that has it.
            target.require(state)
            for arm in arms:
                require_room(target, arm.threads, arm.cpus, arm.power)
            places.append(ArmsRequest(factor, tuple(replace(arm, sme2=state) for arm in arms), name, device))
    if not places:
        raise Sme2Error(
            f"There is no platform here that measures all of {', '.join(variants)}: emulating the large "
            "ones would take minutes.",
            "Ask for it with --platform emulated.",
        )
    return places, wanted.notes, wanted.left_out
