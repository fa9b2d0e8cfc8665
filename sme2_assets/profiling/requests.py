"""What can be measured on this machine, and what is measured when somebody asks for a model.

Belongs here: requests, and the platforms and states available to serve them. Does not: running them (launch,
the nightly schedule).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from sme2_assets.errors import Sme2Error
from sme2_assets.models.registry import is_large
from sme2_assets.store import Store
from sme2_assets.targets import PLATFORMS, SME2_STATES, Target, TargetKey, open_target
from sme2_assets.targets.host import host_platform
from sme2_assets.targets.inventory import platform_of, read_inventory, with_names_alone
from sme2_assets.targets.shapes import emulated_cpus

AUTO = "auto"


@dataclass(frozen=True)
class ProfileRequest:
    """A model on a platform in one or both SME2 states, on a device where one is named."""

    variant: str
    platform: str
    states: tuple[str, ...]
    device: str | None = None

    @property
    def targets(self) -> list[TargetKey]:
        return [TargetKey(self.platform, sme2) for sme2 in self.states]

    @property
    def place(self) -> str:
        return self.device or self.platform


@dataclass(frozen=True)
class LeftOut:
    """Something that should have been measured and was not, and why."""

    what: str
    error: Sme2Error
    requests: tuple[ProfileRequest, ...] = ()

    def __str__(self) -> str:
        return f"{self.what} was left out: {self.error}"


@dataclass(frozen=True)
class Here:
    """What this machine can measure: each platform with the states it offers.

    `notes` say what it inherently cannot offer, such as SME2 without the CPU for it; `left_out` what it could
    offer if something were fixed.
    """

    platforms: dict[str, tuple[str, ...]]
    notes: list[str]
    left_out: list[LeftOut]


@dataclass(frozen=True)
class Requests:
    """What to measure, what inherently cannot be, and what cannot because something is broken."""

    requests: list[ProfileRequest]
    notes: list[str]
    left_out: list[LeftOut]


def requests_asked_for(
    store: Store,
    variants: Sequence[str],
    platform_name: str = AUTO,
    states: tuple[str, ...] = SME2_STATES,
    device: str | None = None,
    *,
    aa: bool = False,
    threads: int = 1,
    cpus: str | None = None,
) -> Requests:
    """The requests when a platform, a device, both or neither is named; `aa` asks for noise.

    Platforms that do not have these CPUs, or CPUs for that many threads, are left out.
    """
    if platform_name == AUTO and device is not None:
        platform_name = platform_of(store, device)
    if platform_name == AUTO:
        wanted = requests_for_this_machine(store, variants, states)
        if aa:
            wanted = _timed(wanted)
    else:
        devices: list[str | None] = [device]
        if device is not None and platform_name == "emulated":
            devices = [str(cpu) for cpu in emulated_cpus(device)]
        on_each = [requests_for(store, variants, platform_name, states, one) for one in devices]
        wanted = replace(on_each[0], requests=[request for on in on_each for request in on.requests])
    return _with_room(store, wanted, threads, cpus) if threads > 1 or cpus else wanted


def _timed(wanted: Requests) -> Requests:
    # Emulated times mean nothing, so they have no noise either.
    timed = [request for request in wanted.requests if request.platform != "emulated"]
    if not timed:
        raise Sme2Error(
            "Nothing here has times whose noise could be measured for SME2.",
            "Measure on an AArch64 machine or a phone, or name a platform with --platform.",
        )
    return replace(wanted, requests=timed, left_out=[])


def _with_room(store: Store, wanted: Requests, threads: int, cpus: str | None) -> Requests:
    left_out: dict[str, LeftOut] = {}
    for request in {request.place: request for request in wanted.requests}.values():
        target = open_target(request.platform, store, request.device)
        try:
            # Of several devices one that has them.
            for sme2 in request.states:
                target.require(sme2)
            require_room(target, threads, cpus or "")
        except Sme2Error as error:
            left_out[request.place] = LeftOut(request.place, error)
    fitting = [request for request in wanted.requests if request.place not in left_out]
    if not fitting:
        raise next(iter(left_out.values())).error
    return replace(wanted, requests=fitting, left_out=[*wanted.left_out, *left_out.values()])


def require_room(target: Target, threads: int, cpus: str = "", power: str = "") -> None:
    """Refuses what the device does not have: threads beyond its CPUs, CPUs, power modes."""
    chosen = target.cpus(cpus) if cpus else ()
    if power and target.platform != "android":
        raise Sme2Error(
            f"{target.platform} has no power modes.",
            "Leave --power out: they are settings of Android devices.",
        )
    # Where no time is read, threads may share a CPU: they use the same kernels.
    if threads == 1 or target.fidelity == "emulated":
        return
    room = len(chosen) or target.facts().cores
    if threads > room:
        raise Sme2Error(
            f"{threads} threads do not fit on {room} CPU{'s' if room > 1 else ''} of "
            f"{target.device}: they would wait for one another.",
            f"Give at most {room}. Which kernels more threads take can be seen with --platform emulated.",
        )


def requests_for(
    store: Store,
    variants: Sequence[str],
    platform_name: str,
    states: tuple[str, ...],
    device: str | None = None,
) -> Requests:
    """A platform requested by name must offer every requested state.

    A reference has no SME2 states, and a machine may have no SME2: there the default pair becomes one run.
    Emulation has both states or none.
    """
    target = open_target(platform_name, store, device)
    notes = []
    if states == SME2_STATES and platform_name != "emulated" and target.availability("off").ok:
        on = target.availability("on")
        if not on.ok:
            states = ("off",)
            what = "a reference" if target.fidelity == "reference" else "measured with SME2 off alone"
            notes.append(f"{device or platform_name} is {what} here: {on.detail}")
    for sme2 in states:
        target.require(sme2)
    requests = [ProfileRequest(variant, platform_name, states, device) for variant in variants]
    return Requests(requests, notes, [])


def requests_on_devices(
    store: Store, variants: Sequence[str], states: tuple[str, ...], choices: Sequence[str]
) -> Requests:
    """Each device of the inventory that a name or label matches, in the states it offers."""
    inventory = read_inventory(store)
    chosen = {name: entry for choice in choices for name, entry in inventory.chosen(choice).items()}
    wanted = Requests([], [], [])
    for name, entry in chosen.items():
        if entry.is_elsewhere:
            given = tuple(sme2 for sme2 in states if sme2 == "off" or entry.has_sme2)
            wanted.requests.extend(
                ProfileRequest(variant, entry.platform, given, name) for variant in variants
            )
            continue
        target = entry.target(store.tools)
        answers = {sme2: target.availability(sme2) for sme2 in states}
        given = tuple(sme2 for sme2, answer in answers.items() if answer.ok)
        missing = [
            with_names_alone(store, f"{answer.detail} {answer.remedy or ''}".strip())
            for answer in answers.values()
            if not answer.ok
        ]
        if given:
            wanted.requests.extend(
                ProfileRequest(variant, entry.platform, given, name) for variant in variants
            )
            wanted.notes.extend(f"{name} with SME2 {' and '.join(given)} alone: {why}" for why in missing)
        else:
            wanted.left_out.append(LeftOut(name, Sme2Error(missing[0], "Run `sme2 devices`.")))
    return wanted


def requests_for_this_machine(
    store: Store, variants: Sequence[str], states: tuple[str, ...], named: Sequence[str] = ()
) -> Requests:
    """Every platform that says something about SME2, in the states it offers here.

    If platforms are named, only these, including a reference.
    """
    here = platforms_here(store, states, named)
    notes = list(here.notes)
    requests: list[ProfileRequest] = []
    for name, given in here.platforms.items():
        for variant in variants:
            if name == "emulated" and is_large(variant):
                notes.append(
                    f"{variant} on emulated is left out: it would take minutes. "
                    "Ask for it with --platform emulated."
                )
            else:
                requests.append(ProfileRequest(variant, name, given))
    if not requests:
        raise Sme2Error(
            f"Here {', '.join(variants)} can only be emulated, which would take minutes.",
            "Ask for it with --platform emulated.",
        )
    return Requests(requests, notes, here.left_out)


def platforms_here(store: Store, states: tuple[str, ...], named: Sequence[str] = ()) -> Here:
    """Each platform that can be measured here and says something about SME2, with the states it offers.

    If platforms are named, only these, including a reference.
    """
    platforms: dict[str, tuple[str, ...]] = {}
    notes: list[str] = []
    left_out: list[LeftOut] = []
    for name in named or PLATFORMS:
        target = open_target(name, store)
        availability = {sme2: target.availability(sme2) for sme2 in states}
        given = tuple(sme2 for sme2 in states if availability[sme2].ok)
        missing = {sme2: it for sme2, it in availability.items() if not it.ok}
        if target.fidelity == "reference" and name not in named:
            if given:
                notes.append(
                    f"{name} is left out: {availability[given[0]].detail}. Ask for it with --platform {name}."
                )
        elif given:
            platforms[name] = given
            notes += [
                f"{name} with SME2 {sme2} is left out: {it.detail} {it.remedy or ''}".strip()
                for sme2, it in missing.items()
            ]
        # Nobody would expect a platform of another operating system here.
        elif name == "emulated" and host_platform() == "linux":
            it = next(iter(missing.values()))
            left_out.append(LeftOut(name, Sme2Error(it.detail, it.remedy)))
    if not platforms:
        what = f"None of the platforms {', '.join(named)}" if named else "No platform"
        causes = " ".join(f"{each.what} was left out: {each.error.what}" for each in left_out)
        remedies = dict.fromkeys(each.error.remedy for each in left_out if each.error.remedy)
        raise Sme2Error(
            f"{what} can be measured here. {causes}".strip(), " ".join(remedies) or "Run `sme2 doctor`."
        )
    return Here(platforms, notes, left_out)


def causes_of(failures: Mapping[ProfileRequest, Sme2Error]) -> list[LeftOut]:
    """One entry for each cause, with everything that it affected."""
    by_cause: dict[str, list[ProfileRequest]] = {}
    for request, error in failures.items():
        by_cause.setdefault(str(error), []).append(request)
    return [
        LeftOut(
            f"{', '.join(_distinct(request.variant for request in lost))} on "
            f"{' and '.join(_distinct(request.place for request in lost))}",
            failures[lost[0]],
            tuple(lost),
        )
        for lost in by_cause.values()
    ]


def _distinct(items: Iterable[str]) -> list[str]:
    """Each item once, in order of first appearance."""
    return list(dict.fromkeys(items))
