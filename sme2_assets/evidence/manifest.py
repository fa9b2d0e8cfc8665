"""`manifest.json` of a profile run: what was measured, where, and how it came about.

Three parts, which never mix: `identity` is what is compared, `context` is where it ran, `info` is
how it came about. All provenance is here; the warehouse's `runs` table is filled from it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field, StrictStr

from sme2_assets.evidence.device import Fidelity, architecture, device_name, native_fidelity
from sme2_assets.evidence.digits import beside
from sme2_assets.evidence.documents import (
    Count,
    Document,
    Flag,
    Name,
    Number,
    Part,
    PathInside,
    Sequence,
    Text,
    Time,
)
from sme2_assets.evidence.result import PassKind
from sme2_assets.store import write_text_atomically

MANIFEST_FILE = "manifest.json"


class Identity(Part):
    """What is compared: here, two runs of one comparison differ in their factor alone."""

    variant: Text
    model: Text
    precision: Text
    platform: Text
    sme2: Text
    threads: Count
    pte_sha256: Text
    runner_sha256: Text
    # Equal for both arms' runners if they are one binary, or two that were built as a pair.
    runner_pair: StrictStr = ""
    # The CPUs that the runner was bound to, e.g. "4-7", or its QoS class on macOS; empty if neither.
    cpus: StrictStr = ""
    power_mode: StrictStr = ""
    # Of the program; the default is what all runs used before it was recorded.
    method: Text = "forward"


class Context(Part):
    """Where it ran."""

    fidelity: Fidelity
    device: Text
    machine: dict[str, Any]
    cpu: dict[str, Any]
    load_before: Number | None
    load_after: Number | None
    # What the power mode set, and whether it took effect.
    power: dict[str, Any] = Field(default_factory=dict)

    @property
    def arch(self) -> str:
        """The instruction set that was executed: for an emulator, the one it emulates."""
        return architecture(self.machine["arch"])


class Process(Part):
    """One runner process."""

    round: Count
    order: Count
    pass_kind: PassKind
    directory: PathInside
    command: list[StrictStr]
    exit_code: int
    seconds: Number
    # What was set in addition to the environment of the session's own process.
    environment: dict[str, StrictStr] = Field(default_factory=dict)


class Moment(Part):
    """The machine before or after a round, the same for both arms."""

    round: Count
    moment: Text
    snapshot: dict[str, Any]
    flags: list[StrictStr]


class Info(Part):
    """How it came about."""

    started_at: Time
    finished_at: Time
    seed: Count
    plan: dict[str, Any]
    versions: dict[str, StrictStr]
    # Each output against the eager model's, as numerics.Agreement; empty without such a model.
    agreements: list[dict[str, Any]]
    # The worst of them; None without an eager model.
    sqnr_db: Number | None
    sqnr_threshold_db: Number
    # Why an output is not the eager model's; None if all are, and in runs that were judged by SQNR alone.
    eager_fault: StrictStr | None = None
    # Outputs of this arm against the other's; None if it was measured alone.
    arms_sqnr_db: Number | None
    output_sha256: Text
    # Whether nearly every process was steady after warm-up; None if warm-up was a number of inferences.
    steady: Flag | None
    processes: list[Process]
    environment: list[Moment]
    file_sha256: dict[PathInside, Text]

    @property
    def wrong(self) -> str | None:
        """Why the outputs are not the eager model's, or None."""
        if self.eager_fault or self.sqnr_db is None or self.sqnr_db >= self.sqnr_threshold_db:
            return self.eager_fault
        return f"{beside(self.sqnr_db, self.sqnr_threshold_db, 1)} dB, {self.sqnr_threshold_db:g} dB needed"

    @property
    def flags(self) -> list[str]:
        """What was wrong with the machine around any round."""
        return sorted({flag for moment in self.environment for flag in moment.flags})

    @property
    def watched(self) -> bool:
        """Whether somebody saw what else the machine did, around every round; else no flag tells nothing."""
        seen = [moment.snapshot.get("other_cores") is not None for moment in self.environment]
        return bool(seen) and all(seen)


def _arms_are_named(v1: dict[str, Any]) -> dict[str, Any]:
    """Version 2 names the experiment and its arms, and records the machine around every round."""
    info = {**v1["info"], "arms_sqnr_db": None, "steady": None, "environment": []}
    return {**v1, "experiment": "sme2", "arm": v1["identity"]["sme2"], "info": info}


def _outputs_are_listed(v2: dict[str, Any]) -> dict[str, Any]:
    """Version 3 compares each output on its own, not all of them as one."""
    return {**v2, "info": {**v2["info"], "agreements": []}}


def _devices_have_names(v3: dict[str, Any]) -> dict[str, Any]:
    """Version 4 tells hosts apart; before, every host was `host-cpu`, with fidelity `hardware`."""
    context = v3["context"]
    if context["device"] != "host-cpu":
        return v3
    fidelity = context["fidelity"]
    if fidelity != "emulated":
        fidelity = native_fidelity(architecture(context["machine"]["arch"]))
    # Which host it was is no longer known; its CPU at least keeps different ones apart.
    device = device_name(context["machine"]["cpu"], "")
    return {**v3, "context": {**context, "fidelity": fidelity, "device": device}}


def _sessions_are_numbered(v4: dict[str, Any]) -> dict[str, Any]:
    """Version 5 orders sessions by numbers; earlier ones count as the oldest, in the order of their clock."""
    return {**v4, "sequence": 0}


def _arms_are_counted(v5: dict[str, Any]) -> dict[str, Any]:
    """Version 6 allows more than two arms in a session, and arms that differ in something other than SME2."""
    paired = v5["paired"]
    factor = "sme2" if paired and v5["experiment"] == "sme2" else None
    return {name: v for name, v in v5.items() if name != "paired"} | {"arms": 1 + paired, "factor": factor}


class Manifest(Document):
    """The provenance of one profile run."""

    VERSION: ClassVar[int] = 6
    UPGRADES: ClassVar = {
        1: _arms_are_named,
        2: _outputs_are_listed,
        3: _devices_have_names,
        4: _sessions_are_numbered,
        5: _arms_are_counted,
    }
    REMEDY: ClassVar[str] = "Restore that folder from a copy; if there is none, remove it and measure again."

    run_id: Name
    session_id: Name
    # Larger than the number of every session that was here when this one ended (sequence.py).
    sequence: Sequence
    # `sme2`: the arms differ in the SME2 state. `arms`: they differ in another factor. `aa`: both are the
    # same, to measure the noise.
    experiment: Text
    # What the arms differ in (analysis.factors); None for one arm, and for identical ones.
    factor: Text | None
    arm: Text
    # How many arms were measured together.
    arms: Count
    identity: Identity
    context: Context
    info: Info

    @property
    def paired(self) -> bool:
        return self.arms > 1

    def write(self, directory: Path) -> None:
        write_text_atomically(directory / MANIFEST_FILE, self.to_json())
