"""The names of platforms, SME2 states and targets, and how they relate."""

from __future__ import annotations

from dataclasses import dataclass

from sme2_assets.errors import Sme2Error

PLATFORMS = ("linux", "mac", "android", "emulated")
# Off before on: the two states of a platform are adjacent partitions, so a pair is one partition range.
SME2_STATES = ("off", "on")


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
