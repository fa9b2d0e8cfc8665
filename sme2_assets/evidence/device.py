"""What a device is called, and what times measured on it are worth."""

from __future__ import annotations

import hashlib
import re
from typing import Literal

#: `hardware`: native on AArch64. `emulated`: times mean nothing. `reference`: native on another instruction
#: set, where times are real but say nothing about SME2.
Fidelity = Literal["hardware", "emulated", "reference"]

# The instruction set that has SME2; then what other systems call instruction sets.
AARCH64 = "aarch64"
_ALIASES = {"arm64": AARCH64, "amd64": "x86_64", "x64": "x86_64"}


def architecture(machine: str) -> str:
    """The one name of an instruction set, from what `uname -m` and its kin call it."""
    name = machine.lower()
    return _ALIASES.get(name, name)


def native_fidelity(arch: str) -> Fidelity:
    """What native times on an instruction set are worth."""
    return "hardware" if arch == AARCH64 else "reference"


def device_name(cpu: str, installation: str) -> str:
    """A machine name usable as a key: `neoverse-n1-3f09ac`; no digits if there is nothing to hash."""
    # Vendors put trademarks and clock rates into CPU names.
    plain = re.sub(r"\((?:R|TM|C)\)|@.*|\b(?:CPU|Processor)\b", " ", cpu, flags=re.IGNORECASE)
    words = re.findall(r"[a-z0-9]+", plain.lower())
    digits = [hashlib.sha256(installation.encode()).hexdigest()[:6]] if installation else []
    return "-".join([*words[:6], *digits]) or "unknown"
