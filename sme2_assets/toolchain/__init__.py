"""What is fetched to build and to run: Debian's packages, QEMU, a cross compiler, ExecuTorch's C++ SDK.

Belongs here: finding such a thing or getting it without root, and reading what kind of program a file is.
Does not: what is built with it (runner), where that runs (targets).
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Availability:
    """Whether something is here; if not, what is missing and what to do."""

    ok: bool
    detail: str
    remedy: str | None = None
