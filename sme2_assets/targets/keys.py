"""The names of platforms, SME2 states, targets and fidelities: plain words, and how they hang together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sme2_assets.errors import Sme2Error

PLATFORMS = ("linux", "mac", "android", "emulated")
# Off before on: the two states of a platform are adjacent partitions, so a pair is one partition range.
SME2_STATES = ("off", "on")

#: `hardware`: native on AArch64. `emulated`: times mean nothing. `reference`: native on another instruction
#: set, where times are real and nothing says anything about SME2.
Fidelity = Literal["hardware", "emulated", "reference"]

# The instruction set that has SME2; what other systems call it.
AARCH64 = "aarch64"
_ALIASES = {"arm64": AARCH64, "amd64": "x86_64", "x64": "x86_64"}


def architecture(machine: str) -> str:
    """The one name of an instruction set, from what `uname -m` and its kin call it."""
    name = machine.lower()
    return _ALIASES.get(name, name)


def native_fidelity(arch: str) -> Fidelity:
    """What native times on an instruction set are worth."""
    return "hardware" if arch == AARCH64 else "reference"


@dataclass(frozen=True)
class TargetKey:
    """A platform with SME2 on or off: one arm of an experiment."""

    platform: str
    sme2: str

    def __str__(self) -> str:
        return f"{self.platform}-sme2_{self.sme2}"

    @classmethod
    def parse(cls, text: str) -> TargetKey:
        platform, separator, sme2 = text.partition("-sme2_")
        if not separator or platform not in PLATFORMS or sme2 not in SME2_STATES:
            raise Sme2Error(
                f"{text!r} is not a target.",
                "Targets are " + ", ".join(str(key) for key in TARGETS) + ".",
            )
        return cls(platform, sme2)


TARGETS = tuple(TargetKey(platform, sme2) for platform in PLATFORMS for sme2 in SME2_STATES)
