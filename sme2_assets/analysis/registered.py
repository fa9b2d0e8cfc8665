"""Kernels that XNNPACK said it would use: the log of a runner built from source.

XNNPACK prints `Using <what> microkernel '<name>'.` when it fills a table of kernels, once per table and
process. Such a line proves that a kernel is registered for this CPU. It does not prove that the model ran it,
and a log has no lines for tables that were filled before it began.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from sme2_assets.analysis.kernel_names import KernelName, parse_kernel
from sme2_assets.errors import TraceError


@dataclass(frozen=True)
class RegisteredKernel:
    operator: str
    """What the table is for, in XNNPACK's words: `gemm`, `binary`, `dwconv unipass`."""
    kernel: str
    """The kernel's name as printed."""
    name: KernelName


# Prefixes (`Note (XNNPACK): `, a logcat column, a time) and the closing dot vary by build and platform.
_LINE = re.compile(
    r"\bUsing\s+(?P<operator>[^\n'\"`]{1,80}?)\s+(?:micro-?kernel|ukernel)\s+"
    r"(?P<quote>['\"`])(?P<kernel>[^\s'\"`]{1,400})(?P=quote)",
    re.IGNORECASE,
)

_BUILD_NEEDED = (
    "Use a runner built from source with XNNPACK's log compiled in at level info or more (XNN_LOG_LEVEL=4 as "
    "a compile definition of XNNPACK; as an environment variable it does nothing), and keep its whole "
    "standard error, or logcat on Android. The library of the installed wheel prints no such line; there the "
    "kernels pass shows which kernels ran."
)


def registered_kernels(log_text: str) -> list[RegisteredKernel]:
    """The registered kernels of a log, each once, in the order of their first line."""
    found = dict.fromkeys(
        (" ".join(match["operator"].split()), match["kernel"]) for match in _LINE.finditer(log_text)
    )
    return [RegisteredKernel(operator, kernel, parse_kernel(kernel)) for operator, kernel in found]


def require_registered(log_text: str, source: str) -> list[RegisteredKernel]:
    """Like `registered_kernels`, but a log without any is an error: it proves nothing, not even absence."""
    kernels = registered_kernels(log_text)
    if not kernels:
        state = "is empty" if not log_text.strip() else "names no microkernel"
        raise TraceError(f"The trace log {source} {state}.", _BUILD_NEEDED)
    return kernels
