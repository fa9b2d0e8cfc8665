"""The CPUs that are emulated: their shape, which is what they have beside SME2, and the length of vectors.

Belongs here: their names, and how the emulator is asked for them. Does not: where it comes from (qemu).
"""

from __future__ import annotations

from dataclasses import dataclass

from sme2_assets.errors import Sme2Error, did_you_mean

SCHEME = "emulated:"
#: In place of a shape: each of them.
EACH = "all"
#: By shape, what is set of QEMU's `max`, which has everything that QEMU has. `m4` is Apple's: no SVE outside
#: streaming mode. `c1` is Arm's: there SVE has 128 bits.
SHAPES = {"m4": ("sve=off",), "c1": ("sve128=on",), "max": ()}
LENGTHS = (128, 256, 512, 1024, 2048)


@dataclass(frozen=True)
class EmulatedCpu:
    """A CPU with SME2, and streaming vectors of this length."""

    shape: str = "max"
    vector_bits: int = 512

    def __str__(self) -> str:
        return f"{SCHEME}{self.shape}:{self.vector_bits}"

    @property
    def option(self) -> str:
        """For QEMU's `-cpu`."""
        return ",".join(("max", *SHAPES[self.shape], f"sme{self.vector_bits}=on"))


#: Every known device with SME2 has streaming vectors of 512 bits. QEMU's own default is 256.
DEFAULT = EmulatedCpu()


def emulated_cpus(text: str) -> list[EmulatedCpu]:
    """The CPUs that an address means: `emulated:m4`, `emulated:m4:256`, or each shape with `emulated:all`."""
    shape, colon, length = text.removeprefix(SCHEME).partition(":")
    shapes = list(SHAPES) if shape == EACH else [shape]
    if not text.startswith(SCHEME) or shapes[0] not in SHAPES:
        known = [SCHEME + each for each in (*SHAPES, EACH)]
        raise Sme2Error(
            f"{text!r} is not an emulated device{did_you_mean(text, known)}.",
            f"Emulated devices are {', '.join(known)}; a length of vectors may follow, as in {SCHEME}m4:256.",
        )
    bits = length if colon else str(DEFAULT.vector_bits)
    if bits not in map(str, LENGTHS):
        raise Sme2Error(
            f"{text!r} is not an emulated device: streaming vectors cannot have {bits!r} bits.",
            f"They have {', '.join(map(str, LENGTHS))}; unless one is named, {DEFAULT.vector_bits}.",
        )
    return [EmulatedCpu(each, int(bits)) for each in shapes]


def emulated_cpu(text: str | None) -> EmulatedCpu:
    """The one CPU that an address means; without one, the default."""
    if text is None:
        return DEFAULT
    [cpu, *others] = emulated_cpus(text)
    if others:
        raise Sme2Error(
            f"{text!r} is {1 + len(others)} devices, and this measures on one.",
            f"Choose one, e.g. {cpu}. `sme2 profile` measures on each of them.",
        )
    return cpu
