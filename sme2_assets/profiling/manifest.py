"""`manifest.json` of a profile run: what was measured, where, and how it came about.

Three parts, which never mix: `identity` is what is compared, `context` is where it ran, `info` is
how it came to be. All provenance is here; the warehouse's `runs` table is filled from it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from sme2_assets.errors import Sme2Error
from sme2_assets.store import write_json
from sme2_assets.targets.host import device_name
from sme2_assets.targets.keys import architecture, native_fidelity

SCHEMA = 3
FILE_NAME = "manifest.json"
# Files of a run folder: what the model's operators are, and per process what its pass gives.
OPERATORS_FILE = "operators.json"
DELEGATION_FILE = "delegation.json"
RESULT_FILE = "result.json"
TRACE_FILE = "trace.etdump"
SAMPLES_FILE = "samples.json"
LOG_FILE = "runner.log"
# What older manifests call any host.
_EVERY_HOST = "host-cpu"
# Samples are attributed by the trace of their own process.
TRACED_PASSES = ("etdump", "kernels")


@dataclass(frozen=True)
class Identity:
    """What is compared: two runs of one comparison differ here in `sme2` alone."""

    variant: str
    model: str
    precision: str
    platform: str
    sme2: str
    threads: int
    pte_sha256: str
    runner_sha256: str
    # What both arms' runners share: the same hash for one binary, and for two that were built as a pair.
    runner_pair: str = ""
    # The CPUs the runner was bound to, e.g. "4-7", or its QoS class on macOS; empty: neither.
    cpus: str = ""
    power_mode: str = ""


@dataclass(frozen=True)
class Context:
    """Where it ran."""

    fidelity: str
    device: str
    machine: dict[str, Any]
    cpu: dict[str, Any]
    load_before: float | None
    load_after: float | None
    # What the power mode set, and whether it took.
    power: dict[str, Any] = field(default_factory=dict)

    @property
    def arch(self) -> str:
        """The instruction set that was executed: an emulator's is the one it emulates."""
        return architecture(self.machine["arch"])

    @classmethod
    def of_any_age(cls, raw: dict[str, Any]) -> Context:
        """As it would be written now: once every host was the device `host-cpu`, and of hardware."""
        context = cls(**raw)
        if context.device != _EVERY_HOST:
            return context
        fidelity = context.fidelity if context.fidelity == "emulated" else native_fidelity(context.arch)
        # Which host it was nobody knows any more; its CPU at least keeps unlike ones apart.
        return replace(context, fidelity=fidelity, device=device_name(context.machine["cpu"], ""))


@dataclass(frozen=True)
class Process:
    """One runner process."""

    round: int
    order: int
    pass_kind: str
    directory: str
    command: list[str]
    exit_code: int
    seconds: float
    # What was set besides the environment of the session's own process.
    environment: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Moment:
    """The machine before or after a round, as both arms met it."""

    round: int
    moment: str
    snapshot: dict[str, Any]
    flags: list[str]


@dataclass(frozen=True)
class Info:
    """How it came to be."""

    started_at: str
    finished_at: str
    seed: int
    plan: dict[str, Any]
    versions: dict[str, str]
    # Each output against the eager model's, as analysis.numerics.Agreement; empty without such a model.
    agreements: list[dict[str, Any]]
    # The worst of them; None without an eager model. The threshold also holds between the arms.
    sqnr_db: float | None
    sqnr_threshold_db: float
    # Outputs of this arm against the other's; None when it was measured alone.
    arms_sqnr_db: float | None
    output_sha256: str
    # Whether every process ended its warm-up on a steady series; None when warm-up was of fixed length.
    steady: bool | None
    processes: list[Process]
    environment: list[Moment]
    file_sha256: dict[str, str] = field(default_factory=dict)

    @property
    def flags(self) -> list[str]:
        """What was wrong with the machine around any round."""
        return sorted({flag for moment in self.environment for flag in moment.flags})


@dataclass(frozen=True)
class Manifest:
    """The provenance of one profile run."""

    run_id: str
    session_id: str
    # `sme2`: the arms differ in the SME2 state. `aa`: both arms are the same, to learn the noise.
    experiment: str
    arm: str
    paired: bool
    identity: Identity
    context: Context
    info: Info
    schema: int = SCHEMA

    def write(self, directory: Path) -> None:
        write_json(directory / FILE_NAME, asdict(self))

    @classmethod
    def read(cls, directory: Path) -> Manifest:
        path = directory / FILE_NAME
        try:
            raw = json.loads(path.read_text())
            if raw["schema"] != SCHEMA:
                raise Sme2Error(
                    f"{path} has schema {raw['schema']}, this version reads {SCHEMA}.",
                    "Measure again with this version.",
                )
            info = dict(raw["info"])
            info["processes"] = [Process(**process) for process in info["processes"]]
            info["environment"] = [Moment(**moment) for moment in info["environment"]]
            return cls(
                run_id=raw["run_id"],
                session_id=raw["session_id"],
                experiment=raw["experiment"],
                arm=raw["arm"],
                paired=raw["paired"],
                identity=Identity(**raw["identity"]),
                context=Context.of_any_age(raw["context"]),
                info=Info(**info),
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise Sme2Error(
                f"{path} is not a run manifest: {error}.",
                "Materialise etdump_traces for this partition again.",
            ) from error
